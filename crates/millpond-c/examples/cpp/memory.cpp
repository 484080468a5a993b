// Memory management in TensorCore's way: a pool, allocations that end with their scope, statistics, a warning, reserved memory, threads, SIMD
// alignment; then the same pool under std::pmr, and a device.
//
//   c++ -std=c++17 memory.cpp $(pkg-config --cflags --libs millpond) -o memory && ./memory
#include <millpond.hpp>

#include <chrono>
#include <cstdint>
#include <iostream>
#include <thread>
#include <vector>

namespace {

/// A tensor of a shape, in a pool.
class Tensor {
public:
    Tensor(const millpond::pool &pool, std::size_t rows, std::size_t columns)
        : data_(pool, rows * columns), columns_(columns) {
        for (auto &value : data_) {
            value = 0;
        }
    }
    double &at(std::size_t row, std::size_t column) { return data_[row * columns_ + column]; }
    const double *data() const { return data_.get(); }

private:
    millpond::allocation<double> data_;
    std::size_t columns_;
};

void print(const millpond::pool &pool) {
    const auto stats = pool.stats();
    const double used = stats.reserved == 0 ? 0 : double(stats.allocated) / double(stats.reserved);
    std::cout << "allocated " << stats.allocated << " of " << stats.reserved << " bytes, utilisation " << used << ", "
              << stats.allocations << " allocations, " << stats.frees << " frees\n";
    if (used > 0.8) {
        std::cout << "warning: the utilisation of the pool is high\n";
    }
}

void threads(const millpond::pool &pool) {
    std::vector<std::thread> workers;
    for (int number = 0; number < 4; number++) {
        workers.emplace_back([&pool, number] {
            const millpond::tag tag("worker");
            for (int round = 0; round < 1000; round++) {
                Tensor temporary(pool, 10, 10);
                temporary.at(9, 9) = number;
            }
        });
    }
    for (auto &worker : workers) {
        worker.join();
    }
}

void device() {
    std::uint32_t count = 0;
    if (millpond_device_count(&count) != MILLPOND_OK || count == 0) {
        std::cout << "no device: " << millpond_last_error() << '\n';
        return;
    }
    millpond::device_resource resource{millpond::device_pool(0)};
    const std::vector<double> values(1000, 1.5);
    std::vector<double> back(values.size());
    const auto bytes = values.size() * sizeof(double);
    void *block = resource.allocate(static_cast<void *>(nullptr), bytes);
    resource.pool().write(block, values.data(), bytes);
    resource.pool().read(block, back.data(), bytes);
    resource.deallocate(static_cast<void *>(nullptr), block, bytes);
    std::cout << "device: " << (back == values ? "copied there and back" : "WRONG DATA") << ", "
              << resource.pool().stats().requested << " bytes in use\n";
}

} // namespace

int main() {
    try {
        // 16 MiB from the start, then 32 MiB.
        millpond::options options;
        options.name = "tensorcore";
        options.settings = "capacity:16MiB";
        const millpond::pool pool(options);
        pool.reserve(32 << 20);
        std::cout << "reserved at least 32 MiB: " << (pool.stats().reserved >= 32 << 20 ? "yes" : "no") << '\n';

        // Manual use.
        void *block = pool.allocate(1024);
        pool.deallocate(block, 1024);

        // The end of a scope frees.
        {
            Tensor large(pool, 1000, 1000);
            large.at(999, 999) = 1;
            std::cout << "aligned for SIMD: " << (reinterpret_cast<std::uintptr_t>(large.data()) % 64 == 0 ? "yes" : "no")
                      << '\n';
            print(pool);
        }

        const auto begin = std::chrono::steady_clock::now();
        for (int round = 0; round < 1000; round++) {
            Tensor temporary(pool, 100, 100);
        }
        const auto took = std::chrono::steady_clock::now() - begin;
        std::cerr << "1000 tensors took " << std::chrono::duration_cast<std::chrono::microseconds>(took).count() << " us\n";

        threads(pool);

        // The containers of the standard library.
        millpond::memory_resource resource(pool);
        {
            std::pmr::vector<std::pmr::string> names(&resource);
            for (int number = 0; number < 100; number++) {
                names.emplace_back("a name that is too long for the small buffer of a string: " + std::to_string(number));
            }
            std::cout << "names in the pool: " << names.size() << ", " << (pool.stats().requested > 5000 ? "pooled" : "NOT POOLED")
                      << '\n';
        }

        // A budget refuses, and the error is a std::bad_alloc with a text.
        const millpond::budget budget("tenant", 1 << 20, MILLPOND_MEASURE_ALLOCATED);
        const millpond::pool tenant(options = {}, &budget);
        try {
            Tensor(tenant, 1000, 1000);
        } catch (const std::bad_alloc &refused) {
            std::cout << "refused: " << refused.what() << '\n';
        }

        device();
        const auto stats = pool.stats();
        std::cout << "left in use: " << stats.requested << " bytes; " << stats.allocations << " allocations, " << stats.frees
                  << " frees\n";
    } catch (const std::exception &failed) {
        std::cerr << "failed: " << failed.what() << '\n';
        return 1;
    }
    return 0;
}
