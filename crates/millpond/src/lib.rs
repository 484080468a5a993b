//! The memory layer for tensor and GPU computing.
//!
//! This crate is the door to the others. Today it opens onto the engine that places blocks: the same
//! code that `millpond replay` runs on a simulated card. Pools,
//! buffers and tensors over real memory come here, over the engine's [`Source`](engine::Source).
//!
//! ```
//! use millpond::engine::{Engine, Request, Settings, Simulated, Stream, policies};
//!
//! let card = Simulated::new().with_capacity(Some(80 << 30));
//! let mut engine = Engine::new(policies::build("millpond", &Settings::default())?, card);
//! let block = engine.allocate(Request::new(1 << 30, Stream::DEFAULT))?;
//! assert_eq!(engine.stats().reserved.current, 1 << 30);
//! engine.free(block, &[]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub use millpond_engine as engine;
