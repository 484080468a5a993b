/* A library whose constructor takes memory from the CUDA driver, and with PROGRAM the program that links it. */
#ifdef PROGRAM
int main(void) { return 0; }
#else
#include <stddef.h>
#include <stdlib.h>

extern int cuInit(unsigned);
extern int cuDevicePrimaryCtxRetain(void **, int);
extern int cuCtxSetCurrent(void *);
extern int cuMemAlloc_v2(unsigned long long *, size_t);

__attribute__((constructor)) static void begin(void) {
    void *context;
    unsigned long long at;
    if (cuInit(0) || cuDevicePrimaryCtxRetain(&context, 0) || cuCtxSetCurrent(context)) exit(4);
    if (cuMemAlloc_v2(&at, 3 << 20)) exit(5);
}
#endif
