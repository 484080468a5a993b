//! Memory pressure, asked for and called, of systems that are written down.

#![cfg(target_os = "linux")]

mod asked;
mod called;
mod hostile;
mod pools;
mod tree;
