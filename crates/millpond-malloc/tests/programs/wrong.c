/* Passes a pointer that is of no block. */
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

int main(int count, char **arguments) {
    static char bytes[64];
    char *volatile pointer = bytes + 16;
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
    return 0;
}
