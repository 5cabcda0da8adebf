/* The first ops. Each has two functions: `check` when it is prepared, `run` when it is submitted. Operands come in the
 * order that the op documents; a row may be strided; sums are in double, so that their order does not show. */
#include "first_ops.h"

#include <math.h>

/* copy: out = x, of any type. Operands: x and out, of one shape. */

/* Elements of any type. */
void move_row(row from, row to, uint64_t width) {
    uint32_t size = halyard_dtype_bytes(from.dtype);
    for (uint64_t i = 0; i < width; i++) memcpy(to.data + i * to.stride, from.data + i * from.stride, size);
}

uint32_t check_any_type(const op *self, uint32_t dtype, halyard_error *err) {
    if (halyard_dtype_bytes(dtype) != 0) return HALYARD_STATUS_OK;
    return halyard_fail(err, HALYARD_STATUS_UNSUPPORTED, "%s: type %u is not known", self->kind->name, (unsigned)dtype);
}

uint32_t check_copy(op *self, halyard_error *err) {
    return check_any_type(self, ((const halyard_copy_desc *)self->descriptor)->dtype, err);
}

uint32_t run_copy(const op *self, const view *v, halyard_error *err) {
    const halyard_copy_desc *desc = (const halyard_copy_desc *)self->descriptor;
    uint64_t rows = view_rows(&v[1]), width = view_width(&v[1]);
    if (!fits(self, v, 0, desc->dtype, rows, width, err) || !fits(self, v, 1, desc->dtype, rows, width, err)) {
        return HALYARD_STATUS_INVALID_ARGUMENT;
    }
    for (uint64_t i = 0; i < rows; i++) move_row(view_row(&v[0], i), view_row(&v[1], i), width);
    return HALYARD_STATUS_OK;
}

/* add: out = a + b. Operands: two of [T, width], out. */

uint32_t check_add(op *self, halyard_error *err) {
    const halyard_add_desc *desc = (const halyard_add_desc *)self->descriptor;
    return check_type(self, "dtype", desc->dtype, err);
}

uint32_t run_binary(const op *self, const view *v, uint32_t dtype, uint64_t width, float (*f)(float, float),
                    halyard_error *err) {
    uint64_t rows = view_rows(&v[2]);
    if (!fits(self, v, 0, dtype, rows, width, err) || !fits(self, v, 1, dtype, rows, width, err) ||
        !fits(self, v, 2, dtype, rows, width, err)) {
        return HALYARD_STATUS_INVALID_ARGUMENT;
    }
    for (uint64_t t = 0; t < rows; t++) {
        row a = view_row(&v[0], t), b = view_row(&v[1], t), out = view_row(&v[2], t);
        for (uint64_t i = 0; i < width; i++) put(out, i, f(get(a, i), get(b, i)));
    }
    return HALYARD_STATUS_OK;
}

static float sum(float a, float b) { return a + b; }

uint32_t run_add(const op *self, const view *v, halyard_error *err) {
    const halyard_add_desc *desc = (const halyard_add_desc *)self->descriptor;
    return run_binary(self, v, desc->dtype, desc->width, sum, err);
}

/* silu_mul: out = gate / (1 + e^(-alpha gate)) * (up + up_offset), with gate and up bounded where there is a limit.
 * Operands: gate and up of [T, width], out. */

uint32_t check_silu_mul(op *self, halyard_error *err) {
    const halyard_silu_mul_desc *desc = (const halyard_silu_mul_desc *)self->descriptor;
    return check_type(self, "dtype", desc->dtype, err);
}

float silu(float x) { return x / (1.0f + expf(-x)); }

/* Not fminf: NaN stays NaN. */
static float at_most(float x, float bound) { return x > bound ? bound : x; }

