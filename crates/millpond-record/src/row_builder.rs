//! Converts ordered events to rows. Allocations get serial numbers, frees repeat the facts of their allocations, and
//! every number is defined before its use.

use foldhash::fast::FixedState;
use hashbrown::HashMap;
use millpond_account::event::PoolLabel;
use millpond_account::memory::MemoryKind;
use millpond_account::session::{Lost, RingEvent, What};
use millpond_account::tags::Tag;
use millpond_os::metadata::has_room;
use millpond_trace::recording::{Gauge, Kind, RecordingError, Row, Writer};
use std::hash::Hash;
use std::io::Write;

/// The minimum number of rows between two keyframes. This bounds how many rows must be read to find the live blocks at
/// any time.
const APART: u64 = 1 << 20;
/// The minimum number of rows between two keyframes for each live block, so that keyframes are a small part of the
/// file.
const APART_EACH: u64 = 8;
/// The maximum number of distinct stacks.
const STACKS: usize = 1 << 20;
/// The maximum bytes of a stack in the table of distinct stacks.
const STACK_BYTES: usize = 1 << 9;
/// The rows of a batch, and the bytes that must be free before it begins: if there is enough memory, and if there is little.
const LARGE_BATCH: (usize, usize) = (64 << 10, 32 << 20);
const SMALL_BATCH: (usize, usize) = (4 << 10, 2 << 20);

type Map<K, V> = HashMap<K, V, FixedState>;

/// A sum of a pool, or of a device or the process if `pool` is 0.
#[derive(Clone, Copy, Debug)]
pub(super) struct Measured {
    pub(super) gauge: Gauge,
    pub(super) pool: u32,
    pub(super) device: u32,
    pub(super) bytes: u64,
}

/// The state of the conversion.
pub(super) struct RowBuilder<W: Write> {
    writer: Writer<W>,
    /// The beginning of the recording on the process's clock.
    start: u64,
    /// The rows of the live blocks' allocations, by pool and address.
    live: Map<(u32, u64), Row>,
    newest: u64,
    /// The time of the last row, which other rows between two events also use.
    last: u64,
    /// The defined tags, by number.
    tags: Vec<bool>,
    stacks: Map<Box<[u64]>, u32>,
    next_keyframe: u64,
    /// The number of events so far, without the lost events.
    pub(super) events: u64,
    pub(super) lost: u64,
}

impl<W: Write> RowBuilder<W> {
    /// Begins a conversion. `start` is the beginning of the recording on the process's clock.
    ///
    /// # Errors
    /// Returns an error if there is no memory for a batch.
    pub(super) fn new(writer: Writer<W>, start: u64) -> Result<Self, RecordingError> {
        let mut rows = Self {
            writer,
            start,
            live: Map::default(),
            newest: 0,
            last: 0,
            tags: vec![true],
            stacks: Map::default(),
            next_keyframe: APART,
            events: 0,
            lost: 0,
        };
        rows.fit_batches()?;
        Ok(rows)
    }

    /// Chooses the number of rows of the next batches by the memory that is free.
    fn fit_batches(&mut self) -> Result<(), RecordingError> {
        let fits = |(_, bytes): &(usize, usize)| has_room(*bytes);
        let (rows, _) = [LARGE_BATCH, SMALL_BATCH]
            .into_iter()
            .find(fits)
            .ok_or(RecordingError::NoMemory)?;
        self.writer.set_batch_rows(rows);
        Ok(())
    }

    fn since_start(&self, time: u64) -> u64 {
        time.saturating_sub(self.start)
    }

