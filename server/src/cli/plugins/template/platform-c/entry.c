/* Manifest, entry, and the platform interface: which devices there are. */
#include "name.h"
#include "platform.h"

#define TEXT_OF(x) #x
#define TEXT(x) TEXT_OF(x)

/* Read from the file before any code runs. */
HALYARD_MANIFEST("{\"manifest\":1,\"kind\":\"platform\",\"name\":\"" PLATFORM_NAME "\",\"version\":\"" PLATFORM_VERSION
                 "\",\"abi\":\"" HALYARD_ABI "\",\"entry\":\"" TEXT(PLATFORM_ENTRY) "\",\"priority\":-1,"
                 "\"about\":\"plain loops on the processor, in C\",\"cpu_features\":\"\"}");

/* Find the devices here. None is Unavailable with the reason, such as a driver that is missing or too old. */
static uint32_t num_devices(void *instance, uint32_t *out, halyard_error *err) {
    (void)instance, (void)err;
    *out = 1;
    return HALYARD_STATUS_OK;
}

static uint32_t platform_device_info(void *instance, uint32_t index, halyard_device_info *out, halyard_error *err) {
    halyard_device_info info;
    (void)instance;
    if (index != 0) return halyard_fail(err, HALYARD_STATUS_NOT_FOUND, "device %u: there is one, 0", (unsigned)index);
    device_facts(&info);
    return HALYARD_GIVE(halyard_device_info, out, &info, err);
}

static uint32_t open_device(void *instance, const halyard_open_desc *theirs, void **out, halyard_error *err) {
    halyard_open_desc desc;
    device *self;
    uint32_t status = HALYARD_READ(halyard_open_desc, &desc, theirs, err);
    (void)instance;
    if (status != HALYARD_STATUS_OK) return status;
    if (desc.index != 0) {
        return halyard_fail(err, HALYARD_STATUS_NOT_FOUND, "device %u: there is one, 0", (unsigned)desc.index);
    }
    /* Lines `key=value` of --platform-option. One that is not known is refused by its name. */
    if (desc.options.len != 0) {
        return halyard_fail(err, HALYARD_STATUS_INVALID_ARGUMENT, "option %.*s: this platform has no options",
                            (int)(desc.options.len < 100 ? desc.options.len : 100), (const char *)desc.options.ptr);
    }
    status = device_open(&self, err);
    if (status == HALYARD_STATUS_OK) *out = self;
    return status;
}

static const halyard_platform_table platform_table = {
    (uint32_t)sizeof(halyard_platform_table), HALYARD_PLATFORM_MINOR, num_devices, platform_device_info, open_device};

/* All interfaces of this platform have major version 0. */
static uint32_t find_interface(void *instance, uint32_t id, uint32_t major, uint32_t max_minor, const void **out,
                               halyard_error *err) {
    const void *table = NULL;
    (void)instance, (void)max_minor;
    if (id == HALYARD_INTERFACE_PLATFORM) table = &platform_table;
    if (id == HALYARD_INTERFACE_DEVICE) table = &device_table;
    if (id == HALYARD_INTERFACE_OPS) table = &ops_table;
    if (id == HALYARD_INTERFACE_ATTENTION) table = attention_table;
    if (table == NULL) {
        return halyard_fail(err, HALYARD_STATUS_UNSUPPORTED, "interface %u is not here", (unsigned)id);
    }
    if (major != 0) {
        return halyard_fail(err, HALYARD_STATUS_INCOMPATIBLE, "interface %u is here in version 0, not %u", (unsigned)id,
                            (unsigned)major);
    }
    *out = table;
    return HALYARD_STATUS_OK;
}

HALYARD_ENTRY(PLATFORM_ENTRY) {
    static char instance; /* This platform keeps nothing of its own; drivers would be here. */
    halyard_plugin plugin;
    if (host->abi_major != HALYARD_ABI_MAJOR || host->abi_minor_min > HALYARD_ABI_MINOR ||
        host->abi_minor_max < HALYARD_ABI_MINOR) {
        return halyard_fail(err, HALYARD_STATUS_INCOMPATIBLE, "the host takes ABI %u.%u to %u.%u, this is " HALYARD_ABI,
                            (unsigned)host->abi_major, (unsigned)host->abi_minor_min, (unsigned)host->abi_major,
                            (unsigned)host->abi_minor_max);
    }
    memset(&plugin, 0, sizeof plugin);
    plugin.abi_major = HALYARD_ABI_MAJOR;
    plugin.abi_minor = HALYARD_ABI_MINOR;
    plugin.kind = HALYARD_KIND_PLATFORM;
    plugin.instance = &instance;
    plugin.name = halyard_text(PLATFORM_NAME);
    plugin.version = halyard_text(PLATFORM_VERSION);
    plugin.find_interface = find_interface;
    return HALYARD_GIVE(halyard_plugin, out, &plugin, err);
}
