// The canonical formats of weights (platform-api/src/weight_format.rs, codes 40 to 55), one text for every language: a
// row is groups, each an f32 scale, an f32 minimum behind it where codes are integers, and the group's codes. A value
// is scale · number (+ minimum).
//
// FORMAT says of a format: GROUP_VALUES, values of a group; CODE_BITS, bits of a code; SCALE_WORDS, 2 where there is a
// minimum; GROUP_BYTES; and number_of(code), a code's number without its scale. A new format is a line in each table.
//
// The including language defines FUNCTION, FLOAT, SIGNED, E4M3 and multiply_then_add (common.*), ADDRESS, WORD_AT and
// FLOAT_AT (blocks.*); and for tables CONSTANT and FLOATS16, or CHOOSE16 where they must not be in memory.
#if FORMAT == 40 || FORMAT == 44 || FORMAT == 48
#define GROUP_VALUES 16
#elif FORMAT == 41 || FORMAT == 45 || FORMAT == 49 || FORMAT == 52 || FORMAT == 53
#define GROUP_VALUES 32
#elif FORMAT == 42 || FORMAT == 46 || FORMAT == 50 || FORMAT == 51 || FORMAT == 54
#define GROUP_VALUES 64
#else
#define GROUP_VALUES 128
#endif

#if FORMAT < 44 || (FORMAT >= 48 && FORMAT < 53)
#define CODE_BITS 4
#else
#define CODE_BITS 8
#endif

#if FORMAT < 48
#define SCALE_WORDS 2
#else
#define SCALE_WORDS 1
#endif
#define GROUP_BYTES (4 * SCALE_WORDS + GROUP_VALUES * CODE_BITS / 8)

// U4, I8, E2M1, 8-bit floats, and tables of 16: NF4, FP4, IQ4_NL.
#if FORMAT < 44
FUNCTION float number_of(u32 code) { return FLOAT(code); }
#elif FORMAT < 48
FUNCTION float number_of(u32 code) { return SIGNED(code); }
#elif FORMAT < 50
FUNCTION float number_of(u32 code) {
    // Twice the magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6 are the hexadecimal digits, the first one last.
    float twice = FLOAT(0xc8643210u >> (code % 8u * 4u) & 15u);
    return code < 8u ? 0.5f * twice : -0.5f * twice;
}
#elif FORMAT >= 53
FUNCTION float number_of(u32 code) { return E4M3(code); }
#else
#if FORMAT == 50
#define NUMBERS(F) \
    F(-1.f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, \
      -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.f, \
      0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f, \
      0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.f)
#elif FORMAT == 51
#define NUMBERS(F) \
    F(0.f, 0.005208333333f, 0.66666667f, 1.f, 0.33333333f, 0.5f, 0.16666667f, 0.25f, \
      0.f, -0.005208333333f, -0.66666667f, -1.f, -0.33333333f, -0.5f, -0.16666667f, -0.25f)
#else
#define NUMBERS(F) \
    F(-127.f, -104.f, -83.f, -65.f, -49.f, -35.f, -22.f, -10.f, \
      1.f, 13.f, 25.f, 38.f, 53.f, 69.f, 89.f, 113.f)
#endif
#ifdef CHOOSE16
FUNCTION float number_of(u32 code) { return NUMBERS(CHOOSE16); }
#else
CONSTANT float table_of_16[16] = NUMBERS(FLOATS16);
FUNCTION float number_of(u32 code) { return table_of_16[code]; }
#endif
#endif

// The codes of values i .. i + 3 of a row, i a multiple of 4, as the bytes of a word. Nibbles stand in runs of 32
// values, or of 16 where a group has no more: byte j of a run has value j in its low nibble and value j + half a run in
// its high one.
FUNCTION u32 codes_at(ADDRESS row, u32 i) {
    ADDRESS codes = row + (i / GROUP_VALUES * GROUP_BYTES + 4 * SCALE_WORDS);
    u32 j = i % GROUP_VALUES;
#if CODE_BITS == 8
    return WORD_AT(codes + j);
#elif GROUP_VALUES == 16
    return WORD_AT(codes + j % 8) >> (j / 8 * 4) & 0x0f0f0f0fu;
#else
    return WORD_AT(codes + (j / 32 * 16 + j % 16)) >> (j % 32 / 16 * 4) & 0x0f0f0f0fu;
#endif
}
FUNCTION u32 code_at(ADDRESS row, u32 i) { return codes_at(row, i / 4 * 4) >> (i % 4 * 8) & 255u; }

// The scale of value i's group; what is added to its values; and a value by its code. Products of f32 scales are
// rounded before a minimum is added, as everywhere else.
FUNCTION float scale_at(ADDRESS row, u32 i) { return FLOAT_AT(row + i / GROUP_VALUES * GROUP_BYTES); }
#if SCALE_WORDS == 2
FUNCTION float min_at(ADDRESS row, u32 i) { return FLOAT_AT(row + (i / GROUP_VALUES * GROUP_BYTES + 4)); }
#define SCALED(scale, min, code) multiply_then_add(scale, number_of(code), min)
#else
FUNCTION float min_at(ADDRESS row, u32 i) { return 0.f; }
#define SCALED(scale, min, code) ((scale) * number_of(code))
#endif

// Value i of a row.
FUNCTION float value_at(ADDRESS row, u32 i) { return SCALED(scale_at(row, i), min_at(row, i), code_at(row, i)); }

// Values i .. i + 7 of a row into w[0 .. 7], i a multiple of 8.
#define VALUES8_AT(row, i, w)                                              \
    {                                                                      \
        float scale = scale_at(row, i), low = min_at(row, i);              \
        u32 first = codes_at(row, i), second = codes_at(row, i + 4);       \
        for (u32 e = 0; e < 4; e++) {                                      \
            w[e] = SCALED(scale, low, first >> (8 * e) & 255u);            \
            w[4 + e] = SCALED(scale, low, second >> (8 * e) & 255u);       \
        }                                                                  \
    }
