// The kernels of the probes of `cargo xtask card`. `cargo xtask ptx` makes `card.ptx` of it.

typedef unsigned int u32;
typedef unsigned long long u64;

#define EACH(number, len) \
    for (u64 number = (u64)blockIdx.x * blockDim.x + threadIdx.x; number < (len); number += (u64)gridDim.x * blockDim.x)

// The word at a place of a fill: it differs between places and between seeds.
static __device__ u32 word(u64 number, u32 seed) {
    u32 mixed = (u32)number * 2654435761u + seed;
    return mixed ^ (mixed >> 15);
}

extern "C" __global__ void millpond_card_fill(u32 *at, u64 words, u32 seed) {
    EACH(number, words) {
        at[number] = word(number, seed);
    }
}

// Adds the number of words that are not those of the fill to `wrong`.
extern "C" __global__ void millpond_card_compare(const u32 *at, u64 words, u32 seed, u32 *wrong) {
    u32 found = 0;
    EACH(number, words) {
        found += at[number] != word(number, seed);
    }
    if (found) {
        atomicAdd(wrong, found);
    }
}

// Keeps one thread busy for so many nanoseconds.
extern "C" __global__ void millpond_card_spin(u64 nanoseconds) {
    u64 begun, now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begun));
    do {
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    } while (now - begun < nanoseconds);
}

// Writes one word, wherever that is.
extern "C" __global__ void millpond_card_poke(u32 *at) {
    *at = 1;
}
