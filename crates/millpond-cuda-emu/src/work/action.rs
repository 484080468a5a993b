//! What a piece of work is to do.
#![forbid(unsafe_code)]

use crate::access::Access;
use crate::clock::{Engine, compute, nanoseconds};
use crate::event_page::{Awaited, Outcome, Ticket};
use crate::kernels::Launch;
use crate::options::Options;
use std::sync::Arc;

/// One end of a copy.
#[derive(Clone, Debug)]
pub(crate) enum Side {
    /// An address that CUDA knows: device, managed, pinned or registered memory.
    Known(u64),
    /// Memory of the host that it does not know. Whoever queued the work vouches for it.
    Host(usize),
    /// What such memory held at the call.
    Snapshot(Arc<Vec<u8>>),
}

/// Rows of bytes; one row for a plain copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    pub(crate) width: u64,
    pub(crate) count: u64,
    pub(crate) to_pitch: u64,
    pub(crate) from_pitch: u64,
}

impl Rows {
    pub(crate) fn one(width: u64) -> Self {
        Self {
            width,
            count: 1,
            to_pitch: width,
            from_pitch: width,
        }
    }

    /// Bytes in all.
    pub(crate) fn bytes(self) -> u64 {
        self.width.saturating_mul(self.count)
    }

    pub(crate) fn extent(self, pitch: u64) -> u64 {
        self.count
            .saturating_sub(1)
            .saturating_mul(pitch)
            .saturating_add(self.width)
    }
}

/// A client's function, called on the host in the order of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Callback {
    /// `cuLaunchHostFunc`.
    Host {
        function: unsafe extern "C" fn(usize),
        data: usize,
    },
    /// `cuStreamAddCallback`; it gets the stream as the client names it.
    Stream {
        function: unsafe extern "C" fn(usize, i32, usize),
        stream: usize,
        data: usize,
    },
}

/// A piece of work.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Only a place in the order: records, waits, joins.
    Nothing,
    Copy {
        to: Side,
        from: Side,
        rows: Rows,
    },
    /// `rows.from_pitch` has no meaning here.
    Fill {
        to: u64,
        pattern: [u8; 4],
        size: u8,
        rows: Rows,
    },
    Kernel(Arc<Launch>),
    Call(Callback),
    /// Other processes are told that what was recorded is done.
    Tell(Arc<Ticket>),
    /// Another process has to be done with what it recorded. Until then it may not run.
    Await(Awaited),
    Prefetch {
        at: u64,
        len: u64,
        place: i32,
    },
}

impl Action {
    /// Which part of the card does it, and for how many modelled nanoseconds.
    pub(crate) fn cost(&self, options: &Options, is_host: impl Fn(u64) -> bool) -> (Engine, u64) {
        match self {
            Self::Nothing | Self::Call(_) | Self::Tell(_) | Self::Await(_) => (Engine::None, 0),
            Self::Fill { rows, .. } => (Engine::Compute, compute(rows.bytes())),
            Self::Kernel(launch) => (Engine::Compute, launch.cost()),
            Self::Prefetch { len, place, .. } => {
                let engine = if *place < 0 {
                    Engine::Download
                } else {
                    Engine::Upload
                };
                (engine, options.latency + nanoseconds(*len, options.link))
            }
            Self::Copy { to, from, rows } => {
                let host = |side: &Side| match side {
                    Side::Known(at) => is_host(*at),
                    Side::Host(_) | Side::Snapshot(_) => true,
                };
                // What is not pinned goes through the driver's own pinned memory first, which halves the speed.
                let pageable = |side: &Side| matches!(side, Side::Host(_) | Side::Snapshot(_));
                let ways = if pageable(to) || pageable(from) { 2 } else { 1 };
                let link = options.latency + ways * nanoseconds(rows.bytes(), options.link);
                match (host(to), host(from)) {
                    (true, true) | (true, false) => (Engine::Download, link),
                    (false, true) => (Engine::Upload, link),
                    (false, false) => (Engine::Compute, compute(rows.bytes())),
                }
            }
        }
    }

    /// The bytes it touches, as far as it says.
    pub(crate) fn accesses(&self) -> Vec<Access> {
        match self {
            Self::Nothing | Self::Call(_) | Self::Prefetch { .. } | Self::Tell(_) | Self::Await(_) => {
                Vec::new()
            }
            Self::Fill { to, rows, .. } => vec![Access {
                at: *to,
                len: rows.extent(rows.to_pitch),
                write: true,
            }],
            Self::Kernel(launch) => launch.accesses(),
            Self::Copy { to, from, rows } => {
                let mut all = Vec::new();
                if let Side::Known(at) = to {
                    all.push(Access {
                        at: *at,
                        len: rows.extent(rows.to_pitch),
                        write: true,
                    });
                }
                if let Side::Known(at) = from {
                    all.push(Access {
                        at: *at,
                        len: rows.extent(rows.from_pitch),
                        write: false,
                    });
                }
                all
            }
        }
    }

    /// The record of another process that it still has to wait for.
    pub(crate) fn held_by(&self) -> Option<&Awaited> {
        match self {
            Self::Await(awaited) if awaited.outcome() == Outcome::Open => Some(awaited),
            _ => None,
        }
    }
}
