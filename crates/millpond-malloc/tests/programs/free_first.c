/* Threads whose first call of the family is `free`, and one that only frees large blocks. Frees must keep `errno`. Prints "ok". */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { COUNT = 64 };
static void *blocks[COUNT];
static int wrong;

static void *drop(void *block) {
    errno = 77;
    free(block);
    if (errno != 77)
        wrong = 1;
    return NULL;
}

int main(void) {
    for (int round = 0; round < 4; round++) {
        pthread_t threads[COUNT];
        for (int at = 0; at < COUNT; at++) {
            size_t bytes = at % 4 == 3 ? 40 << 20 : 100 + at;
            blocks[at] = malloc(bytes);
            if (!blocks[at])
                return 1;
            memset(blocks[at], at, 100);
        }
        for (int at = 0; at < COUNT; at++)
            if (pthread_create(&threads[at], NULL, drop, blocks[at]))
                return 1;
        for (int at = 0; at < COUNT; at++)
            pthread_join(threads[at], NULL);
    }
    puts(wrong ? "errno was changed" : "ok");
    return wrong;
}
