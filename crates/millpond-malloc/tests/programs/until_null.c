// Allocates blocks of argv[1] bytes until malloc returns null, and prints their bytes in MiB. The program then continues: it frees
// all blocks and allocates again.
#include <stdio.h>
#include <stdlib.h>

struct block {
    struct block *next;
};

int main(int argc, char **argv) {
    if (argc < 2)
        return 2;
    size_t bytes = strtoul(argv[1], NULL, 10), total = 0;
    struct block *first = NULL, *block;
    while ((block = malloc(bytes))) {
        block->next = first;
        first = block;
        total += bytes;
    }
    while ((block = first)) {
        first = block->next;
        free(block);
    }
    block = malloc(bytes);
    printf("%zu\n", total >> 20);
    free(block);
    return block ? 0 : 1;
}
