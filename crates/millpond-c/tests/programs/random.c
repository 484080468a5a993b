/* Random calls of every function from several threads, with wrong arguments among them. Every call must return a code. The content of every
 * live block is checked. Usage: random CALLS SEED [DEVICE]: with DEVICE, blocks of a device too. */
#include <millpond.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 4, POOLS = 6, BLOCKS = 64, CODES = 12 };

typedef struct {
    millpond_pool *pool;
    unsigned char *address;
    size_t bytes, align;
    unsigned char fill;
    int kind; /* 0: none, 1: by address, 2: sized, 3: of a device */
} held;

static long calls_of_each, counts[CODES], wrong_codes, taken[4];
static uint64_t first_seed;
static int with_device;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
/* Handles that all threads use and destroy. Old ones stay in the list. */
static millpond_pool *pools[POOLS];
static millpond_pool *device;
static millpond_budget *budgets[4];
/* An address of another thread's block, live or not. */
static void *strangers[8];

typedef struct {
    uint64_t state;
    long calls, counts[CODES], wrong_codes, held[4];
    held blocks[BLOCKS];
} worker;

static uint64_t next(worker *w) {
    w->state ^= w->state << 13;
    w->state ^= w->state >> 7;
    w->state ^= w->state << 17;
    return w->state;
}

static uint64_t below(worker *w, uint64_t n) { return next(w) % n; }

/* Counts the code of a call. A call that fails has a text. */
static millpond_status note(worker *w, millpond_status status) {
    w->calls++;
    if ((unsigned)status >= CODES || status == MILLPOND_INTERNAL || status == MILLPOND_BROKEN ||
        (status != MILLPOND_OK && millpond_last_error()[0] == 0)) {
        fprintf(stderr, "code %d: %s\n", (int)status, millpond_last_error());
        w->wrong_codes++;
    } else {
        w->counts[status]++;
    }
    return status;
}

/* A call that must fail. */
static void refuse(worker *w, millpond_status status, const char *what) {
    if (note(w, status) == MILLPOND_OK) {
        fprintf(stderr, "%s succeeded\n", what);
        w->wrong_codes++;
    }
}

static void *wrong_pointer(worker *w) {
    static char constant[64];
    switch (below(w, 7)) {
    case 0: return (void *)(uintptr_t)next(w);
    case 1: return constant + below(w, 64);
    case 2: return (void *)(uintptr_t)(below(w, 1000) + 1);
    /* No block begins at an odd address. */
    case 3: return (void *)((uintptr_t)strangers[below(w, 8)] + below(w, 50) * 2 + 1);
    case 4: return w;
    case 5: return pools[below(w, POOLS)];
    default: return (void *)(UINTPTR_MAX - below(w, 100));
    }
}

/* A handle of any kind, or none. */
static void *any_handle(worker *w) {
    pthread_mutex_lock(&lock);
    void *handle = below(w, 4) ? (void *)pools[below(w, POOLS)] : (void *)budgets[below(w, 4)];
    pthread_mutex_unlock(&lock);
    return handle;
}

static void *wrong_handle(worker *w) {
    void *pointer = wrong_pointer(w);
    switch (below(w, 4)) {
    case 0: return NULL;
    /* Another generation or another kind. The bits below are the number of a slot. */
    case 1: return (void *)((uintptr_t)any_handle(w) ^ ((uintptr_t)1 << (24 + below(w, 40))));
    case 2: return (uintptr_t)pointer >> 56 == 0xD1 ? NULL : pointer;
    default: return (void *)(uintptr_t)(0xD110000000000000u | (next(w) & 0xfffffffffffff));
    }
}

static millpond_pool *pool_of(worker *w) {
    if (below(w, 12) == 0) {
        return wrong_handle(w);
    }
    pthread_mutex_lock(&lock);
    millpond_pool *pool = pools[below(w, POOLS)];
    pthread_mutex_unlock(&lock);
    return pool;
}

static size_t size_of_request(worker *w) {
    switch (below(w, 12)) {
    case 0: return 0;
    case 1: return SIZE_MAX - below(w, 100);
    case 2: return (size_t)1 << below(w, 63);
    case 3: return below(w, 1u << 20);
    default: return below(w, 4000) + 1;
    }
}

static size_t align_of_request(worker *w) {
    static const size_t aligns[] = {0, 1, 8, 64, 256, 4096, 3, 100, SIZE_MAX, (size_t)1 << 63, (size_t)1 << 40};
    return below(w, 5) ? 0 : aligns[below(w, sizeof aligns / sizeof *aligns)];
}

