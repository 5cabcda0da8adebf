// Elementwise formulas, one text for every language. Macros, for OpenCL C applies them to vectors; arguments have no
// side effects, and may be evaluated more than once.
//
// The including file defines SIGMOID_TIMES(x, u): x / (1 + e^-u), 0 where the power overflows; ERFC(x); and TANH(x)
// where it uses SOFTCAP_OF.
#define SILU_OF(x) SIGMOID_TIMES(x, x)
// (1 + tanh v) / 2 = 1 / (1 + e^-2v): no difference of near numbers where tanh is nearly -1.
#define GELU_TANH_OF(x) SIGMOID_TIMES(x, 1.5957691216057308f * ((x) + 0.044715f * (x) * (x) * (x)))
// 1 + erf v = erfc(-v): where erf is nearly -1 their sum keeps nothing.
#define GELU_ERF_OF(x) (0.5f * (x) * ERFC((x) * -0.7071067811865476f))
// Comparisons, so that NaN stays NaN: fmin and fmax would make it the bound.
#define AT_MOST(x, bound) ((x) > (bound) ? (bound) : (x))
#define AT_LEAST(x, bound) ((x) < (bound) ? (bound) : (x))
// gate * sigmoid(alpha * gate) * (up + offset): gate at most `limit`, up at most that on both sides.
#define BOUNDED_SILU_OF(gate, up, limit, alpha, offset)                      \
    (SIGMOID_TIMES(AT_MOST(gate, limit), (alpha) * (AT_MOST(gate, limit))) * \
     (AT_LEAST(AT_MOST(up, limit), -(limit)) + (offset)))
#define RELU_SQUARED_OF(x) (AT_LEAST(x, 0.f) * AT_LEAST(x, 0.f))
#define SOFTCAP_OF(x, cap) ((cap) * TANH((x) / (cap)))
