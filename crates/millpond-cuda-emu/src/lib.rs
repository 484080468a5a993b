//! CUDA's driver API on the CPU: a shared library with the driver's C ABI, for tests on machines without a
//! GPU.
//!
//! Clients load it at run time. Put a link `libcuda.so.1` to the built library into a folder on
//! `LD_LIBRARY_PATH`, or load it by its path before the client looks for `libcuda.so`, which is its SONAME.
//! The variable [`options::VARIABLE`] sets its options.
//!
//! ```text
//!  abi/        the C functions, all defined by one macro, and the checks of their arguments
//!  calls       the path of every call: counts, injected faults, a lost device, panics
//!  driver/     the state, under one lock; contexts, streams, events and captures; the executors of queued work
//!  handshake   the answer to a question of NVIDIA's runtime library
//!  blas        cuBLAS: handles, and the checks of a product
//!  work/       queued work: its actions and its dependencies
//!  kernels/    the kernels of millpond's tensors, in files with the names of their CUDA C sources
//!  event_page  the state of an event that several processes share
//!  strict      finds use after free, unordered use and missing waits by vector clocks, and stale handles
//!  memory/     devices' bytes in sparse files, address space, page table, pools, pinned and managed memory, shared memory
//!  access, clock, thread, options, error
//! ```
//!
//! By default, streams run in place and the host may read device memory. This is CUDA's interface without its
//! pitfalls. The opposite is `streams:seeded` with `strict:on`: work runs as late and as interleaved as CUDA
//! allows, and unordered accesses are reported.
//!
//! Captures are invalidated as on a card. Allocation, calls on pools, and the creation of streams invalidate every capture that forbids
//! them. A wait for the whole context invalidates all captures of the context, whatever their mode. A capture ends with the first call
//! that ends it. With `strict:on` a capture also forbids calls about which the documentation says nothing.
//!
//! Kernels are functions registered by name with `millpond_emu_register`. A few are built in. Foreign code is
//! not run: a function that is not registered returns `CUDA_ERROR_NO_BINARY_FOR_GPU`. There are no arrays or
//! textures.
//!
//! NVIDIA's runtime library runs on this driver, shared or linked statically, as far as it needs no foreign code. `abi/runtime` has the
//! private tables of functions that it needs.
//!
//! Processes share memory and order as with CUDA. They share blocks and events by handles
//! (`cuIpcGetMemHandle`, `cuIpcGetEventHandle` and the calls that open them), and physical memory as a file
//! (`cuMemExportToShareableHandle`). Pools cannot be shared. The processes must belong to one user and see
//! the same `/proc`. Each has its own devices and counts only its own allocations.
//!
//! A few functions of cuBLAS are included for clients that load that library from a configurable path. They
//! check every argument of a matrix product and queue it on a stream like a kernel.

mod abi;
mod access;
mod blas;
mod calls;
mod clock;
mod driver;
pub mod error;
mod event_page;
mod handshake;
mod kernels;
mod memory;
pub mod options;
mod strict;
mod thread;
mod visible;
mod work;
