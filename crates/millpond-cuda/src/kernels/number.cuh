// Types of elements: what they are stored as, and what is computed with them. Every rounding is that of the host's tensors.

struct bf16 {
    u16 bits;
};

struct c64 {
    u32 part[2];
};

struct c128 {
    u64 part[2];
};

// The numbers of types, as the host counts them.
enum Type { F64, F32, F16, BF16, I8, I16, I32, I64, U8, U16, U32, U64, BOOL };

__device__ inline float to_float(bf16 x) { return __uint_as_float((u32)x.bits << 16); }

__device__ inline bf16 to_bf16(float x) {
    u32 bits = __float_as_uint(x);
    bf16 y;
    // To the nearest, of two as near to the even one; what is no number stays none.
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        y.bits = (u16)((bits >> 16) | 0x40u);
    else
        y.bits = (u16)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
    return y;
}

// To a float that has its last bit set where it is not exact, so that rounding it once more is as if it were rounded once.
__device__ inline float to_odd(double x) {
    float y = __double2float_rz(x);
    u32 bits = __float_as_uint(y);
    return x == x && (double)y != x ? __uint_as_float(bits | 1) : y;
}

// What elements are computed in, and the ways there and back.
template <class T> struct Number {
    typedef T Value;
    static __device__ T load(T x) { return x; }
    static __device__ T store(T x) { return x; }
};

template <> struct Number<f16> {
    typedef float Value;
    static __device__ float load(f16 x) { return to_float(x); }
    static __device__ f16 store(float x) { return to_f16(x); }
};

template <> struct Number<bf16> {
    typedef float Value;
    static __device__ float load(bf16 x) { return to_float(x); }
    static __device__ bf16 store(float x) { return to_bf16(x); }
};

// Integers wrap around; by 0 they are not divided, which the host refuses before.
template <class T> __device__ inline T plus(T a, T b) { return (T)((u64)a + (u64)b); }
template <class T> __device__ inline T minus(T a, T b) { return (T)((u64)a - (u64)b); }
template <class T> __device__ inline T times(T a, T b) { return (T)((u64)a * (u64)b); }
template <class T> __device__ inline T over(T a, T b) {
    if (b == 0)
        return 0;
    // The least number by -1 is the least again.
    if ((T)-1 < 0 && b == (T)-1)
        return (T)(0 - (u64)a);
    return a / b;
}

#define FLOATS(T)                                                                                                                    \
    __device__ inline T plus(T a, T b) { return a + b; }                                                                             \
    __device__ inline T minus(T a, T b) { return a - b; }                                                                            \
    __device__ inline T times(T a, T b) { return a * b; }                                                                            \
    __device__ inline T over(T a, T b) { return a / b; }
FLOATS(float)
FLOATS(double)

// An integer of a fraction: cut off, the nearest there is where it is beyond, 0 of what is no number.
template <class T> __device__ inline T to_integer(double x, double least, double beyond, T lowest, T highest) {
    if (!(x == x))
        return 0;
    if (x <= least)
        return lowest;
    if (x >= beyond)
        return highest;
    return (T)x;
}

#define TYPES(DO)                                                                                                                    \
    DO(f64, double)                                                                                                                  \
    DO(f32, float)                                                                                                                   \
    DO(f16, f16)                                                                                                                     \
    DO(bf16, bf16)                                                                                                                   \
    DO(i8, i8)                                                                                                                       \
    DO(i16, i16)                                                                                                                     \
    DO(i32, i32)                                                                                                                     \
    DO(i64, i64)                                                                                                                     \
    DO(u8, u8)                                                                                                                       \
    DO(u16, u16)                                                                                                                     \
    DO(u32, u32)                                                                                                                     \
    DO(u64, u64)

// An element as what its kind is counted in, and back. `W` is double, i64 or u64.
template <class W> __device__ inline W load(const void *from, u64 at, u32 type);
template <class W> __device__ inline void store(void *to, u64 at, u32 type, W value);