uint32_t run_silu_mul(const op *self, const view *v, halyard_error *err) {
    const halyard_silu_mul_desc *desc = (const halyard_silu_mul_desc *)self->descriptor;
    uint64_t rows = view_rows(&v[2]), width = desc->width;
    float limit = desc->limit > 0 ? desc->limit : INFINITY, alpha = desc->alpha == 0 ? 1 : desc->alpha;
    if (!fits(self, v, 0, desc->dtype, rows, width, err) || !fits(self, v, 1, desc->dtype, rows, width, err) ||
        !fits(self, v, 2, desc->dtype, rows, width, err)) {
        return HALYARD_STATUS_INVALID_ARGUMENT;
    }
    for (uint64_t t = 0; t < rows; t++) {
        row gates = view_row(&v[0], t), ups = view_row(&v[1], t), out = view_row(&v[2], t);
        for (uint64_t i = 0; i < width; i++) {
            float gate = at_most(get(gates, i), limit), up = -at_most(-at_most(get(ups, i), limit), limit);
            put(out, i, gate / (1 + expf(-alpha * gate)) * (up + desc->up_offset));
        }
    }
    return HALYARD_STATUS_OK;
}

/* rms_norm: out = x / sqrt(mean(x^2) + eps) * (weight + weight_offset) over the last axis. Operands: x of [T, width] or
 * [T, G, width], weight [width] f32, out like x. */

uint32_t check_rms_norm(op *self, halyard_error *err) {
    const halyard_rms_norm_desc *desc = (const halyard_rms_norm_desc *)self->descriptor;
    return check_type(self, "dtype", desc->dtype, err);
}

uint32_t run_rms_norm(const op *self, const view *v, halyard_error *err) {
    const halyard_rms_norm_desc *desc = (const halyard_rms_norm_desc *)self->descriptor;
    uint64_t rows = view_rows(&v[2]), width = desc->width;
    row weight;
    if (!fits(self, v, 0, desc->dtype, rows, width, err) || !fits(self, v, 1, HALYARD_DTYPE_F32, 1, width, err) ||
        !fits(self, v, 2, desc->dtype, rows, width, err)) {
        return HALYARD_STATUS_INVALID_ARGUMENT;
    }
    weight = view_row(&v[1], 0);
    for (uint64_t t = 0; t < rows; t++) {
        row x = view_row(&v[0], t), out = view_row(&v[2], t);
        double squares = 0, factor;
        for (uint64_t i = 0; i < width; i++) squares += (double)get(x, i) * get(x, i);
        factor = 1 / sqrt(squares / (double)width + desc->eps);
        for (uint64_t i = 0; i < width; i++) {
            put(out, i, (float)(get(x, i) * factor * (get(weight, i) + desc->weight_offset)));
        }
    }
    return HALYARD_STATUS_OK;
}

/* embedding: out[t] = scale * table[ids[t]]; zeros for id -1. Operands: ids [T] i32, the packed table, out. */

uint32_t check_embedding(op *self, halyard_error *err) {
    const halyard_embedding_desc *desc = (const halyard_embedding_desc *)self->descriptor;
    uint32_t status = check_type(self, "out", desc->out, err);
    if (status != HALYARD_STATUS_OK) return status;
    return check_weight(self, desc->weight, desc->num_rows, desc->width, err);
}

uint32_t run_embedding(const op *self, const view *v, halyard_error *err) {
    const halyard_embedding_desc *desc = (const halyard_embedding_desc *)self->descriptor;
    uint64_t rows = view_rows(&v[2]);
    if (!fits_ints(self, v, 0, rows, err) || !fits_weight(self, v, 1, err) ||
        !fits(self, v, 2, desc->out, rows, desc->width, err)) {
        return HALYARD_STATUS_INVALID_ARGUMENT;
    }
    for (uint64_t t = 0; t < rows; t++) {
        int32_t id = get_int(&v[0], t);
        row out = view_row(&v[2], t), from;
        if (id < -1 || (id >= 0 && (uint32_t)id >= desc->num_rows)) return bad_operand(self, 0, "no such id", id, err);
        if (id >= 0) from = weight_row(self, &v[1], (uint64_t)id);
        for (uint64_t i = 0; i < desc->width; i++) put(out, i, id >= 0 ? desc->scale * get(from, i) : 0.0f);
    }
    return HALYARD_STATUS_OK;
}

/* linear: out[t, n] = epilogue(sum over k of x[t, k] * weight[n, k] + bias[n]) + residual[t, n]. Operands: x, the
 * packed weight, bias [N] f32 or absent, residual like out or absent, out. The residual may be the tensor of out. */

