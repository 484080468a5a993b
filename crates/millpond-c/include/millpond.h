/* The C library of Millpond: pools of host and device memory, budgets, statistics, tags and recordings.
 *
 * This file is generated from the code of the crate `millpond-c`.
 *
 * Every function that can fail returns a `millpond_status`, and `millpond_last_error` returns the text. Results are written through the
 * last parameters, and only if the call succeeds. All functions may be called from any thread, and a tag belongs to the thread that sets it.
 *
 * Rules on arguments. A handle that is null, was destroyed or is of another kind is answered by a code, and so are null and misaligned
 * pointers, texts that are not UTF-8, and wrong sizes, alignments and flags. These rules cannot be checked:
 *   - A pointer to a result is valid for a write of its type. A structure has the bytes that its field `size` says.
 *   - A text ends with a zero byte.
 *   - A stream is a live stream of the device's primary context.
 *   - Nothing uses a block when it is freed.
 */

#ifndef MILLPOND_H
#define MILLPOND_H

#include <stddef.h>
#include <stdint.h>

#define MILLPOND_VERSION_MAJOR 0
#define MILLPOND_VERSION_MINOR 1
#define MILLPOND_VERSION_PATCH 0

// Ordinary memory of the host, the default.
#define MILLPOND_MEMORY_HOST 0

// Memory of the host that the system keeps in RAM (`mlock`).
#define MILLPOND_MEMORY_PINNED 1

// All bytes of the block are zero.
#define MILLPOND_ZEROED 1

// No limit.
#define MILLPOND_NO_LIMIT UINT64_MAX

// A budget counts the bytes that its pools have taken from the system or the devices. This is the default.
#define MILLPOND_MEASURE_RESERVED 0

// A budget counts the bytes of the blocks that the program holds. It may be below a budget of reserved bytes, but not above one.
#define MILLPOND_MEASURE_ALLOCATED 1

// The outcome of a call. The numbers never change, and later versions may add others.
typedef enum {
  // The call succeeded.
  MILLPOND_OK = 0,
  // An argument is wrong: a null or misaligned pointer, a text that is not UTF-8, an unknown flag or setting, an alignment that is not a
  // power of two.
  MILLPOND_INVALID_ARGUMENT = 1,
  // A handle is null, was destroyed, or is of another kind.
  MILLPOND_INVALID_HANDLE = 2,
  // No live block of the pool begins at the pointer, or the block is smaller than the call says. Nothing was changed.
  MILLPOND_INVALID_POINTER = 3,
  // There is not enough memory now, or a budget has no room. The call may succeed after memory was freed.
  MILLPOND_OUT_OF_MEMORY = 4,
  // The request is larger than the limit of the pool or of a budget. It never succeeds below this limit.
  MILLPOND_TOO_LARGE = 5,
  // The process has a recording already.
  MILLPOND_IN_USE = 6,
  // The CUDA driver is missing or returned an error.
  MILLPOND_CUDA_ERROR = 7,
  // The operating system returned an error, for example for a file.
  MILLPOND_SYSTEM_ERROR = 8,
  // An earlier failure has broken the pool. Its blocks stay valid, and it serves no more requests.
  MILLPOND_BROKEN = 9,
  // The library has a defect. Report the text.
  MILLPOND_INTERNAL = 10,
  // The buffer is too small for the text. It contains the beginning of the text.
  MILLPOND_TRUNCATED = 11,
} millpond_status;

// A limit on the memory of several pools together.
typedef struct millpond_budget millpond_budget;

// A pool of host memory or of a device's memory. All functions may be called from any thread.
typedef struct millpond_pool millpond_pool;

// A recording of all pools of the process to a file, which the command `millpond` reads.
typedef struct millpond_recording millpond_recording;

