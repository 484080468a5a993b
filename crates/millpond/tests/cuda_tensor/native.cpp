// The kernels' own CUDA C, compiled for the host. The threads of a block take turns from one `__syncthreads` to the next. When they are
// registered with the emulated driver, they replace its functions with these names.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __device__
#define __global__
// One block runs at a time.
#define __shared__ static

struct Index {
    unsigned x, y, z;
};
static Index threadIdx, blockIdx, blockDim, gridDim;

static ucontext_t scheduler;
static std::vector<ucontext_t> threads;
static size_t running;

static void __syncthreads() { swapcontext(&threads[running], &scheduler); }

static float __uint_as_float(unsigned bits) {
    float x;
    std::memcpy(&x, &bits, 4);
    return x;
}

static unsigned __float_as_uint(float x) {
    unsigned bits;
    std::memcpy(&bits, &x, 4);
    return bits;
}

static float __double2float_rz(double x) {
    float y = (float)x;
    return std::fabs((double)y) > std::fabs(x) ? std::nextafterf(y, 0.0f) : y;
}

static int __popc(uint32_t bits) { return __builtin_popcount(bits); }

#include "walk.cuh"

// This replaces half.cuh.
struct f16 {
    u16 bits;
};

static float to_float(f16 x) {
    _Float16 y;
    std::memcpy(&y, &x, 2);
    return (float)y;
}

static f16 to_f16(float x) {
    _Float16 y = (_Float16)x;
    f16 z;
    std::memcpy(&z, &y, 2);
    return z;
}

#include "number.cuh"
#include "elementwise.cu"
#include "sum.cu"
#include "matmul.cu"
#include "unpack.cu"

// The work of the next thread that starts.
static void (*body)(void *);
static void *body_of;

static void begin() { body(body_of); }

// Runs one block: repeatedly runs every thread up to the next barrier, until all have ended.
static void block(size_t many) {
    const size_t STACK = 64 << 10;
    static std::vector<char> stacks;
    stacks.resize(many * STACK);
    threads.resize(many);
    for (size_t at = 0; at < many; at++) {
        getcontext(&threads[at]);
        threads[at].uc_stack.ss_sp = &stacks[at * STACK];
        threads[at].uc_stack.ss_size = STACK;
        threads[at].uc_link = nullptr;
        makecontext(&threads[at], [] {
            begin();
            // The thread has ended and never continues.
            threads[running].uc_link = &scheduler;
            setcontext(&scheduler);
        }, 0);
    }
    size_t left = many;
    std::vector<bool> ended(many);
    while (left) {
        for (running = 0; running < many; running++) {
            if (ended[running])
                continue;
            threadIdx = {unsigned(running % blockDim.x), unsigned(running / blockDim.x % blockDim.y), 0};
            swapcontext(&scheduler, &threads[running]);
            if (threads[running].uc_link) {
                ended[running] = true;
                left--;
            }
        }
    }
}

template <class... A> struct Kernel {
    void (*function)(A...);
    std::tuple<std::decay_t<A>...> arguments;

    template <size_t... I> void run(std::index_sequence<I...>) { function(std::get<I>(arguments)...); }

    template <size_t... I> static void read(Kernel &kernel, const uint8_t *const *params, std::index_sequence<I...>) {
        (std::memcpy(&std::get<I>(kernel.arguments), params[I], sizeof(std::get<I>(kernel.arguments))), ...);
    }

    static int32_t launch(size_t data, const uint8_t *const *params, const uint32_t *shape) {
        auto each = std::index_sequence_for<A...>{};
        Kernel kernel = {(void (*)(A...))data, {}};
        read(kernel, params, each);
        body = [](void *of) { ((Kernel *)of)->run(std::index_sequence_for<A...>{}); };
        body_of = &kernel;
        gridDim = {shape[0], shape[1], shape[2]};
        blockDim = {shape[3], shape[4], shape[5]};
        for (unsigned z = 0; z < gridDim.z; z++)
            for (unsigned y = 0; y < gridDim.y; y++)
                for (unsigned x = 0; x < gridDim.x; x++) {
                    blockIdx = {x, y, z};
                    block((size_t)blockDim.x * blockDim.y * blockDim.z);
                }
        return 0;
    }
};

typedef int32_t (*Launch)(size_t, const uint8_t *const *, const uint32_t *);
typedef int32_t (*Register)(const char *, const size_t *, size_t, uint64_t, Launch, size_t);

template <class... A> static int add(Register with, const char *name, void (*function)(A...)) {
    const size_t sizes[] = {sizeof(A)...};
    return with(name, sizes, sizeof...(A), 1000, Kernel<A...>::launch, (size_t)function);
}

#define ADD(function) failed += add(with, #function, function) != 0, count++;
#define ADD_TYPE(name, T) ADD(millpond_binary_##name) ADD(millpond_matmul_##name)

// Returns the number of kernels, or a negative number on failure.
extern "C" int register_kernels(Register with) {
    int failed = 0, count = 0;
    ADD(millpond_copy_1) ADD(millpond_copy_2) ADD(millpond_copy_4) ADD(millpond_copy_8) ADD(millpond_copy_16)
    TYPES(ADD_TYPE)
    ADD(millpond_cast)
    ADD(millpond_unpack)
    ADD(millpond_sum_f64) ADD(millpond_sum_i64) ADD(millpond_sum_u64)
    ADD(millpond_sum_dim_f64) ADD(millpond_sum_dim_i64) ADD(millpond_sum_dim_u64)
    return failed ? -failed : count;
}
