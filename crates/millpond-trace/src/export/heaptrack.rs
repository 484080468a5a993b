//! Writes the text format of heaptrack's interpreter, version 3, for `heaptrack_print` and the graphical viewer. All
//! numbers are hexadecimal. Every table entry is written before its first use.

use super::events::Source;
use super::stacks::{Numbers, Origin, clean};
use super::{ExportError, Exported};
use crate::hash::Map;
use crate::history::Frame;
use crate::recording::{Gauge, Kind};
use std::io::{self, Write};

/// The page size assumed by the reader. Resident memory is given in pages.
const PAGE: u64 = 4096;

pub(super) fn write(source: &Source<'_>, out: &mut dyn Write) -> Result<Exported, ExportError> {
    let mut file = HeaptrackExporter {
        source,
        out,
        strings: Numbers::default(),
        frames: Numbers::default(),
        nodes: Numbers::default(),
        stacks: Map::default(),
        classes: Numbers::default(),
        ms: 0,
    };
    file.begin()?;
    let mut events = 0;
    source.walk(|event| {
        events += 1;
        let row = &event.row;
        file.time(row.time)?;
        match row.kind {
            Kind::Alloc => {
                let class = file.class(row.requested, Origin::of(row))?;
                writeln!(file.out, "+ {class:x}")?;
            }
            Kind::Free | Kind::FreeRequested => {
                let class = file.class(row.requested, Origin::of(row))?;
                writeln!(file.out, "- {class:x}")?;
            }
            Kind::Gauge if Gauge::from_number(row.tag) == Some(Gauge::Resident) => {
                writeln!(file.out, "R {:x}", row.bytes / PAGE)?;
            }
            _ => {}
        }
        Ok(())
    })?;
    Ok(Exported::new(
        events,
        "times below a millisecond, addresses, streams, threads, what pools had reserved, the tags of blocks with \
             stacks",
    ))
}

struct HeaptrackExporter<'a, 's> {
    source: &'a Source<'s>,
    out: &'a mut dyn Write,
    strings: Numbers<String>,
    /// Instruction pointers. Each has one frame here.
    frames: Numbers<Frame>,
    /// Pairs of a frame and its caller's node.
    nodes: Numbers<(u32, u32)>,
    stacks: Map<Origin, u32>,
    /// Pairs of a size and a stack.
    classes: Numbers<(u64, u32)>,
    ms: u64,
}

impl HeaptrackExporter<'_, '_> {
    fn begin(&mut self) -> io::Result<()> {
        writeln!(self.out, "v 10500 3")?;
        writeln!(self.out, "# millpond {}", env!("CARGO_PKG_VERSION"))?;
        writeln!(self.out, "X {}", clean(self.source.program()))?;
        writeln!(self.out, "I {PAGE:x} 0")
    }

    fn time(&mut self, nanos: u64) -> io::Result<()> {
        let ms = nanos / 1_000_000;
        if ms > self.ms {
            self.ms = ms;
            writeln!(self.out, "c {ms:x}")?;
        }
        Ok(())
    }

    fn class(&mut self, bytes: u64, origin: Origin) -> io::Result<u32> {
        let stack = self.stack(origin)?;
        let (class, new) = self.classes.of((bytes, stack));
        if new {
            writeln!(self.out, "a {bytes:x} {stack:x}")?;
        }
        Ok(class)
    }

    /// Returns the node of the innermost frame. Nodes are numbered from 1, and 0 is the caller of the outermost frame.
    fn stack(&mut self, origin: Origin) -> io::Result<u32> {
        if let Some(node) = self.stacks.get(&origin) {
            return Ok(*node);
        }
        let mut node = 0;
        for frame in self.source.frames(origin).into_iter().rev() {
            let frame = self.frame(frame)?;
            let (number, new) = self.nodes.of((frame, node));
            if new {
                writeln!(self.out, "t {frame:x} {node:x}")?;
            }
            node = number + 1;
        }
        self.stacks.insert(origin, node);
        Ok(node)
    }

    fn frame(&mut self, frame: Frame) -> io::Result<u32> {
        let (number, new) = self.frames.of(frame.clone());
        if new {
            let function = self.string(&frame.function)?;
            let module = self.string("recorded")?;
            let ip = u64::from(number) + 1;
            if frame.file.is_empty() {
                writeln!(self.out, "i {ip:x} {module:x} {function:x}")?;
            } else {
                let (file, line) = (self.string(&frame.file)?, frame.line);
                writeln!(self.out, "i {ip:x} {module:x} {function:x} {file:x} {line:x}")?;
            }
        }
        Ok(number + 1)
    }

    /// Returns the number of a string, counted from 1.
    fn string(&mut self, text: &str) -> io::Result<u32> {
        let (number, new) = self.strings.of(text.to_owned());
        if new {
            writeln!(self.out, "s {:x} {text}", text.len())?;
        }
        Ok(number + 1)
    }
}
