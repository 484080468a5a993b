//! Writes a log as a recording.

use crate::format::{Memory, kind};
use crate::log::{Event, Log, Record};
use crate::modules::Modules;
use crate::{LIBRARY, Owned, Summary, owner};
use millpond_trace::recording::{Gauge, Kind, RecordingError, Row, Writer, set_start};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};

/// The most nodes of graphs that are marked. Further nodes are only counted.
const NODES: u64 = 64;

/// The conversion of a log to a recording.
struct Conversion<W: Write> {
    writer: Writer<W>,
    start: u64,
    last: u64,
    newest: u64,
    /// The policy that the recording names: `cuda-async` if all device blocks come from pools, otherwise `none`.
    policy: &'static str,
    modules: Modules,
    /// The number and the tag of each stack of the log.
    stacks: HashMap<u32, (u32, u32)>,
    known_stacks: HashMap<Vec<u64>, (u32, u32)>,
    tags: Vec<String>,
    streams: HashMap<u64, u32>,
    pools: HashMap<(Memory, i32, u64), u32>,
    /// The live blocks.
    live: HashMap<(Memory, u64), Row>,
    /// The bytes of live blocks on devices, by tag.
    held: BTreeMap<u32, u64>,
    /// The bytes that the driver has given: plain memory, and the memory that pools and graphs have reserved.
    taken: u64,
    at_peak: BTreeMap<u32, u64>,
    summary: Summary,
}

/// Writes the recording of a log. Reads the log twice, chunk by chunk. Memory is needed for the live blocks and the stacks.
///
/// # Errors
/// Returns an error if the log cannot be read or the recording cannot be written.
pub fn write<W: Write>(log: &Log, out: W) -> Result<(W, Summary), RecordingError> {
    let program = program(log)?;
    let mut conversion = Conversion {
        writer: Writer::new(out, &facts(log, &program))?,
        start: log.start,
        last: 0,
        newest: 0,
        policy: "cuda-async",
        stacks: HashMap::new(),
        known_stacks: HashMap::new(),
        tags: Vec::new(),
        streams: HashMap::from([(0, 0)]),
        pools: HashMap::new(),
        live: HashMap::new(),
        held: BTreeMap::new(),
        taken: 0,
        at_peak: BTreeMap::new(),
        summary: Summary {
            lost: log.lost,
            program: file_name(&program),
            ..Summary::default()
        },
        modules: Modules::new(program),
    };
    for record in log.records()? {
        match record? {
            Record::Module {
                address, bytes, path, ..
            } => conversion.modules.push(address, bytes, path),
            Record::Event(event) if is_plain(&event) => conversion.policy = "none",
            _ => {}
        }
    }
    for record in log.records()? {
        conversion.enter(record?)?;
    }
    conversion.finish(log)
}

/// Returns the path of the program.
fn program(log: &Log) -> io::Result<String> {
    for record in log.records()? {
        if let Record::Program(path) = record? {
            return Ok(path);
        }
    }
    Ok(String::new())
}

fn file_name(path: &str) -> String {
    path.rsplit('/').next().unwrap_or_default().to_owned()
}

/// Returns whether an event takes a block of device memory from the driver and not from one of its pools.
fn is_plain(event: &Event) -> bool {
    event.kind == kind::ALLOC && !event.memory.is_host() && event.memory != Memory::Pool
}

fn facts(log: &Log, program: &str) -> Vec<(String, String)> {
    let mut facts = vec![
        ("pid".to_owned(), log.process.to_string()),
        ("program".to_owned(), file_name(program)),
        ("source".to_owned(), "calls to the CUDA driver".to_owned()),
    ];
    set_start(&mut facts, log.wall_clock);
    facts.extend(log.limit.map(|limit| ("limit".to_owned(), limit.to_string())));
    facts
}

impl<W: Write> Conversion<W> {
    fn enter(&mut self, record: Record) -> Result<(), RecordingError> {
        match record {
            Record::Event(event) => self.event(&event),
            Record::Measured { device, used, total } => self.measured(device, used, total),
            Record::Stack { number, addresses } => self.stack(number, &addresses),
            Record::Module {
                address,
                bytes,
                base,
                build_id,
                path,
            } => {
                let row = Row {
                    address,
                    bytes,
                    ..Row::new(Kind::DefineModule, self.last)
                };
                let id: String = build_id.iter().map(|byte| format!("{byte:02x}")).collect();
                let text = format!("{id}\n{}", self.modules.path(path));
                self.modules.defined += 1;
                self.writer.say(&row, Some(&text), Some(&[base]))
            }
            Record::Thread { number, name } => {
                let row = Row {
                    thread: number,
                    ..Row::new(Kind::DefineThread, self.last)
                };
                self.writer.say(&row, Some(&name), None)
            }
            Record::Program(_) => Ok(()),
            Record::End => {
                self.summary.ended = true;
                Ok(())
            }
        }
    }

