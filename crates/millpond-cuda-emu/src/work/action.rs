//! The actions of queued work.
#![forbid(unsafe_code)]

use crate::access::Access;
use crate::clock::{Engine, Timeline, compute};
use crate::event_page::{Outcome, Record, Ticket};
use crate::kernels::Launch;
use std::sync::Arc;

/// One end of a copy.
#[derive(Clone, Debug)]
pub(crate) enum Side {
    /// An address that CUDA knows: device, managed, pinned or registered memory.
    Known(u64),
    /// Host memory that CUDA does not know. Whoever queued the work is responsible for it.
    Host(usize),
    /// The content that such memory had at the call.
    Snapshot(Arc<Vec<u8>>),
}

/// Rows of bytes. A plain copy has one row.
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

    /// Returns the total number of bytes.
    pub(crate) fn bytes(self) -> u64 {
        self.width.saturating_mul(self.count)
    }

    fn access(self, at: u64, pitch: u64, write: bool) -> Access {
        let len = self.extent(pitch);
        Access { at, len, write }
    }

    pub(crate) fn extent(self, pitch: u64) -> u64 {
        self.count
            .saturating_sub(1)
            .saturating_mul(pitch)
            .saturating_add(self.width)
    }
}

/// A function of the client, called on the host in the order of a stream.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Callback {
    /// `cuLaunchHostFunc`.
    Host {
        function: unsafe extern "C" fn(usize),
        data: usize,
    },
    /// `cuStreamAddCallback`, which passes the stream as the client names it.
    Stream {
        function: unsafe extern "C" fn(u64, i32, usize),
        stream: u64,
        data: usize,
    },
}

/// A piece of work.
#[derive(Clone, Debug)]
pub(crate) enum Action {
    /// Only a position in the order, for records, waits and joins.
    Nothing,
    Copy {
        to: Side,
        from: Side,
        rows: Rows,
    },
    /// `rows.from_pitch` is not used here.
    Fill {
        to: u64,
        pattern: [u8; 4],
        size: u8,
        rows: Rows,
    },
    Kernel(Arc<Launch>),
    Call(Callback),
    /// Publishes to other processes that a record is complete.
    Tell(Arc<Ticket>),
    /// Waits until another process has completed its record. The work may not run before that.
    Await(Record),
    Prefetch {
        at: u64,
        len: u64,
        place: i32,
    },
}

impl Action {
    /// Returns the part of the card that performs the action, and its modelled time in nanoseconds.
    pub(crate) fn cost(&self, time: &Timeline, is_host: impl Fn(u64) -> bool) -> (Engine, u64) {
        match self {
            Self::Nothing | Self::Call(_) | Self::Tell(_) | Self::Await(_) => (Engine::None, 0),
            Self::Fill { rows, .. } => (Engine::Compute, compute(rows.bytes())),
            Self::Kernel(launch) => (Engine::Compute, launch.cost()),
            Self::Prefetch { len, place, .. } => {
                let downloads = *place < 0;
                let engine = if downloads {
                    Engine::Download
                } else {
                    Engine::Upload
                };
                (engine, time.transfer(*len, 1))
            }
            Self::Copy { to, from, rows } => {
                let host = |side: &Side| match side {
                    Side::Known(at) => is_host(*at),
                    Side::Host(_) | Side::Snapshot(_) => true,
                };
                // Memory that is not pinned is copied through the driver's pinned memory, which halves the speed.
                let pageable = |side: &Side| matches!(side, Side::Host(_) | Side::Snapshot(_));
                let ways = if pageable(to) || pageable(from) { 2 } else { 1 };
                let link = time.transfer(rows.bytes(), ways);
                match (host(to), host(from)) {
                    (true, true) | (true, false) => (Engine::Download, link),
                    (false, true) => (Engine::Upload, link),
                    (false, false) => (Engine::Compute, compute(rows.bytes())),
                }
            }
        }
    }

    /// Returns the bytes that the action accesses, as far as they are known.
    pub(crate) fn accesses(&self) -> Vec<Access> {
        match self {
            Self::Nothing | Self::Call(_) | Self::Prefetch { .. } | Self::Tell(_) | Self::Await(_) => {
                Vec::new()
            }
            Self::Fill { to, rows, .. } => vec![rows.access(*to, rows.to_pitch, true)],
            Self::Kernel(launch) => launch.accesses(),
            Self::Copy { to, from, rows } => {
                let access = |side: &Side, pitch, write| match side {
                    Side::Known(at) => Some(rows.access(*at, pitch, write)),
                    Side::Host(_) | Side::Snapshot(_) => None,
                };
                let to = access(to, rows.to_pitch, true);
                let from = access(from, rows.from_pitch, false);
                to.into_iter().chain(from).collect()
            }
        }
    }

    /// Returns the open record of another process for which the action waits, if any.
    pub(crate) fn held_by(&self) -> Option<&Record> {
        match self {
            Self::Await(awaited) if awaited.outcome() == Outcome::Open => Some(awaited),
            _ => None,
        }
    }
}
