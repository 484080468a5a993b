//! Groups blocks, and names each group.
//!
//! Groups are identified by names, not by numbers. Two numbers with the same name form one group, so that two
//! recordings can be compared.

use super::Map;
use super::held::{Group, Sum};
use crate::tags::tag_group;
use millpond_trace::history::{Definitions, Frame, History, Pool, Symbols};
use millpond_trace::recording::Row;
use millpond_trace::{split_frames, split_tag, tag_site};
use serde::Serialize;

/// The property by which blocks are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
#[repr(usize)]
pub enum By {
    /// The purpose of the block. Module paths that differ only in numbers form one group.
    Tag,
    /// The innermost function of the program on the stack of the allocation.
    Site,
    /// The pool.
    Pool,
    /// The stream of the allocation.
    Stream,
    /// The thread of the allocation.
    Thread,
    /// The kind of memory, and the device it is on.
    Kind,
    /// The whole stack of the allocation: one frame on each line of the name, the innermost first.
    Stack,
}

impl By {
    /// All properties.
    pub const ALL: [Self; COUNT] = [
        Self::Tag,
        Self::Site,
        Self::Pool,
        Self::Stream,
        Self::Thread,
        Self::Kind,
        Self::Stack,
    ];

    /// Returns the name of the property.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Tag => "tag",
            Self::Site => "site",
            Self::Stack => "stack",
            Self::Pool => "pool",
            Self::Stream => "stream",
            Self::Thread => "thread",
            Self::Kind => "kind",
        }
    }

    /// Returns the bytes that one block with a stack represents, if the groups of a recording are estimated from a sample of
    /// such blocks.
    #[must_use]
    pub fn bytes_per_sample(self, history: &History) -> Option<u64> {
        history.bytes_per_stack().filter(|_| !self.is_exact())
    }

    /// Returns whether the groups are known for all blocks, even if only a sample of the blocks was recorded with stacks.
    pub(super) fn is_exact(self) -> bool {
        !matches!(self, Self::Site | Self::Stack)
    }

    /// Returns the property that names the holders of memory: the site if the recording has stacks and no tags, otherwise the
    /// tag.
    #[must_use]
    pub fn usual(definitions: &Definitions) -> Self {
        if definitions.tag_count() == 0 && definitions.stack_count() > 0 {
            Self::Site
        } else {
            Self::Tag
        }
    }
}

/// The number of properties.
pub(super) const COUNT: usize = 7;

/// Whether names of sites contain line numbers, which change from one version of a program to the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lines {
    /// Names contain line numbers.
    #[default]
    Told,
    /// Names do not contain line numbers, so that two versions have the same names.
    LeftOut,
}

/// The most groups of one property. Further names form one group, so that a hostile file cannot make tables
/// grow without limit.
const MOST: usize = 1 << 18;
/// The most bytes of the names of one property. Names of stacks are long.
const MOST_TEXT: usize = 64 << 20;
/// The bytes of one stack's name after which the name ends.
const MOST_NAME: usize = 1 << 20;
/// The most bytes of the names of stacks that are made, equal ones included.
const MOST_MADE: usize = 1 << 30;
/// The name of the group of blocks that were recorded without a stack.
pub const NO_STACK: &str = "(no stack recorded)";
const BEYOND: &str = "(more groups than are told apart)";

/// Assigns group numbers to blocks as they appear.
pub(super) struct Groups<'a> {
    definitions: &'a Definitions,
    /// The property by which the holders of memory are named.
    usual: By,
    symbols: &'a dyn Symbols,
    lines: Lines,
    ways: [Names; COUNT],
    /// The results of [`own`](Self::own), because stacks share addresses.
    own: Map<u64, Option<String>>,
}

/// Returns the name of the call site of a row, as in a table by [`By::Site`].
#[must_use]
pub fn site(history: &History, symbols: &dyn Symbols, row: &Row) -> String {
    Groups::new(&history.definitions, symbols, Lines::Told).called(By::Site, row)
}

