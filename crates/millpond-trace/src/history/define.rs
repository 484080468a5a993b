//! The definitions of the numbers in rows.

use super::stacks::Stacks;
use super::{Allowance, HistoryError};
use crate::ReadError;
use crate::hash::Map;
use crate::model::MOST_DEVICES;
use crate::recording::{Kind, Row};
use std::sync::Arc;

/// Maximum bytes of the texts and names of a file. More are dropped.
const MOST_TEXT: usize = 512 << 20;
/// The most bytes kept of one name. Longer names are cut, because a name is copied wherever it is used.
const MOST_NAME: usize = 8 << 10;
/// The most bytes kept of one tag, which may contain a whole stack.
const MOST_TAG: usize = 64 << 10;
/// The most functions kept that are inlined into each other at one address.
const MOST_INLINED: usize = 256;
/// The most addresses kept of one stack: the innermost ones.
const MOST_DEEP: usize = 4 << 10;
/// The bytes that an entry of any table here takes in addition to its text.
const ENTRY: usize = 64;
/// The bytes that a frame takes in addition to its text.
const FRAME: usize = size_of::<Frame>() + 48;
/// The factor by which the names of all addresses may exceed the allowance. Addresses share names, and each name is read a few times.
const SHARED: u64 = 4;

/// Returns the part of a name that is kept: its beginning.
pub(super) fn cut(text: &str) -> &str {
    beginning(text, MOST_NAME)
}

/// Returns at most `most` bytes of a text.
fn beginning(text: &str, most: usize) -> &str {
    let most = text.len().min(most);
    let end = (0..=most).rev().find(|at| text.is_char_boundary(*at));
    &text[..end.unwrap_or(0)]
}

/// A pool of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// The name, which may be empty.
    pub name: String,
    /// The kind of memory: `host`, `pinned`, `cuda`, `managed` or `mapped`. Empty if unknown.
    pub memory: String,
    /// The device of the pool. -1 is the host's memory.
    pub device: i32,
    /// The policy that places the pool's blocks. Empty if unknown.
    pub policy: String,
}

/// A function on a stack, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The function name.
    pub function: String,
    /// The source file.
    pub file: String,
    /// The line, counted from 1. 0 if unknown.
    pub line: u32,
}

/// A code module of the recorded process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    /// First address of the code.
    pub address: u64,
    /// Size of the code in bytes.
    pub bytes: u64,
    /// Path of the module's file.
    pub path: String,
    /// The address at which the file's first byte would be mapped.
    pub base: u64,
    /// The build id, in hexadecimal digits.
    pub build_id: String,
}

/// The definitions of the numbers in rows. The lookup functions accept every number.
#[derive(Clone, Debug, Default)]
pub struct Definitions {
    tags: Map<u32, String>,
    pools: Map<u32, Pool>,
    threads: Map<u32, String>,
    stacks: Stacks,
    /// The frames of each address. Addresses share them.
    frames: Map<u64, Arc<[Frame]>>,
    modules: Vec<Module>,
    devices: Map<i32, ()>,
    text: usize,
    /// The number of names and stacks that were left out or cut because there were too many or they were too long.
    pub dropped: u64,
}

impl Definitions {
    /// Records a row that defines something. Other rows are ignored.
    pub fn note(&mut self, row: &Row, text: Option<&str>, list: Option<Vec<u64>>) {
        let mut list = list.unwrap_or_default();
        let text = text.unwrap_or_default();
        let is_deep = row.kind == Kind::DefineStack && list.len() > MOST_DEEP;
        self.dropped += u64::from(is_deep);
        list.truncate(if is_deep { MOST_DEEP } else { list.len() });
        let cost = match row.kind {
            // All addresses share the text.
            Kind::DefineFrame => ENTRY * list.len() + text.len().min(2 * MOST_INLINED * MOST_NAME),
            Kind::DefineTag => text.len().min(MOST_TAG) + ENTRY,
            Kind::DefineStack => Stacks::NODE * self.stacks.new_nodes(&list) + ENTRY,
            _ => text.len().min(3 * MOST_NAME) + 8 * list.len() + ENTRY,
        };
        if self.text + cost > MOST_TEXT {
            self.dropped += 1;
            return;
        }
        self.text += cost;
        match row.kind {
            Kind::DefineTag => {
                let name = self.kept(text, MOST_TAG);
                self.tags.insert(row.tag, name);
            }
            Kind::DefineThread => {
                let name = self.name(text);
                self.threads.insert(row.thread, name);
            }
            Kind::DefineStack => self.stacks.insert(row.stack, &list),
            Kind::DefinePool => self.define_pool(row.pool, text, &list),
            Kind::DefineModule => self.define_module(row, text, &list),
            Kind::DefineFrame => self.define_frame(text, &list),
            _ => {}
        }
    }

    /// Checks that the definitions are within the recording's allowance.
    ///
    /// # Errors
    /// Returns an error if they exceed it, or if there are too many devices.
    pub(super) fn check(&self, allowance: Allowance) -> Result<(), HistoryError> {
        if self.devices.len() > MOST_DEVICES {
            return Err(ReadError::TooManyDevices { limit: MOST_DEVICES }.into());
        }
        allowance.check("its names and stacks", self.bytes())
    }

