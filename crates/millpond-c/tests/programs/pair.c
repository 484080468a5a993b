/* The time of an allocation and its free: of malloc, and of a pool by size and by address. Prints nanoseconds, medians of 21 rounds with the
 * least and the most. Usage: pair [THREADS] */
#include <millpond.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { ROUNDS = 21, PAIRS = 20000, MOST_THREADS = 16 };

static millpond_pool *pool;
static size_t bytes;
static int way;

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

static void pair(void) {
    void *block = NULL;
    millpond_status status = MILLPOND_OK;
    switch (way) {
    case 0:
        block = malloc(bytes);
        *(volatile char *)block = 1;
        free(block);
        return;
    case 1:
        status = millpond_alloc_sized(pool, bytes, 64, 0, &block);
        *(volatile char *)block = 1;
        status |= millpond_free_sized(pool, block, bytes, 64);
        break;
    default:
        status = millpond_alloc(pool, bytes, 64, 0, &block);
        *(volatile char *)block = 1;
        status |= millpond_free(pool, block);
    }
    if (status != MILLPOND_OK) {
        fprintf(stderr, "%s\n", millpond_last_error());
        exit(1);
    }
}

static void *work(void *unused) {
    for (int at = 0; at < PAIRS; at++) {
        pair();
    }
    return unused;
}

static int compare(const void *a, const void *b) { return *(const double *)a < *(const double *)b ? -1 : 1; }

int main(int count, char **arguments) {
    static const char *const names[] = {"malloc, free", "alloc_sized, free_sized", "alloc, free"};
    static const size_t sizes[] = {64, 1000, 16384, 262144};
    int threads = count > 1 ? atoi(arguments[1]) : 1;
    if (threads < 1 || threads > MOST_THREADS || millpond_pool_create(NULL, &pool) != MILLPOND_OK) {
        return 1;
    }
    for (size_t size = 0; size < sizeof sizes / sizeof *sizes; size++) {
        bytes = sizes[size];
        double times[3][ROUNDS];
        /* The ways take turns, so that a disturbance meets all of them. */
        for (int round = -1; round < ROUNDS; round++) {
            for (way = 0; way < 3; way++) {
                pthread_t others[MOST_THREADS];
                double begin = now();
                for (int at = 1; at < threads; at++) {
                    pthread_create(&others[at], NULL, work, NULL);
                }
                work(NULL);
                for (int at = 1; at < threads; at++) {
                    pthread_join(others[at], NULL);
                }
                if (round >= 0) {
                    times[way][round] = (now() - begin) / PAIRS;
                }
            }
        }
        for (int at = 0; at < 3; at++) {
            qsort(times[at], ROUNDS, sizeof(double), compare);
            printf("%7zu bytes, %d threads, %-24s %7.1f ns (%.1f to %.1f)\n", bytes, threads, names[at], times[at][ROUNDS / 2],
                   times[at][0], times[at][ROUNDS - 1]);
        }
    }
    return millpond_pool_destroy(pool) != MILLPOND_OK;
}
