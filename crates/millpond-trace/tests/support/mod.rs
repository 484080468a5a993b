//! A small pickle writer, and functions that create snapshots for tests.
#![allow(
    dead_code,
    clippy::unwrap_used,
    reason = "test support; each test binary uses a part"
)]

use millpond_trace::{ReadError, ReadOptions, Recording, read_bytes};

/// A Python value.
#[derive(Clone, Debug)]
pub(crate) enum Py {
    None,
    Bool(bool),
    Int(i128),
    Float(f64),
    Str(String),
    List(Vec<Py>),
    Tuple(Vec<Py>),
    Dict(Vec<(String, Py)>),
    /// Memoised under a number when first written, and referenced afterwards.
    Shared(u32, Box<Py>),
}

impl From<i128> for Py {
    fn from(int: i128) -> Self {
        Self::Int(int)
    }
}
impl From<u64> for Py {
    fn from(int: u64) -> Self {
        Self::Int(int.into())
    }
}
impl From<i32> for Py {
    fn from(int: i32) -> Self {
        Self::Int(int.into())
    }
}
impl From<bool> for Py {
    fn from(bool: bool) -> Self {
        Self::Bool(bool)
    }
}
impl From<&str> for Py {
    fn from(text: &str) -> Self {
        Self::Str(text.to_owned())
    }
}
impl From<Vec<Py>> for Py {
    fn from(items: Vec<Py>) -> Self {
        Self::List(items)
    }
}

/// Creates a dict: `dict! { "key" => value, ... }`.
#[macro_export]
macro_rules! dict {
    ($($key:expr => $value:expr),* $(,)?) => {
        $crate::support::Py::Dict(vec![$(($key.to_owned(), $crate::support::Py::from($value))),*])
    };
}

/// Pickles `value` in a protocol.
pub(crate) fn pickle(value: &Py, protocol: u8) -> Vec<u8> {
    let mut out = Vec::new();
    if protocol >= 2 {
        out.extend([0x80, protocol]);
    }
    write(value, protocol, &mut out, &mut Vec::new());
    out.push(b'.');
    out
}

fn write(value: &Py, protocol: u8, out: &mut Vec<u8>, memo: &mut Vec<u32>) {
    match value {
        Py::None => out.push(b'N'),
        Py::Bool(bool) if protocol >= 2 => out.push(if *bool { 0x88 } else { 0x89 }),
        Py::Bool(bool) => out.extend(format!("I{:02}\n", u8::from(*bool)).bytes()),
        Py::Int(int) => write_int(*int, protocol, out),
        Py::Float(float) if protocol >= 1 => {
            out.push(b'G');
            out.extend(float.to_be_bytes());
        }
        Py::Float(float) => out.extend(format!("F{float}\n").bytes()),
        Py::Str(text) => write_text(text, protocol, out),
        Py::List(items) => {
            if protocol == 0 {
                out.extend(b"(l");
                for item in items {
                    write(item, protocol, out, memo);
                    out.push(b'a');
                }
                return;
            }
            out.push(b']');
            for batch in items.chunks(1000) {
                out.push(b'(');
                for item in batch {
                    write(item, protocol, out, memo);
                }
                out.push(b'e');
            }
        }
        Py::Tuple(items) => {
            let short = protocol >= 2 && (1..=3).contains(&items.len());
            if !short {
                out.push(b'(');
            }
            for item in items {
                write(item, protocol, out, memo);
            }
            out.push(if short { 0x84 + items.len() as u8 } else { b't' });
        }
        Py::Dict(pairs) => {
            if protocol == 0 {
                out.extend(b"(d");
                for (key, value) in pairs {
                    write_text(key, protocol, out);
                    write(value, protocol, out, memo);
                    out.push(b's');
                }
                return;
            }
            out.push(b'}');
            out.push(b'(');
            for (key, value) in pairs {
                write_text(key, protocol, out);
                write(value, protocol, out, memo);
            }
            out.push(b'u');
        }
        Py::Shared(number, value) => {
            let place = memo.iter().position(|known| known == number);
            let at = place.unwrap_or(memo.len()) as u32;
            match (place, protocol) {
                (Some(_), 0) => out.extend(format!("g{at}\n").bytes()),
                (Some(_), _) => {
                    out.push(b'j');
                    out.extend(at.to_le_bytes());
                }
                (None, _) => {
                    write(value, protocol, out, memo);
                    // Numbered after its parts, as `MEMOIZE` does.
                    let at = memo.len() as u32;
                    memo.push(*number);
                    match protocol {
                        0 => out.extend(format!("p{at}\n").bytes()),
                        1..=3 => {
                            out.push(b'r');
                            out.extend(at.to_le_bytes());
                        }
                        _ => out.push(0x94),
                    }
                }
            }
        }
    }
}

