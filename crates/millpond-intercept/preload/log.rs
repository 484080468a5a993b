//! The file of a process, to which events are written.

use crate::format::{self, CHUNK, EVENT, HEADER, LOST, MAGIC, Memory, VERSION, first_word, kind};
use crate::state::{self, Settings};
use crate::sys;
use std::cell::Cell;
use std::fs::OpenOptions;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::sync::atomic::{AtomicU64, Ordering};

/// The words of a chunk.
const WORDS: usize = CHUNK / 8;

/// An event to write.
#[derive(Clone, Copy)]
pub(crate) struct Event {
    pub(crate) kind: u8,
    pub(crate) memory: Memory,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) requested: u64,
    pub(crate) stream: u64,
    pub(crate) device: i32,
    pub(crate) pool: u64,
    pub(crate) stack: u32,
}

/// The log of this process. All zeros mean that it has not begun.
///
/// # Invariant
/// `chunk` is null, or a shared mapping of [`WORDS`] words that is never unmapped. The words up to `used` are written.
pub(crate) struct Log {
    /// The number in the file's name.
    number: u32,
    /// Whether the file could not be created or extended. Then nothing is written.
    failed: bool,
    chunk: *const AtomicU64,
    header: *const AtomicU64,
    used: usize,
    chunks: usize,
}

/// An event that was written, and that can be withdrawn.
#[derive(Clone, Copy)]
pub(crate) struct Written(*const AtomicU64);

impl Written {
    /// Withdraws the event.
    pub(crate) fn withdraw(self) {
        // SAFETY: it points into a chunk, which by the invariant of `Log` is never unmapped.
        let first = unsafe { &*self.0 };
        first.store(first_word(kind::WITHDRAWN, 0, EVENT), Ordering::Release);
    }
}

/// Words of a chunk that are reserved for a record.
struct Room(*const AtomicU64, usize);

impl Room {
    /// Writes the words and then the first one, which makes the record valid.
    fn write(self, first: u64, words: impl Iterator<Item = u64>) -> Written {
        for (at, word) in words.take(self.1 - 1).enumerate() {
            // SAFETY: the room has `self.1` words.
            let place = unsafe { self.0.add(at + 1) };
            // SAFETY: the word is in a chunk, which by the invariant of `Log` is never unmapped.
            unsafe { &*place }.store(word, Ordering::Relaxed);
        }
        // SAFETY: as above.
        unsafe { &*self.0 }.store(first, Ordering::Release);
        Written(self.0)
    }
}

impl Log {
    /// Reserves words. The first call begins the log.
    fn room(&mut self, words: usize) -> Option<Room> {
        if self.chunk.is_null() && !self.failed {
            self.failed = state::settings()
                .and_then(|settings| self.begin(settings))
                .is_none();
        }
        if self.used + words > WORDS && !self.failed {
            self.failed = self.extend().is_none();
        }
        if self.failed {
            self.lose();
            return None;
        }
        // SAFETY: by the check above the word is in the chunk.
        let at = unsafe { self.chunk.add(self.used) };
        self.used += words;
        Some(Room(at, words))
    }

