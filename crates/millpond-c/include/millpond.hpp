// The C++ interface of Millpond: owners of handles, resources for std::pmr, cuda::mr and RMM. It needs C++17 and the C library.
//
// A call that fails throws. `millpond::out_of_memory` derives from std::bad_alloc, and `millpond::error` from std::runtime_error. Both have
// the code and the text of the C library. Functions that free do not throw: they write the text of an error to standard error, and the
// memory stays allocated.
#ifndef MILLPOND_HPP
#define MILLPOND_HPP

#include "millpond.h"

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <memory_resource>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

// CCCL declares cuda::mr if CUDA's runtime is there, and before version 3 only on request.
#if defined(__has_include)
#if __has_include(<cuda_runtime_api.h>) && __has_include(<cuda/memory_resource>) && __has_include(<cuda/version>)
#include <cuda/memory_resource>
#include <cuda/version>
#if CCCL_MAJOR_VERSION >= 3 || defined(LIBCUDACXX_ENABLE_EXPERIMENTAL_MEMORY_RESOURCE)
#define MILLPOND_HAS_CUDA_MR 1
#endif
#endif
#if __has_include(<rmm/mr/device/device_memory_resource.hpp>)
#define MILLPOND_HAS_RMM_BASE 1
#include <rmm/mr/device/device_memory_resource.hpp>
#endif
#endif

