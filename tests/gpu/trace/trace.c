/* Times every kernel of a process as the device ran it, recorded graphs and overlapping starts included: a CUPTI injection.
 *
 * Build: cc -shared -fPIC -O2 -I CUPTI/include -o libtrace.so trace.c -ldl -lcupti
 * Use:   CUDA_INJECTION64_PATH=libtrace.so HALYARD_TRACE=out.tsv halyard ...
 * Writes one line a kernel: start ns, duration ns, grid, threads, shared bytes, device, name. */
#include <cupti.h>
#include <stdio.h>
#include <stdlib.h>

static FILE *out;

static void CUPTIAPI give_buffer(uint8_t **buffer, size_t *size, size_t *records) {
    *size = 16 << 20;
    *buffer = aligned_alloc(8, *size);
    *records = 0;
}

static void CUPTIAPI take_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid) {
    (void)context, (void)stream, (void)size;
    CUpti_Activity *record = NULL;
    while (cuptiActivityGetNextRecord(buffer, valid, &record) == CUPTI_SUCCESS) {
        if (record->kind != CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) continue;
        CUpti_ActivityKernel9 *k = (CUpti_ActivityKernel9 *)record;
        fprintf(out, "%llu\t%llu\t%d,%d,%d\t%d\t%d\t%u\t%s\n", (unsigned long long)k->start, (unsigned long long)(k->end - k->start), k->gridX,
                k->gridY, k->gridZ, k->blockX, k->dynamicSharedMemory, k->deviceId, k->name);
    }
    free(buffer);
}

static void finish(void) {
    cuptiActivityFlushAll(1);
    fclose(out);
}

int InitializeInjection(void) {
    const char *path = getenv("HALYARD_TRACE");
    out = fopen(path ? path : "trace.tsv", "w");
    if (!out || cuptiActivityRegisterCallbacks(give_buffer, take_buffer) != CUPTI_SUCCESS ||
        cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS) {
        fprintf(stderr, "trace: CUPTI cannot be started\n");
        return 1;
    }
    atexit(finish);
    return 1;
}
