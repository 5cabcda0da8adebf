/* halyard_sdk.h: small helpers for a plugin in C99 or C++17, beside halyard.h. They need nothing but the C library.
 * Each is one rule of docs/abi.md. What returns uint32_t returns a status, unless it says otherwise. */
#ifndef HALYARD_SDK_H
#define HALYARD_SDK_H

#include "halyard.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#if defined(__GNUC__)
#define HALYARD_EXPORT __attribute__((visibility("default")))
#define HALYARD_FORMAT(at, values) __attribute__((format(printf, at, values)))
#else
#define HALYARD_EXPORT
#define HALYARD_FORMAT(at, values)
#endif

#ifdef __cplusplus
#define HALYARD_LINKAGE extern "C"
#else
#define HALYARD_LINKAGE
#endif

/* Starts the definition of the entry `name`, which the manifest names: HALYARD_ENTRY(acme_entry) { … } */
#define HALYARD_ENTRY(name) \
    HALYARD_LINKAGE HALYARD_EXPORT uint32_t name(const halyard_host *host, halyard_plugin *out, halyard_error *err); \
    HALYARD_LINKAGE HALYARD_EXPORT uint32_t name(const halyard_host *host, halyard_plugin *out, halyard_error *err)

/* A text that lives as long as `text`. */
static inline halyard_str halyard_text(const char *text) {
    halyard_str s;
    s.ptr = (const uint8_t *)text;
    s.len = strlen(text);
    return s;
}

/* Copies at most `capacity` bytes of a text, cut between characters, and returns how many. */
static inline uint32_t halyard_put_text(const char *text, uint8_t *to, uint32_t capacity) {
    size_t len = strlen(text);
    if (to == NULL) return 0;
    if (len > capacity) {
        len = capacity;
        while (len > 0 && ((unsigned char)text[len] & 0xC0u) == 0x80u) len--;
    }
    memcpy(to, text, len);
    return (uint32_t)len;
}

/* Fills the caller's error, which may be null or older than this header, and returns `status`. */
static inline uint32_t halyard_fail(halyard_error *err, uint32_t status, const char *format, ...) HALYARD_FORMAT(3, 4);

static inline uint32_t halyard_fail(halyard_error *err, uint32_t status, const char *format, ...) {
    char text[1024];
    va_list values;
    if (err == NULL || err->struct_size < halyard_error_base_size) return status;
    va_start(values, format);
    if (vsnprintf(text, sizeof text, format, values) >= (int)sizeof text) {
        size_t end = sizeof text - 1; /* The last character may be in parts. */
        while (end > 0 && ((unsigned char)text[end - 1] & 0xC0u) == 0x80u) end--;
        if (end > 0 && (unsigned char)text[end - 1] >= 0xC0u) end--;
        text[end] = 0;
    }
    va_end(values);
    err->status = status;
    err->vendor_code = 0;
    err->text_len = halyard_put_text(text, err->text, err->text_capacity);
    return status;
}

/* Whether bytes `known` to `total` are all zero: fields that this side does not know, and that ask for nothing. */
static inline int halyard_tail_is_zero(const void *bytes, uint64_t known, uint64_t total) {
    for (uint64_t i = known; i < total; i++) {
        if (((const uint8_t *)bytes)[i] != 0) return 0;
    }
    return 1;
}

/* Reads `len` bytes of a sized struct of an older or newer host into a whole `local` of `known` bytes: fields that the
 * host does not have are zero, fields that this side does not have must be. `base`: bytes that it always had. */
static inline uint32_t halyard_read_bytes(void *local, uint32_t known, uint32_t base, const void *theirs, uint64_t len,
                                          const char *name, halyard_error *err) {
    if (theirs == NULL) return halyard_fail(err, HALYARD_STATUS_INVALID_ARGUMENT, "%s: null pointer", name);
    if (len < base || len > HALYARD_MAX_STRUCT_BYTES) {
        return halyard_fail(err, HALYARD_STATUS_INVALID_ARGUMENT, "%s: %llu bytes, outside %u to %u", name,
                            (unsigned long long)len, (unsigned)base, HALYARD_MAX_STRUCT_BYTES);
    }
    if (len > known && !halyard_tail_is_zero(theirs, known, len)) {
        return halyard_fail(err, HALYARD_STATUS_UNSUPPORTED, "%s: a field past byte %u is set that is not known here",
                            name, (unsigned)known);
    }
    memset(local, 0, known);
    memcpy(local, theirs, (size_t)(len < known ? len : known));
    memcpy(local, &known, sizeof known);
    return HALYARD_STATUS_OK;
}

