//! Exchange with NVIDIA's [`cuda_core`]: its contexts, streams and buffers, and pools that serve its buffers.
//!
//! Both libraries work in the primary context of a device, so nothing has to be copied between them.
//!
//! - [`CudaCorePool`] allocates cuda-core's buffers from a pool.
//! - [`lend`] gives a buffer to cuda-core, and [`Lent::take_back`] returns it.
//! - [`adopt`] uses a buffer of cuda-core as a [`DeviceBuffer`](millpond::cuda::DeviceBuffer).
//! - [`device_of`], [`stream_of`] and [`stream_in`] convert contexts and streams. [`Context::new`](cuda_core::Context::new) returns the
//!   context of a [`CudaDevice`](millpond::cuda::CudaDevice) by the device's number.
//!
//! cuda-core tracks the accesses to each allocation. While work of one stream uses it, its safe functions refuse conflicting work on
//! another stream with `CUDA_ERROR_NOT_READY`, and the memory stays allocated. This crate registers the work of millpond with cuda-core, so
//! the same rules hold between both libraries. A kernel that unsafe code launches with an address is not tracked. It is ordered like
//! tracked work if it is on the stream that was passed to this crate for the buffer. On another stream, the unsafe code has to order it.

#![cfg(target_os = "linux")]

mod adopted;
mod error;
mod lent;
mod pool;
mod streams;

pub use adopted::adopt;
pub use error::{CudaCoreError, Refused};
pub use lent::{Lent, lend};
pub use pool::CudaCorePool;
pub use streams::{device_of, stream_in, stream_of};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
