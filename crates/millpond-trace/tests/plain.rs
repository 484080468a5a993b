//! Compares the fast path for plain dicts with reading the same dicts opcode by opcode.
//!
//! The reader recognises a plain dict by `}`, MEMOIZE and a mark. A twin of each file has LONG_BINPUT instead of that
//! MEMOIZE and is padded to the same length. It must give the same recording or the same error.

#![allow(clippy::unwrap_used, reason = "tests")]

use millpond_trace::{ReadOptions, read_bytes, read_from};
use std::io::Read;

/// A piece of a pickle.
#[derive(Clone)]
enum Token {
    /// The beginning of a dict, up to its mark.
    Open,
    Memoize,
    /// A reference to the value that was memoised last.
    Again,
    Bytes(Vec<u8>),
}

/// The replacement of MEMOIZE in the twin is four bytes longer. PROTO has no effect at any position.
const PADDING: &[u8] = b"\x80\x04\x80\x04";

/// Returns the file, and the positions at which its dicts begin.
fn written(tokens: &[Token], plain: bool) -> (Vec<u8>, Vec<usize>) {
    let mut out = b"\x80\x04".to_vec();
    let mut openings = Vec::new();
    let mut memoised = 0u32;
    for token in tokens {
        match token {
            Token::Open => {
                openings.push(out.len());
                if plain {
                    out.extend_from_slice(PADDING);
                    out.extend_from_slice(b"}\x94(");
                } else {
                    out.extend_from_slice(b"}r");
                    out.extend_from_slice(&memoised.to_le_bytes());
                    out.push(b'(');
                }
                memoised += 1;
            }
            Token::Memoize => {
                out.push(0x94);
                memoised += 1;
            }
            Token::Again => {
                out.push(b'j');
                out.extend_from_slice(&memoised.saturating_sub(1).to_le_bytes());
            }
            Token::Bytes(bytes) => {
                if let [b'q', at] = bytes[..] {
                    memoised = memoised.max(u32::from(at) + 1);
                }
                out.extend_from_slice(bytes);
            }
        }
    }
    (out, openings)
}

/// Writes values as CPython does: names are memoised at their first use and referenced later.
#[derive(Default)]
struct Writer {
    tokens: Vec<Token>,
    names: Vec<(String, u32)>,
    memoised: u32,
}

impl Writer {
    fn raw(&mut self, bytes: &[u8]) {
        self.tokens.push(Token::Bytes(bytes.to_vec()));
    }

    fn memoize(&mut self) -> u32 {
        self.tokens.push(Token::Memoize);
        self.memoised += 1;
        self.memoised - 1
    }

    fn open(&mut self) -> u32 {
        self.tokens.push(Token::Open);
        self.memoised += 1;
        self.memoised - 1
    }

    /// Writes a snapshot up to the blocks of its first segment.
    fn open_segment(&mut self, bytes: u64) {
        self.open();
        self.name("segments");
        self.raw(b"](");
        self.open();
        self.field("address", 1 << 40);
        self.field("total_size", bytes);
        self.name("blocks");
        self.raw(b"](");
    }

    fn get(&mut self, at: u32) {
        match u8::try_from(at) {
            Ok(at) => self.raw(&[b'h', at]),
            Err(_) => self.raw(&[&b"j"[..], &at.to_le_bytes()].concat()),
        }
    }

    fn name(&mut self, name: &str) {
        if let Some((_, at)) = self.names.iter().find(|(known, _)| known == name) {
            return self.get(*at);
        }
        self.text(name);
        let at = self.memoize();
        self.names.push((name.to_owned(), at));
    }

    /// Writes a text that is not memoised.
    fn text(&mut self, text: &str) {
        self.raw(&[&[0x8c, text.len() as u8], text.as_bytes()].concat());
    }

    fn int(&mut self, int: u64) {
        match int {
            0..=0xff => self.raw(&[b'K', int as u8]),
            0x100..=0xffff => self.raw(&[&b"M"[..], &(int as u16).to_le_bytes()].concat()),
            0x1_0000..=0x7fff_ffff => self.raw(&[&b"J"[..], &(int as u32).to_le_bytes()].concat()),
            _ => {
                let mut digits = int.to_le_bytes().to_vec();
                while digits.len() > 1 && digits.ends_with(&[0]) && digits[digits.len() - 2] < 0x80 {
                    digits.pop();
                }
                self.raw(&[&[0x8a, digits.len() as u8], &digits[..]].concat());
            }
        }
    }

    fn field(&mut self, key: &str, int: u64) {
        self.name(key);
        self.int(int);
    }