static void check(worker *w, const held *block) {
    if (block->kind == 3) {
        unsigned char back[64];
        size_t bytes = block->bytes < sizeof back ? block->bytes : sizeof back;
        if (note(w, millpond_device_read(block->pool, block->address, 0, back, bytes)) == MILLPOND_OK) {
            for (size_t at = 0; at < bytes; at++) {
                if (back[at] != block->fill) {
                    fprintf(stderr, "a block of the device was overwritten\n");
                    w->wrong_codes++;
                    return;
                }
            }
        }
        return;
    }
    if (block->bytes > 0 && (block->address[0] != block->fill || block->address[block->bytes - 1] != block->fill)) {
        fprintf(stderr, "a block was overwritten\n");
        w->wrong_codes++;
    }
}

static void end(worker *w, held *block) {
    check(w, block);
    /* The caller keeps the rules for its own blocks, so these frees succeed, also after the pool was destroyed. */
    millpond_status status;
    if (block->kind == 1) {
        status = millpond_free(block->pool, block->address);
    } else if (block->kind == 2) {
        status = millpond_free_sized(block->pool, block->address, block->bytes, block->align);
    } else {
        status = millpond_device_free(block->pool, block->address, NULL);
    }
    /* A sized request of 0 bytes has no block, so its pool may have ended. */
    if (note(w, status) != MILLPOND_OK && !(block->kind == 2 && block->bytes == 0)) {
        fprintf(stderr, "a free of a live block failed: %s\n", millpond_last_error());
        w->wrong_codes++;
    }
    block->kind = 0;
}

/* Takes a block. Another thread may destroy the pool meanwhile: then the call is refused, or the block can be freed. */
static void begin(worker *w, held *block) {
    void *address = NULL;
    size_t bytes = size_of_request(w), align = align_of_request(w);
    uint32_t flags = (uint32_t)(below(w, 20) ? below(w, 2) : next(w));
    int kind = with_device && below(w, 4) == 0 ? 3 : 1 + (int)below(w, 2);
    pthread_mutex_lock(&lock);
    millpond_pool *pool = kind == 3 ? device : pools[below(w, POOLS)];
    pthread_mutex_unlock(&lock);
    millpond_status status;
    if (kind == 1) {
        status = millpond_alloc(pool, bytes, align, flags, &address);
    } else if (kind == 2) {
        status = millpond_alloc_sized(pool, bytes, align, flags, &address);
    } else {
        status = millpond_device_alloc(pool, bytes, NULL, &address);
    }
    if (note(w, status) != MILLPOND_OK) {
        if (address != NULL) {
            fprintf(stderr, "a failed call has changed its result\n");
            w->wrong_codes++;
        }
        return;
    }
    *block = (held){pool, address, bytes, align, (unsigned char)next(w), kind};
    w->held[kind]++;
    if (kind == 3) {
        unsigned char fill[64];
        memset(fill, block->fill, sizeof fill);
        size_t some = bytes < sizeof fill ? bytes : sizeof fill;
        note(w, millpond_device_write(pool, address, 0, fill, some));
        return;
    }
    if (((uintptr_t)address & ((align ? align : 64) - 1)) != 0) {
        fprintf(stderr, "a block is not aligned\n");
        w->wrong_codes++;
    }
    if (flags == MILLPOND_ZEROED && bytes > 0 && (block->address[0] | block->address[bytes - 1]) != 0) {
        fprintf(stderr, "a block is not zeroed\n");
        w->wrong_codes++;
    }
    memset(address, block->fill, bytes < 5000000 ? bytes : 1);
    if (bytes > 0) {
        block->address[bytes - 1] = block->fill;
    }
    strangers[below(w, 8)] = kind == 1 ? address : NULL;
}

