//! Writes Millpond CSV.

use super::{ACTIONS, EXPANDABLE, INITIAL_BLOCK, INITIAL_PENDING, INITIAL_SEGMENT, SMALL};
use crate::{Action, Trace, header, model::NO_ALLOCATION};
use std::io::{self, Write};

/// Writes a trace as uncompressed Millpond CSV. [`crate::read`] returns the same events.
///
/// The columns `time_us`, `action`, `id`, `bytes`, `stream` and `tag` are always written. Other columns are written
/// only if the trace has values for them. Commas and line breaks in tags become semicolons and spaces.
pub fn write_csv(trace: &Trace, mut out: impl Write) -> io::Result<()> {
    let addresses = trace.events.iter().any(|event| event.address != 0)
        || !trace.initial_blocks.is_empty()
        || !trace.initial_segments.is_empty();
    let pools = trace.pools.len() > 1;
    let allocated = trace.initial_blocks.iter().any(|block| block.bytes.is_some());
    header::write(trace, &mut out)?;
    out.write_all(b"time_us,action,id,bytes,stream")?;
    for (name, there) in [
        (",address", addresses),
        (",pool", pools),
        (",allocated", allocated),
    ] {
        if there {
            out.write_all(name.as_bytes())?;
        }
    }
    out.write_all(b",tag\n")?;

    let tags: Vec<String> = trace
        .tags
        .iter()
        .map(|tag| tag.replace(',', ";").replace(['\n', '\r'], " "))
        .collect();
    let mut line = String::new();
    let mut write = |row: Line<'_>| {
        use std::fmt::Write as _;
        line.clear();
        let stream = trace.streams[usize::from(row.stream)];
        let _ = write!(
            line,
            "{},{},{},{},{stream}",
            row.time_us, row.action, row.id, row.bytes
        );
        if addresses {
            let _ = write!(line, ",{:#x}", row.address);
        }
        if pools {
            let (first, second) = trace.pools[usize::from(row.pool)];
            let _ = write!(line, ",{first}:{second}");
        }
        if allocated {
            line.push(',');
            if let Some(bytes) = row.allocated {
                let _ = write!(line, "{bytes}");
            }
        }
        line.push(',');
        line.push_str(&tags[row.tag as usize]);
        line.push('\n');
        out.write_all(line.as_bytes())
    };
    for segment in &trace.initial_segments {
        write(Line {
            action: INITIAL_SEGMENT,
            id: if segment.small { SMALL } else { 0 } | if segment.expandable { EXPANDABLE } else { 0 },
            bytes: segment.bytes,
            address: segment.address,
            stream: segment.stream,
            pool: segment.pool,
            ..Line::default()
        })?;
    }
    for block in &trace.initial_blocks {
        write(Line {
            action: if block.pending {
                INITIAL_PENDING
            } else {
                INITIAL_BLOCK
            },
            id: u64::from(block.allocation) + 1,
            bytes: block.requested,
            address: block.address,
            allocated: block.bytes,
            stream: block.stream,
            pool: block.pool,
            tag: block.tag,
            ..Line::default()
        })?;
    }
    for event in &trace.events {
        write(Line {
            time_us: event.time_us,
            action: word(event.action),
            id: if event.allocation == NO_ALLOCATION {
                0
            } else {
                u64::from(event.allocation) + 1
            },
            bytes: event.bytes,
            address: event.address,
            allocated: None,
            stream: event.stream,
            pool: event.pool,
            tag: event.tag,
        })?;
    }
    out.flush()
}

#[derive(Default)]
struct Line<'a> {
    time_us: u64,
    action: &'a str,
    id: u64,
    bytes: u64,
    address: u64,
    allocated: Option<u64>,
    stream: u16,
    pool: u16,
    tag: u32,
}

pub(crate) fn word(action: Action) -> &'static str {
    ACTIONS
        .iter()
        .find(|(_, known)| *known == action)
        .map_or("", |(word, _)| word)
}
