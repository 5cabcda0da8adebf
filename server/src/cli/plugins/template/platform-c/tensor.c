/* Tensors: where an element lies, and what it is worth. Elements are copied byte by byte, as slices of a tensor are
 * aligned to its elements only. */
#include "platform.h"

#include <math.h>

const char *dtype_name(uint32_t dtype) {
    static const char *const names[] = {"U8", "F32", "F16", "BF16", "I32", "I8", "F8E4M3", "I64"};
    return dtype < sizeof names / sizeof names[0] ? names[dtype] : "of an unknown type";
}

uint32_t view_bind(view *self, device *owner, const halyard_tensor *tensor, halyard_error *err) {
    buffer *memory;
    memset(self, 0, sizeof *self);
    if (halyard_dtype_bytes(tensor->dtype) == 0) {
        return halyard_fail(err, HALYARD_STATUS_UNSUPPORTED, "a tensor of type %u", (unsigned)tensor->dtype);
    }
    if (tensor->rank < 1 || tensor->rank > 4) {
        return halyard_fail(err, HALYARD_STATUS_INVALID_ARGUMENT, "a tensor of %u axes", (unsigned)tensor->rank);
    }
    memory = (buffer *)object_find(owner, BUFFER, tensor->buffer, err);
    if (memory == NULL) return HALYARD_STATUS_INVALID_ARGUMENT;
    self->bytes = halyard_tensor_span(tensor);
    if (!buffer_has(memory, tensor->offset, self->bytes, err)) {
        object_release(&memory->base);
        return HALYARD_STATUS_INVALID_ARGUMENT;
    }
    self->memory = memory;
    self->data = memory->data + tensor->offset;
    self->dtype = tensor->dtype;
    self->rank = tensor->rank;
    memcpy(self->shape, tensor->shape, sizeof self->shape);
    memcpy(self->strides, tensor->strides, sizeof self->strides);
    return HALYARD_STATUS_OK;
}

uint64_t view_width(const view *self) { return self->rank == 0 ? 0 : self->shape[self->rank - 1]; }

uint64_t view_rows(const view *self) {
    uint64_t rows = 1;
    for (uint32_t axis = 0; axis + 1 < self->rank; axis++) rows *= self->shape[axis];
    return rows;
}

row view_row(const view *self, uint64_t index) {
    uint64_t size = halyard_dtype_bytes(self->dtype), at = 0;
    row r;
    for (uint32_t axis = self->rank - 1; axis-- > 0;) {
        at += index % self->shape[axis] * self->strides[axis];
        index /= self->shape[axis];
    }
    r.data = self->data + at * size;
    r.stride = self->strides[self->rank - 1] * size;
    r.dtype = self->dtype;
    return r;
}

/* Floats */

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

float half_to_float(uint16_t bits) {
    uint32_t magnitude = bits & 0x7fffu;
    float value;
    if (magnitude < 0x400u) value = ldexpf((float)magnitude, -24); /* subnormal: multiples of 2^-24 */
    else value = float_of((magnitude << 13) + (magnitude < 0x7c00u ? 112u << 23 : 224u << 23));
    return (bits & 0x8000u) != 0 ? -value : value;
}

static uint16_t half_of(float value) {
    uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    uint32_t half;
    if (magnitude > 0x7f800000u) half = 0x7e00u;                                   /* NaN */
    else if (magnitude >= bits_of(65520.0f)) half = 0x7c00u;                       /* rounds to infinity */
    else if (magnitude < 113u << 23) half = (uint32_t)lrintf(ldexpf(float_of(magnitude), 24)); /* subnormal */
    else half = (magnitude + 0xfffu + (magnitude >> 13 & 1u) - (112u << 23)) >> 13;
    return (uint16_t)(sign | half);
}

static uint16_t bfloat_of(float value) {
    uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)(bits >> 16 | 0x40u); /* NaN */
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

float get(row r, uint64_t index) {
    const uint8_t *at = r.data + index * r.stride;
    uint16_t two;
    float value;
    if (r.dtype == HALYARD_DTYPE_F32) {
        memcpy(&value, at, sizeof value);
        return value;
    }
    memcpy(&two, at, sizeof two);
    return r.dtype == HALYARD_DTYPE_F16 ? half_to_float(two) : float_of((uint32_t)two << 16);
}

void put(row r, uint64_t index, float value) {
    uint8_t *at = r.data + index * r.stride;
    if (r.dtype == HALYARD_DTYPE_F32) {
        memcpy(at, &value, sizeof value);
    } else {
        uint16_t two = r.dtype == HALYARD_DTYPE_F16 ? half_of(value) : bfloat_of(value);
        memcpy(at, &two, sizeof two);
    }
}

/* Integers */

static uint8_t *element(const view *self, uint64_t index) {
    uint64_t width = view_width(self);
    row r = view_row(self, index / width);
    return r.data + index % width * r.stride;
}

int32_t get_int(const view *self, uint64_t index) {
    int32_t value;
    memcpy(&value, element(self, index), sizeof value);
    return value;
}

void put_int(const view *self, uint64_t index, int32_t value) { memcpy(element(self, index), &value, sizeof value); }
