//! Queries and callbacks of memory pressure in simulated systems.

#![cfg(target_os = "linux")]

mod asked;
mod called;
mod hostile;
mod pools;
mod tree;