    /// Enters an event of a thread with the addresses of its stack.
    #[inline]
    pub(super) fn enter(
        &mut self,
        told: &RingEvent,
        thread: u32,
        stack: &[u64],
        mark: impl FnOnce(u64) -> String,
    ) -> Result<(), RecordingError> {
        self.events += 1;
        self.last = self.since_start(told.time);
        let row = Row {
            address: told.address,
            requested: told.requested,
            bytes: told.bytes,
            pool: told.pool,
            stream: told.stream,
            thread,
            tag: told.tag,
            ..Row::new(Kind::Alloc, self.last)
        };
        match told.what {
            What::Alloc => self.allocated(row, stack)?,
            What::Free => self.freed(&row)?,
            What::Reserve => self.writer.push(&Row {
                kind: Kind::Reserve,
                ..row
            })?,
            What::Release => self.writer.push(&Row {
                kind: Kind::Release,
                ..row
            })?,
            What::Refused => {
                self.define_tag(row.tag)?;
                let stack = self.stack(stack)?;
                self.writer.push(&Row {
                    kind: Kind::Refused,
                    stack,
                    ..row
                })?;
            }
            What::Mark => {
                let row = Row {
                    kind: Kind::Mark,
                    requested: 0,
                    ..row
                };
                self.writer.say(&row, Some(&mark(told.requested)), None)?;
            }
            What::Step => self.writer.push(&Row {
                kind: Kind::Step,
                requested: 0,
                bytes: told.requested,
                ..row
            })?,
        }
        if self.writer.rows() >= self.next_keyframe {
            self.keyframe()?;
        }
        Ok(())
    }

    #[inline]
    fn allocated(&mut self, row: Row, stack: &[u64]) -> Result<(), RecordingError> {
        self.define_tag(row.tag)?;
        self.newest += 1;
        let row = Row {
            id: self.newest,
            stack: self.stack(stack)?,
            ..row
        };
        make_room(&mut self.live, 0)?;
        if let Some(before) = self.live.insert((row.pool, row.address), row) {
            // Two live blocks never have the same address, so the free of the first block was lost.
            self.writer.push(&end_of(&before, row.time, 0, 0))?;
        }
        self.writer.push(&row)
    }

    #[inline]
    fn freed(&mut self, row: &Row) -> Result<(), RecordingError> {
        match self.live.remove(&(row.pool, row.address)) {
            Some(block) => self
                .writer
                .push(&end_of(&block, row.time, row.thread, row.stream)),
            // The block was allocated before the recording began, or its allocation was lost.
            None => self.writer.push(&Row {
                kind: Kind::Free,
                id: 0,
                tag: 0,
                ..*row
            }),
        }
    }

    /// Returns the number of a stack and defines a new stack. Returns 0 for no stack or if there are too many.
    pub(super) fn stack(&mut self, stack: &[u64]) -> Result<u32, RecordingError> {
        if stack.is_empty() {
            return Ok(0);
        }
        if let Some(number) = self.stacks.get(stack) {
            return Ok(*number);
        }
        if self.stacks.len() >= STACKS {
            return Ok(0);
        }
        let number = self.stacks.len() as u32 + 1;
        make_room(&mut self.stacks, STACK_BYTES)?;
        self.stacks.insert(stack.into(), number);
        let row = Row {
            stack: number,
            ..Row::new(Kind::DefineStack, self.last)
        };
        self.writer.say(&row, None, Some(stack))?;
        Ok(number)
    }

    #[inline]
    pub(super) fn define_tag(&mut self, tag: u32) -> Result<(), RecordingError> {
        match self.tags.get(tag as usize) {
            Some(true) => Ok(()),
            _ => self.define_new_tag(tag),
        }
    }

    #[cold]
    fn define_new_tag(&mut self, tag: u32) -> Result<(), RecordingError> {
        if self.tags.len() <= tag as usize {
            self.tags.resize(tag as usize + 1, false);
        }
        if let Some(defined) = self.tags.get_mut(tag as usize) {
            *defined = true;
        }
        let row = Row {
            tag,
            ..Row::new(Kind::DefineTag, self.last)
        };
        self.writer.say(&row, Some(Tag::of_number(tag).name()), None)
    }

    /// Defines the name of a tag number that is not a tag of the process.
    pub(super) fn say_tag(&mut self, tag: u32, name: &str) -> Result<(), RecordingError> {
        let row = Row {
            tag,
            ..Row::new(Kind::DefineTag, self.last)
        };
        self.writer.say(&row, Some(name), None)
    }

    /// Enters a row unchanged.
    pub(super) fn push(&mut self, row: &Row) -> Result<(), RecordingError> {
        self.writer.push(row)
    }

    /// Enters a row with a text.
    pub(super) fn say(&mut self, row: &Row, text: &str) -> Result<(), RecordingError> {
        self.writer.say(row, Some(text), None)
    }

