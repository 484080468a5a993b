/* Calls the functions for PyTorch in the order in which PyTorch calls them: a table of blocks as in its `CUDAPluggableAllocator`, several
 * threads with streams of their own, `record_stream`, exceptions, private pools of threads, and a captured graph. */
#include <dlfcn.h>
#include <millpond.hpp>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

using Stream = void *;
using PoolId = std::pair<unsigned long long, unsigned long long>;

/* The types that PyTorch casts the addresses to. */
using Alloc = void *(size_t, int, Stream);
using Free = void(void *, size_t, int, Stream);
using RecordStream = void(void *, Stream);
using Begin = void(int, PoolId, std::function<bool(Stream)>);
using End = void(int, PoolId);

template <typename Function>
Function *function_of(const void *address) {
    return reinterpret_cast<Function *>(reinterpret_cast<uintptr_t>(address));
}

static void *driver;
template <typename... Arguments>
void call(const char *name, Arguments... arguments) {
    auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(driver, name));
    int status = function ? function(arguments...) : -1;
    if (status != 0) {
        std::printf("%s: %d\n", name, status);
        std::exit(1);
    }
}

static void check(bool holds, const char *what) {
    if (!holds) {
        std::printf("wrong: %s\n", what);
        std::exit(1);
    }
}

struct Allocator {
    std::function<Alloc> alloc = function_of<Alloc>((void *)millpond_torch_alloc);
    std::function<Free> release = function_of<Free>((void *)millpond_plugin_free);
    std::function<RecordStream> record_stream = function_of<RecordStream>((void *)millpond_torch_record_stream);
    std::function<Begin> begin = function_of<Begin>((void *)millpond_torch_begin_allocate_to_pool);
    std::function<End> end = function_of<End>((void *)millpond_torch_end_allocate_to_pool);
    std::function<End> release_pool = function_of<End>((void *)millpond_torch_release_pool);
    std::mutex mutex;
    std::unordered_map<void *, std::pair<size_t, Stream>> blocks;

    void *malloc(size_t size, Stream stream) {
        void *block = alloc(size, 0, stream);
        std::lock_guard<std::mutex> lock(mutex);
        check(blocks.emplace(block, std::make_pair(size, stream)).second, "a block is handed out twice");
        return block;
    }

    void raw_delete(void *block) {
        std::pair<size_t, Stream> of;
        {
            std::lock_guard<std::mutex> lock(mutex);
            auto found = blocks.find(block);
            check(found != blocks.end(), "the block is known");
            of = found->second;
            blocks.erase(found);
        }
        release(block, of.first, 0, of.second);
    }
};

static Allocator allocator;
static std::atomic<long> refused{0}, wrong{0};

static Stream new_stream() {
    Stream stream = nullptr;
    call("cuStreamCreate", &stream, 1u);
    return stream;
}

/* Fills blocks, reads them back before they are freed, and lets a second stream use some of them. */
static void work(int number, void *context) {
    call("cuCtxSetCurrent", context);
    std::mt19937 random(number);
    Stream stream = new_stream(), side = new_stream();
    struct Held {
        void *block;
        size_t size;
        unsigned char value;
    };
    std::vector<Held> held;
    auto drop = [&](size_t at) {
        Held of = held[at];
        held[at] = held.back();
        held.pop_back();
        std::vector<unsigned char> bytes(of.size);
        call("cuMemcpyDtoHAsync_v2", bytes.data(), (unsigned long long)of.block, of.size, stream);
        call("cuStreamSynchronize", stream);
        for (unsigned char byte : bytes) wrong += byte != of.value;
        if (random() % 3 == 0) {
            call("cuMemsetD8Async", (unsigned long long)of.block, of.value, of.size, side);
            /* PyTorch also gives addresses within a block. */
            allocator.record_stream(static_cast<char *>(of.block) + random() % of.size, side);
        }
        allocator.raw_delete(of.block);
    };
    for (int step = 0; step < 1500; step++) {
        size_t size = 1 + random() % (random() % 8 ? 4096 : 200000);
        if (random() % 100 == 0) size = 1ull << 40;
        try {
            void *block = allocator.malloc(size, stream);
            unsigned char value = 1 + random() % 250;
            call("cuMemsetD8Async", (unsigned long long)block, value, size, stream);
            held.push_back({block, size, value});
        } catch (const std::runtime_error &error) {
            check(std::strstr(error.what(), "CUDA out of memory. Tried to allocate 1.00 TiB"), error.what());
            refused++;
        }
        while (held.size() > 30 || (!held.empty() && random() % 3 == 0)) drop(random() % held.size());
    }
    while (!held.empty()) drop(held.size() - 1);
    call("cuStreamSynchronize", side);
}