// The settings of a new pool. Set `size`, and leave fields at zero for the defaults: `millpond_pool_options o = { .size = sizeof o };`
typedef struct {
  // The size of this structure in bytes.
  size_t size;
  // The name in reports. The default is "pool" and a number.
  const char *name;
  // Settings as text, `key:value,…`, such as "track:all,trim-every:500ms". The book lists them in its chapter on pools. They replace the
  // environment variable `MILLPOND_CONF`.
  const char *settings;
  // The most bytes that the pool may take from the system or the device, or `MILLPOND_NO_LIMIT`. 0 is the default: no limit for the host,
  // and 80 % of a device.
  uint64_t limit;
  // The budget that the pool is charged to. The pool keeps it alive.
  millpond_budget *budget;
  // `MILLPOND_MEMORY_HOST` or `MILLPOND_MEMORY_PINNED`. For pools of a device, it must be 0.
  uint32_t memory;
  // Zero.
  uint32_t reserved;
} millpond_pool_options;

// The figures of a pool. Peaks are those since the last `millpond_pool_reset_peak`.
typedef struct {
  // The size of this structure in bytes, which the caller sets.
  size_t size;
  // The bytes that the program requested and holds.
  uint64_t requested;
  // The peak of `requested`.
  uint64_t requested_peak;
  // The bytes of the blocks that the program holds.
  uint64_t allocated;
  // The peak of `allocated`.
  uint64_t allocated_peak;
  // The bytes that the pool has taken from the system or the device.
  uint64_t reserved;
  // The peak of `reserved`.
  uint64_t reserved_peak;
  // The bytes of freed blocks that wait for a stream.
  uint64_t waiting;
  // The number of successful allocations.
  uint64_t allocations;
  // The number of frees.
  uint64_t frees;
  // The number of allocations that called neither the system nor the driver.
  uint64_t hits;
  // The number of refused allocations.
  uint64_t refusals;
  // The limit in bytes, or `MILLPOND_NO_LIMIT`.
  uint64_t limit;
} millpond_pool_stats;

// The settings of a new budget. Set `size`, and leave fields at zero for the defaults.
typedef struct {
  // The size of this structure in bytes.
  size_t size;
  // The name in reports. The default is "budget".
  const char *name;
  // The most bytes. 0 and `MILLPOND_NO_LIMIT` are no limit.
  uint64_t limit;
  // The budget above this one, which is charged too. The new budget keeps it alive.
  millpond_budget *parent;
  // `MILLPOND_MEASURE_RESERVED` or `MILLPOND_MEASURE_ALLOCATED`.
  uint32_t measure;
  // Zero.
  uint32_t reserved;
} millpond_budget_options;

// The figures of a budget.
typedef struct {
  // The size of this structure in bytes, which the caller sets.
  size_t size;
  // The bytes that are charged now.
  uint64_t used;
  // The most bytes that were charged at once.
  uint64_t peak;
  // The limit in bytes, or `MILLPOND_NO_LIMIT`.
  uint64_t limit;
  // The number of requests that the budget refused.
  uint64_t refusals;
} millpond_budget_stats;

// The contents of a recording.
typedef struct {
  // The size of this structure in bytes, which the caller sets.
  size_t size;
  // The number of events in the file.
  uint64_t events;
  // The number of events that were lost because the file was too slow.
  uint64_t lost;
  // The bytes of the file.
  uint64_t bytes;
} millpond_recording_report;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Returns the text of this thread's last error, or an empty text. It says what happened and what to do. If memory ran out, it is the
// report on the memory that is held. It is valid until a call of this thread fails. A call that succeeds does not change it.
const char *millpond_last_error(void);

// Returns the name of a code, such as "MILLPOND_OUT_OF_MEMORY", or "unknown".
const char *millpond_status_name(int32_t status);

// Returns the version of the library, such as "0.1.0".
const char *millpond_version(void);

// Creates a pool of host memory. `options` may be null. Destroy the pool with `millpond_pool_destroy`.
//
// Errors: `MILLPOND_INVALID_ARGUMENT`, `MILLPOND_INVALID_HANDLE` for the budget, and `MILLPOND_SYSTEM_ERROR` or `MILLPOND_OUT_OF_MEMORY` if
// the system has no memory for the pool.
millpond_status millpond_pool_create(const millpond_pool_options *options,
                                     millpond_pool **pool);