namespace millpond {

/// A call failed for another reason than a lack of memory.
class error : public std::runtime_error {
public:
    error(millpond_status code, const char *text) : std::runtime_error(text), code_(code) {}
    /// Returns the code.
    millpond_status code() const noexcept { return code_; }

private:
    millpond_status code_;
};

/// There is not enough memory, or the request can never fit. The text says who holds the memory.
class out_of_memory : public std::bad_alloc {
public:
    out_of_memory(millpond_status code, const char *text)
        : code_(code), text_(std::make_shared<const std::string>(text)) {}
    const char *what() const noexcept override { return text_->c_str(); }
    /// Returns the code: MILLPOND_OUT_OF_MEMORY or MILLPOND_TOO_LARGE.
    millpond_status code() const noexcept { return code_; }

private:
    millpond_status code_;
    std::shared_ptr<const std::string> text_;
};

/// Throws the last error of this thread if the status is not `MILLPOND_OK`.
inline void check(millpond_status status) {
    if (status == MILLPOND_OK) {
        return;
    }
    if (status == MILLPOND_OUT_OF_MEMORY || status == MILLPOND_TOO_LARGE) {
        throw out_of_memory(status, millpond_last_error());
    }
    throw error(status, millpond_last_error());
}

namespace detail {

/// Writes an error that cannot be thrown to standard error.
inline void report(millpond_status status) noexcept {
    if (status != MILLPOND_OK) {
        std::fprintf(stderr, "millpond: %s\n", millpond_last_error());
    }
}

/// Returns the driver's handle of a stream: of a pointer, of cuda::stream_ref, or of rmm::cuda_stream_view.
template <class T> void *stream_handle(T *stream) noexcept { return stream; }
inline void *stream_handle(std::nullptr_t) noexcept { return nullptr; }
template <class Stream> auto stream_handle(const Stream &stream) -> decltype(static_cast<void *>(stream.get())) {
    return stream.get();
}
template <class Stream> auto stream_handle(const Stream &stream) -> decltype(static_cast<void *>(stream.value())) {
    return stream.value();
}

template <class T, class = void> struct is_stream : std::false_type {};
template <class T>
struct is_stream<T, std::void_t<decltype(stream_handle(std::declval<const T &>()))>> : std::true_type {};

} // namespace detail

/// The settings of a pool or of a budget. Fields without a value have the default of the library.
struct options {
    std::string name;
    std::string settings;
    std::uint64_t limit = 0;
    std::uint32_t memory = MILLPOND_MEMORY_HOST;
};

/// A limit on the memory of several pools together. Copies are handles of the same budget.
class budget {
public:
    explicit budget(const std::string &name, std::uint64_t limit = MILLPOND_NO_LIMIT,
                    std::uint32_t measure = MILLPOND_MEASURE_RESERVED, const budget *parent = nullptr) {
        millpond_budget_options options{};
        options.size = sizeof options;
        options.name = name.c_str();
        options.limit = limit;
        options.measure = measure;
        options.parent = parent == nullptr ? nullptr : parent->get();
        millpond_budget *made = nullptr;
        check(millpond_budget_create(&options, &made));
        handle_.reset(made, [](millpond_budget *old) { detail::report(millpond_budget_destroy(old)); });
    }
    millpond_budget *get() const noexcept { return handle_.get(); }
    void set_limit(std::uint64_t bytes) const { check(millpond_budget_set_limit(get(), bytes)); }
    millpond_budget_stats stats() const {
        millpond_budget_stats stats{};
        stats.size = sizeof stats;
        check(millpond_budget_get_stats(get(), &stats));
        return stats;
    }

private:
    std::shared_ptr<millpond_budget> handle_;
};

namespace detail {

/// What pools of both kinds have.
class any_pool {
public:
    millpond_pool *get() const noexcept { return handle_.get(); }
    millpond_pool_stats stats() const {
        millpond_pool_stats stats{};
        stats.size = sizeof stats;
        check(millpond_pool_get_stats(get(), &stats));
        return stats;
    }
    void set_limit(std::uint64_t bytes) const { check(millpond_pool_set_limit(get(), bytes)); }
    void reserve(std::uint64_t total) const { check(millpond_pool_reserve(get(), total)); }
    void reset_peak() const { check(millpond_pool_reset_peak(get())); }
    void trim() const { check(millpond_pool_trim(get())); }
    /// Returns the figures and, with the setting `track:all`, the live blocks by tag.
    std::string report() const {
        std::string text(256, '\0');
        std::size_t length = 0;
        for (;;) {
            const auto status = millpond_pool_report(get(), &text[0], text.size(), &length);
            if (status != MILLPOND_TRUNCATED) {
                check(status);
                text.resize(length);
                return text;
            }
            text.resize(length + 1);
        }
    }
    friend bool operator==(const any_pool &a, const any_pool &b) noexcept { return a.get() == b.get(); }
    friend bool operator!=(const any_pool &a, const any_pool &b) noexcept { return a.get() != b.get(); }

protected:
    template <class Create> any_pool(const options &given, const budget *above, Create create) {
        millpond_pool_options options{};
        options.size = sizeof options;
        options.name = given.name.empty() ? nullptr : given.name.c_str();
        options.settings = given.settings.empty() ? nullptr : given.settings.c_str();
        options.limit = given.limit;
        options.memory = given.memory;
        options.budget = above == nullptr ? nullptr : above->get();
        millpond_pool *made = nullptr;
        check(create(&options, &made));
        handle_.reset(made, [](millpond_pool *old) { report(millpond_pool_destroy(old)); });
    }

private:
    static void report(millpond_status status) noexcept { detail::report(status); }
    std::shared_ptr<millpond_pool> handle_;
};

} // namespace detail

/// A pool of host memory. Copies are handles of the same pool, and the last one destroys it.
class pool : public detail::any_pool {
public:
    explicit pool(const options &given = {}, const budget *above = nullptr)
        : any_pool(given, above, millpond_pool_create) {}
    /// Allocates a block, which `deallocate` frees with the same size and alignment. The alignment 0 is 64.
    void *allocate(std::size_t bytes, std::size_t align = 0) const {
        void *block = nullptr;
        check(millpond_alloc_sized(get(), bytes, align, 0, &block));
        return block;
    }
    void deallocate(void *block, std::size_t bytes, std::size_t align = 0) const noexcept {
        detail::report(millpond_free_sized(get(), block, bytes, align));
    }
};

/// A pool of a CUDA device's memory. Copies are handles of the same pool, and the last one destroys it.
class device_pool : public detail::any_pool {
public:
    explicit device_pool(std::uint32_t device = 0, const options &given = {}, const budget *above = nullptr)
        : any_pool(given, above, [device](const millpond_pool_options *options, millpond_pool **made) {
              return millpond_device_pool_create(device, options, made);
          }) {}
    /// Allocates a block for use on a stream, a CUstream or cudaStream_t.
    void *allocate(std::size_t bytes, void *stream = nullptr) const {
        void *block = nullptr;
        check(millpond_device_alloc(get(), bytes, stream, &block));
        return block;
    }
    void deallocate(void *block, void *stream = nullptr) const noexcept {
        detail::report(millpond_device_free(get(), block, stream));
    }
    void record_use(void *block, void *stream) const { check(millpond_device_record_use(get(), block, stream)); }
    void write(void *block, const void *from, std::size_t bytes, std::size_t offset = 0) const {
        check(millpond_device_write(get(), block, offset, from, bytes));
    }
    void read(const void *block, void *to, std::size_t bytes, std::size_t offset = 0) const {
        check(millpond_device_read(get(), block, offset, to, bytes));
    }
};

/// A block of elements of host memory, freed at the end of its scope. The elements are not initialised.
template <class T = std::byte> class allocation {
    static_assert(std::is_trivially_destructible_v<T>, "elements are not destroyed");

public:
    allocation(const pool &from, std::size_t count) : pool_(from), count_(count) {
        if (count > SIZE_MAX / sizeof(T)) {
            throw out_of_memory(MILLPOND_TOO_LARGE, "the bytes of the elements overflow");
        }
        data_ = static_cast<T *>(pool_.allocate(bytes(), alignof(T)));
    }
    allocation(allocation &&other) noexcept
        : pool_(other.pool_), data_(std::exchange(other.data_, nullptr)), count_(std::exchange(other.count_, 0)) {}
    allocation &operator=(allocation &&other) noexcept {
        std::swap(pool_, other.pool_);
        std::swap(data_, other.data_);
        std::swap(count_, other.count_);
        return *this;
    }
    ~allocation() { pool_.deallocate(data_, bytes(), alignof(T)); }
    T *get() const noexcept { return data_; }
    T *begin() const noexcept { return data_; }
    T *end() const noexcept { return data_ + count_; }
    std::size_t size() const noexcept { return count_; }
    std::size_t bytes() const noexcept { return count_ * sizeof(T); }
    T &operator[](std::size_t at) const noexcept { return data_[at]; }

private:
    pool pool_;
    T *data_ = nullptr;
    std::size_t count_;
};

/// Tags the allocations of this thread until the end of the scope.
class tag {
public:
    explicit tag(const char *name) { check(millpond_tag_push(name)); }
    tag(const tag &) = delete;
    tag &operator=(const tag &) = delete;
    ~tag() { detail::report(millpond_tag_pop()); }
};

/// A recording of all pools of the process, until it is stopped or its scope ends.
class recording {
public:
    explicit recording(const std::string &path) { check(millpond_recording_start(path.c_str(), &handle_)); }
    recording(const recording &) = delete;
    recording &operator=(const recording &) = delete;
    ~recording() {
        if (handle_ != nullptr) {
            detail::report(millpond_recording_stop(handle_, nullptr));
        }
    }
    millpond_recording_report stop() {
        millpond_recording_report report{};
        report.size = sizeof report;
        check(millpond_recording_stop(std::exchange(handle_, nullptr), &report));
        return report;
    }

private:
    millpond_recording *handle_ = nullptr;
};

/// A resource of the standard library over a pool: std::pmr::vector<float> v(&resource).
class memory_resource final : public std::pmr::memory_resource {
public:
    explicit memory_resource(millpond::pool from) : pool_(std::move(from)) {}
    const millpond::pool &pool() const noexcept { return pool_; }

private:
    void *do_allocate(std::size_t bytes, std::size_t align) override { return pool_.allocate(bytes, align); }
    void do_deallocate(void *block, std::size_t bytes, std::size_t align) override {
        pool_.deallocate(block, bytes, align);
    }
    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override {
        const auto *same = dynamic_cast<const memory_resource *>(&other);
        return same != nullptr && same->pool_ == pool_;
    }
    millpond::pool pool_;
};

/// A resource of device memory: cuda::mr::resource of CCCL 3, cuda::mr::async_resource of CCCL 2. RMM's adaptors take such resources.
/// Streams are CUstream, cudaStream_t, cuda::stream_ref or rmm::cuda_stream_view. The alignment is at most 256.
class device_resource {
public:
    static constexpr std::size_t alignment = 256;

