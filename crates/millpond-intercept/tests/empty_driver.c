/* A driver that does nothing, so that a client of it measures only what stands in front of it. Its cuGetProcAddress returns other addresses than its table
   of symbols has. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint64_t next = 1 << 20;

static int allocate(uint64_t *at, size_t bytes) {
    (void)bytes;
    *at = __atomic_add_fetch(&next, 4096, __ATOMIC_RELAXED);
    return 0;
}
static int nothing(void) { return 0; }

int cuMemAlloc_v2(uint64_t *at, size_t bytes) { return allocate(at, bytes); }
int cuMemAllocAsync(uint64_t *at, size_t bytes, void *stream) {
    (void)stream;
    return allocate(at, bytes);
}
int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    (void)version, (void)flags, (void)status;
    *function = strcmp(name, "cuMemAlloc") ? (void *)nothing : (void *)allocate;
    return 0;
}
int cuCtxGetCurrent(uint64_t *context) {
    *context = 1;
    return 0;
}
int cuCtxGetDevice(int *device) {
    *device = 0;
    return 0;
}
int cuMemGetInfo_v2(size_t *free, size_t *total) {
    *free = *total = (size_t)1 << 34;
    return 0;
}

#define SUCCEEDS(name) \
    int name(void) { return 0; }
SUCCEEDS(cuInit)
SUCCEEDS(cuDevicePrimaryCtxRetain)
SUCCEEDS(cuDevicePrimaryCtxReset_v2)
SUCCEEDS(cuCtxSetCurrent)
SUCCEEDS(cuMemAllocPitch_v2)
SUCCEEDS(cuMemAllocManaged)
SUCCEEDS(cuMemFree_v2)
SUCCEEDS(cuMemHostAlloc)
SUCCEEDS(cuMemFreeHost)
SUCCEEDS(cuMemFreeAsync)
SUCCEEDS(cuMemCreate)
SUCCEEDS(cuMemRelease)
SUCCEEDS(cuMemAddressReserve)
SUCCEEDS(cuMemMap)
SUCCEEDS(cuMemUnmap)
SUCCEEDS(cuStreamCreate)
SUCCEEDS(cuStreamBeginCapture_v2)
SUCCEEDS(cuStreamEndCapture)
SUCCEEDS(cuGraphCreate)
SUCCEEDS(cuGraphAddNode_v2)
SUCCEEDS(cuGraphInstantiateWithFlags)
SUCCEEDS(cuGraphLaunch)
SUCCEEDS(cuDeviceTotalMem_v2)
