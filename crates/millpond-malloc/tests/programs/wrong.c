/* Passes a pointer that is of no block. */
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

int main(int count, char **arguments) {
    static char bytes[64];
    char *volatile pointer = bytes + 16;
    volatile size_t offset = 128;
    const char *function = count > 1 ? arguments[1] : "";
    if (!strcmp(function, "free"))
        free(pointer);
    else if (!strcmp(function, "realloc"))
        return realloc(pointer, 100) != NULL;
    else if (!strcmp(function, "malloc_usable_size"))
        return malloc_usable_size(pointer) != 0;
    else if (!strcmp(function, "twice")) {
        pointer = malloc(100);
        free(pointer);
        free(pointer);
    }
    else if (!strcmp(function, "inside")) {
        pointer = malloc(1 << 20);
        free(pointer + offset);
    } else if (!strcmp(function, "unaligned")) {
        pointer = malloc(100);
        free(pointer + offset / 16);
    } else if (!strcmp(function, "large-twice")) {
        pointer = malloc(1 << 20);
        free(pointer);
        free(pointer);
    }
    return 0;
}
