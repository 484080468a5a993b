//! CUDA's driver API on the CPU: a shared library with the driver's C ABI, to test and run against where there is no GPU.
//!
//! It is loaded, not linked: put a link `libcuda.so.1` to the built library into a folder on `LD_LIBRARY_PATH`, or load it by its
//! path before the client looks for `libcuda.so`, which is its SONAME. The variable [`options::VARIABLE`] says what it is to be like.
//!
//! ```text
//!  abi/        the C functions, one macro for all; what comes in is checked here
//!  calls       what every call goes through: counts, faults, a lost device, panics
//!  driver/     the state, under one lock; contexts, streams, events and captures; who runs queued work, and how
//!  blas        cuBLAS: handles, and the checks of a product
//!  work/       queued work: what it does, and what it waits for
//!  kernels/    those of millpond's tensors, in files named as their sources in CUDA C are
//!  event_page  what processes know of an event that they share
//!  strict      finds use after free, unordered use and missing waits by vector clocks, and stale handles
//!  memory/     devices' bytes in sparse files, address space, page table, pools, pinned and managed memory, what leaves the process
//!  access, clock, thread, options, error
//! ```
//!
//! Streams run in place by default, and the host may read device memory: CUDA's interface without its pitfalls. `streams:seeded` with
//! `strict:on` is the other end: work runs as late and as interleaved as CUDA allows, and what is not ordered is reported.
//!
//! Captures are invalidated as on a card. Allocation, calls on pools, and the creation of streams invalidate every capture that forbids
//! them. A wait for the whole context invalidates all captures of the context, whatever their mode. A capture ends with the first call
//! that ends it. With `strict:on` a capture also forbids calls about which the documentation says nothing.
//!
//! Kernels are functions registered by name (`millpond_emu_register`; a few are built in). Foreign code is not run: a function that
//! nobody registered is `CUDA_ERROR_NO_BINARY_FOR_GPU`. There are no arrays, textures or private export tables.
//!
//! Processes share memory and order as with CUDA: blocks and events by handles (`cuIpcGetMemHandle`, `cuIpcGetEventHandle` and what
//! opens those), physical memory as a file (`cuMemExportToShareableHandle`). Pools stay where they were made. The processes are of
//! one user and see one `/proc`; each has its devices to itself, and counts what it made.
//!
//! A few functions of cuBLAS are here too, for a client that takes that library from where it is told to: products of matrices, put on a
//! stream as a kernel is, with every argument looked at.

mod abi;
mod access;
mod blas;
mod calls;
mod clock;
mod driver;
pub mod error;
mod event_page;
mod kernels;
mod memory;
pub mod options;
mod strict;
mod thread;
mod work;
