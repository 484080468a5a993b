//! A pickle from its first window to its value: runs the machine on what is buffered of a file.
//!
//! An opcode whose argument is not all there changes nothing and says how much it wants; it is run again when
//! that is buffered.

use super::Sieve;
use super::arena::Arena;
use super::machine::Machine;
use super::stop::{Stop, Within};
use super::value::Value;
use crate::{ReadError, source::Source};

/// Containers that a compressed file may hold where it may hold one line; those at hand have a tenth of it, and
/// a small one without history three quarters.
const CONTAINERS_PER_LINE: usize = 4;

/// The value a pickle builds, and the arena it lives in. Strings of the arena begin with `words`.
pub(crate) fn load(
    source: &mut Source<'_>,
    words: &[&str],
    sieve: &mut impl Sieve,
) -> Result<(Arena, Value), ReadError> {
    let mut machine = Machine::new(sieve, words, source.expected());
    loop {
        let window = source.buffered();
        let length = window.len();
        machine.before = source.offset();
        let mut at = 0;
        let stop = loop {
            match machine.step(window, at) {
                Ok(next) => at = next,
                Err(stop) => break *stop,
            }
        };
        source.consume(at);
        source.check_lines(machine.sieve.taken() as u64)?;
        source.check_lines((machine.arena.containers() / CONTAINERS_PER_LINE) as u64)?;
        let offset = source.offset();
        match stop {
            Stop::Done(value) => return Ok((machine.arena, value)),
            Stop::Short { wanted, within } => {
                let had = length - at;
                source.fill(wanted)?;
                if source.buffered().len() == had {
                    let what = match within {
                        Within::Opcode => "the file ends before STOP".to_owned(),
                        Within::Text(bytes) => format!("the file ends within a string of {bytes} bytes"),
                        Within::Line => "the file ends within a line of text".to_owned(),
                    };
                    return Err(ReadError::Pickle { offset, what });
                }
            }
            Stop::Skip { head, length } => {
                source.consume(head);
                skip(source, offset, length)?;
                // Room for it was made before.
                machine.stack.push(Value::OPAQUE);
            }
            Stop::Fault(what) => return Err(ReadError::Pickle { offset, what }),
            Stop::Call(opcode) => return Err(ReadError::PickleCall { opcode, offset }),
        }
    }
}

/// Steps over a value that nobody needs, of any length.
fn skip(source: &mut Source<'_>, opcode_at: u64, mut length: u64) -> Result<(), ReadError> {
    while length > 0 {
        source.fill(1)?;
        let step = length.min(source.buffered().len() as u64);
        if step == 0 {
            return Err(ReadError::Pickle {
                offset: opcode_at,
                what: "the file ends within bytes".to_owned(),
            });
        }
        source.consume(step as usize);
        length -= step;
    }
    Ok(())
}
