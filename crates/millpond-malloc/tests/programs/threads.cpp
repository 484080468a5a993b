// Threads that allocate, free blocks of each other, end, fork and throw. A static constructor allocates before main, and destructors
// of thread locals and statics free. Prints "ok" if no block was overwritten.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <vector>
#include <sys/wait.h>
#include <unistd.h>

struct Block {
    unsigned char *bytes;
    size_t count;
    unsigned char value;
};

static std::map<int, std::string> early = {{1, std::string(100, 'a')}, {2, std::string(5000, 'b')}};
static std::mutex lock;
static std::vector<Block> shared;
static std::atomic<int> wrong{0};

struct AtEnd {
    std::vector<int> numbers = std::vector<int>(1000, 7);
    ~AtEnd() {
        for (int number : numbers)
            if (number != 7)
                wrong++;
        free(malloc(100));
    }
};
static thread_local AtEnd at_end;
static AtEnd at_exit_of_all;

static void fill(Block &block) { std::memset(block.bytes, block.value, block.count); }
static void drop(Block &block) {
    for (size_t at = 0; at < block.count; at += 61)
        if (block.bytes[at] != block.value)
            wrong++;
    std::free(block.bytes);
}

static void work(unsigned seed, int rounds, bool shares) {
    std::mt19937 random(seed);
    std::vector<Block> own;
    at_end.numbers[0] = 7;
    for (int round = 0; round < rounds; round++) {
        size_t count = random() % 5 == 0 ? random() % 300000 + 1 : random() % 700 + 1;
        Block block{static_cast<unsigned char *>(round % 3 ? std::malloc(count) : std::calloc(1, count)), count,
                    static_cast<unsigned char>(random())};
        if (!block.bytes) {
            wrong++;
            continue;
        }
        fill(block);
        if (shares && random() % 2) {
            std::lock_guard<std::mutex> guard(lock);
            shared.push_back(block);
            if (shared.size() > 200) {
                std::swap(shared[random() % shared.size()], shared.back());
                block = shared.back();
                shared.pop_back();
                drop(block);
            }
        } else {
            own.push_back(block);
        }
        if (own.size() > 300) {
            std::swap(own[random() % own.size()], own.back());
            drop(own.back());
            own.pop_back();
        }
        if (round % 400 == 399) {
            try {
                throw std::string("thrown");
            } catch (const std::string &) {
            }
        }
    }
    for (Block &block : own)
        drop(block);
}

static void fork_often(int times) {
    for (int time = 0; time < times; time++) {
        pid_t child = fork();
        if (child == 0) {
            // Another thread may have held the lock of the shared blocks.
            work(1000 + time, 500, false);
            std::thread(work, 2000 + time, 500, false).join();
            _exit(wrong ? 1 : 0);
        }
        int status = 1;
        if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
            wrong++;
    }
}

int main() {
    for (int wave = 0; wave < 3; wave++) {
        std::vector<std::thread> threads;
        for (unsigned seed = 0; seed < 6; seed++)
            threads.emplace_back(work, wave * 10 + seed, 6000, true);
        fork_often(5);
        for (auto &thread : threads)
            thread.join();
    }
    for (Block &block : shared)
        drop(block);
    shared.clear();
    struct alignas(256) Wide {
        char bytes[512];
    };
    auto wide = new Wide;
    if (reinterpret_cast<size_t>(wide) % 256)
        wrong++;
    delete wide;
    volatile size_t much = SIZE_MAX / 4;
    try {
        char *volatile block = new char[much];
        delete[] block;
        wrong++;
    } catch (const std::bad_alloc &) {
    }
    if (early[2] != std::string(5000, 'b') || wrong)
        return std::printf("%d wrong\n", wrong.load()), 1;
    std::puts("ok");
    return 0;
}