/* The same of a struct whose first word says its size. */
static inline uint32_t halyard_read(void *local, uint32_t known, uint32_t base, const void *theirs, const char *name,
                                    halyard_error *err) {
    uint32_t size = 0;
    if (theirs != NULL) memcpy(&size, theirs, sizeof size);
    return halyard_read_bytes(local, known, base, theirs, size, name, err);
}

/* HALYARD_READ(halyard_open_desc, &desc, theirs, err) */
#define HALYARD_READ(type, local, theirs, err) \
    halyard_read((1 ? (local) : (type *)NULL), (uint32_t)sizeof(type), type##_base_size, \
                 (1 ? (theirs) : (const type *)NULL), #type, (err))

/* HALYARD_READ_DESCRIPTOR(halyard_add_desc, &desc, spec, err): the descriptor of an op. */
#define HALYARD_READ_DESCRIPTOR(type, local, spec, err) \
    halyard_read_bytes((1 ? (local) : (type *)NULL), (uint32_t)sizeof(type), type##_base_size, \
                       (spec)->descriptor, (spec)->descriptor_len, #type, (err))

/* Writes `value` to the caller's struct, no further than the size that the caller stated there, which stays. */
static inline uint32_t halyard_give(void *out, const void *value, uint32_t known, uint32_t base, const char *name,
                                    halyard_error *err) {
    uint32_t size = 0;
    if (out != NULL) memcpy(&size, out, sizeof size);
    if (size < base) {
        return halyard_fail(err, HALYARD_STATUS_INVALID_ARGUMENT, "%s: %u bytes to write to; it always had %u", name,
                            (unsigned)size, (unsigned)base);
    }
    if (size > known) size = known;
    memcpy((uint8_t *)out + 4, (const uint8_t *)value + 4, size - 4);
    return HALYARD_STATUS_OK;
}

/* HALYARD_GIVE(halyard_memory_info, out, &info, err)
 * Not for a struct that brings the caller's own buffers (halyard_op_support, halyard_claim_report,
 * halyard_lora_answer): it would overwrite their pointers. Check the size there, and write field by field. */
#define HALYARD_GIVE(type, out, value, err) \
    halyard_give((1 ? (out) : (type *)NULL), (1 ? (value) : (const type *)NULL), (uint32_t)sizeof(type), \
                 type##_base_size, #type, (err))

/* Bytes of an element; 0 for a type that is not known here. */
static inline uint32_t halyard_dtype_bytes(uint32_t dtype) {
    switch (dtype) {
    case HALYARD_DTYPE_U8:
    case HALYARD_DTYPE_I8:
    case HALYARD_DTYPE_F8E4M3: return 1;
    case HALYARD_DTYPE_F16:
    case HALYARD_DTYPE_BF16: return 2;
    case HALYARD_DTYPE_F32:
    case HALYARD_DTYPE_I32: return 4;
    case HALYARD_DTYPE_I64: return 8;
    default: return 0;
    }
}

/* Bytes from a tensor's first element to behind its last: what its buffer must have from `offset` on. 0 for no
 * elements and for a type that is not known here, 2^64 - 1 where 64 bits do not hold it. Ranks above 4 are refused
 * before. */
static inline uint64_t halyard_tensor_span(const halyard_tensor *tensor) {
    uint64_t last = 0, size = halyard_dtype_bytes(tensor->dtype);
    uint32_t axis;
    if (tensor->bytes != 0) return tensor->bytes;
    for (axis = 0; axis < tensor->rank; axis++) {
        if (tensor->shape[axis] == 0) return 0;
    }
    for (axis = 0; axis < tensor->rank; axis++) {
        /* Below 2^64: both factors are below 2^32. */
        uint64_t step = (uint64_t)(tensor->shape[axis] - 1) * tensor->strides[axis];
        if (step > UINT64_MAX - last) return UINT64_MAX;
        last += step;
    }
    if (size == 0) return 0;
    return last < UINT64_MAX / size ? (last + 1) * size : UINT64_MAX;
}

/* Operand `index`, or null where it is absent: left out at the end by an older host, or given as absent. */
static inline const halyard_tensor *halyard_operand(const halyard_tensor *operands, uint32_t num, uint32_t index) {
    return index < num && operands[index].buffer != 0 ? &operands[index] : NULL;
}

/* Operands past the `known` ones mean nothing while they are absent; one that is given asks for what is not known. */
static inline uint32_t halyard_check_operands(const halyard_tensor *operands, uint32_t num, uint32_t known,
                                              halyard_error *err) {
    for (uint32_t i = known; i < num; i++) {
        if (operands[i].buffer != 0) {
            return halyard_fail(err, HALYARD_STATUS_UNSUPPORTED, "operand %u is given; %u are known here", (unsigned)i,
                                (unsigned)known);
        }
    }
    return HALYARD_STATUS_OK;
}

#endif
