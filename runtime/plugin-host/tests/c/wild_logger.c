/* A stat logger that misbehaves as its configuration says: {"do":"WORD","path":"FILE"}. Whatever it does, it first appends a line for each
 * iteration record to FILE (step index and first time to a token) and for each start and finished record (its model or request id).
 * While there is a FILE.wait, it does not start. */
#include "halyard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

HALYARD_MANIFEST("{\"manifest\":1,\"kind\":\"stat-logger\",\"name\":\"wild\",\"version\":\"1\",\"abi\":\"" HALYARD_ABI "\",\"entry\":\"wild_entry\"}");

static char path[512], what[64];

static uint32_t fail(halyard_error *err, uint32_t status, const char *text) {
    if (err != NULL && err->text != NULL) {
        uint32_t len = (uint32_t)strlen(text);
        err->text_len = len < err->text_capacity ? len : err->text_capacity;
        memcpy(err->text, text, err->text_len);
        err->vendor_code = 42;
        err->status = status;
    }
    return status;
}

static void value_of(const char *config, const char *key, char *out) {
    const char *at = strstr(config, key);
    *out = '\0';
    if (at == NULL) return;
    at = strchr(strchr(at + strlen(key), ':'), '"') + 1;
    memcpy(out, at, (size_t)(strchr(at, '"') - at));
    out[strchr(at, '"') - at] = '\0';
}

/* Overwrites everything that is shared with the server. */
static void scribble(void) {
    char line[512];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) {
        unsigned long from, to;
        if (strstr(line, "halyard-hook") != NULL && sscanf(line, "%lx-%lx", &from, &to) == 2) memset((void *)from, 0xff, to - from);
    }
    if (maps != NULL) fclose(maps);
}

static void misbehave(void) {
    volatile int *nothing = NULL;
    char byte;
    if (strcmp(what, "crash") == 0) *nothing = 1;
    if (strcmp(what, "hang") == 0) for (;;) pause();
    if (strcmp(what, "spin") == 0) for (;;) {}
    if (strcmp(what, "exit") == 0) _exit(3);
    if (strcmp(what, "abort") == 0) abort();
    if (strcmp(what, "scribble") == 0) scribble();
    if (strcmp(what, "fork") == 0 && fork() == 0) { sleep(600); _exit(0); }
    if (strcmp(what, "chatter") == 0) {
        printf("a hook that prints\n");
        fflush(stdout);
        /* Its input is empty. */
        if (read(0, &byte, 1) != 0) abort();
    }
}

static uint32_t create(void *instance, halyard_str config, void **out, halyard_error *err) {
    static char text[1024], wait[sizeof path + 5];
    (void)instance;
    if (config.len >= sizeof text) return fail(err, HALYARD_STATUS_INVALID_ARGUMENT, "a long configuration");
    memcpy(text, config.ptr, (size_t)config.len);
    value_of(text, "\"do\"", what);
    value_of(text, "\"path\"", path);
    snprintf(wait, sizeof wait, "%s.wait", path);
    while (access(wait, F_OK) == 0) usleep(1000);
    if (strcmp(what, "refuse") == 0) return fail(err, HALYARD_STATUS_INVALID_ARGUMENT, "key `do`: refused as asked");
    if (strcmp(what, "crash_at_create") == 0) *(volatile int *)NULL = 1;
    *out = &what;
    return HALYARD_STATUS_OK;
}

static void drop(void *logger) {
    (void)logger;
    if (strcmp(what, "hang_at_drop") == 0) for (;;) pause();
}

static uint32_t log_batch(void *logger, const halyard_record_batch *batch, halyard_error *err) {
    FILE *file = fopen(path, "a");
    uint32_t i;
    (void)logger;
    for (i = 0; file != NULL && i < batch->num_records; i++) {
        const void *body = batch->records[i].body;
        if (batch->records[i].kind == HALYARD_RECORD_START) {
            const halyard_start_record *r = body;
            fprintf(file, "start %.*s\n", (int)r->model.len, (const char *)r->model.ptr);
        } else if (batch->records[i].kind == HALYARD_RECORD_ITERATION) {
            const halyard_iteration_record *r = body;
            fprintf(file, "step %llu %llu\n", (unsigned long long)r->step_index,
                    r->first_token_ns.len > 0 ? (unsigned long long)r->first_token_ns.ptr[0] : 0ull);
        } else if (batch->records[i].kind == HALYARD_RECORD_FINISHED) {
            const halyard_finished_record *r = body;
            fprintf(file, "finished %.*s\n", (int)r->request_id.len, (const char *)r->request_id.ptr);
        }
    }
    if (file != NULL) fclose(file);
    misbehave();
    if (strcmp(what, "poisoned") == 0) return fail(err, HALYARD_STATUS_POISONED, "an earlier call panicked");
    return strcmp(what, "error") == 0 ? fail(err, HALYARD_STATUS_UNAVAILABLE, "no luck today") : HALYARD_STATUS_OK;
}

static uint32_t flush(void *logger, uint64_t deadline_ns, halyard_error *err) {
    (void)logger, (void)err;
    if (strcmp(what, "deadline") == 0 && (deadline_ns > 15000000000ull || deadline_ns == 0)) return fail(err, HALYARD_STATUS_INTERNAL, "another deadline");
    return HALYARD_STATUS_OK;
}

static uint32_t expose(void *logger, uint8_t *buffer, uint64_t capacity, uint64_t *len, halyard_error *err) {
    static const char text[] = "wild_total 1\n";
    (void)logger, (void)err;
    *len = sizeof text - 1;
    if (capacity >= *len) memcpy(buffer, text, (size_t)*len);
    return HALYARD_STATUS_OK;
}

static const halyard_stat_logger_table table = {.struct_size = sizeof table, .minor = 0, .create = create, .drop = drop,
                                                .log_batch = log_batch, .flush = flush, .expose = expose};

static uint32_t find_interface(void *instance, uint32_t id, uint32_t major, uint32_t max_minor, const void **out, halyard_error *err) {
    (void)instance, (void)major, (void)max_minor;
    if (id != HALYARD_INTERFACE_STAT_LOGGER) return fail(err, HALYARD_STATUS_UNSUPPORTED, "a stat logger only");
    *out = &table;
    return HALYARD_STATUS_OK;
}

uint32_t wild_entry(const halyard_host *host, halyard_plugin *out, halyard_error *err);

uint32_t wild_entry(const halyard_host *host, halyard_plugin *out, halyard_error *err) {
    (void)host, (void)err;
    out->abi_major = HALYARD_ABI_MAJOR;
    out->abi_minor = HALYARD_ABI_MINOR;
    out->kind = HALYARD_KIND_STAT_LOGGER;
    out->name.ptr = (const uint8_t *)"wild";
    out->name.len = 4;
    out->find_interface = find_interface;
    return HALYARD_STATUS_OK;
}