/// The groups of one property.
#[derive(Default)]
struct Names {
    /// Groups by small row numbers.
    near: Vec<u32>,
    /// Groups by all other row numbers.
    far: Map<u64, u32>,
    by_name: Map<String, u32>,
    names: Vec<String>,
    /// Bytes of all names.
    text: usize,
    /// Bytes of all names that were made, equal ones included.
    made: usize,
    /// Whether a name was left out.
    is_full: bool,
}

/// Returns the number in a row that determines its group.
fn key(by: By, row: &Row) -> u64 {
    match by {
        By::Tag => u64::from(row.tag),
        // Recordings whose stacks are text have them in the tag.
        By::Site | By::Stack if row.stack == 0 => u64::from(row.tag),
        By::Site | By::Stack => u64::from(row.stack) << 32,
        By::Pool | By::Kind => u64::from(row.pool),
        By::Stream => u64::from(row.stream),
        By::Thread => u64::from(row.thread),
    }
}

const UNKNOWN: u32 = u32::MAX;
const NEAR: u64 = 1 << 16;

impl Names {
    fn known(&self, key: u64) -> Option<u32> {
        let near = usize::try_from(key).ok().and_then(|at| self.near.get(at));
        match near {
            Some(group) => (*group != UNKNOWN).then_some(*group),
            None => self.far.get(&key).copied(),
        }
    }

    /// Returns the group of a number, and remembers it if at most `most` large numbers are remembered.
    fn enter(&mut self, key: u64, name: String, most: usize) -> u32 {
        self.made = self.made.saturating_add(name.len());
        let is_full = self.names.len() >= MOST || self.text + name.len() > MOST_TEXT;
        let name = if is_full && !self.by_name.contains_key(name.as_str()) {
            self.is_full = true;
            BEYOND.to_owned()
        } else {
            name
        };
        let next = self.names.len() as u32;
        let group = *self.by_name.entry_ref(name.as_str()).or_insert(next);
        if group == next {
            self.text += name.len();
            self.names.push(name);
        }
        if key < NEAR {
            let at = key as usize;
            if self.near.len() <= at {
                self.near.resize(at + 1, UNKNOWN);
            }
            self.near[at] = group;
        } else if self.far.len() < most {
            self.far.insert(key, group);
        }
        group
    }
}

impl<'a> Groups<'a> {
    pub(super) fn new(definitions: &'a Definitions, symbols: &'a dyn Symbols, lines: Lines) -> Self {
        Self {
            definitions,
            usual: By::usual(definitions),
            symbols,
            lines,
            ways: Default::default(),
            own: Map::default(),
        }
    }

    /// Returns the groups of an allocation, indexed by [`By`].
    pub(super) fn of(&mut self, row: &Row) -> [u32; COUNT] {
        By::ALL.map(|by| self.one(by, row))
    }

    fn one(&mut self, by: By, row: &Row) -> u32 {
        match self.ways[by as usize].known(key(by, row)) {
            Some(group) => group,
            None => {
                // The name of a stack takes time, so it is not made if there was no room for another.
                let way = &self.ways[by as usize];
                let is_skipped = by == By::Stack && (way.is_full || way.made > MOST_MADE);
                let name = if is_skipped {
                    BEYOND.to_owned()
                } else {
                    self.called(by, row)
                };
                // All stacks of the recording are remembered, because it takes time to look up their frames.
                let most = MOST.max(self.definitions.stack_count());
                self.ways[by as usize].enter(key(by, row), name, most)
            }
        }
    }

    /// Returns the names of the groups of one property, in the order of their numbers.
    pub(super) fn names(&self, by: By) -> &[String] {
        &self.ways[by as usize].names
    }

    /// Returns the property by which the holders of memory are named: see [`By::usual`].
    pub(super) fn usual(&self) -> By {
        self.usual
    }