// Creates a pool of a CUDA device's memory. Devices are numbered from 0, as by the driver. `options` may be null. Destroy the pool with
// `millpond_pool_destroy`. The pool uses the primary context of the device, as CUDA's runtime does.
//
// Errors: those of `millpond_pool_create`, and `MILLPOND_CUDA_ERROR` if there is no driver or no such device.
millpond_status millpond_device_pool_create(uint32_t device,
                                            const millpond_pool_options *options,
                                            millpond_pool **pool);

// Destroys a pool. It serves no more requests. Its live blocks stay valid, and the handle stays valid for freeing them; the pool ends with
// its last block. A pool without live blocks ends now, and its memory is returned.
//
// Errors: `MILLPOND_INVALID_HANDLE`, also if the pool was destroyed before.
millpond_status millpond_pool_destroy(millpond_pool *pool);

// Writes the figures of a pool to `stats`, whose field `size` the caller has set.
//
// Errors: `MILLPOND_INVALID_ARGUMENT` and `MILLPOND_INVALID_HANDLE`.
millpond_status millpond_pool_get_stats(millpond_pool *pool, millpond_pool_stats *stats);

// Resets the peaks of a pool to the current figures.
//
// Errors: `MILLPOND_INVALID_HANDLE`.
millpond_status millpond_pool_reset_peak(millpond_pool *pool);

// Changes the limit of a pool in bytes. If the pool has reserved more, it returns free memory, and takes no more until it is below the limit.
//
// Errors: `MILLPOND_INVALID_HANDLE`.
millpond_status millpond_pool_set_limit(millpond_pool *pool,
                                        uint64_t limit);

// Takes memory until the pool has reserved at least `total` bytes, so that later requests up to that sum call neither the system nor the
// driver.
//
// Errors: `MILLPOND_INVALID_HANDLE`, and the errors of an allocation. The memory that was reserved until then stays reserved.
millpond_status millpond_pool_reserve(millpond_pool *pool,
                                      uint64_t total);

// Returns all unused memory to the system or the device. A pool of a device waits for the streams that have used its memory.
//
// Errors: `MILLPOND_INVALID_HANDLE`.
millpond_status millpond_pool_trim(millpond_pool *pool);

// Writes a text about a pool to a buffer: its figures and, if the pool was created with the setting `track:all`, its live blocks by tag,
// the largest sum first. The text ends with a zero byte. `length` gets the bytes of the whole text without the zero byte, and may be null.
// With a capacity of 0, `buffer` may be null.
//
// Errors: `MILLPOND_INVALID_ARGUMENT`, `MILLPOND_INVALID_HANDLE`, and `MILLPOND_TRUNCATED` if the buffer is too small.
//
// Rules: `buffer` is valid for writes of `capacity` bytes.
millpond_status millpond_pool_report(millpond_pool *pool,
                                     char *buffer,
                                     size_t capacity,
                                     size_t *length);

// Allocates a block of host memory, at a multiple of `align` and of 64. `align` is a power of two, or 0 for 64. `flags` is 0 or
// `MILLPOND_ZEROED`. The pool records the block, so `millpond_free` needs only its address and returns an error for a wrong one. A block of 0
// bytes has an address of its own. On failure `block` is not changed.
//
// Errors: `MILLPOND_OUT_OF_MEMORY`, `MILLPOND_TOO_LARGE`, `MILLPOND_INVALID_ARGUMENT`, `MILLPOND_INVALID_HANDLE`, `MILLPOND_BROKEN`.
millpond_status millpond_alloc(millpond_pool *pool,
                               size_t bytes,
                               size_t align,
                               uint32_t flags,
                               void **block);

