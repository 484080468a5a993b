//! Resolves the addresses of a recording to names when they are needed. The names come from the files that the recorded process
//! had loaded, as far as they exist on this machine.
//!
//! Names are never guessed. A file is used only if its build id is the recorded one. A file that has changed, is missing or
//! cannot be identified gives no names and is counted. Names in the recording itself have priority, because the recorder had
//! access to the process.
//!
//! ```text
//!  address  ->  module of the recording  ->  the file, or its debug file by build id  ->  functions, inlined ones included
//! ```

mod code;
mod elf;

use code::Code;
use elf::{Refused, find};
use millpond_trace::history::{Definitions, Frame, Module, Symbols};
use std::cell::{OnceCell, RefCell};
use std::collections::HashMap;

/// The most addresses whose names are cached.
const MOST_CACHED: usize = 1 << 20;
/// The most modules that a sentence names.
const NAMED: usize = 3;

/// Resolves addresses with the modules of a recording.
pub(crate) struct ModuleSymbols<'a> {
    definitions: &'a Definitions,
    modules: Vec<Loaded<'a>>,
    cache: RefCell<HashMap<u64, Vec<Frame>>>,
}

struct Loaded<'a> {
    module: &'a Module,
    /// Read when one of its addresses is first needed.
    code: OnceCell<Result<Code, Refused>>,
}

impl<'a> ModuleSymbols<'a> {
    pub(crate) fn new(definitions: &'a Definitions) -> Self {
        let loaded = |module| Loaded {
            module,
            code: OnceCell::new(),
        };
        let mut modules: Vec<_> = definitions.modules().iter().map(loaded).collect();
        modules.sort_by_key(|loaded| loaded.module.address);
        Self {
            definitions,
            modules,
            cache: RefCell::default(),
        }
    }

    fn module_of(&self, address: u64) -> Option<&Loaded<'a>> {
        let next = self
            .modules
            .partition_point(|loaded| loaded.module.address <= address);
        let loaded = self.modules.get(next.checked_sub(1)?)?;
        (address - loaded.module.address < loaded.module.bytes).then_some(loaded)
    }

    fn look_up(&self, address: u64) -> Vec<Frame> {
        // Recorded addresses are return addresses. The call itself is before them, possibly on another line.
        let Some(call) = address.checked_sub(1) else {
            return Vec::new();
        };
        let Some(loaded) = self.module_of(call) else {
            return Vec::new();
        };
        let code = loaded
            .code
            .get_or_init(|| find(loaded.module).and_then(|files| Code::new(files, loaded.module)));
        match code {
            Ok(code) => code.frames(call.wrapping_sub(loaded.module.base)),
            Err(_) => Vec::new(),
        }
    }

    /// Returns one sentence for each reason why requested addresses have no names.
    pub(crate) fn cautions(&self) -> Vec<String> {
        let mut sentences = Vec::new();
        for reason in Refused::ALL {
            let refused = self
                .modules
                .iter()
                .filter(|loaded| matches!(loaded.code.get(), Some(Err(found)) if *found == reason));
            let mut paths: Vec<&str> = refused.map(|loaded| loaded.module.path.as_str()).collect();
            paths.sort_unstable();
            paths.dedup();
            let more = match paths.len().saturating_sub(NAMED) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            if !paths.is_empty() {
                paths.truncate(NAMED);
                sentences.push(format!(
                    "no names for code in {}{more}: {reason}",
                    paths.join(", ")
                ));
            }
        }
        sentences
    }
}

impl Symbols for ModuleSymbols<'_> {
    fn frames(&self, address: u64) -> Vec<Frame> {
        let recorded = self.definitions.frames(address);
        if !recorded.is_empty() {
            return recorded.to_vec();
        }
        if let Some(frames) = self.cache.borrow().get(&address) {
            return frames.clone();
        }
        let frames = self.look_up(address);
        let mut cache = self.cache.borrow_mut();
        if cache.len() < MOST_CACHED {
            cache.insert(address, frames.clone());
        }
        frames
    }

    /// Returns the file and the offset of the address, as in `libssl.so.3+0x1a2b`, which are the same in each run of the program.
    fn place(&self, address: u64) -> String {
        match address.checked_sub(1).and_then(|call| self.module_of(call)) {
            None => format!("{address:#x}"),
            Some(Loaded { module, .. }) => {
                let file = module.path.rsplit('/').next().unwrap_or_default();
                format!("{file}+{:#x}", address.wrapping_sub(module.base))
            }
        }
    }
}

#[cfg(test)]
mod tests;
