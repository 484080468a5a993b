/* A program that takes memory from the CUDA driver: client WAY SCENARIO. WAY says how it finds the driver's functions: `linked` (if it was built with
   LINKED), `dlsym`, or `lookup`, which is cuGetProcAddress. It prints the calls that succeeded, as the recording should have them. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef uint64_t word;
#define FUNCTIONS(F)                                                                    \
    F(cuInit, (unsigned))                                                               \
    F(cuDevicePrimaryCtxRetain, (void **, int))                                         \
    F(cuDevicePrimaryCtxReset, (int))                                                   \
    F(cuCtxSetCurrent, (void *))                                                        \
    F(cuMemAlloc, (word *, size_t))                                                     \
    F(cuMemAllocPitch, (word *, size_t *, size_t, size_t, unsigned))                    \
    F(cuMemAllocManaged, (word *, size_t, unsigned))                                    \
    F(cuMemFree, (word))                                                                \
    F(cuMemHostAlloc, (void **, size_t, unsigned))                                      \
    F(cuMemFreeHost, (void *))                                                          \
    F(cuMemAllocAsync, (word *, size_t, void *))                                        \
    F(cuMemFreeAsync, (word, void *))                                                   \
    F(cuMemCreate, (word *, size_t, const void *, unsigned long long))                  \
    F(cuMemRelease, (word))                                                             \
    F(cuMemAddressReserve, (word *, size_t, size_t, word, unsigned long long))          \
    F(cuMemMap, (word, size_t, size_t, word, unsigned long long))                       \
    F(cuMemUnmap, (word, size_t))                                                       \
    F(cuStreamCreate, (void **, unsigned))                                              \
    F(cuStreamBeginCapture, (void *, int))                                              \
    F(cuStreamEndCapture, (void *, void **))                                            \
    F(cuGraphInstantiateWithFlags, (void **, void *, unsigned long long))               \
    F(cuGraphCreate, (void **, unsigned))                                               \
    F(cuGraphAddNode, (word *, void *, const word *, const void *, size_t, void *))     \
    F(cuGraphLaunch, (void *, void *))                                                  \
    F(cuMemGetInfo, (size_t *, size_t *))                                               \
    F(cuDeviceTotalMem, (size_t *, int))

#define DECLARE(name, types) static int(*name) types;
FUNCTIONS(DECLARE)

/* The names of the functions' newest variants. */
static const char *symbol(const char *name) {
    static const char *second[] = {"cuDevicePrimaryCtxReset", "cuMemAlloc", "cuMemAllocPitch", "cuMemFree",
                                   "cuStreamBeginCapture", "cuGraphAddNode", "cuMemGetInfo",
                                   "cuDeviceTotalMem"};
    static char full[64];
    for (size_t i = 0; i < sizeof second / sizeof *second; i++)
        if (!strcmp(name, second[i])) {
            snprintf(full, sizeof full, "%s_v2", name);
            return full;
        }
    return name;
}

static void *handle;
static int (*look_up)(const char *, void **, int, word, int *);

static void *find(const char *way, const char *name) {
    void *found = NULL;
    if (!strcmp(way, "lookup"))
        look_up(name, &found, 12080, 0, NULL);
    else if (!strcmp(way, "linked"))
        found = dlsym(RTLD_DEFAULT, symbol(name));
    else
        found = dlsym(handle, symbol(name));
    if (!found) {
        fprintf(stderr, "no %s\n", name);
        exit(3);
    }
    return found;
}

static void load(const char *way) {
    if (strcmp(way, "linked")) {
        handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
        if (!handle) {
            fprintf(stderr, "%s\n", dlerror());
            exit(3);
        }
        look_up = (int (*)(const char *, void **, int, word, int *))dlsym(handle, "cuGetProcAddress_v2");
    }
#define FIND(name, types) name = (int(*) types)find(way, #name);
    FUNCTIONS(FIND)
    void *context;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) exit(4);
}

