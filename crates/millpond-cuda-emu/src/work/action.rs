//! The actions of queued work.
#![forbid(unsafe_code)]

use crate::access::Access;
use crate::clock::{Engine, Timeline, compute};
use crate::error::{Answer, Code};
use crate::event_page::{Outcome, Record, Ticket};
use crate::kernels::Launch;
use std::sync::Arc;

/// One end of a copy.
#[derive(Clone, Debug)]
pub(crate) enum Side {
    /// An address that CUDA knows: device, managed, pinned or registered memory.
    Known(u64),
    /// Host memory that CUDA does not know. The client that queued the work is responsible for it.
    Host(usize),
    /// The contents of host memory at the time of the call.
    Snapshot(Arc<Vec<u8>>),
}

/// Rows of bytes in planes. A plain copy has one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rows {
    pub(crate) width: u64,
    /// The number of rows in each plane.
    pub(crate) count: u64,
    pub(crate) planes: u64,
    /// The bytes from the start of one row to the next.
    pub(crate) to_pitch: u64,
    pub(crate) from_pitch: u64,
    /// The bytes from the start of one plane to the next.
    pub(crate) to_plane: u64,
    pub(crate) from_plane: u64,
}

impl Rows {
    pub(crate) fn one(width: u64) -> Self {
        Self {
            width,
            count: 1,
            planes: 1,
            to_pitch: width,
            from_pitch: width,
            to_plane: width,
            from_plane: width,
        }
    }

    pub(crate) fn is_one(self) -> bool {
        self.count == 1 && self.planes == 1
    }

    /// Returns the total number of bytes.
    pub(crate) fn bytes(self) -> u64 {
        self.width.saturating_mul(self.count).saturating_mul(self.planes)
    }

    /// Returns the bytes from the first to the last of one end.
    fn extent(self, pitch: u64, plane: u64) -> Option<u64> {
        let planes = self.planes.saturating_sub(1).checked_mul(plane)?;
        let rows = self.count.saturating_sub(1).checked_mul(pitch)?;
        planes.checked_add(rows)?.checked_add(self.width)
    }

    pub(crate) fn extent_written(self) -> Answer<u64> {
        self.extent(self.to_pitch, self.to_plane)
            .ok_or(Code::INVALID_VALUE)
    }

    pub(crate) fn extent_read(self) -> Answer<u64> {
        self.extent(self.from_pitch, self.from_plane)
            .ok_or(Code::INVALID_VALUE)
    }

    /// Returns the offsets of each row from the first: where it is written, and where it is read.
    pub(crate) fn offsets(self) -> impl Iterator<Item = (u64, u64)> {
        (0..self.planes).flat_map(move |plane| {
            (0..self.count).map(move |row| {
                let to = plane * self.to_plane + row * self.to_pitch;
                (to, plane * self.from_plane + row * self.from_pitch)
            })
        })
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
    /// Nothing is read, so only one end of the rows counts.
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
            Self::Fill { to, rows, .. } => {
                let len = rows.extent_written().unwrap_or(u64::MAX);
                vec![Access {
                    at: *to,
                    len,
                    write: true,
                }]
            }
            Self::Kernel(launch) => launch.accesses(),
            Self::Copy { to, from, rows } => {
                let access = |side: &Side, len: Answer<u64>, write| match side {
                    Side::Known(at) => Some(Access {
                        at: *at,
                        len: len.unwrap_or(u64::MAX),
                        write,
                    }),
                    Side::Host(_) | Side::Snapshot(_) => None,
                };
                let to = access(to, rows.extent_written(), true);
                let from = access(from, rows.extent_read(), false);
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