    /// Returns the definitions of the numbers in rows.
    pub(super) fn definitions(&self) -> &'a Definitions {
        self.definitions
    }

    /// Returns the name of a group.
    pub(super) fn name(&self, by: By, group: u32) -> &str {
        let names = &self.ways[by as usize].names;
        names.get(group as usize).map_or("", String::as_str)
    }

    /// Returns the groups of one property from their sums and the times of their oldest blocks, in the order of
    /// their numbers. Leaves out groups without blocks.
    pub(super) fn named(&self, by: By, sums: impl Iterator<Item = (Sum, Option<u64>)>) -> Vec<Group> {
        let held = sums.enumerate().filter(|(_, (sum, _))| sum.blocks > 0);
        held.map(|(group, (sum, oldest))| Group {
            name: self.name(by, group as u32).to_owned(),
            sum,
            oldest,
        })
        .collect()
    }

    /// Returns the device of a pool, or -1 for host memory and unknown pools.
    pub(super) fn device(&self, pool: u32) -> i32 {
        self.definitions.pool(pool).map_or(-1, |pool| pool.device)
    }

    /// Returns whether the memory of a pool is pinned.
    pub(super) fn is_pinned(&self, pool: u32) -> bool {
        self.definitions
            .pool(pool)
            .is_some_and(|pool| pool.memory == "pinned")
    }

    fn called(&mut self, by: By, row: &Row) -> String {
        match by {
            By::Tag => self.without_lines(&tag_group(self.definitions.tag(row.tag)), "; "),
            By::Site => self.site(row),
            By::Stack => self.stack(row),
            By::Pool => pool_name(row.pool, self.definitions.pool(row.pool)),
            By::Kind => kind_name(self.definitions.pool(row.pool)),
            By::Stream => format!("stream {}", row.stream),
            By::Thread => match self.definitions.thread(row.thread) {
                "" if row.thread == 0 => "(no thread recorded)".to_owned(),
                "" => format!("thread {}", row.thread),
                name => name.to_owned(),
            },
        }
    }

    fn site(&mut self, row: &Row) -> String {
        if row.stack != 0 {
            let definitions = self.definitions;
            if let Some(name) = definitions.stack(row.stack).find_map(|address| self.own(address)) {
                return name;
            }
            let first = self.symbols.stack(definitions.stack(row.stack)).next();
            return first.map_or_else(|| "(stack not known)".to_owned(), |frame| self.frame(&frame));
        }
        let (labels, stack) = split_tag(self.definitions.tag(row.tag));
        match (backward_site(labels), stack) {
            (Some(site), _) => self.without_lines(&site, "/"),
            (None, "") => NO_STACK.to_owned(),
            (None, stack) => self.bare(tag_site(stack)),
        }
    }

    /// Returns the name of the innermost function of the program at an address, or `None` if all functions there belong to an allocator.
    fn own(&mut self, address: u64) -> Option<String> {
        if let Some(name) = self.own.get(&address) {
            return name.clone();
        }
        let own = self
            .symbols
            .stack(std::iter::once(address))
            .find(|frame| !is_machinery(frame));
        let name = own.map(|frame| self.frame(&frame));
        if self.own.len() < MOST {
            self.own.insert(address, name.clone());
        }
        name
    }

    /// Returns the frames of a stack, each on its own line.
    fn stack(&self, row: &Row) -> String {
        if row.stack != 0 {
            let mut name = String::new();
            let frames = self.symbols.stack(self.definitions.stack(row.stack));
            for frame in frames.skip_while(is_ours) {
                if name.len() > MOST_NAME {
                    break;
                }
                name += if name.is_empty() { "" } else { "\n" };
                name += &self.frame(&frame);
            }
            return match name.is_empty() {
                true => "(stack not known)".to_owned(),
                false => name,
            };
        }
        let (_, stack) = split_tag(self.definitions.tag(row.tag));
        if stack.is_empty() {
            return NO_STACK.to_owned();
        }
        let frames: Vec<String> = split_frames(stack).map(|frame| self.bare(frame)).collect();
        frames.join("\n")
    }

    fn frame(&self, frame: &Frame) -> String {
        let file = frame.file.rsplit('/').next().unwrap_or_default();
        match (file, frame.line, self.lines) {
            ("", ..) => frame.function.clone(),
            (file, 0, _) | (file, _, Lines::LeftOut) => format!("{} ({file})", frame.function),
            (file, line, Lines::Told) => format!("{} ({file}:{line})", frame.function),
        }
    }

    /// Returns a name whose parts may be frames, as [`bare`](Self::bare) does.
    fn without_lines(&self, name: &str, joint: &str) -> String {
        let parts: Vec<String> = name.split(joint).map(|part| self.bare(part)).collect();
        parts.join(joint)
    }

    /// Returns a frame of a textual stack, `file:function:line`, without its line number if line numbers are
    /// left out.
    fn bare(&self, name: &str) -> String {
        let cut = match name.rsplit_once(':') {
            Some((before, line)) if self.lines == Lines::LeftOut && before.contains(':') => {
                (!line.is_empty() && line.bytes().all(|b| b.is_ascii_digit())).then_some(before)
            }
            _ => None,
        };
        cut.unwrap_or(name).to_owned()
    }
}