// Frees a block of `millpond_alloc`, on any thread. Does nothing if `block` is null.
//
// Errors: `MILLPOND_INVALID_POINTER` if the address is not that of a live block of `millpond_alloc` of this pool, for example after a double
// free, whose text names the first free; `MILLPOND_INVALID_HANDLE`. In both cases nothing is changed.
//
// Rules: Nothing uses the block any more.
millpond_status millpond_free(millpond_pool *pool,
                              void *block);

// Allocates a block of host memory that is freed by `millpond_free_sized` with the same size and alignment. The pool does not record it,
// so this is several times as fast as `millpond_alloc`. `align` and `flags` are those of `millpond_alloc`. A request of 0 bytes allocates
// nothing, and its pointer is not null.
//
// Errors: those of `millpond_alloc`.
millpond_status millpond_alloc_sized(millpond_pool *pool,
                                     size_t bytes,
                                     size_t align,
                                     uint32_t flags,
                                     void **block);

// Frees a block of `millpond_alloc_sized`, on any thread. `bytes` and `align` are those of its allocation. Does nothing if `block` is null.
//
// Like `free`, this does not check that the block is live: a wrong pointer, size or alignment is undefined behaviour.
//
// Errors: `MILLPOND_INVALID_HANDLE`, `MILLPOND_INVALID_ARGUMENT` for an alignment that is not a power of two, and
// `MILLPOND_INVALID_POINTER` for an address that is not a multiple of the alignment. In these cases nothing is changed.
//
// Rules: The block is a live block of `millpond_alloc_sized` of this pool with this size and alignment, and nothing uses it any more.
millpond_status millpond_free_sized(millpond_pool *pool,
                                    void *block,
                                    size_t bytes,
                                    size_t align);

// Writes the number of CUDA devices to `count`.
//
// Errors: `MILLPOND_INVALID_ARGUMENT`, and `MILLPOND_CUDA_ERROR` if there is no driver.
millpond_status millpond_device_count(uint32_t *count);

// Allocates a block of a device's memory for use on a stream. Its address is a multiple of 256. `stream` is a `CUstream` or `cudaStream_t`;
// NULL is the legacy default stream. On failure `block` is not changed.
//
// The stream must live until `millpond_stream_retire` has returned `MILLPOND_OK` for it, or until all pools that were given it have ended.
//
// Errors: those of `millpond_alloc`, and `MILLPOND_CUDA_ERROR`.
millpond_status millpond_device_alloc(millpond_pool *pool,
                                      size_t bytes,
                                      void *stream,
                                      void **block);

// Frees a block of `millpond_device_alloc` in the order of a stream. All work that uses the block must already be queued on this stream or
// on the stream of its allocation. If both are the same stream, later work on it may reuse the memory at once. Otherwise, the memory is
// reused after the work that is queued now. The call does not wait. Does nothing if `block` is null.
//
// Errors: `MILLPOND_INVALID_POINTER` if the address is not that of a live block of this pool; `MILLPOND_INVALID_HANDLE`,
// `MILLPOND_INVALID_ARGUMENT`, `MILLPOND_CUDA_ERROR`. In these cases nothing is changed.
millpond_status millpond_device_free(millpond_pool *pool,
                                     void *block,
                                     void *stream);

// Declares that work on another stream uses a block. After the block is freed, its memory is reused only when the work that is queued on
// that stream by then is complete.
//
// Errors: those of `millpond_device_free`.
millpond_status millpond_device_record_use(millpond_pool *pool,
                                           void *block,
                                           void *stream);

// Copies bytes from the host to a block, from the byte `offset` of the block on, after the work on the block's own stream. Waits until the
// copy is complete.
//
// Errors: `MILLPOND_INVALID_POINTER` if the address is not that of a live block of this pool, or if the block ends before the copy does;
// `MILLPOND_INVALID_HANDLE`, `MILLPOND_INVALID_ARGUMENT`, `MILLPOND_CUDA_ERROR`.
//
// Rules: `from` is valid for reads of `bytes` bytes.
millpond_status millpond_device_write(millpond_pool *pool,
                                      void *block,
                                      size_t offset,
                                      const void *from,
                                      size_t bytes);

