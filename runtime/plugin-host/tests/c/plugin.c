/* The smallest useful platform in C: one device with memory, a queue and empty command buffers; every op is unsupported.
 * Also the source of the broken libraries: each BROKEN_* macro breaks one rule, and nothing else. */
#include "halyard_sdk.h"

#include <stdlib.h>

#ifndef ABI
#define ABI HALYARD_ABI
#endif
#ifndef FEATURES
#define FEATURES ""
#endif
#ifndef ENTRY
#define ENTRY "minimal_entry"
#endif

#if defined(BROKEN_MANIFEST_TEXT)
HALYARD_MANIFEST("this is not JSON");
#elif !defined(BROKEN_NO_MANIFEST)
HALYARD_MANIFEST("{\"manifest\":1,\"kind\":\"platform\",\"name\":\"minimal\",\"version\":\"3.2.1\",\"abi\":\"" ABI
                 "\",\"entry\":\"" ENTRY "\",\"priority\":5,\"about\":\"in C\",\"cpu_features\":\"" FEATURES "\"}");
#endif

#define TOTAL (1u << 20)

typedef struct device {
    uint64_t used;
    uint64_t next_id;
} device;

typedef struct buffer {
    device *owner;
    uint64_t bytes;
    uint8_t *data;
} buffer;

typedef struct queue {
    uint64_t completed;
} queue;

static const halyard_host *the_host;

static uint32_t fail(halyard_error *err, uint32_t status, const char *text) {
    (void)halyard_fail(err, status, "%s", text);
    if (err != NULL && err->struct_size >= halyard_error_base_size) err->vendor_code = 42;
    return status;
}

static uint32_t fill_info(halyard_device_info *out, halyard_error *err) {
    halyard_device_info info;
    memset(&info, 0, sizeof info);
    info.name = halyard_text("Minimal C device");
    info.detail = halyard_text("driver 0");
    info.total_memory_bytes = TOTAL;
    info.compute_dtypes = 1u << HALYARD_DTYPE_F32;
    info.kv_dtypes = 1u << HALYARD_DTYPE_F32;
    info.preferred_dtype = HALYARD_DTYPE_F32;
    info.preferred_kv_dtype = HALYARD_DTYPE_F32;
    info.max_buffer_bytes = TOTAL;
    info.max_binding_bytes = TOTAL;
    info.offset_alignment = 64;
    info.num_compute_units = 1;
    info.preferred_block_size = 16;
    info.preferred_step_tokens = 256;
    return HALYARD_GIVE(halyard_device_info, out, &info, err);
}

static uint32_t num_devices(void *instance, uint32_t *out, halyard_error *err) {
    (void)instance;
#ifdef BROKEN_NO_DEVICE
    return fail(err, HALYARD_STATUS_UNAVAILABLE, "no minimal chip on this bus");
#else
    (void)err;
    *out = 1;
    return HALYARD_STATUS_OK;
#endif
}

static uint32_t device_info(void *instance, uint32_t index, halyard_device_info *out, halyard_error *err) {
    (void)instance;
    if (index != 0) return fail(err, HALYARD_STATUS_NOT_FOUND, "there is one device");
    return fill_info(out, err);
}

static uint32_t open_device(void *instance, const halyard_open_desc *theirs, void **out, halyard_error *err) {
    halyard_open_desc desc;
    uint32_t status = HALYARD_READ(halyard_open_desc, &desc, theirs, err);
    device *d;
    (void)instance;
    if (status != HALYARD_STATUS_OK) return status;
    if (desc.options.len != 0) return fail(err, HALYARD_STATUS_INVALID_ARGUMENT, "this platform has no options");
    if (desc.index != 0) return fail(err, HALYARD_STATUS_NOT_FOUND, "there is one device");
    d = calloc(1, sizeof *d);
    if (d == NULL) return fail(err, HALYARD_STATUS_OUT_OF_MEMORY, "there is no memory for a device");
    d->next_id = 1;
    *out = d;
    return HALYARD_STATUS_OK;
}

static void close_device(void *d) {
    if (the_host != NULL && the_host->log != NULL) {
        the_host->log(the_host->context, 3, halyard_text("minimal"), halyard_text("device closed"));
    }
    free(d);
}

static uint32_t info(void *d, halyard_device_info *out, halyard_error *err) {
    (void)d;
    return fill_info(out, err);
}

static uint32_t memory(void *d, halyard_memory_info *out, halyard_error *err) {
    halyard_memory_info m;
    memset(&m, 0, sizeof m);
    m.total_bytes = TOTAL;
    m.used_bytes = ((device *)d)->used;
    m.free_bytes = TOTAL - m.used_bytes;
    return HALYARD_GIVE(halyard_memory_info, out, &m, err);
}