/// Returns the node of a backward pass, with the forward line if it is known, from the labels that the reader of PyTorch's
/// snapshots makes.
fn backward_site(labels: &str) -> Option<String> {
    let mut fields = labels.strip_prefix("bwd;")?.split(';');
    let (path, _, None) = (fields.next()?, fields.next()?, fields.next()) else {
        return None;
    };
    let is_line = |part: &str| part.contains(".py:");
    let mut parts = path.rsplit('/');
    let node = parts.next().filter(|node| !node.is_empty())?;
    match parts.next().filter(|line| is_line(line)) {
        Some(line) => Some(format!("{node} ({line})")),
        None if is_line(node) || node.starts_with(|c: char| c.is_ascii_uppercase()) => Some(node.to_owned()),
        None => None,
    }
}

/// Path prefixes of functions of allocators and of the standard libraries of Rust and C++, in addition to those of [`PACKAGES`].
const MACHINERY: [&str; 8] = [
    "alloc::",
    "core::",
    "std::",
    "__rust",
    "__rdl",
    "__rg",
    "operator new",
    "__gnu_cxx::",
];
/// The functions of C and of the Python interpreter that allocate.
const ALLOCATES: [&str; 20] = [
    "aligned_alloc",
    "calloc",
    "malloc",
    "memalign",
    "posix_memalign",
    "pvalloc",
    "realloc",
    "reallocarray",
    "strdup",
    "strndup",
    "valloc",
    "PyMem_Calloc",
    "PyMem_Malloc",
    "PyMem_RawCalloc",
    "PyMem_RawMalloc",
    "PyMem_RawRealloc",
    "PyMem_Realloc",
    "PyObject_Calloc",
    "PyObject_Malloc",
    "PyObject_Realloc",
];
/// Prefixes of the names of functions inside the C library and the Python interpreter.
const INTERNAL: [&str; 3] = ["__GI_", "__libc_", "_"];
/// The packages of these functions, except the standard library.
const PACKAGES: [&str; 17] = [
    "millpond",
    "millpond-account",
    "millpond-c",
    "millpond-cuda",
    "millpond-cuda-core",
    "millpond-data",
    "millpond-engine",
    "millpond-intercept",
    "millpond-malloc",
    "millpond-monitor",
    "millpond-os",
    "millpond-pool",
    "millpond-record",
    "millpond-set",
    "millpond-tensor",
    "backtrace",
    "hashbrown",
];

/// Returns whether a frame belongs to an allocator or to a standard library, and not to the program. If a
/// program has only line tables, inlined functions have names without a path. These are recognised by their
/// files.
fn is_machinery(frame: &Frame) -> bool {
    let name = frame.function.trim_start_matches('<');
    // The name of a C++ template begins with its result type.
    let name = name.strip_prefix("void ").unwrap_or(name);
    is_ours(frame)
        || ALLOCATES.contains(&public_name(name))
        || MACHINERY.iter().any(|of| name.starts_with(of))
        || (is_bare(name) && is_of_std(&frame.file))
}

/// Returns whether a frame belongs to one of [`PACKAGES`].
fn is_ours(frame: &Frame) -> bool {
    let name = frame.function.trim_start_matches('<');
    if is_bare(name) {
        return is_of_package(&frame.file);
    }
    let of = name.split("::").next().unwrap_or_default();
    PACKAGES
        .iter()
        .any(|package| of.split('_').eq(package.split('-')))
}

