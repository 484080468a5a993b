//! Shared code of the engine's tests.
#![allow(dead_code, reason = "each test binary uses a part")]

pub(crate) mod contents;
pub(crate) mod driver;
pub(crate) mod naive;
pub(crate) mod program;
pub(crate) mod suite;
pub(crate) mod watch;