static uint32_t buffer_create(void *d, const halyard_buffer_desc *theirs, void **handle, uint64_t *id, halyard_error *err) {
    halyard_buffer_desc desc;
    uint32_t status = HALYARD_READ(halyard_buffer_desc, &desc, theirs, err);
    device *dev = d;
    buffer *b;
#ifdef BROKEN_CRASH
    abort();
#endif
#ifdef BROKEN_HANG
    // The first check of the suite makes four, and passes.
    static volatile int made;
    for (made++; made > 4;) {
    }
#endif
    if (status != HALYARD_STATUS_OK) return status;
    if (desc.kind > HALYARD_BUFFER_HOST_VISIBLE || desc.flags != 0) {
        return fail(err, HALYARD_STATUS_UNSUPPORTED, "a buffer of a kind or with flags that are not known here");
    }
    b = calloc(1, sizeof *b);
    if (b == NULL || desc.bytes > TOTAL - dev->used) {
        free(b);
        return fail(err, HALYARD_STATUS_OUT_OF_MEMORY, "the minimal device is full");
    }
    b->owner = dev;
    b->bytes = desc.bytes;
    b->data = calloc(desc.bytes, 1);
    dev->used += desc.bytes;
    *handle = b;
    *id = dev->next_id++;
    return HALYARD_STATUS_OK;
}

static void buffer_drop(void *h) {
    buffer *b = h;
    b->owner->used -= b->bytes;
    free(b->data);
    free(b);
}

static uint32_t buffer_write(void *h, uint64_t offset, const uint8_t *bytes, uint64_t len, halyard_error *err) {
    (void)err;
    memcpy(((buffer *)h)->data + offset, bytes, len);
    return HALYARD_STATUS_OK;
}

static uint32_t buffer_read(void *h, uint64_t offset, uint8_t *out, uint64_t len, halyard_error *err) {
    (void)err;
    memcpy(out, ((buffer *)h)->data + offset, len);
    return HALYARD_STATUS_OK;
}

static uint32_t queue_create(void *d, const halyard_queue_desc *theirs, void **handle, uint64_t *id, halyard_error *err) {
    halyard_queue_desc desc;
    uint32_t status = HALYARD_READ(halyard_queue_desc, &desc, theirs, err);
    queue *q;
    if (status != HALYARD_STATUS_OK) return status;
    if (desc.kind != HALYARD_QUEUE_COMPUTE || desc.flags != 0) {
        return fail(err, HALYARD_STATUS_UNSUPPORTED, "compute queues only");
    }
    q = calloc(1, sizeof *q);
    *handle = q;
    *id = ((device *)d)->next_id++;
    return HALYARD_STATUS_OK;
}

static void release(void *h) { free(h); }

static uint32_t submit(void *q, const uint64_t *commands, uint32_t num, const halyard_queue_wait *waits,
                       uint32_t num_waits, uint64_t *number, halyard_error *err) {
    (void)commands, (void)num, (void)waits, (void)num_waits, (void)err;
    *number = ++((queue *)q)->completed;
    return HALYARD_STATUS_OK;
}

static uint64_t completed(void *q) { return ((queue *)q)->completed; }

static uint32_t wait_for(void *q, uint64_t number, uint64_t timeout_ns, halyard_error *err) {
    (void)timeout_ns;
    if (number > ((queue *)q)->completed) return fail(err, HALYARD_STATUS_INVALID_ARGUMENT, "nothing of that number");
    return HALYARD_STATUS_OK;
}

static uint32_t write_step(void *q, const halyard_step_write *writes, uint32_t num, uint32_t stride, halyard_error *err) {
    (void)q, (void)writes, (void)num, (void)stride;
    return fail(err, HALYARD_STATUS_UNSUPPORTED, "no step buffers here");
}

static uint32_t reserve_scratch(void *q, uint64_t bytes, halyard_error *err) {
    (void)q, (void)bytes, (void)err;
    return HALYARD_STATUS_OK;
}

static uint32_t encoder_create(void *q, const halyard_encoder_desc *theirs, void **out, halyard_error *err) {
    halyard_encoder_desc desc;
    uint32_t status = HALYARD_READ(halyard_encoder_desc, &desc, theirs, err);
    (void)q;
    if (status != HALYARD_STATUS_OK) return status;
    if (desc.mode != HALYARD_ENCODER_ONE_SHOT || desc.flags != 0) {
        return fail(err, HALYARD_STATUS_UNSUPPORTED, "one-shot encoders only");
    }
    *out = malloc(1);
    return HALYARD_STATUS_OK;
}

static uint32_t encode(void *e, uint64_t op, const halyard_tensor *operands, uint32_t num, halyard_error *err) {
    (void)e, (void)op, (void)operands, (void)num;
    return fail(err, HALYARD_STATUS_INVALID_ARGUMENT, "no op was prepared");
}

static uint32_t encoder_finish(void *e, void **handle, uint64_t *id, halyard_error *err) {
    (void)err;
    *handle = e;
    *id = 7;
    return HALYARD_STATUS_OK;
}

