/* The limits of device pools, blocks that two streams use, and a stream that ends before its pool. The emulated driver, with seeded streams
 * and strict checks, reports a use out of order and a use of a stream that has ended. Usage: streams */
#include <millpond.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

typedef int (*function)();

static void *driver;

static function named(const char *name) {
    void *found = dlsym(driver, name);
    if (found == NULL) {
        fprintf(stderr, "no %s\n", name);
        exit(1);
    }
    return *(function *)&found;
}

static void expect(int failed, const char *call) {
    if (failed) {
        fprintf(stderr, "%s: %d, %s\n", call, failed, millpond_last_error());
        exit(1);
    }
}
#define TRY(call) expect((int)(call), #call)

int main(void) {
    typedef int (*with_int)(unsigned);
    typedef int (*with_device)(void **, int);
    typedef int (*with_pointer)(void *);
    typedef int (*create)(void **, unsigned);
    typedef int (*fill)(void *, unsigned char, size_t, void *);
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 1;
    }
    void *context, *streams[2];
    TRY(((with_int)named("cuInit"))(0));
    TRY(((with_device)named("cuDevicePrimaryCtxRetain"))(&context, 0));
    TRY(((with_pointer)named("cuCtxSetCurrent"))(context));
    for (int at = 0; at < 2; at++) {
        TRY(((create)named("cuStreamCreate"))(&streams[at], 1));
    }
    fill set = (fill)named("cuMemsetD8Async");
    millpond_pool *pool, *unlimited;
    TRY(millpond_device_pool_create(0, NULL, &pool));
    /* The default limit is 80 % of the device. */
    const millpond_pool_options options = {.size = sizeof options, .limit = MILLPOND_NO_LIMIT};
    millpond_pool_stats share = {.size = sizeof share}, whole = {.size = sizeof whole};
    TRY(millpond_device_pool_create(0, &options, &unlimited));
    TRY(millpond_pool_get_stats(pool, &share));
    TRY(millpond_pool_get_stats(unlimited, &whole));
    TRY(millpond_pool_destroy(unlimited));
    TRY(share.limit != (uint64_t)(0.8 * (double)whole.limit));
    enum { BYTES = 1 << 20 };
    static unsigned char back[BYTES];
    int wrong = 0;
    for (int round = 0; round < 50; round++) {
        /* Work of the second stream is queued when the block is freed on that stream. The next block of the first stream may be the same
         * memory, whose work must come later. */
        void *block, *next;
        TRY(millpond_device_alloc(pool, BYTES, streams[0], &block));
        TRY(set(block, 1, BYTES, streams[0]));
        TRY(millpond_device_read(pool, block, 0, back, 1));
        TRY(set(block, 2, BYTES, streams[1]));
        if (round % 2 == 0) {
            TRY(millpond_device_free(pool, block, streams[1]));
        } else {
            TRY(millpond_device_record_use(pool, block, streams[1]));
            TRY(millpond_device_free(pool, block, streams[0]));
        }
        TRY(millpond_device_alloc(pool, BYTES, streams[0], &next));
        TRY(set(next, 3, BYTES, streams[0]));
        TRY(millpond_device_read(pool, next, 0, back, BYTES));
        for (int at = 0; at < BYTES; at++) {
            wrong += back[at] != 3;
        }
        TRY(millpond_device_free(pool, next, streams[0]));
    }
    /* Both streams end before the pool, which then must not ask the driver about them. */
    for (int at = 0; at < 2; at++) {
        TRY(millpond_stream_retire(0, streams[at]));
        TRY(((with_pointer)named("cuStreamDestroy_v2"))(streams[at]));
    }
    void *later;
    TRY(millpond_device_alloc(pool, BYTES, NULL, &later));
    TRY(millpond_device_free(pool, later, NULL));
    TRY(millpond_pool_trim(pool));
    TRY(millpond_pool_destroy(pool));
    printf("%d wrong bytes\n", wrong);
    return wrong != 0;
}