/* A private pool serves one thread, and others are not affected. */
static void private_pool(void *context) {
    Stream stream = new_stream();
    PoolId id{0, 7};
    auto thread = std::this_thread::get_id();
    std::string larger_than_the_place_in_a_function(100, 'x');
    auto filter = [thread, larger_than_the_place_in_a_function](Stream) {
        return std::this_thread::get_id() == thread && larger_than_the_place_in_a_function.size() == 100;
    };
    allocator.begin(0, id, filter);
    void *inside = allocator.malloc(1000, stream), *elsewhere = nullptr;
    std::thread([&] {
        call("cuCtxSetCurrent", context);
        elsewhere = allocator.malloc(1000, stream);
    }).join();
    allocator.end(0, id);
    allocator.raw_delete(inside);
    void *after = allocator.malloc(1000, stream);
    check(after != inside, "a private pool keeps its memory");
    allocator.begin(0, id, filter);
    void *again = allocator.malloc(1000, stream);
    allocator.end(0, id);
    check(again == inside, "a private pool serves its next request");
    allocator.release_pool(0, id);
    allocator.release_pool(0, id);
    for (void *block : {elsewhere, after, again}) allocator.raw_delete(block);
}

/* The memory of a graph is not given to others, and its launches write to it. */
static void graph(void) {
    Stream stream = new_stream();
    PoolId id{9, 0};
    allocator.begin(0, id, [](Stream stream) {
        int status = 0;
        call("cuStreamIsCapturing", stream, &status);
        return status == 1;
    });
    call("cuStreamBeginCapture_v2", stream, 0);
    void *first = allocator.malloc(5 << 20, stream);
    call("cuMemsetD8Async", (unsigned long long)first, 5, (size_t)5 << 20, stream);
    allocator.raw_delete(first);
    void *second = allocator.malloc(5 << 20, stream);
    check(first == second, "a block of a graph is reused in the capture");
    call("cuMemsetD8Async", (unsigned long long)second, 6, (size_t)5 << 20, stream);
    void *captured = nullptr, *executable = nullptr;
    call("cuStreamEndCapture", stream, &captured);
    allocator.end(0, id);
    call("cuGraphInstantiateWithFlags", &executable, captured, 0ull);
    allocator.raw_delete(second);
    std::vector<void *> others;
    for (int at = 0; at < 20; at++) {
        others.push_back(allocator.malloc(1 << 20, stream));
        call("cuMemsetD8Async", (unsigned long long)others.back(), 9, (size_t)1 << 20, stream);
    }
    millpond_torch_empty_cache();
    call("cuGraphLaunch", executable, stream);
    for (void *block : others) {
        unsigned char byte = 0;
        call("cuMemcpyDtoHAsync_v2", &byte, (unsigned long long)block, (size_t)1, stream);
        call("cuStreamSynchronize", stream);
        wrong += byte != 9;
        allocator.raw_delete(block);
    }
    call("cuGraphExecDestroy", executable);
    allocator.release_pool(0, id);
}

int main() {
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    check(driver, "there is a driver");
    void *context = nullptr;
    call("cuInit", 0u);
    call("cuDevicePrimaryCtxRetain", &context, 0);
    call("cuCtxSetCurrent", context);

    check(!allocator.alloc(0, 0, nullptr), "a request of 0 bytes gets no block");
    allocator.release(nullptr, 0, 0, nullptr);
    try {
        allocator.alloc(1000, 99, nullptr);
        check(false, "there is no device 99");
    } catch (const std::runtime_error &error) {
        check(!std::strstr(error.what(), "out of memory"), error.what());
    }
    check(!millpond_plugin_alloc(1000, -1, nullptr), "there is no device -1");
    check(*millpond_last_error(), "the reason is known");

    std::vector<std::thread> threads;
    for (int number = 0; number < 4; number++) threads.emplace_back(work, number, context);
    threads.emplace_back([context] {
        call("cuCtxSetCurrent", context);
        for (int at = 0; at < 20; at++) millpond_torch_empty_cache();
    });
    for (auto &thread : threads) thread.join();
    private_pool(context);
    graph();
    millpond_torch_set_memory_fraction(0.5, 0);

    /* A pool of the program takes over. */
    millpond_pool *pool = nullptr;
    check(millpond_plugin_set_pool(pool) == MILLPOND_INVALID_HANDLE, "null is not a pool");
    check(millpond_device_pool_create(0, nullptr, &pool) == MILLPOND_OK, "a pool");
    check(millpond_plugin_set_pool(pool) == MILLPOND_OK, "a device pool can be set");
    Stream stream = new_stream();
    void *block = allocator.malloc(1000, stream);
    millpond_pool_stats stats{};
    stats.size = sizeof stats;
    check(millpond_pool_get_stats(pool, &stats) == MILLPOND_OK && stats.requested == 1000, "the pool has the block");
    allocator.raw_delete(block);
    check(millpond::device_pool(0).stats().limit == stats.limit, "C++ has the default limit of C");
    std::printf("%ld wrong bytes, %s refused, %zu left\n", wrong.load(), refused > 0 ? "some" : "none", allocator.blocks.size());
}