static uint32_t op_support(void *d, const halyard_op_spec *spec, halyard_op_support *out, halyard_error *err) {
    (void)d, (void)spec, (void)out;
    return fail(err, HALYARD_STATUS_UNSUPPORTED, "the minimal device computes nothing");
}

static uint32_t op_prepare(void *d, const halyard_op_spec *spec, halyard_prepared *out, halyard_error *err) {
    (void)d, (void)spec, (void)out;
    return fail(err, HALYARD_STATUS_UNSUPPORTED, "the minimal device computes nothing");
}

static uint32_t packed_weight_bytes(void *p, uint32_t node, uint64_t *out, halyard_error *err) {
    (void)p, (void)node, (void)out;
    return fail(err, HALYARD_STATUS_INVALID_ARGUMENT, "no weight");
}

static uint32_t pack_weight(void *p, const halyard_weight_rows *rows, const halyard_tensor *dst, halyard_error *err) {
    (void)p, (void)rows, (void)dst;
    return fail(err, HALYARD_STATUS_INVALID_ARGUMENT, "no weight");
}

static const halyard_platform_table platform_table = {sizeof(halyard_platform_table), 2, num_devices, device_info, open_device};

/* A newer vendor's table: functions past the ones that this host knows. */
typedef struct larger_device_table {
    halyard_device_table known;
    void (*later[3])(void *);
} larger_device_table;

static const larger_device_table device_table = {
    {
#if defined(BROKEN_SMALLER_TABLE)
        offsetof(halyard_device_table, encode),
#elif defined(LARGER_TABLE)
        sizeof(larger_device_table),
#else
        sizeof(halyard_device_table),
#endif
        2, close_device, info, memory, buffer_create, buffer_drop, buffer_write, buffer_read, queue_create, release, submit,
        completed,
#ifdef BROKEN_NULL_SLOT
        NULL,
#else
        wait_for,
#endif
        write_step, reserve_scratch, encoder_create, release, encode, encoder_finish, release},
    {release, release, release}};

static const halyard_ops_table ops_table = {sizeof(halyard_ops_table), 3,    op_support,  op_prepare, release,
                                            packed_weight_bytes,       pack_weight, NULL, NULL,
                                            NULL};

static uint32_t find_interface(void *instance, uint32_t id, uint32_t major, uint32_t max_minor, const void **out,
                               halyard_error *err) {
    const void *table;
    (void)instance, (void)max_minor;
#ifdef BROKEN_NULL_TABLES
    *out = NULL;
    return HALYARD_STATUS_OK;
#endif
    switch (id) {
    case HALYARD_INTERFACE_PLATFORM: table = &platform_table; break;
    case HALYARD_INTERFACE_DEVICE: table = &device_table; break;
#ifndef BROKEN_NO_OPS
    case HALYARD_INTERFACE_OPS: table = &ops_table; break;
#endif
    default: return fail(err, HALYARD_STATUS_UNSUPPORTED, "no such interface");
    }
    if (major != 0) return fail(err, HALYARD_STATUS_INCOMPATIBLE, "interfaces 0.x only");
    *out = table;
    return HALYARD_STATUS_OK;
}

uint32_t minimal_entry(const halyard_host *host, halyard_plugin *out, halyard_error *err);

uint32_t minimal_entry(const halyard_host *host, halyard_plugin *out, halyard_error *err) {
    halyard_plugin p;
    if (host->abi_major != HALYARD_ABI_MAJOR || host->abi_minor_min > HALYARD_ABI_MINOR ||
        host->abi_minor_max < HALYARD_ABI_MINOR) {
        return fail(err, HALYARD_STATUS_INCOMPATIBLE, "this plugin speaks ABI 0.2");
    }
#ifdef BROKEN_ENTRY_ERROR
    return fail(err, HALYARD_STATUS_UNAVAILABLE, "the vendor's licence server does not answer");
#endif
#ifdef BROKEN_REFUSES_HOST
    return fail(err, HALYARD_STATUS_INCOMPATIBLE, "this plugin wants a host of ABI 0.7 or newer");
#endif
    the_host = host;
    memset(&p, 0, sizeof p);
#ifdef BROKEN_ANSWERS_MAJOR
    p.abi_major = 9;
#else
    p.abi_major = HALYARD_ABI_MAJOR;
#endif
    p.abi_minor = HALYARD_ABI_MINOR;
    p.kind = HALYARD_KIND_PLATFORM;
    p.instance = &the_host;
#ifdef BROKEN_OTHER_NAME
    p.name = halyard_text("maximal");
#else
    p.name = halyard_text("minimal");
#endif
    p.version = halyard_text("3.2.1");
#ifndef BROKEN_NULL_INTERFACE
    p.find_interface = find_interface;
#endif
    return HALYARD_GIVE(halyard_plugin, out, &p, err);
}
