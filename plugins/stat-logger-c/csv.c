/* A stat logger in C: one line of comma-separated values for each finished request, appended to a file.
 * Configuration: {"path": "requests.csv"}. The example to copy for a sink in C or C++; docs/hooks.md lists the other records.
 *
 *   cc -std=c99 -O2 -shared -fPIC -I ../../platform-api/include csv.c -o libcsv.so
 *   halyard plugins test libcsv.so --config '{"path": "requests.csv"}'
 *   halyard serve --plugin libcsv.so --stat-logger 'csv={"path": "requests.csv"}'
 */
#include "halyard.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

HALYARD_MANIFEST("{\"manifest\":1,\"kind\":\"stat-logger\",\"name\":\"csv\",\"version\":\"0.1.0\",\"abi\":\"" HALYARD_ABI "\",\"entry\":\"csv_entry\","
                 "\"about\":\"a line for each finished request, appended to a file\"}");

typedef struct logger {
    FILE *file;
} logger;

static halyard_str str(const char *text) {
    halyard_str s;
    s.ptr = (const uint8_t *)text;
    s.len = strlen(text);
    return s;
}

/* Tells the host why a call failed. */
static uint32_t fail(halyard_error *err, uint32_t status, const char *what, int system_error) {
    char text[600];
    int len = snprintf(text, sizeof text, "%s%s%s", what, system_error ? ": " : "", system_error ? strerror(system_error) : "");
    if (err != NULL && err->text != NULL && len > 0) {
        err->status = status;
        err->vendor_code = system_error;
        err->text_len = (uint32_t)len < err->text_capacity ? (uint32_t)len : err->text_capacity;
        memcpy(err->text, text, err->text_len);
    }
    return status;
}

/* The value of "path" in a flat JSON object. A library for JSON would do better: escapes are refused here, not read. */
static int path_of(halyard_str config, char *out, size_t capacity) {
    char text[1024];
    const char *at, *end;
    if (config.len >= sizeof text) return 0;
    memcpy(text, config.ptr, (size_t)config.len);
    text[config.len] = '\0';
    at = strstr(text, "\"path\"");
    if (at == NULL || (at = strchr(at + 6, ':')) == NULL || (at = strchr(at, '"')) == NULL) return 0;
    end = strchr(++at, '"');
    if (end == NULL || end == at || (size_t)(end - at) >= capacity || memchr(at, '\\', (size_t)(end - at)) != NULL) return 0;
    memcpy(out, at, (size_t)(end - at));
    out[end - at] = '\0';
    return 1;
}

static uint32_t create(void *instance, halyard_str config, void **out, halyard_error *err) {
    char path[512], what[560];
    logger *self;
    (void)instance;
    if (!path_of(config, path, sizeof path)) {
        return fail(err, HALYARD_STATUS_INVALID_ARGUMENT, "the configuration has no plain text `path`, as in {\"path\": \"requests.csv\"}", 0);
    }
    self = malloc(sizeof *self);
    if (self == NULL) return fail(err, HALYARD_STATUS_OUT_OF_MEMORY, "a logger's memory", ENOMEM);
    self->file = fopen(path, "a");
    if (self->file == NULL) {
        int why = errno;
        snprintf(what, sizeof what, "configuration key `path`: %s", path);
        free(self);
        return fail(err, HALYARD_STATUS_INVALID_ARGUMENT, what, why);
    }
    *out = self;
    return HALYARD_STATUS_OK;
}

static void drop(void *handle) {
    logger *self = handle;
    fclose(self->file);
    free(self);
}

/* A record of another version may be shorter: what it lacks is zero. */
static uint32_t log_batch(void *handle, const halyard_record_batch *batch, halyard_error *err) {
    static const char *const reasons[] = {"stop", "length", "abort", "error"};
    logger *self = handle;
    uint32_t i;
    for (i = 0; i < batch->num_records; i++) {
        halyard_finished_record r;
        uint32_t size;
        if (batch->records[i].kind != HALYARD_RECORD_FINISHED) continue;
        memcpy(&size, batch->records[i].body, sizeof size);
        memset(&r, 0, sizeof r);
        memcpy(&r, batch->records[i].body, size < sizeof r ? size : sizeof r);
        fprintf(self->file, "%" PRIu64 ",%.*s,%s,%" PRIu64 ",%" PRIu64 ",%" PRIu64 ",%.6f,%.6f\n", r.unix_ns, (int)r.request_id.len,
                (const char *)r.request_id.ptr, r.reason < 4 ? reasons[r.reason] : "unknown", r.prompt_tokens, r.cached_tokens,
                r.generation_tokens, (double)r.first_token_ns / 1e9, (double)r.total_ns / 1e9);
    }
    return ferror(self->file) ? fail(err, HALYARD_STATUS_INTERNAL, "writing lines", EIO) : HALYARD_STATUS_OK;
}

static uint32_t flush(void *handle, uint64_t deadline_ns, halyard_error *err) {
    logger *self = handle;
    (void)deadline_ns;
    if (fflush(self->file) == 0) return HALYARD_STATUS_OK;
    return fail(err, HALYARD_STATUS_INTERNAL, "writing lines", errno);
}

static const halyard_stat_logger_table table = {
    .struct_size = sizeof table, .minor = 0, .create = create, .drop = drop, .log_batch = log_batch, .flush = flush};

static uint32_t find_interface(void *instance, uint32_t id, uint32_t major, uint32_t max_minor, const void **out, halyard_error *err) {
    (void)instance, (void)max_minor;
    if (id != HALYARD_INTERFACE_STAT_LOGGER || major != 0) return fail(err, HALYARD_STATUS_UNSUPPORTED, "a stat logger only", 0);
    *out = &table;
    return HALYARD_STATUS_OK;
}

uint32_t csv_entry(const halyard_host *host, halyard_plugin *out, halyard_error *err);

uint32_t csv_entry(const halyard_host *host, halyard_plugin *out, halyard_error *err) {
    halyard_plugin plugin;
    if (host->abi_major != HALYARD_ABI_MAJOR || host->abi_minor_min > HALYARD_ABI_MINOR || host->abi_minor_max < HALYARD_ABI_MINOR) {
        return fail(err, HALYARD_STATUS_INCOMPATIBLE, "built for another ABI", 0);
    }
    memset(&plugin, 0, sizeof plugin);
    plugin.struct_size = out->struct_size < sizeof plugin ? out->struct_size : sizeof plugin;
    plugin.abi_major = HALYARD_ABI_MAJOR;
    plugin.abi_minor = HALYARD_ABI_MINOR;
    plugin.kind = HALYARD_KIND_STAT_LOGGER;
    plugin.name = str("csv");
    plugin.version = str("0.1.0");
    plugin.find_interface = find_interface;
    memcpy(out, &plugin, plugin.struct_size);
    return HALYARD_STATUS_OK;
}
