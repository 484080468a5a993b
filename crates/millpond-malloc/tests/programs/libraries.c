// Loads the libraries that are named by the arguments. Each has a thread local, so the C library enlarges the tables of thread locals of
// all threads, also that of the recorder's thread. Between the loads, the program allocates with many different stacks. A thread that
// has existed before allocates afterwards.
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static void *volatile kept;
static pthread_barrier_t loaded;

__attribute__((noinline)) static void allocate(int depth, unsigned path) {
    if (depth == 0)
        kept = malloc(100);
    else if (path & 1)
        allocate(depth - 1, path >> 1);
    else {
        allocate(depth - 1, path >> 1);
        free(kept);
        kept = NULL;
    }
}

static void *existing(void *unused) {
    (void)unused;
    void *volatile block = malloc(100);
    free(block);
    pthread_barrier_wait(&loaded);
    for (int i = 0; i < 1000; i++) {
        block = malloc(100);
        free(block);
    }
    return NULL;
}

int main(int argc, char **argv) {
    pthread_t thread;
    pthread_barrier_init(&loaded, NULL, 2);
    pthread_create(&thread, NULL, existing, NULL);
    for (int at = 1; at < argc; at++) {
        if (!dlopen(argv[at], RTLD_NOW | RTLD_GLOBAL)) {
            puts(dlerror());
            return 1;
        }
        for (unsigned path = 0; path < 1000; path++)
            allocate(10, path);
    }
    pthread_barrier_wait(&loaded);
    pthread_join(thread, NULL);
    puts("ok");
    return 0;
}
