//! Detects the format of a file from its content.

use crate::{Format, ReadError, source::Source};

/// Number of bytes examined. The header line of a recording can be long.
const LOOK: usize = 64 << 10;

/// Detects the format. Consumes nothing.
pub(crate) fn detect(source: &mut Source<'_>) -> Result<Format, ReadError> {
    match source.fill(LOOK) {
        // A truncated stream may still contain enough data for detection.
        Ok(()) | Err(ReadError::Damaged { .. }) => {}
        Err(error) => return Err(error),
    }
    let bytes = source.buffered();
    format_of(bytes).map_err(|found| ReadError::UnknownFormat { found })
}

fn format_of(bytes: &[u8]) -> Result<Format, &'static str> {
    let text = bytes
        .strip_prefix(b"\xef\xbb\xbf")
        .unwrap_or(bytes)
        .trim_ascii_start();
    match bytes {
        [] => return Err("the file is empty"),
        [0x1f, 0x8b, ..] | [0x28, 0xb5, 0x2f, 0xfd, ..] => {
            return Err("the file is compressed twice");
        }
        [0x80, 0..=5, ..] => return Ok(Format::TorchSnapshot),
        [0x80, ..] => return Err("the file looks like a pickle of an unknown protocol"),
        // Protocols 0 and 1 have no signature, but no text format starts with these bytes.
        [b'(' | b']' | b'}', ..] => return Ok(Format::TorchSnapshot),
        [b'P', b'K', 3, 4, ..] => return Err("the file is a zip archive"),
        [b'A', b'R', b'R', b'O', b'W', b'1', ..] => return Err("the file is an Arrow file"),
        // An Arrow stream starts with these bytes and the length of its schema.
        [0xff, 0xff, 0xff, 0xff, _, _, _, 0, ..] => return Ok(Format::MillpondRecording),
        _ => {}
    }
    match text {
        [] => Err("the file holds only white space"),
        [b'{' | b'[', ..] if is_snapshot(text) => Err(
            "the file is a PyTorch memory snapshot in JSON; write it with torch.cuda.memory._dump_snapshot(path) or with pickle.dump",
        ),
        [b'{' | b'[', ..] => Ok(Format::ChromeTrace),
        _ => format_of_table(text),
    }
}

/// Returns whether a JSON text begins with keys of a memory snapshot.
fn is_snapshot(text: &[u8]) -> bool {
    let has = |key: &[u8]| text.windows(key.len()).any(|bytes| bytes == key);
    let is_snapshot = has(b"\"segments\"") || has(b"\"device_traces\"") || has(b"\"segment_type\"");
    is_snapshot && !has(b"\"traceEvents\"")
}

fn format_of_table(text: &[u8]) -> Result<Format, &'static str> {
    let unknown = "the content is in no known format";
    let mut lines = text.split(|&byte| byte == b'\n');
    let Some(names) = lines.find(|line| !line.starts_with(b"#") && !line.trim_ascii().is_empty()) else {
        return if text.starts_with(b"#") {
            Ok(Format::MillpondCsv)
        } else {
            Err(unknown)
        };
    };
    let has = |wanted: &str| {
        names
            .split(|&byte| byte == b',')
            .any(|name| name.trim_ascii().eq_ignore_ascii_case(wanted.as_bytes()))
    };
    if has("action") && has("pointer") && has("size") {
        Ok(Format::RmmCsv)
    } else if has("action") && has("id") {
        Ok(Format::MillpondCsv)
    } else {
        Err(unknown)
    }
}
