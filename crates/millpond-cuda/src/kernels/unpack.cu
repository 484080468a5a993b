// Data that the host has packed, in the format that the crate millpond-codec describes. The threads of a block unpack one block of it at a
// time. They take part of its values each, and add up what those before them have counted.

constexpr u32 BLOCK = 8192;
constexpr u32 PACKED_HEADER = 16;
constexpr u32 PLANE_HEADER = 8;

enum Transform { UNCHANGED, ROTATED, ZIGZAG, DELTA, STORED = 255 };
enum Kind { RAW_BLOCK, PLANES, MAPPED };

// A number of some bytes, the lowest first, at any address.
__device__ inline u64 little(const u8 *from, u32 bytes) {
    u64 number = 0;
    for (u32 at = 0; at < bytes; at++)
        number |= (u64)from[at] << (8 * at);
    return number;
}

// What the threads before this one have, and what all have. All threads of the block call it.
template <class T> __device__ inline T before(T mine, T *all) {
    __shared__ T sums[THREADS];
    u32 thread = threadIdx.x;
    sums[thread] = mine;
    __syncthreads();
    #pragma unroll 1
    for (u32 step = 1; step < THREADS; step *= 2) {
        T more = thread >= step ? sums[thread - step] : 0;
        __syncthreads();
        sums[thread] += more;
        __syncthreads();
    }
    *all = sums[THREADS - 1];
    T sum = thread ? sums[thread - 1] : 0;
    __syncthreads();
    return sum;
}

// The values of this thread.
struct Part {
    u32 begin;
    u32 end;
};

__device__ inline Part part(u32 len) {
    u32 each = (len + THREADS - 1) / THREADS;
    u32 begin = threadIdx.x * each < len ? threadIdx.x * each : len;
    return {begin, begin + each < len ? begin + each : len};
}

__device__ inline u32 bytes_of(u32 len, u32 width) { return (len * width + 7) / 8; }

// A code of at most 8 bits.
__device__ inline u32 code(const u8 *codes, u32 at, u32 width) {
    if (!width)
        return 0;
    u32 bit = at * width, shift = bit % 8;
    u32 two = codes[bit / 8];
    if (shift + width > 8)
        two |= (u32)codes[bit / 8 + 1] << 8;
    return two >> shift & ((1u << width) - 1);
}

// Writes the bytes of codes. Each code that marks an exception takes the next of them. Returns whether there are as many.
__device__ inline bool
decode(u8 *to, u32 len, const u8 *codes, u32 base, u32 width, const u8 *outside, u32 exceptions) {
    u32 top = (1u << width) - 1, next = 0;
    Part mine = part(len);
    if (exceptions) {
        u32 marked = 0, all;
        for (u32 at = mine.begin; at < mine.end; at++)
            marked += code(codes, at, width) == top;
        next = before(marked, &all);
        if (all != exceptions)
            return false;
    }
    for (u32 at = mine.begin; at < mine.end; at++) {
        u32 distance = code(codes, at, width);
        if (exceptions && distance == top) {
            distance = outside[next++];
            distance += distance < 128 ? top : 0;
        }
        to[at] = (u8)(distance + base);
    }
    __syncthreads();
    return true;
}

// A value as it was before the transform. A difference stays one.
__device__ inline u64 restore(u64 value, u32 transform, u32 width) {
    if (transform == ROTATED)
        return value >> 1 | (value & 1) << (8 * width - 1);
    return transform == UNCHANGED ? value : value >> 1 ^ (0 - (value & 1));
}