static void create(worker *w) {
    millpond_pool_options options = {.size = sizeof options, .name = "random", .limit = (uint64_t)8 << 20};
    millpond_pool *pool = NULL;
    switch (below(w, 10)) {
    case 0: options.size = below(w, 100); break;
    case 1: options.name = "not \xff UTF-8"; break;
    case 2: options.settings = "no-such-key:1"; break;
    case 3: options.memory = (uint32_t)next(w); break;
    case 4: options.budget = (millpond_budget *)any_handle(w); break;
    case 5: options.reserved = 1; break;
    case 6: refuse(w, millpond_pool_create(&options, NULL), "a null result"); return;
    case 7: refuse(w, millpond_pool_create(&options, (millpond_pool **)((char *)&pool + 1)), "a misaligned result"); return;
    case 8: refuse(w, millpond_device_pool_create(1000 + (uint32_t)below(w, 1000), NULL, &pool), "a device that is not there"); return;
    default: options.settings = below(w, 2) ? "track:all,stacks:off" : NULL; break;
    }
    pthread_mutex_lock(&lock);
    if (note(w, millpond_pool_create(&options, &pool)) == MILLPOND_OK) {
        int place = (int)below(w, POOLS);
        /* The old pool may have blocks in the hands of any thread, which are freed later. */
        note(w, millpond_pool_destroy(pools[place]));
        if (below(w, 2)) {
            refuse(w, millpond_pool_destroy(pools[place]), "a second destruction");
        }
        pools[place] = pool;
    }
    pthread_mutex_unlock(&lock);
}

static void step(worker *w) {
    union {
        millpond_pool_stats pool;
        millpond_budget_stats budget;
        char text[300];
    } out;
    memset(&out, 0, sizeof out);
    held *block = &w->blocks[below(w, BLOCKS)];
    size_t length;
    switch (below(w, 64)) {
    default:
        if (block->kind != 0) {
            end(w, block);
        } else {
            begin(w, block);
        }
        break;
    case 0: note(w, millpond_free(pool_of(w), NULL)); break;
    case 1: refuse(w, millpond_free(pool_of(w), wrong_pointer(w)), "a wrong free"); break;
    case 2:
        if (block->kind == 1) {
            held copy = *block;
            end(w, block);
            /* Another thread may have the address now, so a second free uses a pool that never had it. */
            refuse(w, millpond_free(device, copy.address), "a free to a pool of another kind");
            refuse(w, millpond_free((millpond_pool *)budgets[0], copy.address), "a free to a budget");
        }
        break;
    case 3: refuse(w, millpond_alloc(wrong_handle(w), 100, 0, 0, (void **)&length), "a wrong handle"); break;
    case 4: refuse(w, millpond_alloc(pool_of(w), 100, 0, 0, NULL), "a null result"); break;
    case 5: refuse(w, millpond_alloc_sized(pool_of(w), 100, 0, 0, (void **)((char *)&out + 1 + below(w, 7))), "a misaligned result"); break;
    case 6:
        out.pool.size = below(w, 8) ? sizeof out.pool : below(w, 9000);
        if (out.pool.size > sizeof out) {
            out.pool.size = sizeof out.pool;
        }
        note(w, millpond_pool_get_stats(pool_of(w), &out.pool));
        break;
    case 7:
        out.budget.size = sizeof out.budget;
        note(w, millpond_budget_get_stats(any_handle(w), &out.budget));
        break;
    case 8: note(w, millpond_pool_report(pool_of(w), out.text, below(w, sizeof out.text), &length)); break;
    case 9: note(w, millpond_pool_trim(pool_of(w))); break;
    case 10: note(w, millpond_pool_reset_peak(pool_of(w))); break;
    case 11: note(w, below(w, 2) ? millpond_tag_push(below(w, 5) ? "random" : NULL) : millpond_tag_pop()); break;
    case 12: note(w, millpond_pool_reserve(pool_of(w), below(w, 3) ? below(w, 1u << 20) : next(w))); break;
    case 13: note(w, millpond_pool_set_limit(pool_of(w), below(w, 3) ? (uint64_t)8 << 20 : below(w, 1u << 20))); break;
    case 14:
        if (below(w, 4) == 0) {
            create(w);
        }
        break;
    case 15: {
        millpond_budget_options options = {.size = sizeof options, .name = "b", .limit = below(w, 1u << 24), .measure = (uint32_t)below(w, 4)};
        millpond_budget *budget = NULL;
        options.parent = below(w, 3) ? NULL : any_handle(w);
        pthread_mutex_lock(&lock);
        if (note(w, millpond_budget_create(&options, &budget)) == MILLPOND_OK) {
            int place = 1 + (int)below(w, 3);
            note(w, millpond_budget_destroy(budgets[place]));
            budgets[place] = budget;
        }
        pthread_mutex_unlock(&lock);
        break;
    }
    case 16: note(w, millpond_budget_set_limit(any_handle(w), next(w))); break;
    case 17:
        refuse(w, millpond_device_alloc(pools[0], 100, NULL, (void **)&length), "device memory of a host pool");
        refuse(w, millpond_device_free(device, wrong_pointer(w), NULL), "a wrong free on a device");
        break;
    case 18:
        refuse(w, millpond_device_alloc(device, 100, (void *)(uintptr_t)2, (void **)&length), "the stream of each thread");
        refuse(w, millpond_device_write(device, wrong_pointer(w), next(w), &out, sizeof out), "a copy to a wrong block");
        break;
    case 19:
        if (block->kind == 3) {
            refuse(w, millpond_device_read(block->pool, block->address, block->bytes + below(w, 2), &out, 2), "a copy beyond a block");
            refuse(w, millpond_device_read(block->pool, block->address, SIZE_MAX, &out, 2), "a copy far beyond a block");
            note(w, millpond_device_record_use(block->pool, block->address, NULL));
        }
        break;
    case 20: refuse(w, millpond_recording_stop(wrong_handle(w), NULL), "the stop of no recording"); break;
    case 21: note(w, below(w, 2) ? millpond_mark(below(w, 3) ? "mark" : NULL) : millpond_step(next(w))); break;
    case 22: refuse(w, millpond_free_sized(pool_of(w), (void *)(uintptr_t)1, 64, 64), "a sized free of a misaligned pointer"); break;
    case 23: note(w, millpond_pool_trim(wrong_handle(w))); break;
    }
}

