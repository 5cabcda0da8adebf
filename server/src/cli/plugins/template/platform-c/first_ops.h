/* The functions of first_ops.c: for the lists in table.c, and for ops that are made of them. */
#ifndef FIRST_OPS_H
#define FIRST_OPS_H

#include "platform.h"

uint32_t check_copy(op *self, halyard_error *err);
uint32_t run_copy(const op *self, const view *v, halyard_error *err);
uint32_t check_add(op *self, halyard_error *err);
uint32_t run_add(const op *self, const view *v, halyard_error *err);
uint32_t check_silu_mul(op *self, halyard_error *err);
uint32_t run_silu_mul(const op *self, const view *v, halyard_error *err);
uint32_t check_rms_norm(op *self, halyard_error *err);
uint32_t run_rms_norm(const op *self, const view *v, halyard_error *err);
uint32_t check_embedding(op *self, halyard_error *err);
uint32_t run_embedding(const op *self, const view *v, halyard_error *err);
uint32_t check_linear(op *self, halyard_error *err);
uint32_t run_linear(const op *self, const view *v, halyard_error *err);

/* Elements of any type. */
void move_row(row from, row to, uint64_t width);
uint32_t check_any_type(const op *self, uint32_t dtype, halyard_error *err);

float silu(float x);
/* `kind` is HALYARD_GELU_KIND_TANH or HALYARD_GELU_KIND_ERF. */
float gelu(uint32_t kind, float x);
/* out = f(a, b), element by element, of operands 0, 1 and 2. */
uint32_t run_binary(const op *self, const view *v, uint32_t dtype, uint64_t width, float (*f)(float, float),
                    halyard_error *err);

void unpack_f32(const uint8_t *bytes, uint32_t width, float *values);
void unpack_f16(const uint8_t *bytes, uint32_t width, float *values);
void unpack_bf16(const uint8_t *bytes, uint32_t width, float *values);

#endif
