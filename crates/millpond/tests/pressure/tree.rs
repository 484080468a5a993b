//! A folder that simulates the system's files about memory pressure.

use millpond::pressure::Readings;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// The folder, which is removed on drop.
pub(crate) struct Tree {
    root: PathBuf,
}

impl Tree {
    /// Returns a machine with 16 GiB, 12 of them available, without limits and cgroups.
    pub(crate) fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "millpond-pressure-{}-{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let tree = Self {
            root: std::env::temp_dir().join(name),
        };
        tree.machine(16 << 30, 12 << 30);
        tree.write("proc/sys/vm/overcommit_memory", "0\n");
        tree.limits("unlimited", "unlimited");
        tree.process(1 << 30, 1 << 30, 1 << 28);
        tree.stalled("proc/pressure/memory", "0.00", "0.00");
        tree
    }

    /// Returns a machine with a cgroup of version 2 at this path, mounted in `/sys/fs/cgroup`.
    pub(crate) fn version_2(path: &str) -> Self {
        let tree = Self::new();
        tree.write("proc/self/cgroup", format!("0::{path}\n"));
        tree.write(
            "proc/self/mountinfo",
            "25 30 0:22 / /proc rw - proc proc rw\n31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw\n",
        );
        tree
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn readings(&self) -> Readings {
        Readings::under(&self.root)
    }

    /// Replaces a file at once, because the system's files are never half written.
    pub(crate) fn write(&self, path: &str, text: impl AsRef<[u8]>) {
        let path = self.root.join(path);
        fs::create_dir_all(path.parent().expect("a folder")).expect("folders");
        let new = path.with_extension("new");
        fs::write(&new, text).expect("a file");
        fs::rename(&new, &path).expect("in place");
    }

    pub(crate) fn remove(&self, path: &str) {
        let _ = fs::remove_file(self.root.join(path));
    }

    pub(crate) fn machine(&self, total: u64, available: u64) {
        let free = available / 2;
        let text = format!(
            "MemTotal: {} kB\nMemFree: {} kB\nMemAvailable: {} kB\nSwapTotal: 2048 kB\nSwapFree: 1024 kB\n\
             CommitLimit: 8388608 kB\nCommitted_AS: 7969178 kB\nHugePages_Total: 0\n",
            total >> 10,
            free >> 10,
            available >> 10
        );
        self.write("proc/meminfo", text);
    }

    pub(crate) fn limits(&self, addresses: &str, data: &str) {
        let row = |name: &str, soft: &str| format!("{name:<26}{soft:<21}{:<21}bytes     \n", "unlimited");
        let text = "Limit                     Soft Limit           Hard Limit           Units     \n"
            .to_owned()
            + &row("Max data size", data)
            + &row("Max resident set", "unlimited")
            + &row("Max address space", addresses);
        self.write("proc/self/limits", text);
    }

    pub(crate) fn process(&self, addresses: u64, data: u64, resident: u64) {
        let text = format!(
            "Name:\tx\nVmSize:\t{} kB\nVmRSS:\t{} kB\nVmData:\t{} kB\n",
            addresses >> 10,
            resident >> 10,
            data >> 10
        );
        self.write("proc/self/status", text);
    }

    pub(crate) fn stalled(&self, path: &str, some: &str, full: &str) {
        let line = |kind, avg| format!("{kind} avg10={avg} avg60=0.50 avg300=0.25 total=12\n");
        self.write(path, line("some", some) + &line("full", full));
    }

    /// Writes a cgroup folder of version 2.
    pub(crate) fn folder(&self, path: &str, max: &str, high: &str, current: u64, inactive: u64, active: u64) {
        let folder = format!("sys/fs/cgroup{path}");
        self.write(&format!("{folder}/cgroup.type"), "domain\n");
        self.write(&format!("{folder}/memory.max"), format!("{max}\n"));
        self.write(&format!("{folder}/memory.high"), format!("{high}\n"));
        self.write(&format!("{folder}/memory.current"), format!("{current}\n"));
        let stat = format!("anon 5\ninactive_file {inactive}\nactive_file {active}\n");
        self.write(&format!("{folder}/memory.stat"), stat);
        self.events(path, [0; 4]);
    }

    /// Writes the number of events of limits: high, max, out of memory, killed.
    pub(crate) fn events(&self, path: &str, [high, max, oom, kill]: [u64; 4]) {
        let text = format!("low 0\nhigh {high}\nmax {max}\noom {oom}\noom_kill {kill}\noom_group_kill 0\n");
        self.write(&format!("sys/fs/cgroup{path}/memory.events.local"), text);
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}