    explicit device_resource(device_pool from) : pool_(std::move(from)) {}
    const device_pool &pool() const noexcept { return pool_; }

    template <class Stream, std::enable_if_t<detail::is_stream<Stream>::value, int> = 0>
    void *allocate(Stream stream, std::size_t bytes, std::size_t align = alignment) {
        return allocate_on(detail::stream_handle(stream), bytes, align);
    }
    template <class Stream, std::enable_if_t<detail::is_stream<Stream>::value, int> = 0>
    void deallocate(Stream stream, void *block, std::size_t, std::size_t = alignment) noexcept {
        pool_.deallocate(block, detail::stream_handle(stream));
    }
    void *allocate_sync(std::size_t bytes, std::size_t align = alignment) {
        void *block = allocate_on(nullptr, bytes, align);
        try {
            // Work of the default stream may still use this memory. A copy waits for it, so every stream may use the block afterwards.
            const unsigned char zero = 0;
            pool_.write(block, &zero, bytes == 0 ? 0 : 1);
        } catch (...) {
            pool_.deallocate(block, nullptr);
            throw;
        }
        return block;
    }
    void deallocate_sync(void *block, std::size_t, std::size_t = alignment) noexcept {
        pool_.deallocate(block, nullptr);
    }

    // The names of CCCL 2.
    void *allocate(std::size_t bytes, std::size_t align = alignment) { return allocate_sync(bytes, align); }
    void deallocate(void *block, std::size_t bytes, std::size_t align = alignment) noexcept {
        deallocate_sync(block, bytes, align);
    }
    template <class Stream> void *allocate_async(std::size_t bytes, std::size_t align, Stream stream) {
        return allocate(stream, bytes, align);
    }
    template <class Stream> void *allocate_async(std::size_t bytes, Stream stream) { return allocate(stream, bytes); }
    template <class Stream> void deallocate_async(void *block, std::size_t bytes, std::size_t align, Stream stream) {
        deallocate(stream, block, bytes, align);
    }
    template <class Stream> void deallocate_async(void *block, std::size_t bytes, Stream stream) {
        deallocate(stream, block, bytes);
    }

