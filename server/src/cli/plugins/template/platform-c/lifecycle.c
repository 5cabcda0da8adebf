/* A host in miniature, for a first test of this platform without Halyard: `make test`. It goes through the entry as the
 * server does, runs an op, and asks for what must be refused. The conformance tool asks far more. */
#include "name.h"
#include "platform.h"

#include <stdio.h>

#define CHECK(holds) ((holds) ? (void)0 : fail_at(#holds, __LINE__))

static char text[512];
static halyard_error error;

static void fail_at(const char *what, int line) {
    printf("lifecycle.c:%d: %s is false; the last error: %.*s\n", line, what, (int)error.text_len, text);
    exit(1);
}

static halyard_error *fresh(void) {
    memset(&error, 0, sizeof error);
    error.struct_size = (uint32_t)sizeof error;
    error.text = (uint8_t *)text;
    error.text_capacity = (uint32_t)sizeof text;
    return &error;
}

static void on_log(void *context, uint32_t level, halyard_str target, halyard_str message) {
    (void)context, (void)level, (void)target;
    printf("%.*s\n", (int)message.len, (const char *)message.ptr);
}

static halyard_host host_of(uint32_t minor) {
    halyard_host host;
    memset(&host, 0, sizeof host);
    host.struct_size = (uint32_t)sizeof host;
    host.abi_major = HALYARD_ABI_MAJOR;
    host.abi_minor_min = minor;
    host.abi_minor_max = minor;
    host.name = halyard_text("lifecycle");
    host.version = halyard_text("0");
    host.log = on_log;
    return host;
}

/* Finds a table of version 0. */
static const void *table(const halyard_plugin *plugin, uint32_t id) {
    const void *found = NULL;
    CHECK(plugin->find_interface(plugin->instance, id, 0, 0, &found, fresh()) == HALYARD_STATUS_OK);
    return found;
}

static halyard_tensor floats(uint64_t buffer, uint64_t offset, uint32_t rows, uint32_t width) {
    halyard_tensor t;
    memset(&t, 0, sizeof t);
    t.buffer = buffer;
    t.offset = offset;
    t.dtype = HALYARD_DTYPE_F32;
    t.rank = 2;
    t.shape[0] = rows, t.shape[1] = width, t.shape[2] = t.shape[3] = 1;
    t.strides[0] = width, t.strides[1] = t.strides[2] = t.strides[3] = 1;
    return t;
}

HALYARD_LINKAGE uint32_t PLATFORM_ENTRY(const halyard_host *host, halyard_plugin *out, halyard_error *err);

