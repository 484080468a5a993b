/* Memory management for tensors, as the pages of tendo and Genesis describe it: pools, statistics, a limit, tags, live blocks, a recording,
 * and memory of a GPU.
 *
 *   cc memory.c $(pkg-config --cflags --libs millpond) -o memory && ./memory [run.mpr]
 */
#include <millpond.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program with the library's text if a call failed. */
static void expect(millpond_status status, const char *call) {
    if (status != MILLPOND_OK) {
        fprintf(stderr, "%s: %s: %s\n", call, millpond_status_name(status), millpond_last_error());
        exit(1);
    }
}
#define TRY(call) expect(call, #call)

static millpond_pool_stats stats_of(millpond_pool *pool) {
    millpond_pool_stats stats = {.size = sizeof stats};
    TRY(millpond_pool_get_stats(pool, &stats));
    return stats;
}

static void print_stats(const char *when, millpond_pool *pool) {
    millpond_pool_stats stats = stats_of(pool);
    printf("%s: %" PRIu64 " allocations, %" PRIu64 " frees, %" PRIu64 " bytes in use, %" PRIu64 " cached, peak %" PRIu64 "\n", when,
           stats.allocations, stats.frees, stats.requested, stats.reserved - stats.allocated, stats.requested_peak);
}

/* Process a tensor in batches, so that only one batch needs memory at a time. */
static double sum_in_batches(millpond_pool *pool, const float *tensor, size_t rows, size_t columns, size_t batch) {
    double sum = 0;
    TRY(millpond_tag_push("batches"));
    for (size_t row = 0; row < rows; row += batch) {
        size_t count = (row + batch < rows ? batch : rows - row) * columns;
        void *block;
        TRY(millpond_alloc_sized(pool, count * sizeof(float), 64, 0, &block));
        float *values = block;
        for (size_t at = 0; at < count; at++) {
            values[at] = tensor[row * columns + at] * 2.0f;
            sum += values[at];
        }
        TRY(millpond_free_sized(pool, block, count * sizeof(float), 64));
    }
    TRY(millpond_tag_pop());
    return sum;
}

static void on_the_host(void) {
    millpond_budget *budget;
    millpond_budget_options limits = {.size = sizeof limits, .name = "model", .limit = 64u << 20};
    TRY(millpond_budget_create(&limits, &budget));

    millpond_pool *pool;
    millpond_pool_options options = {.size = sizeof options, .name = "tensors", .settings = "track:all,stacks:off", .budget = budget};
    TRY(millpond_pool_create(&options, &pool));

    /* A workspace that is allocated once and used by every step. */
    const size_t rows = 1000, columns = 1000;
    void *block;
    TRY(millpond_tag_push("weights"));
    TRY(millpond_alloc(pool, rows * columns * sizeof(float), 0, MILLPOND_ZEROED, &block));
    TRY(millpond_tag_pop());
    float *tensor = block;
    for (size_t at = 0; at < rows * columns; at++) {
        tensor[at] += 0.5f;
    }
    millpond_pool_stats before = stats_of(pool);
    double sum = 0;
    for (uint64_t step = 0; step < 10; step++) {
        TRY(millpond_step(step));
        sum = sum_in_batches(pool, tensor, rows, columns, 64);
    }
    millpond_pool_stats after = stats_of(pool);
    printf("sum: %.0f\n", sum);
    printf("ten steps: %" PRIu64 " allocations, %" PRIu64 " of them without the system\n", after.allocations - before.allocations,
           after.hits - before.hits);
    print_stats("after the steps", pool);

    /* The text of the error says who holds the memory. */
    void *large;
    millpond_status status = millpond_alloc(pool, 62u << 20, 0, 0, &large);
    printf("62 MiB more: %s\n%s\n", millpond_status_name(status), millpond_last_error());

    /* A wrong free is answered, and nothing is changed. */
    char *inside = (char *)tensor + 64;
    printf("a pointer into a block: %s\n", millpond_status_name(millpond_free(pool, inside)));

    /* Live blocks by tag: an empty list is the check for leaks. */
    char report[4096];
    TRY(millpond_pool_report(pool, report, sizeof report, NULL));
    printf("%s\n", report);
    TRY(millpond_free(pool, tensor));

    TRY(millpond_pool_trim(pool));
    print_stats("after the trim", pool);
    millpond_budget_stats used = {.size = sizeof used};
    TRY(millpond_budget_get_stats(budget, &used));
    printf("budget: %" PRIu64 " bytes in use, %" PRIu64 " refusals\n", used.used, used.refusals);
    TRY(millpond_pool_destroy(pool));
    TRY(millpond_budget_destroy(budget));
}

static void on_the_device(void) {
    uint32_t devices = 0;
    if (millpond_device_count(&devices) != MILLPOND_OK || devices == 0) {
        printf("no device: %s\n", millpond_last_error());
        return;
    }
    millpond_pool *pool;
    TRY(millpond_device_pool_create(0, NULL, &pool));
    float values[1000], back[1000];
    for (int at = 0; at < 1000; at++) {
        values[at] = (float)at;
    }
    for (int round = 0; round < 3; round++) {
        void *block;
        TRY(millpond_device_alloc(pool, sizeof values, NULL, &block));
        TRY(millpond_device_write(pool, block, 0, values, sizeof values));
        TRY(millpond_device_read(pool, block, 0, back, sizeof back));
        TRY(millpond_device_free(pool, block, NULL));
    }
    millpond_pool_stats stats = stats_of(pool);
    printf("device: %s, %" PRIu64 " of %" PRIu64 " allocations without the driver\n",
           memcmp(values, back, sizeof values) == 0 ? "copied there and back" : "WRONG DATA", stats.hits, stats.allocations);
    TRY(millpond_pool_destroy(pool));
}

int main(int count, char **arguments) {
    millpond_recording *recording = NULL;
    if (count > 1) {
        TRY(millpond_recording_start(arguments[1], &recording));
    }
    on_the_host();
    on_the_device();
    if (recording != NULL) {
        millpond_recording_report report = {.size = sizeof report};
        TRY(millpond_recording_stop(recording, &report));
        printf("recorded %" PRIu64 " events, %" PRIu64 " lost\n", report.events, report.lost);
    }
    return 0;
}
