// What every kernel uses: launch sizes, parameters, addresses, element types and their conversions.
//
// Pointers are addresses (u64): `Floats(address).at[i]` reads through one. An element type is a name (f32, f16, bf16,
// e4m3) that a definition such as -DACT=bf16 gives; LOAD, STORE, SIZE and the group functions of vector.glsl take it as
// their first argument.
// revision: 1
#ifndef COMMON_GLSL
#define COMMON_GLSL
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_8bit_storage : require
#extension GL_EXT_control_flow_attributes : enable
#extension GL_EXT_spirv_intrinsics : require
#ifndef SUBGROUP
#define SUBGROUP 0
#endif
#if SUBGROUP >= 32
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#extension GL_KHR_shader_subgroup_shuffle : require
#extension GL_KHR_shader_subgroup_clustered : require
#elif SUBGROUP == 8
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_ballot : require
#endif

// SignedZeroInfNanPreserve of 32-bit floats: masks and maxima count on infinities.
spirv_execution_mode(capabilities = [4466], 4461, 32);

#define u64 uint64_t
#define u32 uint
#define i32 int

// Words of the texts that all languages share (../../shared).
#define FUNCTION
#define FLOAT(x) float(x)
#define SIGNED(byte) float(i32((byte) << 24) >> 24)
#define E4M3(code) e4m3_value(code)
#define CONSTANT const
#define FLOATS16(a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p) \
    float[16](a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p)

// Unrolls loops on GPUs. On other devices, which have small subgroups, unrolling costs more compile time than it saves.
#if SUBGROUP >= 32
#define UNROLLED [[unroll]]
#else
#define UNROLLED
#endif

// Specialisation constants of a launch: threads of a workgroup, and words of shared memory.
layout(constant_id = 0) const uint THREADS = 32;
layout(constant_id = 1) const uint SHARED_WORDS = 1;
layout(local_size_x_id = 0, local_size_y = 1, local_size_z = 1) in;

// The kernel's parameters in the order of the launch, each at its natural alignment. Above 128 bytes, which every
// device takes as push constants, the only push constant is the block's address: PARAMETERS_IN_MEMORY.
#define PARAMETERS(body) layout(push_constant, scalar) uniform Push { body } p;
#define PARAMETERS_IN_MEMORY(body)                                                                         \
    layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer ParameterBlock { body };  \
    layout(push_constant, scalar) uniform Push { ParameterBlock p; };

