/* Calls every function of malloc's family, also with sizes that cannot be. Prints "ok" if all did what their pages say. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition) \
    do { \
        if (!(condition)) { \
            printf("line %d: %s\n", __LINE__, #condition); \
            exit(1); \
        } \
    } while (0)

static volatile size_t huge = SIZE_MAX - 100;

static int is_zero(const unsigned char *bytes, size_t count) {
    while (count--)
        if (bytes[count])
            return 0;
    return 1;
}

static void sizes(void) {
    for (size_t bytes = 0; bytes < 300000; bytes += bytes < 600 ? 1 : bytes < 2000 ? 13 : 2997) {
        unsigned char *block = malloc(bytes);
        CHECK(block && (uintptr_t)block % 16 == 0);
        size_t usable = malloc_usable_size(block);
        CHECK(usable >= bytes && usable <= bytes + bytes / 8 + 4096);
        CHECK(bytes > 512 || usable <= bytes + 16);
        memset(block, 0xa5, usable);
        free(block);
        unsigned char *zeroed = calloc(bytes, 1);
        CHECK(zeroed && is_zero(zeroed, bytes));
        memset(zeroed, 0x5a, malloc_usable_size(zeroed));
        unsigned char *larger = realloc(zeroed, bytes + 70000);
        CHECK(larger);
        for (size_t at = 0; at < bytes; at++)
            CHECK(larger[at] == 0x5a);
        unsigned char *smaller = realloc(larger, bytes / 2 + 1);
        CHECK(smaller && malloc_usable_size(smaller) < bytes / 2 + 1 + 4096 + bytes / 8);
        for (size_t at = 0; at < bytes / 2; at++)
            CHECK(smaller[at] == 0x5a);
        free(smaller);
    }
}

static void alignments(size_t most) {
    for (size_t align = 1; align <= most; align *= 2) {
        for (size_t bytes = 0; bytes < 200000; bytes = bytes * 7 + 1) {
            void *blocks[4];
            blocks[0] = aligned_alloc(align, bytes);
            blocks[1] = memalign(align, bytes);
            blocks[2] = valloc(bytes);
            if (align >= sizeof(void *))
                CHECK(posix_memalign(&blocks[3], align, bytes) == 0);
            else
                CHECK(posix_memalign(&blocks[3], align, bytes) == EINVAL && (blocks[3] = malloc(bytes)));
            for (int at = 0; at < 4; at++) {
                size_t least = at == 2 ? 4096 : at == 3 && align < sizeof(void *) ? 16 : align;
                CHECK(blocks[at] && (uintptr_t)blocks[at] % least == 0);
                CHECK(malloc_usable_size(blocks[at]) >= bytes);
                memset(blocks[at], at, bytes);
            }
            for (int at = 0; at < 4; at++) {
                CHECK(bytes == 0 || ((char *)blocks[at])[bytes - 1] == at);
                free(blocks[at]);
            }
        }
    }
    void *pages = pvalloc(1);
    CHECK(pages && (uintptr_t)pages % 4096 == 0 && malloc_usable_size(pages) >= 4096);
    free(pages);
}

static void refusals(void) {
    void *block = malloc(100);
    void *before = block;
    memset(block, 7, 100);
    errno = 0;
    CHECK(!malloc(huge) && errno == ENOMEM);
    errno = 0;
    CHECK(!malloc(huge / 2) && errno == ENOMEM);
    errno = 0;
    CHECK(!calloc(huge / 2, 3) && errno == ENOMEM);
    errno = 0;
    CHECK(!realloc(block, huge) && errno == ENOMEM && ((char *)before)[99] == 7);
    errno = 0;
    CHECK(!reallocarray(block, huge / 2, 3) && errno == ENOMEM && ((char *)before)[99] == 7);
    errno = 0;
    CHECK(!aligned_alloc(24, 100) && errno == EINVAL);
    CHECK(!aligned_alloc(0, 100) && !pvalloc(huge) && !valloc(huge));
    errno = 5;
    void *place = &place;
    CHECK(posix_memalign(&place, 24, 100) == EINVAL && posix_memalign(&place, 64, huge) == ENOMEM);
    CHECK(posix_memalign(&place, (size_t)1 << 62, 1) == ENOMEM && place == &place && errno == 5);
    block = reallocarray(block, 1000, 10);
    CHECK(block && ((char *)block)[99] == 7);
    CHECK(!realloc(block, 0));
    free(NULL);
    CHECK(malloc_usable_size(NULL) == 0);
    block = realloc(NULL, 10);
    CHECK(block);
    free(block);
    errno = 3;
    free(malloc(10));
    CHECK(errno == 3);
}

static void figures(void) {
    char *volatile block = malloc(50 << 20);
    memset(block, 1, 50 << 20);
    struct mallinfo2 info = mallinfo2();
    CHECK(info.uordblks >= (50 << 20) && info.arena >= info.uordblks && info.usmblks >= info.uordblks);
    free(block);
    CHECK(malloc_trim(0) == 1);
    CHECK(mallinfo2().uordblks < 50 << 20 && mallinfo2().arena < info.arena);
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
    char *volatile one = malloc(100);
    CHECK(mallinfo().uordblks > 0);
    free(one);
    CHECK(mallopt(M_MMAP_THRESHOLD, 1 << 20) == 1);
    char *text = NULL;
    size_t length = 0;
    FILE *stream = open_memstream(&text, &length);
    CHECK(malloc_info(0, stream) == 0 && malloc_info(1, stream) == -1);
    fclose(stream);
    CHECK(strstr(text, "<malloc version=\"1\">") && strstr(text, "</malloc>"));
    free(text);
}

/* Takes the largest alignment. Guarded blocks are written as a whole, which takes long for large alignments. */
int main(int count, char **arguments) {
    sizes();
    alignments(count > 1 ? strtoul(arguments[1], NULL, 10) : 64 << 20);
    refusals();
    figures();
    puts("ok");
    return 0;
}