    /// Returns the bytes that the definitions take, with the group names that are made from them.
    pub(super) fn bytes(&self) -> u64 {
        2 * self.text as u64
    }

    /// Checks that the names of all addresses can be read.
    ///
    /// # Errors
    /// Returns an error if many addresses share names, so that a copy of the names for each address would take too much memory.
    pub(super) fn check_names(&self, allowance: Allowance) -> Result<(), HistoryError> {
        let of_frame = |frame: &Frame| (FRAME + frame.function.len() + frame.file.len()) as u64;
        let mut named = 0_u64;
        for frames in self.frames.values() {
            let bytes = frames.iter().map(of_frame);
            named = named.saturating_add(bytes.fold(0, u64::saturating_add));
            allowance.check("the names of its addresses", named / SHARED)?;
        }
        Ok(())
    }

    /// Returns a copy of a name, cut if it is too long to keep.
    fn name(&mut self, text: &str) -> String {
        self.kept(text, MOST_NAME)
    }

    /// Returns a copy of at most `most` bytes of a text.
    fn kept(&mut self, text: &str, most: usize) -> String {
        let kept = beginning(text, most);
        self.dropped += u64::from(kept.len() < text.len());
        kept.to_owned()
    }

    /// Records a pool. The text has the kind of memory, the name and the policy, each on its own line.
    fn define_pool(&mut self, number: u32, text: &str, list: &[u64]) {
        let (memory, rest) = text.split_once('\n').unwrap_or(("", text));
        let (name, policy) = rest.split_once('\n').unwrap_or((rest, ""));
        let device = list.first().map_or(-1, |device| *device as i32);
        let pool = Pool {
            name: self.name(name),
            memory: self.name(memory),
            device,
            policy: self.name(policy),
        };
        self.devices.insert(device, ());
        self.pools.insert(number, pool);
    }

    /// Records a module. The text has the build id and the path, each on its own line.
    fn define_module(&mut self, row: &Row, text: &str, list: &[u64]) {
        let (build_id, path) = text.split_once('\n').unwrap_or(("", text));
        let (path, build_id) = (self.name(path), self.name(build_id));
        self.modules.push(Module {
            address: row.address,
            bytes: row.bytes,
            path,
            base: list.first().copied().unwrap_or(row.address),
            build_id,
        });
    }

    /// Records the frames of addresses. The text has function, file and line, each on its own line, and three more
    /// lines for each function into which it was inlined.
    fn define_frame(&mut self, text: &str, list: &[u64]) {
        let mut lines = text.split('\n');
        let mut frames = Vec::new();
        while let Some(function) = lines.next() {
            if frames.len() == MOST_INLINED {
                self.dropped += 1;
                break;
            }
            frames.push(Frame {
                function: self.name(function),
                file: self.name(lines.next().unwrap_or_default()),
                line: lines.next().and_then(|line| line.parse().ok()).unwrap_or(0),
            });
        }
        let frames: Arc<[Frame]> = frames.into();
        for address in list {
            self.frames.insert(*address, Arc::clone(&frames));
        }
    }

    /// Returns the name of a tag, or an empty string if there is none.
    pub fn tag(&self, number: u32) -> &str {
        self.tags.get(&number).map_or("", String::as_str)
    }

    /// Returns a pool.
    pub fn pool(&self, number: u32) -> Option<&Pool> {
        self.pools.get(&number)
    }

    /// Returns the name of a thread, or an empty string if there is none.
    pub fn thread(&self, number: u32) -> &str {
        self.threads.get(&number).map_or("", String::as_str)
    }

    /// Returns the addresses of a stack, innermost first, or no addresses if the stack is unknown.
    pub fn stack(&self, number: u32) -> impl Iterator<Item = u64> {
        self.stacks.addresses(number)
    }

    /// Returns the functions at an address of a stack, innermost first, or an empty slice if the recording does not
    /// contain them.
    pub fn frames(&self, address: u64) -> &[Frame] {
        self.frames.get(&address).map_or(&[], |frames| frames)
    }

    /// Returns the code modules of the recorded process.
    pub fn modules(&self) -> &[Module] {
        &self.modules
    }

    /// Returns how many tags there are.
    pub fn tag_count(&self) -> usize {
        self.tags.len()
    }

    /// Returns the numbers and names of all tags, in order.
    pub fn tags(&self) -> Vec<(u32, &str)> {
        let mut tags: Vec<_> = self
            .tags
            .iter()
            .map(|(number, name)| (*number, name.as_str()))
            .collect();
        tags.sort_unstable();
        tags
    }

    /// Returns all pools with their numbers, in order.
    pub fn pools(&self) -> Vec<(u32, &Pool)> {
        let mut pools: Vec<_> = self.pools.iter().map(|(number, pool)| (*number, pool)).collect();
        pools.sort_unstable_by_key(|(number, _)| *number);
        pools
    }

    /// Returns how many stacks there are.
    pub fn stack_count(&self) -> usize {
        self.stacks.count()
    }

    /// Returns the numbers of all stacks, in order.
    pub fn stacks(&self) -> Vec<u32> {
        let mut stacks: Vec<_> = self.stacks.numbers().collect();
        stacks.sort_unstable();
        stacks
    }
}
