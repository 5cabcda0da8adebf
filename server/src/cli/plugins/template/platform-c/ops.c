/* The ops interface: support, prepare, packed weights; and what the ops' own functions share. It looks everything up in
 * table.c and knows no op by itself. */
#include "platform.h"

static const op_kind *kind_of(uint32_t code) {
    for (uint32_t i = 0; i < num_op_kinds; i++) {
        if (op_kinds[i].code == code) return &op_kinds[i];
    }
    return NULL;
}

void op_destroy(object *base) {
    op *self = (op *)base;
    free(self->descriptor);
    free(self);
}

uint32_t op_create(op **out, device *owner, const halyard_op_spec *theirs, halyard_error *err) {
    halyard_op_spec spec;
    const op_kind *kind;
    op *self;
    uint32_t status = HALYARD_READ(halyard_op_spec, &spec, theirs, err);
    if (status != HALYARD_STATUS_OK) return status;
    kind = kind_of(spec.code);
    if (kind == NULL || kind->run == NULL || spec.version != 1) {
        return halyard_fail(err, HALYARD_STATUS_UNSUPPORTED, "this platform has no op %.*s (code %u, version %u)",
                            (int)(spec.name.len < 64 ? spec.name.len : 64), (const char *)spec.name.ptr,
                            (unsigned)spec.code, (unsigned)spec.version);
    }
    self = (op *)calloc(1, sizeof(op));
    if (self != NULL) self->descriptor = calloc(1, kind->descriptor_size);
    if (self == NULL || self->descriptor == NULL) {
        free(self);
        return halyard_fail(err, HALYARD_STATUS_OUT_OF_MEMORY, "no memory for an op");
    }
    self->base.owner = owner;
    self->kind = kind;
    status = halyard_read_bytes(self->descriptor, kind->descriptor_size, kind->descriptor_base, spec.descriptor,
                                spec.descriptor_len, kind->name, err);
    if (status == HALYARD_STATUS_OK) status = kind->check(self, err);
    if (status != HALYARD_STATUS_OK) {
        op_destroy(&self->base);
        return status;
    }
    *out = self;
    return HALYARD_STATUS_OK;
}

static uint32_t support(void *owner, const halyard_op_spec *spec, halyard_op_support *out, halyard_error *err) {
    op *self = NULL;
    uint32_t status = op_create(&self, (device *)owner, spec, err);
    if (status != HALYARD_STATUS_OK) return status;
    if (out->struct_size < halyard_op_support_base_size) {
        status = halyard_fail(err, HALYARD_STATUS_INVALID_ARGUMENT, "halyard_op_support: %u bytes to write to",
                              (unsigned)out->struct_size);
    } else { /* It brings the caller's buffer along, so it is filled field by field. */
        out->cost = 1.0f;
        out->implementation_len = halyard_put_text(self->kind->name, out->implementation, out->implementation_capacity);
    }
    op_destroy(&self->base);
    return status;
}

static uint32_t prepare(void *owner, const halyard_op_spec *spec, halyard_prepared *out, halyard_error *err) {
    halyard_prepared prepared;
    op *self = NULL;
    uint32_t status = op_create(&self, (device *)owner, spec, err);
    if (status != HALYARD_STATUS_OK) return status;
    status = object_add(&self->base, (device *)owner, OP, op_destroy, err);
    if (status != HALYARD_STATUS_OK) {
        op_destroy(&self->base);
        return status;
    }
    memset(&prepared, 0, sizeof prepared);
    prepared.handle = self;
    prepared.id = self->base.id;
    prepared.recordable = 1;
    return HALYARD_GIVE(halyard_prepared, out, &prepared, err);
}

static void prepared_drop(void *handle) { object_drop((object *)handle); }

/* Packed weights: here f32 whatever the format, row after row. A fast device keeps the format, in its own order. */

static uint64_t packed_bytes(const op *self) { return self->weight_rows * self->weight_width * 4; }

static uint32_t packed_weight_bytes(void *handle, uint32_t node, uint64_t *out, halyard_error *err) {
    const op *self = (const op *)handle;
    if (node != 0 || self->format == NULL) {
        return halyard_fail(err, HALYARD_STATUS_INVALID_ARGUMENT, "%s: node %u has no weight", self->kind->name,
                            (unsigned)node);
    }
    *out = packed_bytes(self);
    return HALYARD_STATUS_OK;
}

/* Rows may come in several calls and in any order. */
static uint32_t pack_weight(void *handle, const halyard_weight_rows *theirs, const halyard_tensor *dst,
                            halyard_error *err) {
    const op *self = (const op *)handle;
    halyard_weight_rows rows;
    view packed;
    uint64_t total = 0, row_bytes;
    float *values;
    uint32_t status = HALYARD_READ(halyard_weight_rows, &rows, theirs, err);
    if (status == HALYARD_STATUS_OK) status = packed_weight_bytes(handle, rows.node, &total, err);
    if (status != HALYARD_STATUS_OK) return status;
    if (rows.part != 0) {
        return halyard_fail(err, HALYARD_STATUS_UNSUPPORTED, "%s: part %u of a weight is not known", self->kind->name,
                            (unsigned)rows.part);
    }
    row_bytes = (uint64_t)self->weight_width / self->format->block_values * self->format->block_bytes +
                self->format->tail_bytes;
    if ((uint64_t)rows.first_row + rows.num_rows > self->weight_rows || rows.len != rows.num_rows * row_bytes) {
        return halyard_fail(err, HALYARD_STATUS_INVALID_ARGUMENT,
                            "%s: %u rows from %u on in %llu bytes; the weight has %llu rows of %llu bytes",
                            self->kind->name, (unsigned)rows.num_rows, (unsigned)rows.first_row,
                            (unsigned long long)rows.len, (unsigned long long)self->weight_rows,
                            (unsigned long long)row_bytes);
    }
    status = view_bind(&packed, self->base.owner, dst, err);
    if (status != HALYARD_STATUS_OK) return status;
    values = (float *)malloc((size_t)self->weight_width * 4 + 1);
    if (values == NULL) status = halyard_fail(err, HALYARD_STATUS_OUT_OF_MEMORY, "no memory for a row of a weight");
    else if (!fits_weight(self, &packed, 0, err)) status = HALYARD_STATUS_INVALID_ARGUMENT;
    for (uint32_t i = 0; i < rows.num_rows && status == HALYARD_STATUS_OK; i++) {
        row to = weight_row(self, &packed, (uint64_t)rows.first_row + i);
        self->format->unpack(rows.bytes + i * row_bytes, self->weight_width, values);
        memcpy(to.data, values, (size_t)self->weight_width * 4);
    }
    free(values);
    object_release(&packed.memory->base);
    return status;
}