    fn measured(&mut self, device: u32, used: u64, total: u64) -> Result<(), RecordingError> {
        for (gauge, bytes) in [(Gauge::DeviceUsed, used), (Gauge::DeviceTotal, total)] {
            let row = Row {
                tag: gauge as u32,
                stream: device,
                bytes,
                ..Row::new(Kind::Gauge, self.last)
            };
            self.writer.push(&row)?;
        }
        Ok(())
    }

    /// Defines a stack without the frames of the preloaded library, and finds its owner.
    fn stack(&mut self, number: u32, addresses: &[u64]) -> Result<(), RecordingError> {
        // An address is that of the instruction after a call.
        let names: Vec<Option<&str>> = addresses
            .iter()
            .map(|address| self.modules.name_at(*address))
            .collect();
        let own = names.iter().take_while(|name| **name == Some(LIBRARY)).count();
        let addresses = &addresses[own..];
        if let Some(known) = self.known_stacks.get(addresses) {
            self.stacks.insert(number, *known);
            return Ok(());
        }
        let owner = owner::of(names[own..].iter().flatten().copied()).map(str::to_owned);
        let tag = match owner {
            Some(owner) => self.tag(&owner)?,
            None => 0,
        };
        let defined = self.known_stacks.len() as u32 + 1;
        let row = Row::define(Kind::DefineStack, defined, self.last);
        self.writer.say(&row, None, Some(addresses))?;
        self.known_stacks.insert(addresses.to_vec(), (defined, tag));
        self.stacks.insert(number, (defined, tag));
        Ok(())
    }

    fn tag(&mut self, name: &str) -> Result<u32, RecordingError> {
        if let Some(at) = self.tags.iter().position(|tag| tag == name) {
            return Ok(at as u32 + 1);
        }
        self.tags.push(name.to_owned());
        let number = self.tags.len() as u32;
        self.writer
            .say(&Row::define(Kind::DefineTag, number, self.last), Some(name), None)?;
        Ok(number)
    }

    fn pool(&mut self, event: &Event) -> Result<u32, RecordingError> {
        let key = (event.memory, event.device, event.pool);
        if let Some(number) = self.pools.get(&key) {
            return Ok(*number);
        }
        let number = self.pools.len() as u32 + 1;
        let is_host = event.memory.is_host() || event.device < 0;
        let (memory, name) = match event.memory {
            Memory::Device => ("cuda", "device memory".to_owned()),
            Memory::Managed => ("managed", "managed memory".to_owned()),
            Memory::Pinned => ("pinned", "pinned memory".to_owned()),
            Memory::Registered => ("pinned", "registered memory".to_owned()),
            Memory::Pages => ("cuda", "physical memory".to_owned()),
            Memory::HostPages => ("pinned", "physical memory".to_owned()),
            Memory::Array => ("cuda", "arrays".to_owned()),
            Memory::Graph => ("cuda", "graph memory".to_owned()),
            Memory::Pool if is_host => ("pinned", format!("memory pool {number}")),
            Memory::Pool => ("cuda", format!("memory pool {number}")),
        };
        let policy = if is_host { "none" } else { self.policy };
        let device = if is_host { -1 } else { i64::from(event.device) };
        let row = Row::define(Kind::DefinePool, number, self.last);
        self.writer.say(
            &row,
            Some(&format!("{memory}\n{name}\n{policy}")),
            Some(&[device as u64]),
        )?;
        self.pools.insert(key, number);
        Ok(number)
    }