uint32_t check_linear(op *self, halyard_error *err) {
    const halyard_linear_desc *desc = (const halyard_linear_desc *)self->descriptor;
    uint32_t status = check_type(self, "act", desc->act, err);
    if (status == HALYARD_STATUS_OK) status = check_type(self, "out", desc->out, err);
    if (status != HALYARD_STATUS_OK) return status;
    if (desc->epilogue > HALYARD_EPILOGUE_GELU_ERF) {
        return halyard_fail(err, HALYARD_STATUS_UNSUPPORTED, "linear: epilogue %u is not known",
                            (unsigned)desc->epilogue);
    }
    return check_weight(self, desc->weight, desc->out_features, desc->in_features, err);
}

float gelu(uint32_t kind, float x) {
    /* (1 + tanh u) / 2 is 1 / (1 + e^-2u), which does not cancel where it is nearly 0; so is erfc. */
    double u = x;
    if (kind == HALYARD_GELU_KIND_ERF) return (float)(0.5 * u * erfc(-u * 0.70710678118654752440));
    return (float)(u / (1.0 + exp(-2.0 * 0.79788456080286535588 * (u + 0.044715 * u * u * u))));
}

static float epilogue(uint32_t kind, float x) {
    switch (kind) {
    case HALYARD_EPILOGUE_SILU: return silu(x);
    case HALYARD_EPILOGUE_GELU_TANH: return gelu(HALYARD_GELU_KIND_TANH, x);
    case HALYARD_EPILOGUE_GELU_ERF: return gelu(HALYARD_GELU_KIND_ERF, x);
    default: return x;
    }
}

uint32_t run_linear(const op *self, const view *v, halyard_error *err) {
    const halyard_linear_desc *desc = (const halyard_linear_desc *)self->descriptor;
    const view *bias = &v[2], *residual = &v[3];
    uint64_t rows = view_rows(&v[4]), width = desc->out_features;
    if (!fits(self, v, 0, desc->act, rows, desc->in_features, err) || !fits_weight(self, v, 1, err) ||
        (bias->memory != NULL && !fits(self, v, 2, HALYARD_DTYPE_F32, 1, width, err)) ||
        (residual->memory != NULL && !fits(self, v, 3, desc->out, rows, width, err)) ||
        !fits(self, v, 4, desc->out, rows, width, err)) {
        return HALYARD_STATUS_INVALID_ARGUMENT;
    }
    for (uint64_t t = 0; t < rows; t++) {
        row x = view_row(&v[0], t), out = view_row(&v[4], t);
        for (uint64_t n = 0; n < width; n++) {
            row weight = weight_row(self, &v[1], n);
            double product = 0;
            float value;
            for (uint64_t k = 0; k < desc->in_features; k++) product += (double)get(x, k) * get(weight, k);
            if (bias->memory != NULL) product += get(view_row(bias, 0), n);
            value = epilogue(desc->epilogue, (float)product);
            if (residual->memory != NULL) value += get(view_row(residual, t), n);
            put(out, n, value);
        }
    }
    return HALYARD_STATUS_OK;
}

/* Rows of weights as model files hold them. */

void unpack_f32(const uint8_t *bytes, uint32_t width, float *values) { memcpy(values, bytes, (size_t)width * 4); }

static void unpack_two(const uint8_t *bytes, uint32_t width, uint32_t dtype, float *values) {
    uint16_t code;
    for (uint32_t i = 0; i < width; i++) {
        memcpy(&code, bytes + 2 * (size_t)i, sizeof code);
        if (dtype == HALYARD_DTYPE_F16) {
            values[i] = half_to_float(code);
        } else {
            uint32_t bits = (uint32_t)code << 16;
            memcpy(&values[i], &bits, sizeof bits);
        }
    }
}

void unpack_f16(const uint8_t *bytes, uint32_t width, float *values) {
    unpack_two(bytes, width, HALYARD_DTYPE_F16, values);
}

void unpack_bf16(const uint8_t *bytes, uint32_t width, float *values) {
    unpack_two(bytes, width, HALYARD_DTYPE_BF16, values);
}