    fn frame(&mut self, line: u64) -> u32 {
        let at = self.open();
        self.name("filename");
        self.name("model.py");
        self.name("line");
        self.int(line);
        self.name("name");
        self.name(if line.is_multiple_of(2) { "forward" } else { "step" });
        self.raw(b"u");
        at
    }

    fn event(&mut self, action: &str, address: u64, frames: &[u32]) {
        self.open();
        self.name("action");
        self.name(action);
        self.field("addr", address);
        self.field("size", address % 100_000);
        self.field("stream", 0);
        self.field("time_us", 1_700_000_000_000_000 + address);
        self.name("compile_context");
        self.text("N/A");
        self.memoize();
        self.name("frames");
        self.raw(b"]");
        self.memoize();
        self.raw(b"(");
        for &frame in frames {
            self.get(frame);
        }
        self.raw(b"eu");
    }

    /// Writes a block of the oldest schema. Each of its frames is a separate dict.
    fn block(&mut self, address: u64, lines: &[u64]) {
        self.open();
        self.field("address", address);
        self.field("size", 512);
        self.name("state");
        self.name("active_allocated");
        self.name("history");
        self.raw(b"]");
        self.memoize();
        self.open();
        self.field("real_size", 500);
        self.name("frames");
        self.raw(b"]");
        self.memoize();
        self.raw(b"(");
        for &line in lines {
            self.frame(line);
        }
        self.raw(b"euau");
    }
}

/// Returns a snapshot with everything that the fast path handles: shared frames, separate frames, consecutive equal
/// ones, and events with numbers of every width. It also has a few values that the fast path does not handle.
fn snapshot() -> Vec<Token> {
    let mut out = Writer::default();
    out.open();
    out.name("segments");
    out.raw(b"](");
    out.open();
    out.field("device", 0);
    out.field("address", 1 << 40);
    out.field("total_size", 4096);
    out.name("segment_pool_id");
    out.raw(b"K\x00K\x01\x86");
    out.memoize();
    out.name("is_expandable");
    out.raw(b"\x89");
    out.name("blocks");
    out.raw(b"](");
    for (at, lines) in [[10, 11, 12], [10, 11, 13], [10, 11, 12], [12, 11, 10]]
        .iter()
        .enumerate()
    {
        out.block((1 << 40) + 512 * at as u64, lines);
    }
    out.raw(b"eue");
    out.name("device_traces");
    out.raw(b"](](");
    let mut frames = Vec::new();
    for line in 20..24 {
        frames.push(out.frame(line));
        out.raw(b"0");
    }
    for at in 0..6u64 {
        let address = (1 << (8 * at.min(5))) + 512 * at;
        let stack = &frames[at as usize % 3..];
        out.event("alloc", address, stack);
        out.event("free_requested", address, stack);
        out.event("free_completed", address, stack);
    }
    // More keys than the fast path can keep.
    out.open();
    out.name("action");
    out.name("alloc");
    for at in 0..20 {
        out.field(&format!("other{at}"), at);
    }
    out.field("size", 1);
    out.field("addr", 1 << 40);
    out.raw(b"ueeu.");
    out.tokens
}

/// Returns the recording or the error as text.
fn outcome(bytes: &[u8]) -> String {
    let read = read_bytes(bytes, "plain", &ReadOptions::default());
    format!("{:?}", read.map_err(|error| error.to_string()))
}

#[track_caller]
fn same_as_twin(tokens: &[Token], what: &dyn std::fmt::Display) {
    let (plain, _) = written(tokens, true);
    let (twin, _) = written(tokens, false);
    assert_eq!(outcome(&plain), outcome(&twin), "{what}");
}

#[test]
fn a_snapshot_reads_as_its_twin() {
    let tokens = snapshot();
    same_as_twin(&tokens, &"whole");
    let read = outcome(&written(&tokens, true).0);
    assert!(
        read.contains("model.py:forward:10") && read.contains("model.py:step:23"),
        "{read}"
    );
    assert!(read.contains("allocations: 10"), "{read}");
}

#[test]
fn any_bytes_at_any_position_read_as_in_the_twin() {
    let others: [&[u8]; 20] = [
        b"",
        b"N",
        b"K\x01",
        b"h\x00",
        b"j\x05\0\0\0",
        b"j\xff\xff\0\0",
        b"J\xff\xff\xff\xff",
        b"\x8a\x00",
        b"\x8a\x01\x80",
        b"\x8a\x09\0\0\0\0\0\0\0\0\x01",
        b"\x8c\x04addr",
        b"\x88",
        b"]",
        b"}",
        b"(",
        b"0",
        b"2",
        b"u",
        b"\x86",
        b"q\x05",
    ];
    let others = others
        .map(|bytes| Token::Bytes(bytes.to_vec()))
        .into_iter()
        .chain([Token::Memoize, Token::Again, Token::Open]);
    let tokens = snapshot();
    for other in others {
        for at in 0..tokens.len() {
            let mut replaced = tokens.clone();
            replaced[at] = other.clone();
            same_as_twin(&replaced, &format_args!("token {at} replaced"));
            let mut added = tokens.clone();
            added.insert(at, other.clone());
            same_as_twin(&added, &format_args!("token {at} added"));
        }
    }
}

