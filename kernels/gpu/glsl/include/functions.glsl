// Elementary functions to about the last bit of f32: the language's precision of exp, log and tanh is too low for some
// ops.
#ifndef FUNCTIONS_GLSL
#define FUNCTIONS_GLSL
#include "common.glsl"

// 2^n, n from -126 to 127.
float power_of_two(i32 n) { return uintBitsToFloat(u32(n + 127) << 23); }

// e^x as 2^n · e^r with |r| up to ln 2 / 2.
float exp_of(float x) {
    if (is_nan(x)) return x;
    if (x < -104.0) return 0.0;
    if (x > 88.73) return INFINITY;
    float n = roundEven(x * 1.4426950408889634);
    // ln 2 in two parts, the first of so few bits that its product with n is exact.
    float r = x - n * 0.693359375;
    r -= n * -2.12194440e-4;
    float y = 1.9875691500e-4;
    y = y * r + 1.3981999507e-3;
    y = y * r + 8.3334519073e-3;
    y = y * r + 4.1665795894e-2;
    y = y * r + 1.6666665459e-1;
    y = y * r + 5.0000001201e-1;
    y = y * (r * r) + r + 1.0;
    i32 half_n = i32(n) / 2;
    return y * power_of_two(half_n) * power_of_two(i32(n) - half_n);
}

// The natural logarithm of a positive number that is not subnormal.
float log_of(float x) {
    u32 bits = floatBitsToUint(x);
    i32 n = i32(bits >> 23) - 126;
    // Between a half and one, or from the root of a half to the root of two.
    float m = uintBitsToFloat((bits & 0x7fffffu) | 0x3f000000u);
    if (m < 0.70710678) {
        n -= 1;
        m = 2.0 * m - 1.0;
    } else {
        m -= 1.0;
    }
    float y = 7.0376836292e-2;
    y = y * m - 1.1514610310e-1;
    y = y * m + 1.1676998740e-1;
    y = y * m - 1.2420140846e-1;
    y = y * m + 1.4249322787e-1;
    y = y * m - 1.6668057665e-1;
    y = y * m + 2.0000714765e-1;
    y = y * m - 2.4999993993e-1;
    y = y * m + 3.3333331174e-1;
    float z = m * m;
    y = y * m * z + float(n) * -2.12194440e-4 - 0.5 * z;
    return (m + y) + float(n) * 0.693359375;
}

float tanh_of(float x) {
    float size = abs(x);
    if (size < 0.625) {
        float z = x * x;
        float y = -5.70498872745e-3;
        y = y * z + 2.06390887954e-2;
        y = y * z - 5.37397155531e-2;
        y = y * z + 1.33314422036e-1;
        y = y * z - 3.33332819422e-1;
        return y * z * x + x;
    }
    float y = 1.0 - 2.0 / (exp_of(2.0 * min(size, 20.0)) + 1.0);
    return x < 0.0 ? -y : is_nan(x) ? x : y;
}

// 1 - erf x, exact to a few units in the last place also where it is nearly 0.
float erfc_of(float x) {
    float size = abs(x);
    if (size < 1.0) {
        float z = x * x;
        float y = 7.853861353153693e-5;
        y = y * z - 8.010193625184903e-4;
        y = y * z + 5.188327685732524e-3;
        y = y * z - 2.685381193529856e-2;
        y = y * z + 1.128358514861418e-1;
        y = y * z - 3.761262582423300e-1;
        y = y * z + 1.128379165726710;
        return 1.0 - x * y;
    }
    // e^-x² / x times a polynomial of 1 / x².
    size = min(size, 10.0);
    float q = 1.0 / size, z = q * q, y;
    if (size < 2.0) {
        y = 2.326819970068386e-2;
        y = y * z - 1.387039388740657e-1;
        y = y * z + 3.687424674597105e-1;
        y = y * z - 5.824733027278666e-1;
        y = y * z + 6.210004621745983e-1;
        y = y * z - 4.944515323274145e-1;
        y = y * z + 3.404879937665872e-1;
        y = y * z - 2.741127028184656e-1;
        y = y * z + 5.638259427386472e-1;
    } else {
        y = -1.047766399936249e+1;
        y = y * z + 1.297719955372516e+1;
        y = y * z - 7.495518717768503;
        y = y * z + 2.921019019210786;
        y = y * z - 1.015265279202700;
        y = y * z + 4.218463358204948e-1;
        y = y * z - 2.820767439740514e-1;
        y = y * z + 5.641895067754075e-1;
    }
    y = exp_of(-size * size) * q * y;
    return x < 0.0 ? 2.0 - y : is_nan(x) ? x : y;
}

// x / (1 + e^-u), with the quotient's limit where the power overflows.
float sigmoid_times(float x, float u) {
    float power = exp_of(-u);
    return power == INFINITY ? x * 0.0 : x / (1.0 + power);
}
#define SIGMOID_TIMES(x, u) sigmoid_times(x, u)
#define ERFC(x) erfc_of(x)
#define TANH(x) tanh_of(x)
#include "formulas.h"
#endif