/// Returns whether a function's name does not contain the module or class of the function.
fn is_bare(name: &str) -> bool {
    let path = name.split('<').next().unwrap_or_default();
    !path.is_empty() && !path.contains("::")
}

/// Returns the public name of a function inside the C library or the Python interpreter: `strdup` for `__GI___strdup`.
fn public_name(mut name: &str) -> &str {
    while let Some(rest) = INTERNAL.iter().find_map(|prefix| name.strip_prefix(prefix)) {
        name = rest;
    }
    name
}

fn is_of_std(file: &str) -> bool {
    file.starts_with("/rustc/") && file.contains("/library/")
}

fn is_of_package(file: &str) -> bool {
    let folders: Vec<&str> = file.split('/').collect();
    folders.windows(2).any(|pair| {
        let of = |name: &&str| {
            let rest = pair[0].strip_prefix(*name);
            let version = rest.and_then(|rest| rest.strip_prefix('-'));
            rest == Some("") || version.is_some_and(|of| of.starts_with(|c: char| c.is_ascii_digit()))
        };
        pair[1] == "src" && PACKAGES.iter().any(of)
    })
}

/// Returns the display name of a pool: its own name, and the location of its memory.
pub(super) fn pool_name(number: u32, pool: Option<&Pool>) -> String {
    match pool {
        None if number == 0 => "(no pool recorded)".to_owned(),
        None => format!("pool {number}"),
        Some(pool) => match pool.name.as_str() {
            "" => format!("default ({})", kind_name(Some(pool))),
            name => format!("{name} ({})", kind_name(Some(pool))),
        },
    }
}

/// Returns the kind of a pool's memory, and its device.
pub(super) fn kind_name(pool: Option<&Pool>) -> String {
    match pool {
        None => "(kind not recorded)".to_owned(),
        Some(pool) if pool.memory.is_empty() => "(kind not recorded)".to_owned(),
        Some(pool) if pool.device < 0 => pool.memory.clone(),
        Some(pool) => format!("{}:{}", pool.memory, pool.device),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_of_a_backward_pass_is_its_node_and_forward_line() {
        for (labels, site) in [
            ("bwd;MulBackward0;mul_Tensor", Some("MulBackward0")),
            (
                "bwd;step 3/model.py:forward:12/MulBackward0;mul_Tensor",
                Some("MulBackward0 (model.py:forward:12)"),
            ),
            ("bwd;model.py:forward:12;", Some("model.py:forward:12")),
            ("fwd;layers.3;mm", None),
            ("bwd;layers.3;mm", None),
            ("", None),
        ] {
            assert_eq!(backward_site(labels).as_deref(), site, "{labels}");
        }
    }

    #[test]
    fn inlined_functions_of_the_library_do_not_belong_to_the_program() {
        let frames = [
            (
                "walk<millpond::ledger::stacks::walk>",
                "/home/me/crates/millpond/src/os/stack.rs",
            ),
            (
                "place",
                "/home/me/.cargo/registry/src/index/millpond-engine-0.1.0/src/engine.rs",
            ),
            ("<millpond::pool::Pool>::alloc_zeroed::<u8>", ""),
            ("with_capacity<u8>", "/rustc/0123/library/alloc/src/vec/mod.rs"),
            ("allocate", "/home/me/crates/millpond-malloc/src/blocks.rs"),
            ("operator new[](unsigned long)", ""),
            ("__GI___strdup", "strdup.c"),
            ("__libc_calloc", ""),
            ("_PyObject_Malloc", "obmalloc.c"),
            ("void std::vector<int>::_M_realloc_insert<int>(int&&)", ""),
            ("realloc", ""),
            ("load<alloc::vec::Vec<u8>>", "/home/me/app/src/model.rs"),
            ("millpond_of_mine", "/home/me/millpond-tools/src/main.rs"),
            ("app::main", "/home/me/crates/millpond/src/main.rs"),
        ];
        let is_own = frames.map(|(function, file)| {
            !is_machinery(&Frame {
                function: function.to_owned(),
                file: file.to_owned(),
                line: 1,
            })
        });
        assert_eq!(is_own[..11], [false; 11]);
        assert_eq!(is_own[11..], [true; 3]);
    }
}
