// Sums, products of vectors, and how many elements are 0. The order of additions is decided by the number of elements alone.

enum Summand { ELEMENT, PRODUCT, IS_ZERO };

template <class W> __device__ inline W summand(
    const Walk &walk, u64 number, const void *left, const void *right, u32 type, u32 what) {
    Places p = places(walk, number);
    W x = load<W>(left, p.at[1], type);
    if (what == PRODUCT)
        return times(x, load<W>(right, p.at[2], type));
    return what == IS_ZERO ? (W)(x == 0) : x;
}

// Threads of a block.
constexpr u32 THREADS = 256;

// Each block adds up `share` elements and writes one sum. Of more blocks than one another launch adds up their sums.
template <class W> __device__ inline void sum(
    const Walk &walk, void *to, const void *left, const void *right, u32 to_type, u32 type, u32 what, u64 share) {
    __shared__ W sums[THREADS];
    u64 start = blockIdx.x * share;
    u64 end = start + share < walk.len ? start + share : walk.len;
    W mine = 0;
    #pragma unroll 1
    for (u64 number = start + threadIdx.x; number < end; number += THREADS)
        mine = plus(mine, summand<W>(walk, number, left, right, type, what));
    sums[threadIdx.x] = mine;
    #pragma unroll 1
    for (u32 half = THREADS / 2; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half)
            sums[threadIdx.x] = plus(sums[threadIdx.x], sums[threadIdx.x + half]);
    }
    if (threadIdx.x == 0)
        store<W>(to, blockIdx.x, to_type, sums[0]);
}

// A sum along a dimension of `many` elements, `apart` of each other: one for each thread.
template <class W> __device__ inline void sum_dim(
    const Walk &walk, void *to, const void *from, u32 to_type, u32 type, u64 many, u64 apart) {
    EACH(number, walk.len) {
        Places p = places(walk, number);
        W sum = 0;
        #pragma unroll 1
        for (u64 at = 0; at < many; at++)
            sum = plus(sum, load<W>(from, p.at[1] + at * apart, type));
        store<W>(to, p.at[0], to_type, sum);
    }
}

#define SUM(name, W)                                                                                                                 \
    extern "C" __global__ void millpond_sum_##name(                                                                                  \
        const Walk walk, void *to, const void *left, const void *right, u32 to_type, u32 type, u32 what, u64 share) {                \
        sum<W>(walk, to, left, right, to_type, type, what, share);                                                                   \
    }                                                                                                                                \
    extern "C" __global__ void millpond_sum_dim_##name(                                                                              \
        const Walk walk, void *to, const void *from, u32 to_type, u32 type, u64 many, u64 apart) {                                   \
        sum_dim<W>(walk, to, from, to_type, type, many, apart);                                                                      \
    }
SUM(f64, double)
SUM(i64, i64)
SUM(u64, u64)
