//! `libmillpond_malloc.so`: the functions of C that allocate memory, served by the program's pool.
//!
//! Programs use it without a change: `LD_PRELOAD=libmillpond_malloc.so PROGRAM`, or `millpond run -- PROGRAM`. The operators `new` and
//! `delete` of C++ call these functions. `MILLPOND_CONF` contains the settings of the pool, and `MILLPOND_RECORD` makes a recording.
//!
//! The functions behave as their manual pages describe. In the cases that the pages leave open, they behave as follows: a request for 0
//! bytes returns a block of 16 bytes, `realloc` to 0 bytes frees the block and returns null, `mallopt` changes nothing, and a pointer
//! that does not belong to a block aborts the program with a message.

#![cfg(target_os = "linux")]
#![deny(unsafe_op_in_unsafe_fn)]

pub mod aligned;
pub mod blocks;
pub mod ends;
pub mod figures;
mod reports;

use millpond_pool::GlobalPool;

/// The library's own Rust code must use the same pool, so that its tables come from the pool's arena.
#[global_allocator]
static POOL: GlobalPool = GlobalPool::of_malloc();