fn write_int(int: i128, protocol: u8, out: &mut Vec<u8>) {
    match protocol {
        0 => out.extend(format!("I{int}\n").bytes()),
        _ if u8::try_from(int).is_ok() => out.extend([b'K', int as u8]),
        _ if u16::try_from(int).is_ok() => {
            out.push(b'M');
            out.extend((int as u16).to_le_bytes());
        }
        _ if i32::try_from(int).is_ok() => {
            out.push(b'J');
            out.extend((int as i32).to_le_bytes());
        }
        1 => out.extend(format!("L{int}L\n").bytes()),
        _ => {
            out.extend([0x8a, 16]);
            out.extend(int.to_le_bytes());
        }
    }
}

fn write_text(text: &str, protocol: u8, out: &mut Vec<u8>) {
    match protocol {
        0 => out.extend(format!("V{}\n", text.replace('\\', "\\u005c").replace('\n', "\\u000a")).bytes()),
        4.. if text.len() < 256 => {
            out.extend([0x8c, text.len() as u8]);
            out.extend(text.bytes());
        }
        _ => {
            out.push(b'X');
            out.extend((text.len() as u32).to_le_bytes());
            out.extend(text.bytes());
        }
    }
}

/// Creates a history entry in the format of current versions.
pub(crate) fn entry(action: &str, addr: u64, size: u64, stream: u64, time_us: u64) -> Py {
    dict! {
        "action" => action, "addr" => addr, "size" => size, "stream" => stream, "time_us" => time_us,
        "compile_context" => "N/A", "user_metadata" => "", "frames" => vec![],
    }
}

/// Creates a block of a segment.
pub(crate) fn block(address: u64, size: u64, requested: u64, state: &str) -> Py {
    dict! {
        "address" => address, "size" => size, "requested_size" => requested, "state" => state, "frames" => vec![],
    }
}

/// Creates a segment on device 0 and stream 0, in the default pool.
pub(crate) fn segment(address: u64, total: u64, kind: &str, blocks: Vec<Py>) -> Py {
    dict! {
        "device" => 0, "address" => address, "total_size" => total, "stream" => 0, "segment_type" => kind,
        "segment_pool_id" => Py::Tuple(vec![0.into(), 0.into()]), "is_expandable" => false, "frames" => vec![],
        "blocks" => blocks,
    }
}

/// Replaces or adds a key of a dict.
pub(crate) fn with(dict: Py, key: &str, value: impl Into<Py>) -> Py {
    let Py::Dict(mut pairs) = dict else {
        panic!("no dict")
    };
    pairs.retain(|(known, _)| known != key);
    pairs.push((key.to_owned(), value.into()));
    Py::Dict(pairs)
}

/// Removes a key of a dict.
pub(crate) fn without(dict: Py, key: &str) -> Py {
    let Py::Dict(mut pairs) = dict else {
        panic!("no dict")
    };
    pairs.retain(|(known, _)| known != key);
    Py::Dict(pairs)
}

/// Creates a snapshot of one device.
pub(crate) fn snapshot(segments: Vec<Py>, history: Vec<Py>) -> Py {
    dict! { "segments" => segments, "device_traces" => vec![Py::List(history)] }
}

/// Reads bytes with default options.
pub(crate) fn read(bytes: &[u8]) -> Result<Recording, ReadError> {
    read_bytes(bytes, "test.pickle", &ReadOptions::default())
}

/// Reads a value that is pickled in the current protocol.
pub(crate) fn read_py(value: &Py) -> Recording {
    read(&pickle(value, 4)).unwrap()
}
