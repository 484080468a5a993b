//! What the numbers in rows mean.

use crate::recording::{Kind, Row};
use crate::strings::Map;

/// What `text` and names of a file may come to: more is left out.
const MOST_TEXT: usize = 512 << 20;

/// A pool of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pool {
    /// Its name, which may be empty.
    pub name: String,
    /// The kind of memory, as the field calls it: `host`, `pinned`, `cuda`, `managed`, `mapped`; empty where it is not known.
    pub memory: String,
    /// The device it is on; -1 for the host's memory.
    pub device: i32,
    /// The policy that places its blocks; empty where that is not known.
    pub policy: String,
}

/// A function on a stack, as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Frame {
    /// Its name.
    pub function: String,
    /// The file.
    pub file: String,
    /// The line, from 1; 0 where it is not known.
    pub line: u32,
}

/// Code of the recorded process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    /// Its first address.
    pub address: u64,
    /// How long it is.
    pub bytes: u64,
    /// Its file.
    pub path: String,
    /// Where in memory the file's first byte would be.
    pub base: u64,
    /// The build id, in hexadecimal digits.
    pub build_id: String,
}

/// What numbers in rows mean. All are looked up by functions that answer for every number.
#[derive(Clone, Debug, Default)]
pub struct Definitions {
    tags: Map<u32, String>,
    pools: Map<u32, Pool>,
    threads: Map<u32, String>,
    stacks: Map<u32, Box<[u64]>>,
    frames: Map<u64, Vec<Frame>>,
    modules: Vec<Module>,
    text: usize,
    /// Names left out because they are too many.
    pub dropped: u64,
}

impl Definitions {
    /// Takes in a row that defines something; others are passed over.
    pub fn note(&mut self, row: &Row, text: Option<&str>, list: Option<Vec<u64>>) {
        let cost = text.map_or(0, str::len) + list.as_ref().map_or(0, |list| 8 * list.len()) + 64;
        if self.text + cost > MOST_TEXT {
            self.dropped += 1;
            return;
        }
        self.text += cost;
        let text = text.unwrap_or_default().to_owned();
        let list = list.unwrap_or_default();
        match row.kind {
            Kind::DefineTag => drop(self.tags.insert(row.tag, text)),
            Kind::DefineThread => drop(self.threads.insert(row.thread, text)),
            Kind::DefineStack => drop(self.stacks.insert(row.stack, list.into())),
            Kind::DefinePool => self.define_pool(row.pool, &text, &list),
            Kind::DefineModule => self.define_module(row, &text, &list),
            Kind::DefineFrame => self.define_frame(&text, &list),
            _ => {}
        }
    }

    /// The kind of memory, the name and the policy, one a line.
    fn define_pool(&mut self, number: u32, text: &str, list: &[u64]) {
        let (memory, rest) = text.split_once('\n').unwrap_or(("", text));
        let (name, policy) = rest.split_once('\n').unwrap_or((rest, ""));
        let device = list.first().map_or(-1, |device| *device as i32);
        let pool = Pool {
            name: name.to_owned(),
            memory: memory.to_owned(),
            device,
            policy: policy.to_owned(),
        };
        self.pools.insert(number, pool);
    }

    /// The build id and the path, one a line.
    fn define_module(&mut self, row: &Row, text: &str, list: &[u64]) {
        let (build_id, path) = text.split_once('\n').unwrap_or(("", text));
        self.modules.push(Module {
            address: row.address,
            bytes: row.bytes,
            path: path.to_owned(),
            base: list.first().copied().unwrap_or(row.address),
            build_id: build_id.to_owned(),
        });
    }

    /// Function, file and line, one a line; three more for each function that it was inlined into.
    fn define_frame(&mut self, text: &str, list: &[u64]) {
        let lines: Vec<&str> = text.split('\n').collect();
        let frame = |of: &[&str]| Frame {
            function: of.first().copied().unwrap_or_default().to_owned(),
            file: of.get(1).copied().unwrap_or_default().to_owned(),
            line: of.get(2).and_then(|line| line.parse().ok()).unwrap_or(0),
        };
        let frames: Vec<Frame> = lines.chunks(3).map(frame).collect();
        for address in list {
            self.frames.insert(*address, frames.clone());
        }
    }

    /// A tag's name; empty where there is none.
    pub fn tag(&self, number: u32) -> &str {
        self.tags.get(&number).map_or("", String::as_str)
    }

    /// A pool.
    pub fn pool(&self, number: u32) -> Option<&Pool> {
        self.pools.get(&number)
    }

    /// A thread's name; empty where it has none.
    pub fn thread(&self, number: u32) -> &str {
        self.threads.get(&number).map_or("", String::as_str)
    }

    /// The addresses of a stack, the innermost first; none where it is not known.
    pub fn stack(&self, number: u32) -> &[u64] {
        self.stacks.get(&number).map_or(&[], |stack| stack)
    }

    /// What an address of a stack is called, the innermost function first, where the recording itself tells.
    pub fn frames(&self, address: u64) -> &[Frame] {
        self.frames.get(&address).map_or(&[], Vec::as_slice)
    }

    /// Code of the recorded process.
    pub fn modules(&self) -> &[Module] {
        &self.modules
    }

    /// Numbers and names of all tags, in order.
    pub fn tags(&self) -> Vec<(u32, &str)> {
        let mut tags: Vec<_> = self
            .tags
            .iter()
            .map(|(number, name)| (*number, name.as_str()))
            .collect();
        tags.sort_unstable();
        tags
    }

    /// Numbers of all pools, in order.
    pub fn pools(&self) -> Vec<(u32, &Pool)> {
        let mut pools: Vec<_> = self.pools.iter().map(|(number, pool)| (*number, pool)).collect();
        pools.sort_unstable_by_key(|(number, _)| *number);
        pools
    }

    /// Numbers of all stacks, in order.
    pub fn stacks(&self) -> Vec<u32> {
        let mut stacks: Vec<_> = self.stacks.keys().copied().collect();
        stacks.sort_unstable();
        stacks
    }
}
