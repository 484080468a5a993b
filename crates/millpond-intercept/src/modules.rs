//! The code modules of a process.

use crate::owner;

/// The modules in the order in which they were written.
pub(crate) struct Modules {
    all: Vec<Module>,
    /// The number of modules before the record that is being read. Threads may write a stack before its modules.
    pub(crate) defined: usize,
    /// The path of the program.
    program: String,
}

struct Module {
    address: u64,
    bytes: u64,
    name: String,
}

impl Modules {
    pub(crate) fn new(program: String) -> Self {
        Self {
            all: Vec::new(),
            defined: 0,
            program,
        }
    }

    /// Adds a module.
    pub(crate) fn push(&mut self, address: u64, bytes: u64, path: String) {
        let name = owner::name(&self.path(path));
        self.all.push(Module { address, bytes, name });
    }

    /// Returns the path of a module. The loader reports an empty path for the program itself.
    pub(crate) fn path(&self, path: String) -> String {
        if path.is_empty() {
            self.program.clone()
        } else {
            path
        }
    }

    /// Returns the name of the module that contains the call before a return address: the newest one defined so far, or else the first
    /// one defined later.
    pub(crate) fn name_at(&self, address: u64) -> Option<&str> {
        let holds = |module: &&Module| {
            let end = module.address.saturating_add(module.bytes);
            (module.address..end).contains(&address.saturating_sub(1))
        };
        let (before, after) = self.all.split_at(self.defined.min(self.all.len()));
        let found = before
            .iter()
            .rev()
            .find(holds)
            .or_else(|| after.iter().find(holds));
        found.map(|module| module.name.as_str())
    }
}