    fn lose(&self) {
        if !self.header.is_null() {
            // SAFETY: the header is in the first chunk.
            let lost = unsafe { self.header.add(LOST) };
            // SAFETY: by the invariant of `Log` the first chunk is never unmapped.
            unsafe { &*lost }.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Creates the file. If the process has called `exec`, it already has a file, so the name contains a number.
    #[cold]
    fn begin(&mut self, settings: &Settings) -> Option<()> {
        let process = std::process::id();
        let mut options = OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let is_new = |number: &u32| options.open(settings.log(process, *number)).is_ok();
        self.number = (0..1000).find(is_new)?;
        self.extend()?;
        self.header = self.chunk;
        let header = [
            VERSION,
            u64::from(process),
            u64::from(std::os::unix::process::parent_id()),
            sys::wall_clock(),
            sys::steady_clock(),
            settings.limit.unwrap_or(0),
            0,
        ];
        Room(self.chunk, HEADER).write(MAGIC, header.into_iter());
        self.used = HEADER;
        if let Ok(path) = std::fs::read_link("/proc/self/exe") {
            let path = path.as_os_str().as_bytes();
            self.text(kind::PROGRAM, &[path.len() as u64], &[path]);
        }
        Some(())
    }

    /// Maps the next chunk of the file.
    #[cold]
    fn extend(&mut self) -> Option<()> {
        // The file is opened again, because programs close descriptors that they do not know.
        let path = state::settings()?.log(std::process::id(), self.number);
        let file = OpenOptions::new().read(true).write(true).open(path).ok()?;
        let next = sys::mapped(&file, self.chunks * CHUNK, CHUNK)?;
        if !self.chunk.is_null() && self.used < WORDS {
            // SAFETY: the word is in the chunk.
            let rest = unsafe { self.chunk.add(self.used) };
            Room(rest, 1).write(first_word(kind::SKIP, 0, WORDS - self.used), std::iter::empty());
        }
        self.chunk = next.cast();
        self.used = 0;
        self.chunks += 1;
        Some(())
    }

    /// Writes an event with the current time.
    pub(crate) fn event(&mut self, event: &Event) -> Option<Written> {
        let thread = self.thread();
        let room = self.room(EVENT)?;
        let words = [
            sys::steady_clock(),
            event.address,
            event.bytes,
            event.requested,
            event.stream,
            u64::from(event.device as u32) | u64::from(thread) << 32,
            event.pool,
            u64::from(event.stack),
        ];
        Some(room.write(
            first_word(event.kind, event.memory as u8, EVENT),
            words.into_iter(),
        ))
    }

    /// Writes numbers.
    pub(crate) fn words(&mut self, kind: u8, words: &[u64]) {
        if let Some(room) = self.room(1 + words.len()) {
            room.write(first_word(kind, 0, 1 + words.len()), words.iter().copied());
        }
    }

    /// Writes numbers and then texts, each filled with zeros to whole words.
    pub(crate) fn text(&mut self, kind: u8, numbers: &[u64], texts: &[&[u8]]) {
        let words = 1 + numbers.len() + texts.iter().map(|text| text.len().div_ceil(8)).sum::<usize>();
        if words > WORDS - HEADER {
            return self.lose();
        }
        if let Some(room) = self.room(words) {
            let texts = texts.iter().flat_map(|text| text.chunks(8)).map(|bytes| {
                let mut word = [0; 8];
                word[..bytes.len()].copy_from_slice(bytes);
                u64::from_ne_bytes(word)
            });
            room.write(first_word(kind, 0, words), numbers.iter().copied().chain(texts));
        }
    }

    /// Returns the number of this thread, and writes its name with its first event.
    fn thread(&mut self) -> u32 {
        thread_local! {
            /// The number of the thread, and the log in which it is defined.
            static KNOWN: Cell<(u32, i32)> = const { Cell::new((0, 0)) };
        }
        let (known, process) = KNOWN.get();
        if known != 0 && process == self.process() {
            return known;
        }
        let thread = sys::thread();
        let name = sys::thread_name();
        self.text(kind::THREAD, &[u64::from(thread)], &[&name]);
        KNOWN.set((thread, self.process()));
        thread
    }

    /// Returns the process ID in the log's header, or 0 without a log. A fork changes this value.
    fn process(&self) -> i32 {
        if self.header.is_null() {
            return 0;
        }
        // SAFETY: the header is in the first chunk.
        let process = unsafe { self.header.add(2) };
        // SAFETY: by the invariant of `Log` the first chunk is never unmapped.
        unsafe { &*process }.load(Ordering::Relaxed) as i32
    }
}

/// Marks the log as complete, if there is one.
pub(crate) fn end() {
    if state::settings().is_none() {
        return;
    }
    let _ = state::with(|state| {
        if !state.log.chunk.is_null() {
            state.log.words(format::kind::END, &[sys::steady_clock()]);
        }
    });
}
