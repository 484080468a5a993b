// Threads with small stacks allocate. The first argument is the size of the smallest stack.

#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static void *allocate(void *unused) {
    for (int at = 0; at < 50; at++) {
        void *block = malloc(1000 + at);
        if (!block) {
            abort();
        }
        free(block);
    }
    return unused;
}

int main(int count, char **arguments) {
    size_t least = count > 1 ? strtoul(arguments[1], NULL, 10) : PTHREAD_STACK_MIN;
    for (size_t bytes = least; bytes <= 1 << 20; bytes *= 2) {
        pthread_attr_t attributes;
        pthread_t thread;
        if (pthread_attr_init(&attributes) || pthread_attr_setstacksize(&attributes, bytes) ||
            pthread_create(&thread, &attributes, allocate, NULL) || pthread_join(thread, NULL)) {
            return 1;
        }
    }
    puts("ok");
    return 0;
}