    fn event(&mut self, event: &Event) -> Result<(), RecordingError> {
        self.last = self.last.max(event.time.saturating_sub(self.start));
        let pool = self.pool(event)?;
        let streams = self.streams.len() as u32;
        let (stack, tag) = self.stacks.get(&event.stack).copied().unwrap_or_default();
        let row = Row {
            address: event.address,
            requested: event.requested,
            bytes: event.bytes,
            pool,
            stream: *self.streams.entry(event.stream).or_insert(streams),
            thread: event.thread,
            tag,
            stack,
            ..Row::new(Kind::Alloc, self.last)
        };
        // The driver reserves memory for each plain block. A pool reserves memory for many blocks at once.
        let is_block_of_pool = event.memory == Memory::Pool;
        let is_device = !event.memory.is_host() && event.device >= 0;
        match event.kind {
            kind::ALLOC => {
                if !is_block_of_pool {
                    self.reserve(Kind::Reserve, &row, is_device)?;
                }
                self.allocated(event, row, is_device)
            }
            kind::FREE => {
                self.freed(event, &row, is_device)?;
                if is_block_of_pool {
                    Ok(())
                } else {
                    self.reserve(Kind::Release, &row, is_device)
                }
            }
            kind::RESERVE => self.reserve(Kind::Reserve, &row, is_device),
            kind::RELEASE => self.reserve(Kind::Release, &row, is_device),
            kind::REFUSED => {
                self.summary.refused += 1;
                self.summary.limited += u64::from(event.address == crate::format::LIMIT);
                self.writer.push(&Row {
                    kind: Kind::Refused,
                    address: 0,
                    ..row
                })
            }
            _ => self.node(event),
        }
    }

    fn node(&mut self, event: &Event) -> Result<(), RecordingError> {
        self.summary.nodes += 1;
        if self.summary.nodes > NODES {
            return Ok(());
        }
        let text = format!(
            "a node of a graph allocates {} bytes when the graph runs",
            event.bytes
        );
        self.writer
            .say(&Row::new(Kind::Mark, self.last), Some(&text), None)
    }

    fn reserve(&mut self, kind: Kind, row: &Row, is_device: bool) -> Result<(), RecordingError> {
        if is_device {
            match kind {
                Kind::Reserve => {
                    self.taken = self.taken.saturating_add(row.bytes);
                    self.note_peak();
                }
                _ => self.taken = self.taken.saturating_sub(row.bytes),
            }
        }
        self.writer.push(&Row {
            kind,
            requested: 0,
            tag: 0,
            stack: 0,
            ..*row
        })
    }

    fn note_peak(&mut self) {
        if self.taken >= self.summary.peak {
            self.summary.peak = self.taken;
            self.at_peak.clone_from(&self.held);
        }
    }

    fn allocated(&mut self, event: &Event, row: Row, is_device: bool) -> Result<(), RecordingError> {
        self.summary.allocations += 1;
        self.newest += 1;
        let row = Row {
            id: self.newest,
            ..row
        };
        if is_device {
            let held = self.held.entry(row.tag).or_default();
            *held = held.saturating_add(row.bytes);
        }
        // The driver's memory for the block was counted before the block.
        self.note_peak();
        if let Some(before) = self.live.insert((event.memory, event.address), row) {
            // Two live blocks never have the same address, so the free of the first block was not recorded.
            self.end(&before, &row, is_device)?;
        }
        self.writer.push(&row)
    }

    fn freed(&mut self, event: &Event, row: &Row, is_device: bool) -> Result<(), RecordingError> {
        self.summary.frees += 1;
        match self.live.remove(&(event.memory, event.address)) {
            Some(block) => self.end(&block, row, is_device),
            None => Ok(()),
        }
    }

    fn end(&mut self, block: &Row, row: &Row, is_device: bool) -> Result<(), RecordingError> {
        if let Some(held) = self.held.get_mut(&block.tag).filter(|_| is_device) {
            *held = held.saturating_sub(block.bytes);
        }
        self.writer.push(&Row {
            kind: Kind::Free,
            time: row.time,
            address: 0,
            stack: 0,
            thread: row.thread,
            stream: row.stream,
            ..*block
        })
    }

    fn finish(mut self, log: &Log) -> Result<(W, Summary), RecordingError> {
        if log.lost > 0 {
            self.writer.push(&Row {
                id: log.lost,
                ..Row::new(Kind::Lost, self.last)
            })?;
        }
        let mut owners: Vec<Owned> = self
            .at_peak
            .iter()
            .map(|(tag, bytes)| Owned {
                name: match tag.checked_sub(1).and_then(|at| self.tags.get(at as usize)) {
                    Some(name) => name.clone(),
                    None => "an unknown library".to_owned(),
                },
                bytes: *bytes,
            })
            .collect();
        // A damaged log may contain any numbers.
        let held = owners
            .iter()
            .fold(0_u64, |sum, owned| sum.saturating_add(owned.bytes));
        owners.push(Owned {
            name: "no block (reserved by pools and graphs)".to_owned(),
            bytes: self.summary.peak.saturating_sub(held),
        });
        owners.retain(|owned| owned.bytes > 0);
        owners.sort_by_key(|owned| std::cmp::Reverse(owned.bytes));
        self.summary.owners = owners;
        Ok((self.writer.finish(self.last)?, self.summary))
    }
}