int main(void) {
    const float values[4] = {1.0f, 2.0f, 3.0f, -4.0f};
    float sums[4];
    halyard_host host = host_of(HALYARD_ABI_MINOR), newer = host_of(HALYARD_ABI_MINOR + 1);
    halyard_plugin plugin;
    halyard_open_desc open;
    halyard_buffer_desc buffer;
    halyard_queue_desc queue;
    halyard_encoder_desc encoder;
    halyard_add_desc add;
    halyard_op_spec spec;
    halyard_prepared prepared;
    halyard_memory_info memory;
    halyard_tensor operands[3];
    const halyard_platform_table *platform;
    const halyard_device_table *device;
    const halyard_ops_table *ops;
    void *opened = NULL, *bytes = NULL, *line = NULL, *list = NULL, *commands = NULL;
    uint64_t buffer_id = 0, queue_id = 0, command_id = 0, number = 0;
    uint32_t num = 0;

    memset(&plugin, 0, sizeof plugin), plugin.struct_size = (uint32_t)sizeof plugin;
    CHECK(PLATFORM_ENTRY(&newer, &plugin, fresh()) == HALYARD_STATUS_INCOMPATIBLE && error.text_len > 0);
    CHECK(PLATFORM_ENTRY(&host, &plugin, fresh()) == HALYARD_STATUS_OK && plugin.kind == HALYARD_KIND_PLATFORM);
    platform = (const halyard_platform_table *)table(&plugin, HALYARD_INTERFACE_PLATFORM);
    device = (const halyard_device_table *)table(&plugin, HALYARD_INTERFACE_DEVICE);
    ops = (const halyard_ops_table *)table(&plugin, HALYARD_INTERFACE_OPS);

    CHECK(platform->num_devices(plugin.instance, &num, fresh()) == HALYARD_STATUS_OK && num >= 1);
    memset(&open, 0, sizeof open), open.struct_size = (uint32_t)sizeof open;
    open.index = num;
    CHECK(platform->open(plugin.instance, &open, &opened, fresh()) == HALYARD_STATUS_NOT_FOUND && opened == NULL);
    open.index = 0;
    CHECK(platform->open(plugin.instance, &open, &opened, fresh()) == HALYARD_STATUS_OK && opened != NULL);

    /* Memory: zero at first, bytes come back, nothing past the end. */
    memset(&buffer, 0, sizeof buffer), buffer.struct_size = (uint32_t)sizeof buffer;
    buffer.bytes = 256;
    CHECK(device->buffer_create(opened, &buffer, &bytes, &buffer_id, fresh()) == HALYARD_STATUS_OK && buffer_id != 0);
    CHECK(device->buffer_read(bytes, 128, (uint8_t *)sums, sizeof sums, fresh()) == HALYARD_STATUS_OK && sums[0] == 0);
    CHECK(device->buffer_write(bytes, 0, (const uint8_t *)values, sizeof values, fresh()) == HALYARD_STATUS_OK);
    CHECK(device->buffer_write(bytes, 250, (const uint8_t *)values, 7, fresh()) == HALYARD_STATUS_INVALID_ARGUMENT);

    /* An op that is there, and one that nobody has. */
    memset(&add, 0, sizeof add), add.struct_size = (uint32_t)sizeof add;
    add.width = 2;
    add.dtype = HALYARD_DTYPE_F32;
    memset(&spec, 0, sizeof spec), spec.struct_size = (uint32_t)sizeof spec;
    spec.version = 1;
    spec.name = halyard_text("add");
    spec.descriptor = (const uint8_t *)&add;
    spec.descriptor_len = sizeof add;
    spec.code = 1000;
    memset(&prepared, 0, sizeof prepared), prepared.struct_size = (uint32_t)sizeof prepared;
    CHECK(ops->prepare(opened, &spec, &prepared, fresh()) == HALYARD_STATUS_UNSUPPORTED && error.text_len > 0);
    spec.code = HALYARD_OP_ADD;
    CHECK(ops->prepare(opened, &spec, &prepared, fresh()) == HALYARD_STATUS_OK && prepared.id != 0);

    /* Twice values + values, into byte 64, from commands that are submitted twice. */
    memset(&queue, 0, sizeof queue), queue.struct_size = (uint32_t)sizeof queue;
    CHECK(device->queue_create(opened, &queue, &line, &queue_id, fresh()) == HALYARD_STATUS_OK && queue_id != 0);
    memset(&encoder, 0, sizeof encoder), encoder.struct_size = (uint32_t)sizeof encoder;
    encoder.mode = HALYARD_ENCODER_REUSABLE;
    CHECK(device->encoder_create(line, &encoder, &list, fresh()) == HALYARD_STATUS_OK);
    operands[0] = operands[1] = floats(buffer_id, 0, 2, 2);
    operands[2] = floats(buffer_id, 250, 2, 2);
    CHECK(device->encode(list, prepared.id, operands, 3, fresh()) != HALYARD_STATUS_OK);
    operands[2].offset = 64;
    CHECK(device->encode(list, prepared.id + 1, operands, 3, fresh()) == HALYARD_STATUS_INVALID_ARGUMENT);
    CHECK(device->encode(list, prepared.id, operands, 2, fresh()) == HALYARD_STATUS_INVALID_ARGUMENT);
    CHECK(device->encode(list, prepared.id, operands, 3, fresh()) == HALYARD_STATUS_OK);
    CHECK(device->encoder_finish(list, &commands, &command_id, fresh()) == HALYARD_STATUS_OK && command_id != 0);
    ops->prepared_drop(prepared.handle); /* The commands keep what they name. */
    for (uint64_t i = 1; i <= 2; i++) {
        CHECK(device->submit(line, &command_id, 1, NULL, 0, &number, fresh()) == HALYARD_STATUS_OK && number == i);
        CHECK(device->wait(line, number, UINT64_MAX, fresh()) == HALYARD_STATUS_OK);
        CHECK(device->completed(line) == i);
    }
    CHECK(device->buffer_read(bytes, 64, (uint8_t *)sums, sizeof sums, fresh()) == HALYARD_STATUS_OK);
    for (int i = 0; i < 4; i++) CHECK(sums[i] == 2 * values[i]);

    /* What is dropped is gone, and its memory given back. */
    device->command_drop(commands);
    CHECK(device->submit(line, &command_id, 1, NULL, 0, &number, fresh()) == HALYARD_STATUS_INVALID_ARGUMENT);
    device->queue_drop(line);
    device->buffer_drop(bytes);
    memset(&memory, 0, sizeof memory), memory.struct_size = (uint32_t)sizeof memory;
    CHECK(device->memory(opened, &memory, fresh()) == HALYARD_STATUS_OK && memory.used_bytes == 0);
    device->close(opened);
    printf("lifecycle: passed\n");
    return 0;
}