    friend bool operator==(const device_resource &a, const device_resource &b) noexcept { return a.pool_ == b.pool_; }
    friend bool operator!=(const device_resource &a, const device_resource &b) noexcept { return a.pool_ != b.pool_; }
#if defined(MILLPOND_HAS_CUDA_MR)
    friend constexpr void get_property(const device_resource &, cuda::mr::device_accessible) noexcept {}
#endif

private:
    void *allocate_on(void *stream, std::size_t bytes, std::size_t align) {
        if (align > alignment || align == 0 || (align & (align - 1)) != 0) {
            throw error(MILLPOND_INVALID_ARGUMENT, "device memory is aligned to a power of two of at most 256");
        }
        return pool_.allocate(bytes, stream);
    }
    device_pool pool_;
};

#if defined(MILLPOND_HAS_RMM_BASE)
/// A resource for versions of RMM whose resources derive from a class.
class rmm_resource final : public rmm::mr::device_memory_resource {
public:
    explicit rmm_resource(device_pool from) : pool_(std::move(from)) {}

private:
    void *do_allocate(std::size_t bytes, rmm::cuda_stream_view stream) override {
        return pool_.allocate(bytes, stream.value());
    }
    void do_deallocate(void *block, std::size_t, rmm::cuda_stream_view stream) noexcept override {
        pool_.deallocate(block, stream.value());
    }
    bool do_is_equal(const rmm::mr::device_memory_resource &other) const noexcept override {
        const auto *same = dynamic_cast<const rmm_resource *>(&other);
        return same != nullptr && same->pool_ == pool_;
    }
    device_pool pool_;
};
#endif

} // namespace millpond

#endif