layout(buffer_reference, scalar, buffer_reference_align = 1) buffer Bytes { uint8_t at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 2) buffer Halves { uint16_t at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Words { uint at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Ints { int at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Floats { float at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer Longs { uint64_t at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) buffer Pairs { uvec2 at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer Quads { uvec4 at[]; };

#define INFINITY uintBitsToFloat(0x7f800000u)

// Comparisons with NaN are not to be relied on where a compiler may assume that there is none.
bool is_nan(float x) { return (floatBitsToUint(x) & 0x7fffffffu) > 0x7f800000u; }

// a·b rounded, and then c added.
float multiply_then_add(float a, float b, float c) {
    precise float product = a * b, sum = product + c;
    return sum;
}

float bf16_value(u32 bits) { return uintBitsToFloat(bits << 16); }
float f16_value(u32 bits) { return unpackHalf2x16(bits).x; }

// Rounds to nearest even, which neither packHalf2x16 nor a conversion promises.
u32 bf16_bits(float x) {
    u32 bits = floatBitsToUint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fffu;
    return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}
u32 f16_bits(float x) {
    u32 bits = floatBitsToUint(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return 0x7fffu;
    // Half-way between the largest number and the next power of two, and what lies above.
    if (size >= 0x477ff000u) return sign | 0x7c00u;
    // Subnormals count steps of 2^-24.
    if (size < 0x38800000u) return sign | u32(roundEven(uintBitsToFloat(size) * 16777216.0));
    size += 0xfffu + (size >> 13 & 1u);
    return sign | (size - 0x38000000u) >> 13;
}
// OCP E4M3: saturates at 448, NaN stays.
u32 e4m3_bits(float x) {
    u32 bits = floatBitsToUint(x), sign = bits >> 24 & 0x80u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) return sign | 0x7fu;
    // 448, and below 2^-6 steps of 2^-9.
    if (size >= 0x43e00000u) return sign | 0x7eu;
    if (size < 0x3c800000u) return sign | u32(roundEven(uintBitsToFloat(size) * 512.0));
    size += 0x7ffffu + (size >> 20 & 1u);
    return sign | min((size >> 20) - (120u << 3), 0x7eu);
}
float e4m3_value(u32 code) {
    u32 sign = (code & 0x80u) << 24, size = code & 0x7fu;
    if (size == 0x7fu) return uintBitsToFloat(0x7fc00000u);
    float value = size < 8 ? float(size) * (1.0 / 512.0) : uintBitsToFloat((size << 20) + (120u << 23));
    return uintBitsToFloat(floatBitsToUint(value) | sign);
}

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)

// Bytes of an element, element i from an address on, and a value rounded to the type.
#define SIZE(T) JOIN(SIZE_, T)
#define SIZE_f32 4
#define SIZE_f16 2
#define SIZE_bf16 2
#define SIZE_e4m3 1
#define LOAD(T, address, i) JOIN(load_, T)(address, i)
#define STORE(T, address, i, x) JOIN(store_, T)(address, i, x)
#define ROUND(T, x) JOIN(round_, T)(x)

float load_f32(u64 address, u32 i) { return Floats(address).at[i]; }
float load_f16(u64 address, u32 i) { return f16_value(u32(Halves(address).at[i])); }
float load_bf16(u64 address, u32 i) { return bf16_value(u32(Halves(address).at[i])); }
float load_e4m3(u64 address, u32 i) { return e4m3_value(u32(Bytes(address).at[i])); }
void store_f32(u64 address, u32 i, float x) { Floats(address).at[i] = x; }
void store_f16(u64 address, u32 i, float x) { Halves(address).at[i] = uint16_t(f16_bits(x)); }
void store_bf16(u64 address, u32 i, float x) { Halves(address).at[i] = uint16_t(bf16_bits(x)); }
void store_e4m3(u64 address, u32 i, float x) { Bytes(address).at[i] = uint8_t(e4m3_bits(x)); }
float round_f32(float x) { return x; }
float round_f16(float x) { return f16_value(f16_bits(x)); }
float round_bf16(float x) { return bf16_value(bf16_bits(x)); }

// Definitions that #if can compare: bytes of the types that this file is specialised by.
#define f32 4
#define f16 2
#define bf16 2
#define e4m3 1
#ifdef ACT
#if ACT == 4
#define ACT_BYTES 4
#else
#define ACT_BYTES 2
#endif
#endif
#ifdef WEIGHT
#if WEIGHT == 4
#define WEIGHT_BYTES 4
#else
#define WEIGHT_BYTES 2
#endif
#endif
#ifdef KV
#if KV == 4
#define KV_BYTES 4
#elif KV == 2
#define KV_BYTES 2
#else
#define KV_BYTES 1
#endif
#endif
#undef f32
#undef f16
#undef bf16
#undef e4m3

// Philox4x32-10 (Salmon et al. 2011) with counter (counter, 0, 0, 0).
uvec4 philox(u32 counter, u32 key_low, u32 key_high) {
    uvec4 c = uvec4(counter, 0, 0, 0);
    for (int i = 0; i < 10; i++) {
        u32 high0, low0, high1, low1;
        umulExtended(0xD2511F53u, c.x, high0, low0);
        umulExtended(0xCD9E8D57u, c.z, high1, low1);
        c = uvec4(high1 ^ c.y ^ key_low, low1, high0 ^ c.w ^ key_high, low0);
        key_low += 0x9E3779B9u;
        key_high += 0xBB67AE85u;
    }
    return c;
}
#endif
