// A burst: 500,000 blocks are allocated, and then all are freed.

#include <stdlib.h>

enum { BLOCKS = 500000 };

int main(void) {
    void **blocks = malloc(BLOCKS * sizeof *blocks);
    for (int at = 0; at < BLOCKS; at++) {
        blocks[at] = malloc(24);
    }
    for (int at = 0; at < BLOCKS; at++) {
        free(blocks[at]);
    }
    free(blocks);
    return 0;
}
