//! `libmillpond_malloc.so`: the functions of C that allocate memory, served by the program's pool.
//!
//! A program takes it without a change: `LD_PRELOAD=libmillpond_malloc.so PROGRAM`, or `millpond run -- PROGRAM`. C++'s operators call
//! these functions. The settings of the pool are those of `MILLPOND_CONF`, and `MILLPOND_RECORD` makes a recording.
//!
//! The functions do what their manual pages say. They differ from the C library's in what the pages leave open: a block of 0 bytes is a
//! block of 16 bytes, `realloc` to 0 bytes frees the block and returns null, `mallopt` changes nothing, and a pointer that is of no block
//! ends the program with a message.

#![cfg(target_os = "linux")]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod aligned;
pub mod blocks;
pub mod figures;
mod reports;

use millpond_pool::GlobalPool;

/// The library's own Rust code must use the same pool, so that its tables come from the pool's arena.
#[global_allocator]
static POOL: GlobalPool = GlobalPool::of_malloc();
