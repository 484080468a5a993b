/* Allocates until the limit is reached, frees all, and allocates again. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *blocks[1000];

static int fill(void) {
    int count = 0;
    errno = 0;
    while (count < 1000 && (blocks[count] = malloc(1 << 20))) {
        memset(blocks[count], 1, 1 << 20);
        count++;
    }
    return count;
}

int main(void) {
    static char buffer[1000];
    setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
    int first = fill();
    int error = errno;
    for (int at = 0; at < first; at++)
        free(blocks[at]);
    int second = fill();
    printf("%d MiB, then %s, then %d MiB\n", first, error == ENOMEM ? "ENOMEM" : "another error", second);
    return 0;
}
