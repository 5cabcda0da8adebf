/* The device: its facts, its memory, its buffers. */
#include "platform.h"

#define MEMORY_BYTES ((uint64_t)4 << 30)
#define ALIGNMENT 64u

/* What the engine plans with. It asks these, and never who the device is. */
void device_facts(halyard_device_info *info) {
    memset(info, 0, sizeof *info);
    info->name = halyard_text("plain processor");
    info->detail = halyard_text("loops in C, one thread");
    info->total_memory_bytes = MEMORY_BYTES;
    info->compute_dtypes = compute_types;
    info->preferred_dtype = HALYARD_DTYPE_F32;
    info->kv_dtypes = kv_types;
    info->preferred_kv_dtype = HALYARD_DTYPE_F32;
    info->capabilities = capabilities;
    info->async_depth = 0; /* A submit returns when its work is done. */
    info->max_buffer_bytes = MEMORY_BYTES;
    info->max_binding_bytes = MEMORY_BYTES;
    info->offset_alignment = ALIGNMENT;
    info->unified_memory = 1;
    info->num_compute_units = 1;
    info->preferred_block_size = 16;
    info->preferred_step_tokens = 256;
}

uint32_t device_open(device **out, halyard_error *err) {
    device *self = (device *)calloc(1, sizeof(device));
    if (self == NULL || pthread_mutex_init(&self->lock, NULL) != 0) {
        free(self);
        return halyard_fail(err, HALYARD_STATUS_OUT_OF_MEMORY, "no memory for a device");
    }
    *out = self;
    return HALYARD_STATUS_OK;
}

/* The host has dropped every object before. */
void device_close(void *handle) {
    device *self = (device *)handle;
    pthread_mutex_destroy(&self->lock);
    free(self->slots);
    free(self);
}

uint32_t device_info(void *self, halyard_device_info *out, halyard_error *err) {
    halyard_device_info info;
    (void)self;
    device_facts(&info);
    return HALYARD_GIVE(halyard_device_info, out, &info, err);
}

uint32_t device_memory(void *handle, halyard_memory_info *out, halyard_error *err) {
    device *self = (device *)handle;
    halyard_memory_info info;
    memset(&info, 0, sizeof info);
    pthread_mutex_lock(&self->lock);
    info.total_bytes = MEMORY_BYTES;
    info.used_bytes = self->used_bytes;
    info.free_bytes = MEMORY_BYTES - self->used_bytes;
    pthread_mutex_unlock(&self->lock);
    return HALYARD_GIVE(halyard_memory_info, out, &info, err);
}

/* Takes bytes from the account; 0: there are not so many. */
static int take(device *owner, uint64_t bytes) {
    int enough;
    pthread_mutex_lock(&owner->lock);
    enough = bytes <= MEMORY_BYTES - owner->used_bytes;
    if (enough) owner->used_bytes += bytes;
    pthread_mutex_unlock(&owner->lock);
    return enough;
}

static void give_back(device *owner, uint64_t bytes) {
    pthread_mutex_lock(&owner->lock);
    owner->used_bytes -= bytes;
    pthread_mutex_unlock(&owner->lock);
}

static void buffer_destroy(object *base) {
    buffer *self = (buffer *)base;
    give_back(base->owner, self->bytes);
    free(self->allocated);
    free(self);
}

/* Zero-filled. Device memory and memory that the host reads are the same here. */
uint32_t buffer_create(void *handle, const halyard_buffer_desc *theirs, void **out, uint64_t *id, halyard_error *err) {
    device *owner = (device *)handle;
    halyard_buffer_desc desc;
    buffer *self;
    uint32_t status = HALYARD_READ(halyard_buffer_desc, &desc, theirs, err);
    if (status != HALYARD_STATUS_OK) return status;
    if (desc.kind > HALYARD_BUFFER_HOST_VISIBLE || desc.flags != 0) {
        return halyard_fail(err, HALYARD_STATUS_UNSUPPORTED, "a buffer of kind %u with flags %llu is not known",
                            (unsigned)desc.kind, (unsigned long long)desc.flags);
    }
    if (desc.bytes == 0) return halyard_fail(err, HALYARD_STATUS_INVALID_ARGUMENT, "a buffer of 0 bytes");
    if (!take(owner, desc.bytes)) {
        return halyard_fail(err, HALYARD_STATUS_OUT_OF_MEMORY, "%llu bytes are more than are free of %llu",
                            (unsigned long long)desc.bytes, (unsigned long long)MEMORY_BYTES);
    }
    self = (buffer *)calloc(1, sizeof(buffer));
    if (self != NULL) self->allocated = calloc(1, (size_t)desc.bytes + ALIGNMENT);
    if (self == NULL || self->allocated == NULL) {
        status = halyard_fail(err, HALYARD_STATUS_OUT_OF_MEMORY, "the machine has no %llu bytes",
                              (unsigned long long)desc.bytes);
    } else {
        self->bytes = desc.bytes;
        self->data = (uint8_t *)self->allocated + (ALIGNMENT - (uintptr_t)self->allocated % ALIGNMENT);
        status = object_add(&self->base, owner, BUFFER, buffer_destroy, err);
    }
    if (status != HALYARD_STATUS_OK) {
        give_back(owner, desc.bytes);
        if (self != NULL) free(self->allocated);
        free(self);
        return status;
    }
    *out = self;
    *id = self->base.id;
    return HALYARD_STATUS_OK;
}

int buffer_has(const buffer *self, uint64_t offset, uint64_t len, halyard_error *err) {
    if (offset <= self->bytes && len <= self->bytes - offset) return 1;
    halyard_fail(err, HALYARD_STATUS_INVALID_ARGUMENT, "%llu bytes at %llu of a buffer of %llu",
                 (unsigned long long)len, (unsigned long long)offset, (unsigned long long)self->bytes);
    return 0;
}

uint32_t buffer_write(void *handle, uint64_t offset, const uint8_t *bytes, uint64_t len, halyard_error *err) {
    buffer *self = (buffer *)handle;
    if (!buffer_has(self, offset, len, err)) return HALYARD_STATUS_INVALID_ARGUMENT;
    if (len != 0) memcpy(self->data + offset, bytes, (size_t)len);
    return HALYARD_STATUS_OK;
}

uint32_t buffer_read(void *handle, uint64_t offset, uint8_t *out, uint64_t len, halyard_error *err) {
    buffer *self = (buffer *)handle;
    if (!buffer_has(self, offset, len, err)) return HALYARD_STATUS_INVALID_ARGUMENT;
    if (len != 0) memcpy(out, self->data + offset, (size_t)len);
    return HALYARD_STATUS_OK;
}