#[test]
fn a_file_cut_at_any_position_reads_as_its_twin() {
    let tokens = snapshot();
    let (plain, openings) = written(&tokens, true);
    let (twin, _) = written(&tokens, false);
    assert_eq!(plain.len(), twin.len());
    let within_opening = |at: usize| openings.iter().any(|&from| (from..from + 7).contains(&at));
    for at in 0..plain.len() {
        let cut = outcome(&plain[..at]);
        assert!(cut.starts_with("Err"), "cut at {at}: {cut}");
        if !within_opening(at) {
            assert_eq!(cut, outcome(&twin[..at]), "cut at {at}");
        }
    }
}

/// Returns a few bytes for each read.
struct Pieces<'a> {
    rest: &'a [u8],
    most: usize,
}

impl Read for Pieces<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let most = self.most.min(buffer.len());
        self.rest.read(&mut buffer[..most])
    }
}

#[test]
fn a_file_read_in_small_pieces_gives_the_same_recording() {
    let (plain, _) = written(&snapshot(), true);
    // The bytes for format detection are buffered at once, so unused bytes come first.
    let ballast = 80_000u32;
    let mut bytes = b"\x80\x04B".to_vec();
    bytes.extend_from_slice(&ballast.to_le_bytes());
    bytes.resize(bytes.len() + ballast as usize, 0);
    bytes.push(b'0');
    bytes.extend_from_slice(&plain);
    let whole = outcome(&bytes);
    assert!(whole.starts_with("Ok"), "{whole}");
    for most in 1..64 {
        let pieces = Pieces { rest: &bytes, most };
        let read = read_from(pieces, "plain", None, &ReadOptions::default());
        assert_eq!(
            format!("{:?}", read.map_err(|error| error.to_string())),
            whole,
            "{most} at a time"
        );
    }
}

#[test]
fn a_name_that_changes_between_equal_frames_is_read_correctly() {
    let mut out = Writer::default();
    out.open_segment(1024);
    out.block(1 << 40, &[10, 12, 14]);
    let forward = out.names.iter().find(|(name, _)| name == "forward").unwrap().1;
    out.block((1 << 40) + 512, &[10, 12, 14]);
    // Stores another word under the number of `forward`.
    out.text("backward");
    out.raw(&[b'q', forward as u8, b'0']);
    out.block((1 << 40) + 1024, &[10, 12, 14]);
    out.raw(b"eue");
    out.name("device_traces");
    out.raw(b"](](");
    out.event("alloc", 7, &[]);
    out.event("alloc", 8, &[]);
    // The event after this one has no address.
    let addr = out.names.iter().find(|(name, _)| name == "addr").unwrap().1;
    out.text("other");
    out.raw(&[b'q', addr as u8, b'0']);
    out.event("alloc", 9, &[]);
    out.raw(b"eeu.");
    same_as_twin(&out.tokens, &"a changed name");
    let read = outcome(&written(&out.tokens, true).0);
    assert!(
        read.contains("model.py:forward:10") && read.contains("model.py:backward:10"),
        "{read}"
    );
    assert!(read.contains("Counted(UnreadableEvents, 1)"), "{read}");
}

#[test]
fn equal_frames_that_memoise_a_name_each_are_read_correctly() {
    let mut out = Writer::default();
    out.open_segment(512);
    out.open();
    out.field("size", 512);
    out.name("state");
    out.name("active_allocated");
    out.name("frames");
    out.raw(b"](");
    for at in [1, 2, 1, 2, 1, 2] {
        out.open();
        out.field("line", at);
        out.name("name");
        out.name("forward");
        out.name("filename");
        out.text(["a.py", "b.py"][at as usize - 1]);
        out.memoize();
        out.raw(b"u");
    }
    out.tokens.push(Token::Again);
    out.raw(b"eueueu.");
    same_as_twin(&out.tokens, &"names memoised anew");
    let read = outcome(&written(&out.tokens, true).0);
    assert!(
        read.contains("allocated_bytes: 512") && !read.contains("Err"),
        "{read}"
    );
}