// Copies bytes of a block to the host, from the byte `offset` of the block on, after the work on the block's own stream. Waits until the
// copy is complete.
//
// Errors: those of `millpond_device_write`.
//
// Rules: `to` is valid for writes of `bytes` bytes.
millpond_status millpond_device_read(millpond_pool *pool,
                                     const void *block,
                                     size_t offset,
                                     void *to,
                                     size_t bytes);

// Ends the library's use of a stream that the program is about to destroy. Waits until the work of the stream is done. No thread may queue
// work on the stream during this call or later. Without this call, a stream must live as long as all pools that were given it.
//
// Errors: `MILLPOND_CUDA_ERROR` while the stream is captured, and the errors of the driver. The stream must then stay alive.
millpond_status millpond_stream_retire(uint32_t device,
                                       void *stream);

// Sets the pool that serves the requests of `millpond_plugin_alloc` and `millpond_torch_alloc` for its device from now on. The pool stays
// alive if its handle is destroyed. Blocks that exist stay where they are.
//
// Errors: `MILLPOND_INVALID_HANDLE`, for example if the pool has memory of the host.
millpond_status millpond_plugin_set_pool(millpond_pool *pool);

// Allocates device memory for use on a stream, from the plugged pool of the device. Returns null on failure, and `millpond_last_error`
// returns the reason. A request of 0 bytes returns null too. Without `millpond_plugin_set_pool`, the first request for a device creates a
// pool with the settings in the environment variable `MILLPOND_CONF`. The signature is that of PyTorch's `CUDAPluggableAllocator`. Use this
// function with `millpond_torch_free_segment` for the memory of a `MemPool`.
void *millpond_plugin_alloc(size_t bytes,
                            int device,
                            void *stream);

// Allocates like `millpond_plugin_alloc`, and throws a C++ exception on failure: `c10::OutOfMemoryError` if memory ran out, and otherwise
// `std::runtime_error`. In a process without C++, it returns null. Use this function for `torch.cuda.memory.change_current_allocator`,
// because PyTorch does not check for null there.
//
// Rules: The caller is code that exceptions of C++ may pass.
void *millpond_torch_alloc(size_t bytes,
                           int device,
                           void *stream);

// Frees a block of `millpond_plugin_alloc` or `millpond_torch_alloc` in the order of a stream. Does nothing if `block` is null. `bytes` and
// `device` are not used. An address at which no live block begins is reported on standard error.
void millpond_plugin_free(void *block,
                          size_t _bytes,
                          int _device,
                          void *stream);

// Frees a block of `millpond_plugin_alloc` after all work of its device, as CUDA's runtime does. Use this function with
// `millpond_plugin_alloc` for the memory of a `MemPool`, because PyTorch does not say which streams use it. The arguments are those of
// `millpond_plugin_free`.
void millpond_torch_free_segment(void *block,
                                 size_t _bytes,
                                 int _device,
                                 void *_stream);

// Declares that work on another stream uses a block. After the block is freed, its memory is reused only when the work that is queued on
// that stream by then is complete. The address may be within the block. The call ignores addresses of other memory.
// Pass this function to `set_record_stream_fn`.
void millpond_torch_record_stream(void *block,
                                  void *stream);

// Returns all unused memory of plugged pools to the devices. Pass this function to `set_reset_fn`; `torch.cuda.empty_cache` then calls it.
void millpond_torch_empty_cache(void);

// Sets the limit of a device's plugged pool to a share of the device's memory, but not above the limit that the pool had when it was plugged
// in. Pass this function to `set_memory_fraction_fn`.
//
// Rules: The caller is code that exceptions of C++ may pass.
void millpond_torch_set_memory_fraction(double fraction,
                                        int device);

// Serves some requests for a device from a private pool from now on. `first` and `second` are the number of the pool. `filter` is a
// `std::function<bool(cudaStream_t)>` of libstdc++, which returns whether the private pool serves a stream. Pass this
// function to `set_begin_allocate_to_pool`.
//
// Rules: `filter` is null or such a function. The caller is code that exceptions of C++ may pass.
void millpond_torch_begin_allocate_to_pool(int device,
                                           uint64_t first,
                                           uint64_t second,
                                           const void *filter);

