//! Checks the messages of an Arrow stream before they are decoded. The sizes in a file are not trusted.
//!
//! A decoder allocates as many bytes as a buffer claims to hold. Every claim is therefore compared with the limits of
//! Millpond's batches before the decoder sees it.

use super::RecordingError;
use arrow_buffer::Buffer;
use arrow_ipc::{MessageHeader, root_as_message};
use std::fmt::Display;
use std::io::{self, Read};

/// Maximum bytes of a message's description: a schema with its facts, or the positions of a few dozen buffers.
const MOST_DESCRIBED: usize = 4 << 20;
/// The most bytes of a batch in the file: a little more than [`MOST_DECOMPRESSED`], for data that does not compress.
const MOST_BODY: u64 = 96 << 20;
/// The most bytes of all columns of a batch, decompressed: [`MOST_ROWS`](super::read::MOST_ROWS) rows, or fewer rows with texts. Two
/// batches are in memory at a time. Our writer ends a batch at a tenth of this.
const MOST_DECOMPRESSED: i64 = 80 << 20;
/// Bytes of the prefix of each column's compressed bytes. It contains the uncompressed size.
const PREFIX: usize = 8;
/// The prefix of a column that is not compressed.
const NOT_COMPRESSED: i64 = -1;

/// A complete message.
pub(super) struct Message {
    /// A flatbuffer that was verified.
    pub(super) described: Vec<u8>,
    pub(super) body: Buffer,
}

/// The next element of a stream.
pub(super) enum Next {
    Message(Message),
    /// The stream says that it ends here.
    Closed,
    /// The stream ends without saying so, within a message or between two.
    Cut,
    /// The following bytes cannot be parsed.
    Damaged(String),
}

/// Reads `bytes` bytes, or returns `None` if there are fewer.
fn exactly(from: &mut impl Read, bytes: u64) -> io::Result<Option<Vec<u8>>> {
    let mut read = Vec::new();
    // The vector grows with the bytes read, not with the claimed size.
    from.take(bytes).read_to_end(&mut read)?;
    Ok((read.len() as u64 == bytes).then_some(read))
}

fn number(from: &mut impl Read) -> io::Result<Option<u32>> {
    let bytes = exactly(from, 4)?;
    Ok(bytes
        .and_then(|bytes| bytes.try_into().ok())
        .map(u32::from_le_bytes))
}

/// Reads the next message.
///
/// # Errors
/// Returns an error if the system could not read the bytes.
pub(super) fn next(from: &mut impl Read) -> Result<Next, RecordingError> {
    const CONTINUES: u32 = u32::MAX;
    match number(from)? {
        None => return Ok(Next::Cut),
        Some(CONTINUES) => {}
        Some(other) => return Ok(Next::Damaged(format!("a message begins with {other:#x}"))),
    }
    let Some(length) = number(from)? else {
        return Ok(Next::Cut);
    };
    if length == 0 {
        return Ok(Next::Closed);
    }
    if length as usize > MOST_DESCRIBED {
        return Ok(Next::Damaged(format!(
            "the description of a message has {length} bytes"
        )));
    }
    let Some(described) = exactly(from, u64::from(length))? else {
        return Ok(Next::Cut);
    };
    let message = match root_as_message(&described) {
        Ok(message) => message,
        Err(error) => {
            return Ok(Next::Damaged(format!(
                "a message is malformed: {}",
                in_one_line(&error)
            )));
        }
    };
    let length = u64::try_from(message.bodyLength()).unwrap_or(u64::MAX);
    if length > MOST_BODY {
        return Ok(Next::Damaged(format!("a batch claims to have {length} bytes")));
    }
    let Some(body) = exactly(from, length)? else {
        return Ok(Next::Cut);
    };
    Ok(Next::Message(Message {
        described,
        body: Buffer::from_vec(body),
    }))
}

/// Joins a library's message of several lines into one line.
pub(super) fn in_one_line(error: &impl Display) -> String {
    let words = error.to_string();
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Checks that a batch can be decoded within the limits.
pub(super) fn check(message: &Message, most_rows: i64) -> Result<(), String> {
    let root = root_as_message(&message.described).map_err(|error| in_one_line(&error))?;
    if root.header_type() != MessageHeader::RecordBatch {
        return Err(format!("a message is a {:?}, not a batch", root.header_type()));
    }
    let batch = root
        .header_as_record_batch()
        .ok_or("a batch has no description")?;
    let rows = batch.length();
    if !(0..=most_rows).contains(&rows) {
        return Err(format!("a batch claims to have {rows} rows"));
    }
    let nodes = batch.nodes().into_iter().flatten();
    for node in nodes {
        if !(0..=MOST_DECOMPRESSED).contains(&node.length())
            || !(0..=node.length()).contains(&node.null_count())
        {
            return Err(format!("a column claims to have {} values", node.length()));
        }
    }
    let compressed = batch.compression().is_some();
    let mut sum = 0;
    for buffer in batch.buffers().into_iter().flatten() {
        let bytes = part(&message.body, buffer.offset(), buffer.length())
            .ok_or("a column lies outside of its batch")?;
        let claimed = match bytes.first_chunk::<PREFIX>() {
            Some(prefix) if compressed => match i64::from_le_bytes(*prefix) {
                NOT_COMPRESSED => bytes.len() as i64,
                claimed => claimed,
            },
            _ => bytes.len() as i64,
        };
        sum += claimed.clamp(0, MOST_DECOMPRESSED);
        if !(0..=MOST_DECOMPRESSED).contains(&claimed) || sum > MOST_DECOMPRESSED {
            return Err(format!("a column claims to have {claimed} bytes"));
        }
    }
    Ok(())
}

fn part(body: &Buffer, offset: i64, length: i64) -> Option<&[u8]> {
    let from = usize::try_from(offset).ok()?;
    let end = from.checked_add(usize::try_from(length).ok()?)?;
    body.get(from..end)
}
