//! Writes a Millpond recording from any recording: a time range, one device, or a recording in another format. Its
//! names, and the names found for its addresses, are included.

use super::events::Source;
use super::{ExportError, Exported};
use crate::hash::Map;
use crate::history::Frame;
use crate::recording::{Kind, Row, Writer};
use std::io::Write;

pub(super) fn write(source: &Source<'_>, out: &mut dyn Write) -> Result<Exported, ExportError> {
    let mut told = Told {
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

struct Told<'a, 's, W: Write> {
    source: &'a Source<'s>,
    writer: Writer<W>,
    /// The definitions written so far, by kind and number.
    defined: Map<(u8, u32), ()>,
    addresses: Map<u64, ()>,
}

impl<W: Write> Told<'_, '_, W> {
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
        let at = |kind| Row::new(kind, row.time);
        if let Some(pool) = definitions.pool(row.pool)
            && self.is_new(Kind::DefinePool, row.pool)
        {
            let text = format!("{}\n{}\n{}", pool.memory, pool.name, pool.policy);
            let define = Row {
                pool: row.pool,
                ..at(Kind::DefinePool)
            };
            self.writer
                .say(&define, Some(&text), Some(&[pool.device as u64]))?;
        }
        let tag = definitions.tag(row.tag);
        if row.kind != Kind::Gauge && !tag.is_empty() && self.is_new(Kind::DefineTag, row.tag) {
            let define = Row {
                tag: row.tag,
                ..at(Kind::DefineTag)
            };
            self.writer.say(&define, Some(tag), None)?;
        }
        let thread = definitions.thread(row.thread);
        if !thread.is_empty() && self.is_new(Kind::DefineThread, row.thread) {
            let define = Row {
                thread: row.thread,
                ..at(Kind::DefineThread)
            };
            self.writer.say(&define, Some(thread), None)?;
        }
        let stack = definitions.stack(row.stack);
        if !stack.is_empty() && self.is_new(Kind::DefineStack, row.stack) {
            let define = Row {
                stack: row.stack,
                ..at(Kind::DefineStack)
            };
            self.writer.say(&define, None, Some(stack))?;
            for address in stack {
                self.frames(*address, row.time)?;
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

    fn is_new(&mut self, kind: Kind, number: u32) -> bool {
        self.defined.insert((kind as u8, number), ()).is_none()
    }
}

/// Formats function, file and line on one line each. Line breaks in names are replaced.
fn lines(frame: &Frame) -> String {
    let one = |text: &str| text.replace(['\n', '\r'], " ");
    format!("{}\n{}\n{}", one(&frame.function), one(&frame.file), frame.line)
}
