// linear_groups_hopper as linear_groups_tile: its tiles have 256 rows, and four of its 20 warps bring what the others
// multiply.
#define linear_groups_tile linear_groups_hopper
#define ROW_WARPS 8
#define TOKEN_WARPS 2
#define MORE_THREADS 128
#include "linear_groups_tile.cpp"
