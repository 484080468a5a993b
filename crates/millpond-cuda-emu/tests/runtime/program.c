/* Uses the memory API of CUDA's runtime and compares the contents. Exits with 1 after the first result that is wrong.
 * With the argument "plant" it changes one byte of device memory before a comparison, which must fail. */

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE (1 << 20)

#define TRUE(condition) \
    do { \
        if (!(condition)) { \
            printf("%s:%d: wrong: %s\n", __func__, __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

#define RETURNS(code, call) \
    do { \
        cudaError_t error = (call); \
        if (error != (code)) { \
            printf("%s:%d: %s: %d %s\n", __func__, __LINE__, #call, (int)error, cudaGetErrorString(error)); \
            exit(1); \
        } \
    } while (0)

#define DO(call) RETURNS(cudaSuccess, call)

static unsigned char from[SIZE], to[SIZE];

/* Fills `from` with new bytes, and `to` with zeros. */
static void renew(void) {
    static unsigned seed = 1;
    for (size_t i = 0; i < SIZE; i++) {
        seed = seed * 1664525 + 1013904223;
        from[i] = seed >> 24;
    }
    memset(to, 0, SIZE);
}

static void same(void) {
    for (size_t i = 0; i < SIZE; i++) {
        if (from[i] != to[i]) {
            printf("byte %zu is %d instead of %d\n", i, to[i], from[i]);
            exit(1);
        }
    }
}

static void devices(void) {
    int count, device, value;
    size_t free, total, before;
    struct cudaDeviceProp prop;
    char bus[32];
    DO(cudaGetDeviceCount(&count));
    TRUE(count == 2);
    DO(cudaDriverGetVersion(&value));
    TRUE(value >= 12000);
    DO(cudaRuntimeGetVersion(&value));
    TRUE(value == CUDART_VERSION);
    DO(cudaSetDevice(1));
    DO(cudaGetDevice(&device));
    TRUE(device == 1);
    DO(cudaSetDevice(0));
    RETURNS(cudaErrorInvalidDevice, cudaSetDevice(7));
    TRUE(cudaGetLastError() == cudaErrorInvalidDevice && cudaGetLastError() == cudaSuccess);
    TRUE(!strcmp(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation"));
    TRUE(!strcmp(cudaGetErrorString(cudaErrorMemoryAllocation), "out of memory"));
    DO(cudaGetDeviceProperties(&prop, 1));
    TRUE(prop.major == 8 && prop.minor == 0 && prop.managedMemory && prop.unifiedAddressing);
    TRUE(prop.memoryPoolsSupported && prop.multiProcessorCount == 108 && prop.warpSize == 32);
    TRUE(strstr(prop.name, "emulator"));
    DO(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 0));
    TRUE(value == prop.major);
    DO(cudaMemGetInfo(&before, &total));
    TRUE(total == prop.totalGlobalMem && before <= total);
    void *block;
    DO(cudaMalloc(&block, 64 << 20));
    DO(cudaMemGetInfo(&free, &total));
    TRUE(before - free == 64 << 20);
    DO(cudaFree(block));
    DO(cudaMemGetInfo(&free, &total));
    TRUE(free == before);
    RETURNS(cudaErrorMemoryAllocation, cudaMalloc(&block, (size_t)1 << 50));
    cudaGetLastError();
    DO(cudaDeviceGetPCIBusId(bus, sizeof bus, 1));
    DO(cudaDeviceGetByPCIBusId(&device, bus));
    TRUE(device == 1);
    DO(cudaDeviceCanAccessPeer(&value, 0, 1));
    TRUE(value == 1);
    DO(cudaDeviceGetStreamPriorityRange(&value, &device));
    DO(cudaDeviceGetLimit(&free, cudaLimitMallocHeapSize));
    DO(cudaGetDeviceFlags((unsigned *)&value));
    DO(cudaDeviceSynchronize());
    /* A function of the driver. */
    void *function = NULL;
    enum cudaDriverEntryPointQueryResult found;
    DO(cudaGetDriverEntryPointByVersion("cuMemAlloc", &function, 12000, cudaEnableDefault, &found));
    TRUE(function && found == cudaDriverEntryPointSuccess);
    DO(cudaGetDriverEntryPointByVersion("cuNothing", &function, 12000, cudaEnableDefault, &found));
    TRUE(!function && found == cudaDriverEntryPointSymbolNotFound);
}

static void copies(int plant) {
    unsigned char *a, *b, *pinned;
    size_t pitch;
    cudaStream_t stream;
    DO(cudaMalloc((void **)&a, SIZE));
    DO(cudaMalloc((void **)&b, SIZE));
    DO(cudaStreamCreate(&stream));
    renew();
    DO(cudaMemcpy(a, from, SIZE, cudaMemcpyHostToDevice));
    DO(cudaMemcpy(b, a, SIZE, cudaMemcpyDeviceToDevice));
    if (plant)
        DO(cudaMemset(b + 12345, from[12345] ^ 1, 1));
    DO(cudaMemcpy(to, b, SIZE, cudaMemcpyDefault));
    same();
    renew();
    DO(cudaMemcpyAsync(a, from, SIZE, cudaMemcpyHostToDevice, stream));
    DO(cudaMemcpyAsync(b, a, SIZE, cudaMemcpyDeviceToDevice, stream));
    DO(cudaMemcpyAsync(to, b, SIZE, cudaMemcpyDeviceToHost, stream));
    DO(cudaStreamSynchronize(stream));
    same();
    /* The default streams of the process and of the thread. */
    renew();
    DO(cudaMemcpyAsync(a, from, SIZE, cudaMemcpyDefault, cudaStreamLegacy));
    DO(cudaStreamSynchronize(cudaStreamLegacy));
    DO(cudaMemcpyAsync(to, a, SIZE, cudaMemcpyDefault, cudaStreamPerThread));
    DO(cudaStreamSynchronize(cudaStreamPerThread));
    same();
    memcpy(to, from, SIZE);
    DO(cudaMemcpy(from, to, SIZE, cudaMemcpyHostToHost));
    same();
    DO(cudaMemset(a, 7, SIZE));
    DO(cudaMemsetAsync(a + 3, 9, 5, stream));
    memset(from, 7, SIZE);
    memset(from + 3, 9, 5);
    DO(cudaStreamSynchronize(stream));
    DO(cudaMemcpy(to, a, SIZE, cudaMemcpyDeviceToHost));
    same();
    /* Rows. */
    renew();
    unsigned char *rows;
    DO(cudaMallocPitch((void **)&rows, &pitch, 1000, 1024));
    TRUE(pitch >= 1000 && pitch % 32 == 0);
    DO(cudaMemcpy2D(rows, pitch, from, 1024, 1000, 1024, cudaMemcpyHostToDevice));
    DO(cudaMemcpy2DAsync(a, 1024, rows, pitch, 1000, 1024, cudaMemcpyDeviceToDevice, stream));
    DO(cudaMemset2DAsync(a + 1000, 1024, 3, 24, 1024, stream));
    DO(cudaMemcpy2DAsync(to, 1024, a, 1024, 1024, 1024, cudaMemcpyDeviceToHost, stream));
    DO(cudaStreamSynchronize(stream));
    for (size_t row = 0; row < 1024; row++)
        memset(from + row * 1024 + 1000, 3, 24);
    same();
    DO(cudaFree(rows));
    /* Three dimensions. */
    renew();
    struct cudaPitchedPtr box;
    struct cudaExtent extent = {100, 128, 64};
    DO(cudaMalloc3D(&box, extent));
    struct cudaMemcpy3DParms there = {0}, back = {0};
    there.srcPtr = (struct cudaPitchedPtr){from, 128, 128, 128};
    there.dstPtr = box;
    there.extent = extent;
    there.kind = cudaMemcpyHostToDevice;
    DO(cudaMemcpy3D(&there));
    back.srcPtr = box;
    back.dstPtr = (struct cudaPitchedPtr){to, 128, 128, 128};
    back.extent = extent;
    back.kind = cudaMemcpyDeviceToHost;
    DO(cudaMemcpy3DAsync(&back, stream));
    DO(cudaStreamSynchronize(stream));
    for (size_t row = 0; row < SIZE / 128; row++)
        memset(from + row * 128 + 100, 0, 28);
    same();
    DO(cudaFree(box.ptr));
    /* Several copies in one call. */
    renew();
    void *targets[2] = {a, a + SIZE / 2};
    const void *sources[2] = {from, from + SIZE / 2};
    size_t sizes[2] = {SIZE / 2, SIZE / 2}, first = 0;
    struct cudaMemcpyAttributes attributes = {.srcAccessOrder = cudaMemcpySrcAccessOrderStream};
#if CUDART_VERSION >= 13000
    DO(cudaMemcpyBatchAsync(targets, sources, sizes, 2, &attributes, &first, 1, stream));
#else
    size_t failed;
    DO(cudaMemcpyBatchAsync(targets, (void **)sources, sizes, 2, &attributes, &first, 1, &failed, stream));
#endif
    DO(cudaMemcpyAsync(to, a, SIZE, cudaMemcpyDeviceToHost, stream));
    DO(cudaStreamSynchronize(stream));
    same();
    /* Another device. */
    renew();
    DO(cudaSetDevice(1));
    unsigned char *other;
    DO(cudaMalloc((void **)&other, SIZE));
    DO(cudaDeviceEnablePeerAccess(0, 0));
    RETURNS(cudaErrorPeerAccessAlreadyEnabled, cudaDeviceEnablePeerAccess(0, 0));
    cudaGetLastError();
    DO(cudaSetDevice(0));
    DO(cudaMemcpy(a, from, SIZE, cudaMemcpyHostToDevice));
    DO(cudaMemcpyPeer(other, 1, a, 0, SIZE));
    DO(cudaMemcpyPeerAsync(b, 0, other, 1, SIZE, stream));
    DO(cudaMemcpyAsync(to, b, SIZE, cudaMemcpyDeviceToHost, stream));
    DO(cudaStreamSynchronize(stream));
    same();
    DO(cudaSetDevice(1));
    DO(cudaDeviceDisablePeerAccess(0));
    DO(cudaFree(other));
    DO(cudaSetDevice(0));
    /* Pinned memory. */
    struct cudaPointerAttributes at;
    unsigned char *device;
    DO(cudaHostAlloc((void **)&pinned, SIZE, cudaHostAllocMapped | cudaHostAllocPortable));
    DO(cudaHostGetDevicePointer((void **)&device, pinned, 0));
    TRUE(device == pinned);
    renew();
    memcpy(pinned, from, SIZE);
    DO(cudaMemcpyAsync(a, pinned, SIZE, cudaMemcpyDefault, stream));
    DO(cudaMemcpyAsync(to, a, SIZE, cudaMemcpyDefault, stream));
    DO(cudaStreamSynchronize(stream));
    same();
    DO(cudaPointerGetAttributes(&at, pinned));
    TRUE(at.type == cudaMemoryTypeHost && at.hostPointer == pinned && at.devicePointer == pinned);
    DO(cudaPointerGetAttributes(&at, a + 5));
    TRUE(at.type == cudaMemoryTypeDevice && at.device == 0 && at.devicePointer == a + 5);
    DO(cudaPointerGetAttributes(&at, to));
    TRUE(at.type == cudaMemoryTypeUnregistered);
    DO(cudaHostRegister(to, SIZE, cudaHostRegisterDefault));
    DO(cudaPointerGetAttributes(&at, to));
    TRUE(at.type == cudaMemoryTypeHost);
    DO(cudaMemcpyAsync(to, a, SIZE, cudaMemcpyDefault, stream));
    DO(cudaStreamSynchronize(stream));
    DO(cudaHostUnregister(to));
    DO(cudaFreeHost(pinned));
    DO(cudaMallocHost((void **)&pinned, 4096));
    DO(cudaFreeHost(pinned));
    DO(cudaStreamDestroy(stream));
    DO(cudaFree(a));
    DO(cudaFree(b));
    DO(cudaFree(NULL));
}

static void managed(void) {
    unsigned char *both;
    cudaStream_t stream;
    struct cudaPointerAttributes at;
    DO(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    DO(cudaMallocManaged((void **)&both, SIZE, cudaMemAttachGlobal));
    renew();
    memcpy(both, from, SIZE);
#if CUDART_VERSION >= 13000
    struct cudaMemLocation place = {.type = cudaMemLocationTypeDevice, .id = 0};
    DO(cudaMemAdvise(both, SIZE, cudaMemAdviseSetPreferredLocation, place));
    DO(cudaMemPrefetchAsync(both, SIZE, place, 0, stream));
#else
    DO(cudaMemAdvise(both, SIZE, cudaMemAdviseSetPreferredLocation, 0));
    DO(cudaMemPrefetchAsync(both, SIZE, 0, stream));
#endif
    DO(cudaStreamSynchronize(stream));
    DO(cudaMemset(both, 1, 100));
    memset(from, 1, 100);
    int where = -5;
    DO(cudaMemRangeGetAttribute(&where, 4, cudaMemRangeAttributePreferredLocation, both, SIZE));
    TRUE(where == 0);
    DO(cudaPointerGetAttributes(&at, both));
    TRUE(at.type == cudaMemoryTypeManaged);
    DO(cudaDeviceSynchronize());
    memcpy(to, both, SIZE);
    same();
    DO(cudaFree(both));
    DO(cudaStreamDestroy(stream));
}

static void pools(void) {
    unsigned char *a, *b;
    cudaStream_t stream;
    cudaMemPool_t pool, found;
    unsigned long long value = 1 << 30;
    DO(cudaStreamCreate(&stream));
    DO(cudaDeviceGetDefaultMemPool(&pool, 0));
    DO(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &value));
    value = 0;
    DO(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &value));
    TRUE(value == 1 << 30);
    renew();
    DO(cudaMallocAsync((void **)&a, SIZE, stream));
    DO(cudaMemcpyAsync(a, from, SIZE, cudaMemcpyHostToDevice, stream));
    DO(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &value));
    TRUE(value >= SIZE);
    struct cudaMemPoolProps props = {0};
    props.allocType = cudaMemAllocationTypePinned;
    props.location.type = cudaMemLocationTypeDevice;
    DO(cudaMemPoolCreate(&found, &props));
    DO(cudaMallocFromPoolAsync((void **)&b, SIZE, found, stream));
    DO(cudaMemcpyAsync(b, a, SIZE, cudaMemcpyDeviceToDevice, stream));
    DO(cudaMemcpyAsync(to, b, SIZE, cudaMemcpyDeviceToHost, stream));
    DO(cudaFreeAsync(a, stream));
    DO(cudaFreeAsync(b, stream));
    DO(cudaStreamSynchronize(stream));
    same();
    struct cudaMemAccessDesc access = {.flags = cudaMemAccessFlagsProtReadWrite};
    access.location.type = cudaMemLocationTypeDevice;
    access.location.id = 1;
    DO(cudaMemPoolSetAccess(found, &access, 1));
    DO(cudaDeviceSetMemPool(0, found));
    cudaMemPool_t current;
    DO(cudaDeviceGetMemPool(&current, 0));
    TRUE(current == found);
    DO(cudaDeviceSetMemPool(0, pool));
    DO(cudaMemPoolTrimTo(found, 0));
    DO(cudaMemPoolDestroy(found));
    DO(cudaMemPoolTrimTo(pool, 0));
    DO(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &value));
    TRUE(value == 0);
    DO(cudaStreamDestroy(stream));
}

static void called(void *data) {
    ++*(int *)data;
}

static void order(void) {
    unsigned char *a;
    cudaStream_t one, two;
    cudaEvent_t event, start;
    float milliseconds;
    int calls = 0, priority;
    unsigned flags;
    DO(cudaMalloc((void **)&a, SIZE));
    DO(cudaStreamCreate(&one));
    DO(cudaStreamCreateWithPriority(&two, cudaStreamNonBlocking, -1));
    DO(cudaStreamGetPriority(two, &priority));
    DO(cudaStreamGetFlags(two, &flags));
    TRUE(priority == -1 && flags == cudaStreamNonBlocking);
    DO(cudaEventCreate(&start));
    DO(cudaEventCreateWithFlags(&event, cudaEventDefault));
    renew();
    DO(cudaEventRecord(start, one));
    DO(cudaMemcpyAsync(a, from, SIZE, cudaMemcpyHostToDevice, one));
    DO(cudaEventRecord(event, one));
    DO(cudaStreamWaitEvent(two, event, 0));
    DO(cudaMemcpyAsync(to, a, SIZE, cudaMemcpyDeviceToHost, two));
    DO(cudaLaunchHostFunc(two, called, &calls));
    DO(cudaStreamSynchronize(two));
    same();
    TRUE(calls == 1);
    DO(cudaEventSynchronize(event));
    DO(cudaEventQuery(event));
    DO(cudaStreamQuery(two));
    DO(cudaEventElapsedTime(&milliseconds, start, event));
    TRUE(milliseconds >= 0);
    DO(cudaEventDestroy(event));
    DO(cudaEventDestroy(start));
    DO(cudaStreamDestroy(one));
    DO(cudaStreamDestroy(two));
    DO(cudaFree(a));
}

static void graphs(void) {
    unsigned char *a, *b, *inside;
    cudaStream_t stream, branch;
    cudaEvent_t fork, join;
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    enum cudaStreamCaptureStatus status;
    size_t nodes = 0;
    int calls = 0;
    DO(cudaMalloc((void **)&a, SIZE));
    DO(cudaMalloc((void **)&b, SIZE));
    DO(cudaStreamCreate(&stream));
    DO(cudaStreamCreate(&branch));
    DO(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
    DO(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
    DO(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    DO(cudaStreamIsCapturing(stream, &status));
    TRUE(status == cudaStreamCaptureStatusActive);
    DO(cudaMemcpyAsync(a, from, SIZE, cudaMemcpyHostToDevice, stream));
    DO(cudaEventRecord(fork, stream));
    DO(cudaStreamWaitEvent(branch, fork, 0));
    DO(cudaMemcpyAsync(b + SIZE / 2, a + SIZE / 2, SIZE / 2, cudaMemcpyDeviceToDevice, branch));
    DO(cudaMemcpyAsync(b, a, SIZE / 2, cudaMemcpyDeviceToDevice, stream));
    DO(cudaEventRecord(join, branch));
    DO(cudaStreamWaitEvent(stream, join, 0));
    DO(cudaMallocAsync((void **)&inside, SIZE, stream));
    DO(cudaMemcpyAsync(inside, b, SIZE, cudaMemcpyDeviceToDevice, stream));
    DO(cudaMemsetAsync(inside, 5, 10, stream));
    DO(cudaMemcpyAsync(to, inside, SIZE, cudaMemcpyDeviceToHost, stream));
    DO(cudaFreeAsync(inside, stream));
    DO(cudaLaunchHostFunc(stream, called, &calls));
    DO(cudaStreamEndCapture(stream, &graph));
    DO(cudaGraphGetNodes(graph, NULL, &nodes));
    TRUE(nodes == 9);
    cudaGraphNode_t root;
    enum cudaGraphNodeType kind;
    nodes = 1;
    DO(cudaGraphGetRootNodes(graph, &root, &nodes));
    DO(cudaGraphNodeGetType(root, &kind));
    TRUE(nodes == 1 && kind == cudaGraphNodeTypeMemcpy);
    DO(cudaGraphInstantiate(&executable, graph, 0));
    DO(cudaGraphDestroy(graph));
    for (int launch = 0; launch < 3; launch++) {
        renew();
        DO(cudaGraphLaunch(executable, stream));
        DO(cudaStreamSynchronize(stream));
        memset(from, 5, 10);
        same();
    }
    TRUE(calls == 3);
    DO(cudaGraphExecDestroy(executable));
    DO(cudaDeviceGraphMemTrim(0));
    /* A wait is not allowed in a capture, and invalidates it. */
    DO(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    RETURNS(cudaErrorStreamCaptureUnsupported, cudaStreamSynchronize(stream));
    RETURNS(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream, &graph));
    cudaGetLastError();
    DO(cudaEventDestroy(fork));
    DO(cudaEventDestroy(join));
    DO(cudaStreamDestroy(branch));
    DO(cudaStreamDestroy(stream));
    DO(cudaFree(a));
    DO(cudaFree(b));
}

/* What the compiler makes of a kernel and registers before `main`: an image of foreign code. */
static struct {
    unsigned magic;
    unsigned short version, header;
    unsigned long long size;
    unsigned char code[64];
} image __attribute__((aligned(8))) = {0xba55ed50, 1, 16, 64, {0}};
static struct {
    int magic, version;
    const void *image, *unused;
} binary = {0x466243b1, 1, &image, NULL};

extern void **__cudaRegisterFatBinary(void *);
extern void __cudaRegisterFatBinaryEnd(void **);
extern void __cudaRegisterFunction(
    void **, const char *, char *, const char *, int, void *, void *, void *, void *, int *);

static void kernel(void) {}

__attribute__((constructor)) static void register_kernel(void) {
    void **handle = __cudaRegisterFatBinary(&binary);
    __cudaRegisterFunction(handle, (const char *)kernel, "kernel", "kernel", -1, NULL, NULL, NULL, NULL, NULL);
    __cudaRegisterFatBinaryEnd(handle);
}

static void foreign_code(void) {
    struct dim3 one = {1, 1, 1};
    void *parameters[1] = {NULL}, *block;
    RETURNS(cudaErrorNoKernelImageForDevice, cudaLaunchKernel((const void *)kernel, one, one, parameters, 0, NULL));
    TRUE(cudaGetLastError() == cudaErrorNoKernelImageForDevice);
    /* The device works as before. */
    DO(cudaMalloc(&block, 100));
    DO(cudaMemset(block, 0, 100));
    DO(cudaDeviceSynchronize());
    DO(cudaFree(block));
}

static void reset(void) {
    void *block;
    size_t free, total;
    DO(cudaMalloc(&block, 64 << 20));
    DO(cudaDeviceReset());
    DO(cudaMemGetInfo(&free, &total));
    DO(cudaMalloc(&block, 64 << 20));
    DO(cudaFree(block));
    DO(cudaSetDevice(1));
    DO(cudaDeviceReset());
}

int main(int count, char **arguments) {
    devices();
    copies(count > 1 && !strcmp(arguments[1], "plant"));
    managed();
    pools();
    order();
    graphs();
    foreign_code();
    reset();
    devices();
    puts("all bytes are right");
    return 0;
}