// Unpacks a block of values. Returns whether its content is as it has to be, which all threads find alike.
__device__ inline bool
unpack_block(u8 *to, u32 len, const u8 *from, u64 size, u32 transform, u32 width) {
    __shared__ u8 planes[BLOCK];
    // The exceptions of a plane, then the values.
    __shared__ u64 work[BLOCK / 8];
    u8 *bytes = (u8 *)work;
    if (size < 4)
        return false;
    u32 kept = (u32)little(from, 2), kind = from[2], values = len / width, stride = BLOCK / width;
    u64 at = 4;
    if (kind == RAW_BLOCK) {
        if (size < at + len)
            return false;
        for (u32 number = threadIdx.x; number < len; number += THREADS)
            to[number] = from[at + number];
        return true;
    }
    if (kind > MAPPED || kept > values || (kind == PLANES && kept < values))
        return false;
    const u8 *first = from + at;
    at += transform == DELTA ? 8 : 0;
    const u8 *map = from + at;
    at += kind == MAPPED ? bytes_of(values, 1) : 0;
    const u8 *heads = from + at;
    at += PLANE_HEADER * width;
    if (at > size)
        return false;
    #pragma unroll 1
    for (u32 place = 0; place < width; place++) {
        const u8 *head = heads + PLANE_HEADER * place;
        u32 exceptions = (u32)little(head + 4, 2), raw = exceptions ? (u32)little(head + 6, 2) : 0;
        const u8 *codes = from + at;
        if (head[1] > 8 || exceptions > BLOCK)
            return false;
        at += bytes_of(kept, head[1]);
        if (exceptions) {
            const u8 *outside = from + at;
            if (head[3] > 8)
                return false;
            at += bytes_of(exceptions, head[3]) + raw;
            if (at > size || !decode(bytes, exceptions, outside, head[2], head[3], from + (at - raw), raw))
                return false;
        }
        if (at > size || !decode(planes + place * stride, kept, codes, head[0], head[1], bytes, exceptions))
            return false;
    }
    Part mine = part(values);
    u32 next = mine.begin;
    if (kind == MAPPED) {
        u32 ones = 0, all;
        for (u32 number = mine.begin; number < mine.end; number++)
            ones += map[number / 8] >> (number % 8) & 1;
        next = before(ones, &all);
        if (all != kept)
            return false;
    }
    u64 sum = 0;
    for (u32 number = mine.begin; number < mine.end; number++) {
        u64 value = 0;
        if (kind == PLANES || (map[number / 8] >> (number % 8) & 1)) {
            for (u32 place = 0; place < width; place++)
                value |= (u64)planes[place * stride + next] << (8 * place);
            next++;
        }
        value = restore(value, transform, width);
        sum += value;
        value = transform == DELTA ? sum : value;
        for (u32 place = 0; place < width; place++)
            bytes[number * width + place] = (u8)(value >> (8 * place));
    }
    if (transform == DELTA) {
        u64 all, start = before(sum, &all) + little(first, 8);
        for (u32 number = mine.begin; number < mine.end; number++) {
            u64 value = little(bytes + number * width, width) + start;
            for (u32 place = 0; place < width; place++)
                bytes[number * width + place] = (u8)(value >> (8 * place));
        }
    }
    __syncthreads();
    // Neighbouring threads write neighbouring words.
    u32 words = (u64)to % 4 ? 0 : len / 4;
    for (u32 word = threadIdx.x; word < words; word += THREADS)
        ((u32 *)to)[word] = ((u32 *)work)[word];
    for (u32 number = 4 * words + threadIdx.x; number < len; number += THREADS)
        to[number] = bytes[number];
    __syncthreads();
    return true;
}

// Unpacks to `len` bytes. If the data is damaged, `*damaged` becomes 1, unless `damaged` is null.
extern "C" __global__ void millpond_unpack(u8 *to, u64 len, const u8 *packed, u64 size, u32 *damaged) {
    bool is_whole = size >= PACKED_HEADER && little(packed, 4) == 0x3143504d && little(packed + 6, 2) == 0;
    u32 width = is_whole ? packed[4] : 0, transform = is_whole ? packed[5] : 0;
    is_whole = is_whole && (width == 1 || width == 2 || width == 4 || width == 8) && little(packed + 8, 8) == len
        && (transform <= DELTA || transform == STORED);
    if (is_whole && transform == STORED) {
        is_whole = size - PACKED_HEADER >= len;
        EACH(number, is_whole ? len : 0)
            to[number] = packed[PACKED_HEADER + number];
    } else if (is_whole) {
        u64 tail = len % width, all = len - tail, blocks = all / BLOCK + (all % BLOCK != 0);
        const u8 *ends = packed + PACKED_HEADER, *rest = ends + 4 * blocks;
        u64 start = PACKED_HEADER + 4 * blocks + (tail + 3) / 4 * 4;
        is_whole = blocks <= size / 4 && start <= size;
        if (is_whole && blockIdx.x == 0 && threadIdx.x < tail)
            to[all + threadIdx.x] = rest[threadIdx.x];
        for (u64 block = blockIdx.x; is_whole && block < blocks; block += gridDim.x) {
            u64 begin = block ? 4 * little(ends + 4 * (block - 1), 4) : 0, end = 4 * little(ends + 4 * block, 4);
            u64 at = block * BLOCK;
            is_whole = begin <= end && end <= size - start
                && unpack_block(
                    to + at, (u32)(all - at < BLOCK ? all - at : BLOCK), packed + start + begin, end - begin, transform, width);
        }
    }
    if (!is_whole && threadIdx.x == 0 && damaged)
        *damaged = 1;
}