#define MUST(call)                                     \
    do {                                               \
        int result = (call);                           \
        if (result) {                                  \
            fprintf(stderr, #call ": %d\n", result);   \
            exit(5);                                   \
        }                                              \
    } while (0)

#ifdef LINKED
/* A call through the program's own table of symbols. */
extern int cuMemAlloc_v2(word *, size_t);
static int allocate(word *at, size_t bytes) { return cuMemAlloc_v2(at, bytes); }
#else
static int allocate(word *at, size_t bytes) { return cuMemAlloc(at, bytes); }
#endif

static const size_t MIB = 1 << 20;

/* Five kinds of memory. Two blocks stay. */
static void kinds(void) {
    word plain, kept, pitched, managed, pooled, handle2, reserved;
    void *host;
    size_t pitch;
    MUST(allocate(&plain, 3 * MIB));
    MUST(allocate(&kept, MIB));
    MUST(cuMemAllocPitch(&pitched, &pitch, 1024, 1024, 4));
    MUST(cuMemAllocManaged(&managed, 2 * MIB, 1));
    MUST(cuMemHostAlloc(&host, MIB, 0));
    MUST(cuMemAllocAsync(&pooled, 5 * MIB, NULL));
    int properties[16] = {1, 0, 1, 0};
    MUST(cuMemCreate(&handle2, 4 * MIB, properties, 0));
    MUST(cuMemAddressReserve(&reserved, 4 * MIB, 0, 0, 0));
    MUST(cuMemMap(reserved, 4 * MIB, 0, handle2, 0));
    MUST(cuMemRelease(handle2)); /* The mapping keeps the memory. */
    MUST(cuMemUnmap(reserved, 4 * MIB));
    MUST(cuMemFree(plain));
    MUST(cuMemFree(pitched));
    MUST(cuMemFree(managed));
    MUST(cuMemFreeHost(host));
    MUST(cuMemFreeAsync(pooled, NULL));
    if (cuMemFree(kept + 1) == 0) exit(6);
    MUST(allocate(&plain, MIB / 2));
}

static void *many(void *unused) {
    (void)unused;
    void *context;
    MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    for (int i = 0; i < 2000; i++) {
        word at;
        MUST(allocate(&at, 4096));
        MUST(cuMemFree(at));
    }
    return NULL;
}

/* A graph that allocates, and a free that the driver refuses because another capture forbids it. */
static void captured(void) {
    void *stream, *graph, *executable;
    word at, kept;
    MUST(allocate(&kept, MIB));
    MUST(cuStreamCreate(&stream, 1));
    MUST(cuStreamBeginCapture(stream, 2));
    MUST(cuMemAllocAsync(&at, 8 * MIB, stream));
    MUST(cuMemFreeAsync(at, stream));
    MUST(cuStreamEndCapture(stream, &graph));
    MUST(cuGraphInstantiateWithFlags(&executable, graph, 0));
    MUST(cuGraphLaunch(executable, stream));
    MUST(cuStreamBeginCapture(stream, 0));
    if (cuMemFree(kept) == 0) exit(6);
    cuStreamEndCapture(stream, &graph);
}

/* A graph with two nodes that allocate and an empty one, added by the call for nodes of any type and by its older variant. */
static void any_node(void) {
    struct {
        int type, reserved[3], pool[4];
        word rest[9], access[2], bytes, address, unused[15];
    } parameters = {10, {0}, {1, 0, 1, 0}, {0}, {0}, 6 * MIB, 0, {0}};
    int (*older)(word *, void *, const word *, size_t, void *) = 0;
    void *graph, *executable, *stream;
    word node;
    if (look_up && look_up("cuGraphAddNode", (void **)&older, 12020, 0, NULL)) exit(3);
    MUST(cuStreamCreate(&stream, 1));
    MUST(cuGraphCreate(&graph, 0));
    MUST(cuGraphAddNode(&node, graph, NULL, NULL, 0, &parameters));
    if (parameters.address == 0) exit(6);
    parameters.bytes = 7 * MIB;
    MUST(older(&node, graph, NULL, 0, &parameters));
    parameters.type = 5;
    MUST(cuGraphAddNode(&node, graph, NULL, NULL, 0, &parameters));
    MUST(cuGraphInstantiateWithFlags(&executable, graph, 0));
    MUST(cuGraphLaunch(executable, stream));
}

static void limited(void) {
    size_t free = 0, total = 0, of_device = 0;
    MUST(cuMemGetInfo(&free, &total));
    MUST(cuDeviceTotalMem(&of_device, 0));
    int count = 0, result;
    word at;
    while ((result = allocate(&at, MIB)) == 0) count++;
    printf("free %zu total %zu device %zu fit %d result %d\n", free, total, of_device, count, result);
    MUST(cuMemFree(at));
    MUST(allocate(&at, MIB));
    MUST(cuMemGetInfo(&free, &total));
    printf("left %zu\n", free);
}

/* Blocks of several sizes, of which some end. The program gives up when memory is short. */
static void steps(void) {
    word blocks[30];
    for (int i = 0; i < 30; i++) {
        if (allocate(&blocks[i], (i * 7 % 5 + 1) * MIB + 100 * i)) exit(9);
        if (i % 3 == 2) MUST(cuMemFree(blocks[i - 1]));
    }
}

static void pooled(void) {
    int count = 0, result;
    word at[4096];
    while ((result = cuMemAllocAsync(&at[count], MIB, NULL)) == 0) count++;
    printf("fit %d result %d\n", count, result);
    while (count) MUST(cuMemFreeAsync(at[--count], NULL));
}

/* The time of a pair of calls in nanoseconds. */
static void timed(void) {
    word at;
    struct timespec from, to;
    for (int warm = 0; warm < 2; warm++) {
        clock_gettime(CLOCK_MONOTONIC, &from);
        for (int i = 0; i < 100000; i++) {
            allocate(&at, 4096);
            cuMemFree(at);
        }
        clock_gettime(CLOCK_MONOTONIC, &to);
    }
    printf("%.0f\n", ((to.tv_sec - from.tv_sec) * 1e9 + to.tv_nsec - from.tv_nsec) / 200000);
}

int main(int count, char **arguments) {
    const char *way = arguments[1], *scenario = arguments[2];
    (void)count;
    if (!strcmp(scenario, "fork")) {
        /* The child loads the driver, and then replaces itself by a program that does so too. The parent loads it last. */
        pid_t child = fork();
        if (child == 0) {
            load(way);
            kinds();
            execl("/proc/self/exe", "client", way, "kinds", (char *)NULL);
            _exit(7);
        }
        int status;
        waitpid(child, &status, 0);
        if (status) exit(8);
        printf("child %d\n", child);
    }
    if (!strcmp(scenario, "next")) {
        /* A lookup of the next symbol depends on the caller, which is this program. */
        void *real = dlsym(RTLD_NEXT, "dlsym");
        printf("next %d\n", real && real != dlsym(RTLD_DEFAULT, "cuMemAlloc_v2") && dlsym(RTLD_NEXT, "malloc") == dlsym(RTLD_DEFAULT, "malloc"));
        printf("missing %d\n", dlsym(RTLD_DEFAULT, "cuNoSuchFunction") == NULL && dlerror() != NULL);
    }
    load(way);
    if (!strcmp(scenario, "threads")) {
        pthread_t threads[4];
        for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, many, NULL);
        for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
    } else if (!strcmp(scenario, "capture"))
        captured();
    else if (!strcmp(scenario, "node"))
        any_node();
    else if (!strcmp(scenario, "limit"))
        limited();
    else if (!strcmp(scenario, "steps"))
        steps();
    else if (!strcmp(scenario, "pool"))
        pooled();
    else if (!strcmp(scenario, "time"))
        timed();
    else
        kinds();
    if (!strcmp(scenario, "forked")) {
        /* A child that shares the state of its parent at the time of the fork must not write to its parent's log. */
        if (fork() == 0) {
            word at;
            cuMemFree(1);
            allocate(&at, 4096);
            _exit(0);
        }
        wait(NULL);
        kinds();
    }
    if (!strcmp(scenario, "abort")) abort();
    if (!strcmp(scenario, "kill")) raise(SIGKILL);
    if (!strcmp(scenario, "exit")) _exit(0);
    if (!strcmp(scenario, "reset")) MUST(cuDevicePrimaryCtxReset(0));
    return 0;
}
