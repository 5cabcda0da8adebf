// moe_groups_hopper as moe_groups_few: a block has 256 rows and more choices, and one block or two share an expert's.
#define HOPPER
#include "moe_groups_few.cpp"
