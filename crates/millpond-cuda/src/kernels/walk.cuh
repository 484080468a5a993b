// Where the elements of up to three views of one shape lie, and how threads go through them.

typedef signed char i8;
typedef short i16;
typedef int i32;
typedef long long i64;
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// Sizes of dimensions, the outermost first, and for each view how many elements lie between neighbours. A kernel gets the address of
// each view's first element beside it.
struct Walk {
    u64 len;
    u64 rank;
    u64 size[8];
    u64 stride[3][8];
};

struct Places {
    u64 at[3];
};

// Where the element of a number lies in each view.
__device__ inline Places places(const Walk &walk, u64 number) {
    Places p = {{0, 0, 0}};
    // As it is: unrolled for every rank it is the most of the code, and no faster where memory is what is waited for.
    #pragma unroll 1
    for (i32 dim = (i32)walk.rank - 1; dim >= 0; dim--) {
        // The outermost dimension takes what is left, so that one alone costs no division.
        u64 rest = dim ? number / walk.size[dim] : 0;
        u64 at = dim ? number - rest * walk.size[dim] : number;
        number = rest;
        #pragma unroll
        for (u32 view = 0; view < 3; view++)
            p.at[view] += at * walk.stride[view][dim];
    }
    return p;
}

// The numbers that are this thread's.
#define EACH(number, len) \
    for (u64 number = (u64)blockIdx.x * blockDim.x + threadIdx.x; number < (len); number += (u64)gridDim.x * blockDim.x)
