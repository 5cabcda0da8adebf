// N neighbouring elements as floats, N defined before this file: 1, at any address, or a multiple of the elements in 16
// bytes, at a multiple of 16 bytes. Which of the two a kernel runs is settled where it is launched, from pointers and
// strides.
// revision: 1
#ifndef VECTOR_GLSL
#define VECTOR_GLSL
#include "common.glsl"

#define GET(T, address, v) JOIN(get_, T)(address, v)
#define PUT(T, address, v) JOIN(put_, T)(address, v)

#if N == 1
void get_f32(u64 address, out float v[1]) { v[0] = load_f32(address, 0); }
void get_f16(u64 address, out float v[1]) { v[0] = load_f16(address, 0); }
void get_bf16(u64 address, out float v[1]) { v[0] = load_bf16(address, 0); }
void put_f32(u64 address, in float v[1]) { store_f32(address, 0, v[0]); }
void put_f16(u64 address, in float v[1]) { store_f16(address, 0, v[0]); }
void put_bf16(u64 address, in float v[1]) { store_bf16(address, 0, v[0]); }
#else
void get_f32(u64 address, out float v[N]) {
    UNROLLED for (u32 i = 0; i < N; i += 4) {
        vec4 four = uintBitsToFloat(Quads(address).at[i / 4]);
        v[i] = four.x, v[i + 1] = four.y, v[i + 2] = four.z, v[i + 3] = four.w;
    }
}
void put_f32(u64 address, in float v[N]) {
    UNROLLED for (u32 i = 0; i < N; i += 4)
        Quads(address).at[i / 4] = floatBitsToUint(vec4(v[i], v[i + 1], v[i + 2], v[i + 3]));
}
#if N >= 8
void get_f16(u64 address, out float v[N]) {
    UNROLLED for (u32 i = 0; i < N; i += 8) {
        uvec4 words = Quads(address).at[i / 8];
        UNROLLED for (u32 j = 0; j < 4; j++) {
            vec2 two = unpackHalf2x16(words[j]);
            v[i + 2 * j] = two.x, v[i + 2 * j + 1] = two.y;
        }
    }
}
void get_bf16(u64 address, out float v[N]) {
    UNROLLED for (u32 i = 0; i < N; i += 8) {
        uvec4 words = Quads(address).at[i / 8];
        UNROLLED for (u32 j = 0; j < 4; j++) {
            v[i + 2 * j] = uintBitsToFloat(words[j] << 16);
            v[i + 2 * j + 1] = uintBitsToFloat(words[j] & 0xffff0000u);
        }
    }
}
void put_f16(u64 address, in float v[N]) {
    UNROLLED for (u32 i = 0; i < N; i += 8) {
        uvec4 words;
        UNROLLED for (u32 j = 0; j < 4; j++) words[j] = f16_bits(v[i + 2 * j]) | f16_bits(v[i + 2 * j + 1]) << 16;
        Quads(address).at[i / 8] = words;
    }
}
void put_bf16(u64 address, in float v[N]) {
    UNROLLED for (u32 i = 0; i < N; i += 8) {
        uvec4 words;
        UNROLLED for (u32 j = 0; j < 4; j++) words[j] = bf16_bits(v[i + 2 * j]) | bf16_bits(v[i + 2 * j + 1]) << 16;
        Quads(address).at[i / 8] = words;
    }
}
#endif
#endif
#endif
