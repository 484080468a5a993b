// Element by element: copies and fills by size alone, arithmetic by type, casts from any type to any.

// A copy, or a fill with a value where there is nothing to copy.
template <class T> __device__ inline void copy(const Walk &walk, T *to, const T *from, T value) {
    EACH(number, walk.len) {
        Places p = places(walk, number);
        to[p.at[0]] = from ? from[p.at[1]] : value;
    }
}

#define COPY(name, T)                                                                                                                \
    extern "C" __global__ void millpond_copy_##name(const Walk walk, T *to, const T *from, T value) { copy(walk, to, from, value); }
COPY(1, u8)
COPY(2, u16)
COPY(4, u32)
COPY(8, u64)
COPY(16, c128)

enum Operation { ADD, SUB, MUL, DIV, SUB_FROM, DIV_INTO, ADD_SCALED };

template <class T> __device__ inline T apply(u32 operation, T a, T b, T factor) {
    typedef Number<T> N;
    typename N::Value x = N::load(a), y = N::load(b);
    switch (operation) {
    case ADD: return N::store(plus(x, y));
    case SUB: return N::store(minus(x, y));
    case MUL: return N::store(times(x, y));
    case DIV: return N::store(over(x, y));
    case SUB_FROM: return N::store(minus(y, x));
    case DIV_INTO: return N::store(over(y, x));
    default: return N::store(plus(x, N::load(N::store(times(N::load(factor), y)))));
    }
}

// `to = left op right`, where the right side may be one value for all.
template <class T>
__device__ inline void binary(const Walk &walk, T *to, const T *left, const T *right, T value, T factor, u32 operation) {
    EACH(number, walk.len) {
        Places p = places(walk, number);
        to[p.at[0]] = apply(operation, left[p.at[1]], right ? right[p.at[2]] : value, factor);
    }
}

#define BINARY(name, T)                                                                                                              \
    extern "C" __global__ void millpond_binary_##name(                                                                               \
        const Walk walk, T *to, const T *left, const T *right, T value, T factor, u32 operation) {                                   \
        binary(walk, to, left, right, value, factor, operation);                                                                     \
    }
TYPES(BINARY)

extern "C" __global__ void millpond_cast(const Walk walk, void *to, const void *from, u32 to_type, u32 from_type) {
    EACH(number, walk.len) {
        Places p = places(walk, number);
        if (from_type <= BF16)
            store<double>(to, p.at[0], to_type, load<double>(from, p.at[1], from_type));
        else if (from_type <= I64)
            store<i64>(to, p.at[0], to_type, load<i64>(from, p.at[1], from_type));
        else
            store<u64>(to, p.at[0], to_type, load<u64>(from, p.at[1], from_type));
    }
}
