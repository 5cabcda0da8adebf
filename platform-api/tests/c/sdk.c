/* Each helper of halyard_sdk.h once within its rule and once past it. Prints the first line that does not hold. */
#include "halyard_sdk.h"

#define EXPECT(condition)                                        \
    do {                                                         \
        if (!(condition)) {                                      \
            printf("line %d: %s does not hold\n", __LINE__, #condition); \
            return 1;                                            \
        }                                                        \
    } while (0)

HALYARD_ENTRY(sdk_entry) {
    halyard_plugin plugin;
    memset(&plugin, 0, sizeof plugin);
    plugin.abi_minor = host->abi_minor_max;
    plugin.name = halyard_text("sdk");
    return HALYARD_GIVE(halyard_plugin, out, &plugin, err);
}

/* An open descriptor of a newer host. */
typedef struct newer {
    halyard_open_desc known;
    uint64_t later;
} newer;

int main(void) {
    uint8_t text[16];
    halyard_error err;
    halyard_host host;
    halyard_plugin plugin;
    halyard_open_desc desc;
    newer theirs;
    halyard_tensor operands[3];

    memset(&err, 0, sizeof err);
    err.struct_size = sizeof err;
    err.text = text;
    err.text_capacity = 6;
    EXPECT(halyard_fail(&err, HALYARD_STATUS_NOT_FOUND, "%s", "1234\xC3\xA4\xC3\xB6") == HALYARD_STATUS_NOT_FOUND);
    EXPECT(err.status == HALYARD_STATUS_NOT_FOUND && err.text_len == 6);
    err.text_capacity = 5;
    (void)halyard_fail(&err, HALYARD_STATUS_NOT_FOUND, "%s", "1234\xC3\xA4\xC3\xB6");
    EXPECT(err.text_len == 4);
    err.struct_size = halyard_error_base_size - 4;
    (void)halyard_fail(&err, HALYARD_STATUS_INTERNAL, "x");
    EXPECT(err.status == HALYARD_STATUS_NOT_FOUND);
    EXPECT(halyard_fail(NULL, HALYARD_STATUS_INTERNAL, "x") == HALYARD_STATUS_INTERNAL);
    err.struct_size = sizeof err;

    memset(&theirs, 0, sizeof theirs);
    theirs.known.struct_size = sizeof theirs;
    theirs.known.index = 7;
    EXPECT(HALYARD_READ(halyard_open_desc, &desc, &theirs.known, &err) == HALYARD_STATUS_OK);
    EXPECT(desc.index == 7 && desc.struct_size == sizeof desc);
    theirs.later = (uint64_t)1 << 56;
    EXPECT(HALYARD_READ(halyard_open_desc, &desc, &theirs.known, &err) == HALYARD_STATUS_UNSUPPORTED);
    theirs.known.struct_size = halyard_open_desc_base_size - 1;
    EXPECT(HALYARD_READ(halyard_open_desc, &desc, &theirs.known, &err) == HALYARD_STATUS_INVALID_ARGUMENT);
    EXPECT(HALYARD_READ(halyard_open_desc, &desc, NULL, &err) == HALYARD_STATUS_INVALID_ARGUMENT);
    /* A struct that had 8 bytes once, from a host of then: what came later is zero. */
    theirs.known.options.len = 9;
    EXPECT(halyard_read_bytes(&desc, sizeof desc, 8, &theirs, 8, "desc", &err) == HALYARD_STATUS_OK);
    EXPECT(desc.index == 7 && desc.options.len == 0);

    memset(&host, 0, sizeof host);
    host.struct_size = sizeof host;
    host.abi_minor_max = 5;
    memset(&plugin, 0, sizeof plugin);
    plugin.struct_size = halyard_plugin_base_size;
    EXPECT(sdk_entry(&host, &plugin, &err) == HALYARD_STATUS_OK);
    EXPECT(plugin.abi_minor == 5 && plugin.struct_size == halyard_plugin_base_size && plugin.name.len == 3);
    plugin.struct_size = halyard_plugin_base_size - 8;
    EXPECT(sdk_entry(&host, &plugin, &err) == HALYARD_STATUS_INVALID_ARGUMENT);
    /* An output of 8 bytes gets 8 bytes. */
    plugin.struct_size = 8;
    plugin.abi_minor = 77;
    EXPECT(halyard_give(&plugin, &host, sizeof host, 8, "plugin", &err) == HALYARD_STATUS_OK);
    EXPECT(plugin.struct_size == 8 && plugin.abi_minor == 77);

    memset(operands, 0, sizeof operands);
    operands[0].buffer = 3;
    EXPECT(halyard_operand(operands, 2, 0) == &operands[0]);
    EXPECT(halyard_operand(operands, 2, 1) == NULL && halyard_operand(operands, 2, 5) == NULL);
    EXPECT(halyard_check_operands(operands, 3, 1, &err) == HALYARD_STATUS_OK);
    operands[2].buffer = 3;
    EXPECT(halyard_check_operands(operands, 3, 2, &err) == HALYARD_STATUS_UNSUPPORTED);

    EXPECT(halyard_dtype_bytes(HALYARD_DTYPE_BF16) == 2 && halyard_dtype_bytes(HALYARD_DTYPE_I64) == 8);
    EXPECT(halyard_dtype_bytes(99) == 0);
    operands[0].dtype = HALYARD_DTYPE_F32;
    operands[0].rank = 2;
    operands[0].shape[0] = 3;
    operands[0].shape[1] = 4;
    operands[0].strides[0] = 100;
    operands[0].strides[1] = 2;
    EXPECT(halyard_tensor_span(&operands[0]) == 4 * (2 * 100 + 3 * 2 + 1));
    operands[0].shape[0] = 0;
    EXPECT(halyard_tensor_span(&operands[0]) == 0);
    /* Four axes of 2^32 - 1 elements, as far apart: more than 64 bits. */
    operands[0].rank = 4;
    memset(operands[0].shape, 0xff, sizeof operands[0].shape);
    memset(operands[0].strides, 0xff, sizeof operands[0].strides);
    EXPECT(halyard_tensor_span(&operands[0]) == UINT64_MAX);
    operands[0].bytes = 12;
    EXPECT(halyard_tensor_span(&operands[0]) == 12);
    return 0;
}