static void *work(void *argument) {
    worker *w = argument;
    while (w->calls < calls_of_each) {
        step(w);
    }
    for (int at = 0; at < BLOCKS; at++) {
        if (w->blocks[at].kind != 0) {
            end(w, &w->blocks[at]);
        }
    }
    pthread_mutex_lock(&lock);
    for (int code = 0; code < CODES; code++) {
        counts[code] += w->counts[code];
    }
    wrong_codes += w->wrong_codes;
    for (int kind = 1; kind < 4; kind++) {
        taken[kind] += w->held[kind];
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

int main(int count, char **arguments) {
    static worker workers[THREADS];
    pthread_t threads[THREADS];
    calls_of_each = (count > 1 ? atol(arguments[1]) : 100000) / THREADS;
    first_seed = count > 2 ? strtoull(arguments[2], NULL, 10) : 1;
    with_device = count > 3;
    millpond_pool_options options = {.size = sizeof options, .limit = (uint64_t)8 << 20};
    for (int at = 0; at < POOLS; at++) {
        if (millpond_pool_create(&options, &pools[at]) != MILLPOND_OK) {
            return 2;
        }
    }
    for (int at = 0; at < 4; at++) {
        if (millpond_budget_create(NULL, &budgets[at]) != MILLPOND_OK) {
            return 2;
        }
    }
    if (with_device && millpond_device_pool_create(0, &options, &device) != MILLPOND_OK) {
        fprintf(stderr, "%s\n", millpond_last_error());
        return 2;
    }
    for (int at = 0; at < THREADS; at++) {
        workers[at].state = (first_seed * THREADS + at + 1) * 0x9E3779B97F4A7C15u;
        pthread_create(&threads[at], NULL, work, &workers[at]);
    }
    for (int at = 0; at < THREADS; at++) {
        pthread_join(threads[at], NULL);
    }
    /* Nothing is left, so every pool ends at once, and its handle with it. */
    for (int at = 0; at < POOLS + (with_device ? 1 : 0); at++) {
        millpond_pool *pool = at < POOLS ? pools[at] : device;
        millpond_pool_stats stats = {.size = sizeof stats};
        if (millpond_pool_get_stats(pool, &stats) != MILLPOND_OK || stats.requested != 0 || stats.allocations != stats.frees) {
            fprintf(stderr, "a pool has %llu bytes in use\n", (unsigned long long)stats.requested);
            wrong_codes++;
        }
        if (millpond_pool_destroy(pool) != MILLPOND_OK || millpond_free(pool, NULL) != MILLPOND_INVALID_HANDLE) {
            fprintf(stderr, "a pool did not end: %s\n", millpond_last_error());
            wrong_codes++;
        }
    }
    long total = 0;
    for (int code = 0; code < CODES; code++) {
        total += counts[code];
        printf("%s: %ld\n", millpond_status_name(code), counts[code]);
    }
    printf("blocks: %ld by address, %ld sized, %ld of the device\n", taken[1], taken[2], taken[3]);
    printf("%ld calls from %d threads, %ld wrong\n", total, THREADS, wrong_codes);
    return wrong_codes != 0;
}