template <> __device__ inline double load<double>(const void *from, u64 at, u32 type) {
    switch (type) {
    case F64: return ((const double *)from)[at];
    case F32: return ((const float *)from)[at];
    case F16: return to_float(((const f16 *)from)[at]);
    default: return to_float(((const bf16 *)from)[at]);
    }
}

template <> __device__ inline i64 load<i64>(const void *from, u64 at, u32 type) {
    switch (type) {
    case I8: return ((const i8 *)from)[at];
    case I16: return ((const i16 *)from)[at];
    case I32: return ((const i32 *)from)[at];
    default: return ((const i64 *)from)[at];
    }
}

template <> __device__ inline u64 load<u64>(const void *from, u64 at, u32 type) {
    switch (type) {
    case U8: return ((const u8 *)from)[at];
    case U16: return ((const u16 *)from)[at];
    case U32: return ((const u32 *)from)[at];
    case BOOL: return ((const u8 *)from)[at] != 0;
    default: return ((const u64 *)from)[at];
    }
}

__device__ inline void store_fraction(void *to, u64 at, u32 type, double x) {
    switch (type) {
    case F64: ((double *)to)[at] = x; break;
    case F32: ((float *)to)[at] = (float)x; break;
    case F16: ((f16 *)to)[at] = to_f16(to_odd(x)); break;
    default: ((bf16 *)to)[at] = to_bf16(to_odd(x)); break;
    }
}

__device__ inline void store_bits(void *to, u64 at, u32 type, u64 x) {
    switch (type) {
    case I8:
    case U8: ((u8 *)to)[at] = (u8)x; break;
    case I16:
    case U16: ((u16 *)to)[at] = (u16)x; break;
    case I32:
    case U32: ((u32 *)to)[at] = (u32)x; break;
    case BOOL: ((u8 *)to)[at] = x != 0; break;
    default: ((u64 *)to)[at] = x; break;
    }
}

template <> __device__ inline void store<double>(void *to, u64 at, u32 type, double x) {
    switch (type) {
    case I8: ((i8 *)to)[at] = to_integer<i8>(x, -128.0, 127.0, -128, 127); break;
    case I16: ((i16 *)to)[at] = to_integer<i16>(x, -32768.0, 32767.0, -32768, 32767); break;
    case I32: ((i32 *)to)[at] = to_integer<i32>(x, -2147483648.0, 2147483647.0, -2147483647 - 1, 2147483647); break;
    case I64:
        ((i64 *)to)[at] =
            to_integer<i64>(x, -9223372036854775808.0, 9223372036854775808.0, (i64)1 << 63, 0x7fffffffffffffffll);
        break;
    case U8: ((u8 *)to)[at] = to_integer<u8>(x, 0.0, 255.0, 0, 255); break;
    case U16: ((u16 *)to)[at] = to_integer<u16>(x, 0.0, 65535.0, 0, 65535); break;
    case U32: ((u32 *)to)[at] = to_integer<u32>(x, 0.0, 4294967295.0, 0, 0xffffffffu); break;
    case U64: ((u64 *)to)[at] = to_integer<u64>(x, 0.0, 18446744073709551616.0, 0, 0xffffffffffffffffull); break;
    case BOOL: ((u8 *)to)[at] = x != 0; break;
    default: store_fraction(to, at, type, x);
    }
}

// Of large integers a single is rounded once, as the host does it; half precision goes by way of double.
#define STORE_INTEGERS(W)                                                                                                            \
    template <> __device__ inline void store<W>(void *to, u64 at, u32 type, W x) {                                                   \
        if (type == F32)                                                                                                             \
            ((float *)to)[at] = (float)x;                                                                                            \
        else if (type <= BF16)                                                                                                       \
            store_fraction(to, at, type, (double)x);                                                                                 \
        else                                                                                                                         \
            store_bits(to, at, type, (u64)x);                                                                                        \
    }
STORE_INTEGERS(i64)
STORE_INTEGERS(u64)