const halyard_ops_table ops_table = {(uint32_t)sizeof(halyard_ops_table),
                                     HALYARD_OPS_MINOR,
                                     support,
                                     prepare,
                                     prepared_drop,
                                     packed_weight_bytes,
                                     pack_weight,
                                     NULL,  /* claim: every op runs by itself */
                                     NULL,  /* prepare_program */
                                     NULL}; /* pack_weight_from: the host reads the rows back */

/* What `check` functions use */

uint32_t check_type(const op *self, const char *field, uint32_t dtype, halyard_error *err) {
    if (dtype < 64 && (compute_types >> dtype & 1) != 0) return HALYARD_STATUS_OK;
    return halyard_fail(err, HALYARD_STATUS_UNSUPPORTED, "%s: %s %s is not among the types that are computed in",
                        self->kind->name, field, dtype_name(dtype));
}

uint32_t check_weight(op *self, uint32_t format, uint64_t rows, uint32_t width, halyard_error *err) {
    const weight_format *found = NULL;
    for (uint32_t i = 0; i < num_weight_formats; i++) {
        if (weight_formats[i].code == format) found = &weight_formats[i];
    }
    if (found == NULL) {
        return halyard_fail(err, HALYARD_STATUS_UNSUPPORTED, "%s: weight format %u is not here yet", self->kind->name,
                            (unsigned)format);
    }
    if (rows > UINT64_MAX / 4 / ((uint64_t)width + 1)) {
        return halyard_fail(err, HALYARD_STATUS_UNSUPPORTED, "%s: a weight of %llu rows of %u values", self->kind->name,
                            (unsigned long long)rows, (unsigned)width);
    }
    if (width % found->block_values != 0) {
        return halyard_fail(err, HALYARD_STATUS_UNSUPPORTED, "%s: %u values are no whole blocks of %s",
                            self->kind->name, (unsigned)width, found->name);
    }
    self->format = found;
    self->weight_rows = rows;
    self->weight_width = width;
    return HALYARD_STATUS_OK;
}

/* What `run` functions use */

uint32_t bad_operand(const op *self, uint32_t index, const char *what, long long found, halyard_error *err) {
    return halyard_fail(err, HALYARD_STATUS_INVALID_ARGUMENT, "%s: operand %u: %s %lld", self->kind->name,
                        (unsigned)index, what, found);
}

int fits(const op *self, const view *operands, uint32_t index, uint32_t dtype, uint64_t rows, uint64_t width,
         halyard_error *err) {
    const view *v = &operands[index];
    if (v->dtype == dtype && (rows == ANY || view_rows(v) == rows) && (width == ANY || view_width(v) == width)) {
        return 1;
    }
    halyard_fail(err, HALYARD_STATUS_INVALID_ARGUMENT,
                 "%s: operand %u is %s with %llu rows of %llu, where %s with %lld rows of %lld is taken (-1: any)",
                 self->kind->name, (unsigned)index, dtype_name(v->dtype), (unsigned long long)view_rows(v),
                 (unsigned long long)view_width(v), dtype_name(dtype), (long long)rows, (long long)width);
    return 0;
}

int fits_ints(const op *self, const view *operands, uint32_t index, uint64_t count, halyard_error *err) {
    const view *v = &operands[index];
    uint64_t found = view_rows(v) * view_width(v);
    if (v->dtype == HALYARD_DTYPE_I32 && found == count) return 1;
    halyard_fail(err, HALYARD_STATUS_INVALID_ARGUMENT,
                 "%s: operand %u is %s with %llu elements, where I32 with %llu is taken", self->kind->name,
                 (unsigned)index, dtype_name(v->dtype), (unsigned long long)found, (unsigned long long)count);
    return 0;
}

int fits_weight(const op *self, const view *operands, uint32_t index, halyard_error *err) {
    const view *v = &operands[index];
    if (v->dtype == HALYARD_DTYPE_U8 && v->bytes == packed_bytes(self)) return 1;
    halyard_fail(err, HALYARD_STATUS_INVALID_ARGUMENT, "%s: the packed weight is %s of %llu bytes, not U8 of %llu",
                 self->kind->name, dtype_name(v->dtype), (unsigned long long)v->bytes,
                 (unsigned long long)packed_bytes(self));
    return 0;
}

row weight_row(const op *self, const view *weight, uint64_t index) {
    row r;
    r.data = weight->data + index * self->weight_width * 4;
    r.stride = 4;
    r.dtype = HALYARD_DTYPE_F32;
    return r;
}
