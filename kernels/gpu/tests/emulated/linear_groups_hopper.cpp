// linear_groups_hopper as linear_groups_tile: its tiles have 256 rows, and 16 warps.
#define linear_groups_tile linear_groups_hopper
#define ROW_WARPS 8
#define TOKEN_WARPS 2
#include "linear_groups_tile.cpp"
