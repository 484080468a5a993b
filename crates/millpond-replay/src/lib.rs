//! TODO

#![forbid(unsafe_code)]

pub mod page;
