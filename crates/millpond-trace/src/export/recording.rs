//! Writes a Millpond recording from any recording: a time range, one device, or a recording in another format. Its
//! names, and the names found for its addresses, are included.

use super::events::Source;
use super::{ExportError, Exported};
use crate::hash::Map;
use crate::history::Frame;
use crate::recording::{Kind, Row, Writer};
use std::io::Write;

pub(super) fn write(source: &Source<'_>, out: &mut dyn Write) -> Result<Exported, ExportError> {
    let mut told = RecordingExporter {
        source,
        writer: Writer::new(out, &source.history.facts)?,
        defined: Map::default(),
        addresses: Map::default(),
    };
    told.modules()?;
    let mut events = 0;
    let mut last = 0;
    source.walk(|event| {
        let row = &event.row;
        events += 1;
        last = row.time;
        told.define(row)?;
        match (row.kind, event.text) {
            (Kind::Mark, text) => told.writer.say(row, text, None)?,
            // The tag of a gauge is the measured quantity, not a name.
            _ => told.writer.push(row)?,
        }
        Ok(())
    })?;
    told.writer.finish(last)?;
    Ok(Exported {
        events,
        lost: Vec::new(),
    })
}

struct RecordingExporter<'a, 's, W: Write> {
    source: &'a Source<'s>,
    writer: Writer<W>,
    /// The definitions written so far, by kind and number.
    defined: Map<(u8, u32), ()>,
    addresses: Map<u64, ()>,
}

impl<W: Write> RecordingExporter<'_, '_, W> {
    fn modules(&mut self) -> Result<(), ExportError> {
        for module in self.source.history.definitions.modules() {
            let row = Row {
                address: module.address,
                bytes: module.bytes,
                ..Row::new(Kind::DefineModule, 0)
            };
            let text = format!("{}\n{}", module.build_id, module.path);
            self.writer.say(&row, Some(&text), Some(&[module.base]))?;
        }
        Ok(())
    }

    /// Writes definitions for the numbers of a row that were not used before.
    fn define(&mut self, row: &Row) -> Result<(), ExportError> {
        let definitions = &self.source.history.definitions;
        if let Some(pool) = definitions.pool(row.pool)
            && let Some(define) = self.definition(Kind::DefinePool, row.pool, row.time)
        {
            let text = format!("{}\n{}\n{}", pool.memory, pool.name, pool.policy);
            self.writer
                .say(&define, Some(&text), Some(&[pool.device as u64]))?;
        }
        let tag = match row.kind {
            Kind::Gauge => "",
            _ => definitions.tag(row.tag),
        };
        for (name, kind, number) in [
            (tag, Kind::DefineTag, row.tag),
            (definitions.thread(row.thread), Kind::DefineThread, row.thread),
        ] {
            if !name.is_empty()
                && let Some(define) = self.definition(kind, number, row.time)
            {
                self.writer.say(&define, Some(name), None)?;
            }
        }
        let stack: Vec<u64> = definitions.stack(row.stack).collect();
        if !stack.is_empty()
            && let Some(define) = self.definition(Kind::DefineStack, row.stack, row.time)
        {
            self.writer.say(&define, None, Some(&stack))?;
            for address in stack {
                self.frames(address, row.time)?;
            }
        }
        Ok(())
    }

    /// Writes the names of an address if they are known.
    fn frames(&mut self, address: u64, time: u64) -> Result<(), ExportError> {
        if self.addresses.insert(address, ()).is_some() {
            return Ok(());
        }
        let frames = self.source.symbols.frames(address);
        if frames.is_empty() {
            return Ok(());
        }
        let text: Vec<String> = frames.iter().map(lines).collect();
        self.writer.say(
            &Row::new(Kind::DefineFrame, time),
            Some(&text.join("\n")),
            Some(&[address]),
        )?;
        Ok(())
    }

    /// Returns the row that defines a number, or `None` if it was written before.
    fn definition(&mut self, kind: Kind, number: u32, time: u64) -> Option<Row> {
        let before = self.defined.insert((kind as u8, number), ());
        before.is_none().then(|| Row::define(kind, number, time))
    }
}

/// Formats function, file and line on one line each. Line breaks in names are replaced.
fn lines(frame: &Frame) -> String {
    let one = |text: &str| text.replace(['\n', '\r'], " ");
    format!("{}\n{}\n{}", one(&frame.function), one(&frame.file), frame.line)
}
