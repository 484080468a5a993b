//! Makes recordings row by row, in files that are removed when the test ends.

use millpond_trace::ReadOptions;
use millpond_trace::history::History;
use millpond_trace::recording::{Kind, Row, Writer};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

/// A recording that is being made.
pub(in crate::analysis) struct Made {
    writer: Writer<Vec<u8>>,
    time: u64,
    newest: u64,
}

/// A file that is removed when it is dropped.
pub(in crate::analysis) struct Scratch(pub(in crate::analysis) PathBuf);

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Scratch {
    pub(in crate::analysis) fn new(bytes: &[u8]) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("millpond-analysis-{}-{number}.mpr", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, bytes).expect("room for a small file");
        Self(path)
    }

    pub(in crate::analysis) fn open(&self) -> History {
        History::open(&self.0, &ReadOptions::default()).expect("a recording")
    }
}

impl Made {
    /// Starts a recording with the tags `tag 0`, `tag 1` and so on, and with pools on device 0. Pool 1 has
    /// device memory, and pool 2 has pinned memory.
    pub(in crate::analysis) fn new(tags: u32) -> Self {
        let mut made = Self {
            writer: Writer::new(Vec::new(), &[("program".to_owned(), "made".to_owned())]).expect("memory"),
            time: 0,
            newest: 0,
        };
        for number in 1..=tags {
            let row = Row {
                tag: number,
                ..Row::new(Kind::DefineTag, 0)
            };
            made.say(&row, &format!("tag {number}"), None);
        }
        for (number, text) in [(1, "cuda\ndevice"), (2, "pinned\nstaging")] {
            let row = Row {
                pool: number,
                ..Row::new(Kind::DefinePool, 0)
            };
            made.say(&row, text, Some(&[0]));
        }
        made
    }

    pub(in crate::analysis) fn say(&mut self, row: &Row, text: &str, list: Option<&[u64]>) {
        self.writer.say(row, Some(text), list).expect("memory");
    }

    pub(in crate::analysis) fn row(&mut self, row: Row) {
        self.time = row.time;
        self.newest = self.newest.max(row.id);
        self.writer.push(&row).expect("memory");
    }

    /// Appends an event one microsecond later.
    pub(in crate::analysis) fn next(&mut self, row: Row) -> Row {
        let row = Row {
            time: self.time + 1_000,
            ..row
        };
        self.row(row);
        row
    }

    pub(in crate::analysis) fn alloc(&mut self, tag: u32, bytes: u64) -> Row {
        let row = Row {
            id: self.newest + 1,
            bytes,
            requested: bytes,
            pool: 1,
            tag,
            thread: 1,
            ..Row::new(Kind::Alloc, 0)
        };
        self.next(row)
    }

    pub(in crate::analysis) fn free(&mut self, of: Row) -> Row {
        self.next(Row {
            kind: Kind::Free,
            ..of
        })
    }

    pub(in crate::analysis) fn bytes(self) -> Vec<u8> {
        let time = self.time;
        self.writer.finish(time).expect("memory")
    }

    pub(in crate::analysis) fn history(self) -> (Scratch, History) {
        let file = Scratch::new(&self.bytes());
        let history = file.open();
        (file, history)
    }
}
