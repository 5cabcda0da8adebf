// Keys and values as codes of 8 or 4 bits, each head of a token with a word of its own that says what its codes mean:
// the layout in a KV block, and how a head is written and read. What is held and how it is rounded is the contract's
// (docs/ops.md, kv_write).
//
// A head's K part and V part have the same layout, in which a token's codes lie together: units of 128 bytes as in
// kv.cuh, [HEAD_DIM / ROW][BLOCK / 8], whose rows of 16 bytes are ROW dims of 8 tokens, and behind all units a word for
// each token. A byte belongs to one token alone, so tokens may be written at once.
//
// A row is eight pieces of 16 bits. Piece e holds dims e, e + 8, e + 16 .. from its lowest bits on. So ldmatrix gives a
// lane dims 2t, 2t + 1 of a key in every step of the product, and where it transposes, one dim of tokens 2t, 2t + 1.
//
// The word is an f32 (8 bits), or a bf16 with the minimum above a bf16 with the scale (4 bits).
#pragma once
#include "kv.cuh"

template <int BITS> struct Code {
    u8 bits;
};
typedef Code<8> code8;
typedef Code<4> code4;

// Bits of a code; 0 of numbers.
template <typename T> struct CodeBits {
    static constexpr int value = 0;
};
template <int BITS> struct CodeBits<Code<BITS>> {
    static constexpr int value = BITS;
};
#define CODE_BITS (CodeBits<KV>::value)

template <int BITS, int D, int B> struct KvLayout<Code<BITS>, D, B> {
    static constexpr int CODE = BITS, DIMS = D;
    static constexpr int ROW = 128 / BITS;
    static constexpr int TOKEN_UNITS = (B + 7) / 8;
    static constexpr int KEY_ROWS = (D + ROW - 1) / ROW;
    static constexpr int WORDS_AT = KEY_ROWS * TOKEN_UNITS * 128;
    static constexpr int K_BYTES = WORDS_AT + TOKEN_UNITS * 8 * 4;
    static constexpr int V_BYTES = K_BYTES;
    static constexpr int HEAD_BYTES = K_BYTES + V_BYTES;

    // Byte of row `row` (dims row * ROW ...) of a token within a part.
    static __device__ __forceinline__ u32 key_row(u32 token, u32 row) {
        return (row * TOKEN_UNITS + token / 8) * 128 + token % 8 * 16;
    }
};

// value = scale * code + minimum
struct CodeMap {
    float scale, minimum;
};
template <int BITS> __device__ __forceinline__ CodeMap code_map(u32 word) {
    if (BITS == 8) return {__uint_as_float(word), 0.f};
    return {__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)};
}

// The code of dim `dim` of a row.
template <int BITS> __device__ __forceinline__ float code_at(const u8 *row, u32 dim) {
    u32 piece = ((const u16 *)row)[dim % 8] >> (dim / 8 * BITS);
    return BITS == 8 ? (float)(i8)piece : (float)(piece & 15u);
}

// --- The Hadamard turn of keys and queries of 4 bits ---

// Values that are turned together: the largest power of two that divides a head.
template <int D> constexpr u32 turn_run = (u32)(D & -D);

// 1 / sqrt(n) of a power of two, both rounded to f32.
template <u32 N> constexpr float inverse_root = inverse_root<N / 4> * 0.5f;
template <> constexpr float inverse_root<1> = 1.f;
template <> constexpr float inverse_root<2> = 0.70710677f;
template <int D> constexpr float turn_factor = inverse_root<turn_run<D>>;

// Turns x [D], which lies in shared memory, by a warp.
template <int D> __device__ __forceinline__ void turn_shared(float *x) {
    u32 lane = threadIdx.x % 32;
    for (u32 apart = 1; apart < turn_run<D>; apart *= 2) {
        __syncwarp();
        for (u32 i = lane; i < D / 2; i += 32) {
            u32 low = i / apart * 2 * apart + i % apart;
            float a = x[low], b = x[low + apart];
            x[low] = __fadd_rn(a, b);
            x[low + apart] = __fsub_rn(a, b);
        }
    }
    __syncwarp();
    for (u32 d = lane; d < D; d += 32) x[d] = __fmul_rn(x[d], turn_factor<D>);
    __syncwarp();
}

// --- Writing ---

// The word of a head whose values lie between `least` and `most`, both finite.
template <int BITS> __device__ __forceinline__ u32 code_word(float least, float most) {
    if (BITS == 8) return __float_as_uint(__fdiv_rn(fmaxf(most, -least), 127.f));
    u32 bits = __float_as_uint(least), minimum = (least < 0.f ? bits + 0xffffu : bits) & 0xffff0000u;
    float step = __fdiv_rn(__fsub_rn(most, __uint_as_float(minimum)), 15.f);
    return (__float_as_uint(step) + 0xffffu) >> 16 | minimum;
}

// Writes a head of a token, x [D] in shared memory, by a warp. `part` are the head's keys (which 4 bits turn, in place)
// or values.
template <typename L>
__device__ __forceinline__ void store_codes(float *x, bool is_key, u8 *part, u32 token) {
    constexpr int BITS = L::CODE, D = L::DIMS;
    u32 lane = threadIdx.x % 32;
    __syncwarp();
    if (BITS == 4 && is_key) turn_shared<D>(x);
    float least = INFINITY_F, most = -INFINITY_F;
    bool finite = true;
    for (u32 d = lane; d < D; d += 32) {
        least = fminf(least, x[d]);
        most = fmaxf(most, x[d]);
        finite = finite && fabsf(x[d]) < INFINITY_F;
    }
    least = -warp_max(-least);
    most = warp_max(most);
    u32 word = code_word<BITS>(least, most);
    if (!__all_sync(0xffffffffu, finite)) word = 0x7fc07fc0u;
    CodeMap map = code_map<BITS>(word);
    float divisor = map.scale == 0.f ? INFINITY_F : map.scale;
    for (u32 w = lane; w < L::KEY_ROWS * 4; w += 32) {
        u32 row = w / 4, bits = 0;
#pragma unroll
        for (u32 i = 0; i < 32 / BITS; i++) {
            u32 half = i / (16 / BITS), sub = i % (16 / BITS), dim = row * L::ROW + w % 4 * 2 + half + 8 * sub;
            // 1.5 * 2^23: the sum is rounded to a whole number, which then stands in the lowest bits.
            float whole = __fadd_rn(__fdiv_rn(__fsub_rn(x[dim < D ? dim : 0], map.minimum), divisor), 12582912.f);
            u32 code = __float_as_uint(whole) & ((1u << BITS) - 1);
            bits |= (dim < D ? code : 0u) << (16 * half + BITS * sub);
        }
        *(u32 *)(part + L::key_row(token, row) + w % 4 * 4) = bits;
    }
    if (lane == 0) *(u32 *)(part + L::WORDS_AT + 4 * token) = word;
    __syncwarp();
}
