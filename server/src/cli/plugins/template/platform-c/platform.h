/* What the files of this platform share.
 *
 * Reading order: entry.c, device.c, objects.c, queue.c, ops.c, tensor.c, first_ops.c; table.c is the file that grows.
 * The device here is the processor: memory is malloc, an op is a loop, a submit runs the loops and then returns. */
#ifndef PLATFORM_H
#define PLATFORM_H

#include "halyard.h"
#include "halyard_sdk.h"

#include <pthread.h>
#include <stdlib.h>

/* Objects: what the host names by an id. objects.c */

typedef struct device device;

typedef enum object_kind { BUFFER, QUEUE, COMMANDS, OP } object_kind;

/* The first member of each. It lives while somebody holds a reference: the host's handle, or commands that name it. */
typedef struct object {
    device *owner;
    void (*destroy)(struct object *self);
    uint64_t id; /* never given out again; 0 when the host's handle is gone */
    object_kind kind;
    uint32_t references;
} object;

typedef struct slot {
    object *held; /* NULL: free */
    uint32_t generation;
    uint32_t next_free;
} slot;

struct device {
    pthread_mutex_t lock; /* of what follows, and of every object's `id` and `references` */
    slot *slots;
    uint32_t num_slots;
    uint32_t first_free; /* num_slots: none */
    uint64_t used_bytes;
};

/* Gives a new object its id and the reference of the host's handle. */
uint32_t object_add(object *self, device *owner, object_kind kind, void (*destroy)(object *self), halyard_error *err);
/* The object of an id with one reference more, or NULL and the error InvalidArgument. */
object *object_find(device *owner, object_kind kind, uint64_t id, halyard_error *err);
void object_release(object *self);
/* The host drops its handle: the id ends, and with the last reference the object. */
void object_drop(object *self);

/* Memory and tensors. device.c, tensor.c */

typedef struct buffer {
    object base;
    uint64_t bytes;
    uint8_t *data; /* at a multiple of the alignment that device.c states */
    void *allocated;
} buffer;

/* An operand: a tensor with the memory that it names. */
typedef struct view {
    buffer *memory; /* NULL: the operand is absent */
    uint8_t *data;  /* the first element */
    uint64_t bytes; /* from there to behind the last one */
    uint32_t shape[4];
    uint32_t strides[4]; /* in elements */
    uint32_t dtype;
    uint32_t rank;
} view;

/* One row of an operand: the elements along its last axis. */
typedef struct row {
    uint8_t *data;
    uint64_t stride; /* in bytes */
    uint32_t dtype;
} row;

const char *dtype_name(uint32_t dtype);
/* Finds a tensor's memory and checks that it lies in there. The view holds a reference to the buffer. */
uint32_t view_bind(view *self, device *owner, const halyard_tensor *tensor, halyard_error *err);
/* Elements of the last axis, and of all others together. */
uint64_t view_width(const view *self);
uint64_t view_rows(const view *self);
row view_row(const view *self, uint64_t index);
/* Floats of any of the float types; storing rounds to nearest even. */
float get(row r, uint64_t index);
void put(row r, uint64_t index, float value);
/* Elements of an I32 tensor of any shape, counted row after row. */
int32_t get_int(const view *self, uint64_t index);
void put_int(const view *self, uint64_t index, int32_t value);
float half_to_float(uint16_t bits);

/* Ops. ops.c; the lists are in table.c */

typedef struct op op;

/* A kind of op. */
typedef struct op_kind {
    uint32_t code;
    const char *name;
    const char *operands;     /* a letter each: c constant, r read, w written, u updated; a capital one may be absent */
    uint32_t descriptor_size; /* as this header knows it, */
    uint32_t descriptor_base; /* and as it always was */
    /* Refuses what this platform does not compute, with Unsupported and the reason. Sets the op's weight. */
    uint32_t (*check)(op *self, halyard_error *err);
    /* Computes. Failures are the caller's mistakes: an operand of another shape, an index outside. NULL: not there. */
    uint32_t (*run)(const op *self, const view *operands, halyard_error *err);
} op_kind;

/* How a row of a weight is stored in a model's files. */
typedef struct weight_format {
    uint32_t code;
    const char *name;
    uint32_t block_values; /* a row is whole blocks of these many values, */
    uint32_t block_bytes;  /* these many bytes each, */
    uint32_t tail_bytes;   /* and then this */
    void (*unpack)(const uint8_t *bytes, uint32_t width, float *values);
} weight_format;

/* A prepared op. */
struct op {
    object base;
    const op_kind *kind;
    void *descriptor;            /* its halyard_X_desc, whole */
    const weight_format *format; /* of its packed weight; NULL: it has none */
    uint64_t weight_rows;
    uint32_t weight_width;
};

extern const uint64_t capabilities;  /* bits HALYARD_CAPABILITY_X */
extern const uint64_t compute_types; /* a bit for each HALYARD_DTYPE_X */
extern const uint64_t kv_types;
extern const weight_format weight_formats[];
extern const uint32_t num_weight_formats;
extern const op_kind op_kinds[];
extern const uint32_t num_op_kinds;
extern const halyard_attention_table *const attention_table; /* NULL: no attention */

/* Makes and checks an op; it has no id yet. */
uint32_t op_create(op **out, device *owner, const halyard_op_spec *spec, halyard_error *err);
void op_destroy(object *self);
/* For `check`: the type is one that ops compute in; the weight's format is known, and its rows are whole blocks. */
uint32_t check_type(const op *self, const char *field, uint32_t dtype, halyard_error *err);
uint32_t check_weight(op *self, uint32_t format, uint64_t rows, uint32_t width, halyard_error *err);
/* For `run`: whether operand `index` has this type and these many rows and elements a row; fills the error if not. */
int fits(const op *self, const view *operands, uint32_t index, uint32_t dtype, uint64_t rows, uint64_t width,
         halyard_error *err);
/* The same of an I32 operand of `count` elements, in any shape. */
int fits_ints(const op *self, const view *operands, uint32_t index, uint64_t count, halyard_error *err);
/* The same of a packed weight. */
int fits_weight(const op *self, const view *operands, uint32_t index, halyard_error *err);
/* Row `index` of a packed weight: f32. */
row weight_row(const op *self, const view *weight, uint64_t index);
/* An error about an operand: InvalidArgument. */
uint32_t bad_operand(const op *self, uint32_t index, const char *what, long long found, halyard_error *err);
#define ANY UINT64_MAX

/* Tables. device.c, queue.c, ops.c */

uint32_t device_open(device **out, halyard_error *err);
void device_facts(halyard_device_info *info);
void device_close(void *self);
uint32_t device_info(void *self, halyard_device_info *out, halyard_error *err);
uint32_t device_memory(void *self, halyard_memory_info *out, halyard_error *err);
uint32_t buffer_create(void *owner, const halyard_buffer_desc *desc, void **handle, uint64_t *id, halyard_error *err);
uint32_t buffer_write(void *self, uint64_t offset, const uint8_t *bytes, uint64_t len, halyard_error *err);
uint32_t buffer_read(void *self, uint64_t offset, uint8_t *out, uint64_t len, halyard_error *err);
/* Whether `len` bytes at `offset` lie in the buffer; fills the error if not. */
int buffer_has(const buffer *self, uint64_t offset, uint64_t len, halyard_error *err);
extern const halyard_device_table device_table;
extern const halyard_ops_table ops_table;

#endif
