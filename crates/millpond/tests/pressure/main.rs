//! Memory pressure, asked for and called, of systems that are written down.

#![cfg(target_os = "linux")]

mod asked;
mod hostile;
mod tree;
