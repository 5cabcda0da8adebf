// Rows of bytes from one pitch to another: OpenCL copies ranges only. A group goes along its row in steps of its own
// width.

__kernel void copy_rows_16(__global uint4 *to, ulong to_pitch, __global const uint4 *from, ulong from_pitch,
                           ulong units) {
    const ulong row = get_global_id(1);
    for (ulong i = get_global_id(0); i < units; i += get_global_size(0))
        to[row * to_pitch + i] = from[row * from_pitch + i];
}

__kernel void copy_rows_1(__global uchar *to, ulong to_pitch, __global const uchar *from, ulong from_pitch,
                          ulong units) {
    const ulong row = get_global_id(1);
    for (ulong i = get_global_id(0); i < units; i += get_global_size(0))
        to[row * to_pitch + i] = from[row * from_pitch + i];
}
