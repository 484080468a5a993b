// Loads the libraries that are named by the arguments. Each has a thread local, so the C library enlarges its tables of thread locals,
// also that of the recorder's thread. Between the loads, the program allocates with many different stacks.
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

static void *volatile kept;

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

int main(int argc, char **argv) {
    for (int at = 1; at < argc; at++) {
        if (!dlopen(argv[at], RTLD_NOW | RTLD_GLOBAL)) {
            puts(dlerror());
            return 1;
        }
        for (unsigned path = 0; path < 1000; path++)
            allocate(10, path);
    }
    puts("ok");
    return 0;
}