    /// Defines a pool's number.
    pub(super) fn define_pool(&mut self, pool: &PoolLabel) -> Result<(), RecordingError> {
        let memory = match pool.kind {
            MemoryKind::Device => "cuda",
            kind => kind.name(),
        };
        let device = match (pool.device.cuda_number(), pool.kind) {
            (Some(number), _) => i64::from(number),
            (None, MemoryKind::Host | MemoryKind::Pinned) => -1,
            // Devices can access other memory of the host.
            (None, _) => 0,
        };
        let row = Row {
            pool: pool.id as u32,
            ..Row::new(Kind::DefinePool, self.last)
        };
        // A name is one line.
        let name = pool.name.replace('\n', " ");
        let text = format!("{memory}\n{name}\n{}", pool.policy);
        self.writer.say(&row, Some(&text), Some(&[device as u64]))
    }

    /// Defines the name of a thread.
    pub(super) fn define_thread(&mut self, thread: u32, name: &str) -> Result<(), RecordingError> {
        let row = Row {
            thread,
            ..Row::new(Kind::DefineThread, self.last)
        };
        self.writer.say(&row, Some(name), None)
    }

    /// Defines a code module.
    pub(super) fn define_module(&mut self, module: &super::modules::Module) -> Result<(), RecordingError> {
        let row = Row {
            address: module.address,
            bytes: module.bytes,
            ..Row::new(Kind::DefineModule, self.last)
        };
        let text = format!("{}\n{}", module.build_id, module.path);
        self.writer.say(&row, Some(&text), Some(&[module.base]))
    }

    /// Enters the number of lost events.
    pub(super) fn lose(&mut self, lost: Lost, thread: u32) -> Result<(), RecordingError> {
        self.lost += lost.events;
        self.writer.push(&Row {
            id: lost.events,
            requested: lost.allocated,
            bytes: lost.freed,
            thread,
            ..Row::new(Kind::Lost, self.last)
        })
    }

    /// Enters sums with their time.
    pub(super) fn measured(&mut self, measured: &Measured, time: u64) -> Result<(), RecordingError> {
        self.last = self.since_start(time);
        self.writer.push(&Row {
            tag: measured.gauge as u32,
            pool: measured.pool,
            stream: measured.device,
            bytes: measured.bytes,
            ..Row::new(Kind::Gauge, self.last)
        })
    }

    /// Enters a keyframe with all live blocks.
    fn keyframe(&mut self) -> Result<(), RecordingError> {
        let blocks = self.live.len() as u64;
        self.writer.push(&Row {
            bytes: blocks,
            ..Row::new(Kind::Keyframe, self.last)
        })?;
        for row in self.live.values() {
            self.writer.push(&Row {
                kind: Kind::Live,
                ..*row
            })?;
        }
        self.next_keyframe = self.writer.rows() + APART.max(APART_EACH * blocks);
        Ok(())
    }

    /// Flushes the file, so that all entered rows can be read. Then chooses the size of the next batches.
    ///
    /// # Errors
    /// Returns an error if the file could not be written, or if there is no memory for another batch.
    pub(super) fn flush(&mut self) -> Result<(), RecordingError> {
        self.writer.flush()?;
        self.fit_batches()
    }

    pub(super) fn finish(self, time: u64) -> Result<W, RecordingError> {
        let time = self.since_start(time);
        self.writer.finish(time)
    }
}

/// Makes room for one more entry of a table, with `apart` bytes outside the table.
#[inline]
fn make_room<K: Eq + Hash, V>(table: &mut Map<K, V>, apart: usize) -> Result<(), RecordingError> {
    if table.len() < table.capacity() {
        return Ok(());
    }
    // The entries of the larger table, each with a byte of state. At most seven eighths of its places are used.
    let entries = (2 * table.len()).max(8) / 7 * 8;
    let bytes = entries * (size_of::<(K, V)>() + 1) + table.len() * apart;
    if !has_room(bytes) {
        return Err(RecordingError::NoMemory);
    }
    table.try_reserve(1).map_err(|_| RecordingError::NoMemory)
}

/// Returns the row of a free from the row of its allocation.
fn end_of(block: &Row, time: u64, thread: u32, stream: u32) -> Row {
    Row {
        kind: Kind::Free,
        time,
        address: 0,
        stack: 0,
        thread,
        stream,
        ..*block
    }
}