// Ends the effect of the last call of `millpond_torch_begin_allocate_to_pool` for a private pool. The private pool
// keeps its memory. Pass this function to `set_end_allocate_to_pool_fn`.
//
// Rules: The caller is code that exceptions of C++ may pass.
void millpond_torch_end_allocate_to_pool(int device, uint64_t first, uint64_t second);

// Ends one use of a private pool. After the last use, its memory goes back with its last block. Pass this function to
// `set_release_pool`.
//
// Rules: The caller is code that exceptions of C++ may pass.
void millpond_torch_release_pool(int device, uint64_t first, uint64_t second);

// Creates a budget. `options` may be null. Destroy it with `millpond_budget_destroy`.
//
// Errors: `MILLPOND_INVALID_ARGUMENT`, and `MILLPOND_INVALID_HANDLE` for the parent.
millpond_status millpond_budget_create(const millpond_budget_options *options, millpond_budget **budget);

// Destroys the handle of a budget. The budget stays in effect for the pools and budgets that were created below it.
//
// Errors: `MILLPOND_INVALID_HANDLE`.
millpond_status millpond_budget_destroy(millpond_budget *budget);

// Changes the limit of a budget in bytes. A limit below the bytes in use refuses requests until enough is freed.
//
// Errors: `MILLPOND_INVALID_HANDLE`.
millpond_status millpond_budget_set_limit(millpond_budget *budget, uint64_t limit);

// Writes the figures of a budget to `stats`, whose field `size` the caller has set.
//
// Errors: `MILLPOND_INVALID_ARGUMENT` and `MILLPOND_INVALID_HANDLE`.
millpond_status millpond_budget_get_stats(millpond_budget *budget, millpond_budget_stats *stats);

// Tags all later allocations of this thread, in every pool, until `millpond_tag_pop`. Scopes nest, and the innermost tag counts. Names are
// kept for the life of the process, so a name should not contain a counter.
//
// Errors: `MILLPOND_INVALID_ARGUMENT`.
millpond_status millpond_tag_push(const char *name);

// Ends the innermost tag of this thread.
//
// Errors: `MILLPOND_INVALID_ARGUMENT` if this thread has none.
millpond_status millpond_tag_pop(void);

// Starts a recording of all pools of the process to a new file, such as "run.mpr". A process has one recording at a time. End it with
// `millpond_recording_stop`. The environment variable `MILLPOND_RECORD` records a program without a call.
//
// Errors: `MILLPOND_INVALID_ARGUMENT`, `MILLPOND_IN_USE`, `MILLPOND_SYSTEM_ERROR` if the file cannot be written.
millpond_status millpond_recording_start(const char *path,
                                         millpond_recording **recording);

// Ends a recording when its file is complete. The handle is invalid afterwards, even if this fails. `report` may be null.
//
// Errors: `MILLPOND_INVALID_ARGUMENT`, `MILLPOND_INVALID_HANDLE`, `MILLPOND_SYSTEM_ERROR` if the file is incomplete.
millpond_status millpond_recording_stop(millpond_recording *recording,
                                        millpond_recording_report *report);

// Marks this moment with a text in the recording of the process, if there is one.
//
// Errors: `MILLPOND_INVALID_ARGUMENT`.
millpond_status millpond_mark(const char *name);

// Marks the beginning of a step, such as a training step, in the recording of the process, if there is one. The command `millpond` compares
// and plans steps.
millpond_status millpond_step(uint64_t number);

// Writes all live blocks of all pools to a file, which the command `millpond report` reads. Pools with the setting `track:all` have names
// and ages of their blocks.
//
// Errors: `MILLPOND_INVALID_ARGUMENT`, `MILLPOND_SYSTEM_ERROR`.
millpond_status millpond_snapshot(const char *path);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* MILLPOND_H */
