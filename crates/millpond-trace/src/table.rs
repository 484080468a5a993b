//! Reads tables of comma-separated values. Columns are found by their names.

use crate::caution::{Finding, Findings};
use crate::error::quoted;
use crate::lines::{Line, Lines, MOST_BYTES, number};
use crate::{Format, ReadError, source::Source};

/// Maximum number of columns.
const MOST_COLUMNS: usize = 64;

/// The problem with a line.
pub(crate) enum BadLine {
    /// The line cannot be parsed, so the file is refused.
    Unreadable(String),
    /// The line was counted as a finding and is skipped.
    Counted(&'static str),
    /// The file is refused for another reason.
    Refused(ReadError),
}

impl From<String> for BadLine {
    fn from(what: String) -> Self {
        Self::Unreadable(what)
    }
}

impl From<ReadError> for BadLine {
    fn from(error: ReadError) -> Self {
        Self::Refused(error)
    }
}

/// A reader of the lines of one format.
pub(crate) trait Table {
    /// Reads a comment line before the names of the columns. Other comments are ignored.
    fn comment(&mut self, _comment: &[u8]) -> Result<(), String> {
        Ok(())
    }

    /// Finds the columns. Returns the number of fields into which lines are split. The last field contains the rest of
    /// its line.
    fn columns(&mut self, names: &Names<'_>) -> Result<usize, String>;

    /// Reads the event of a line.
    fn row(&mut self, fields: &Fields<'_>) -> Result<(), BadLine>;
}

/// The names of the columns.
pub(crate) struct Names<'l>(Vec<&'l [u8]>);

impl Names<'_> {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn find(&self, name: &str) -> Option<usize> {
        self.0
            .iter()
            .position(|found| found.eq_ignore_ascii_case(name.as_bytes()))
    }

    pub(crate) fn need(&self, name: &str) -> Result<usize, String> {
        self.find(name)
            .ok_or_else(|| format!("there is no column {name}"))
    }
}

/// The fields of one line.
pub(crate) struct Fields<'l> {
    line: &'l [u8],
    starts: [u32; MOST_COLUMNS + 2],
    count: usize,
}

impl<'l> Fields<'l> {
    #[inline]
    fn new(line: &'l [u8], most: usize) -> Self {
        let mut starts = [0; MOST_COLUMNS + 2];
        let mut count = 1;
        for comma in memchr::memchr_iter(b',', line).take(most - 1) {
            starts[count] = comma as u32 + 1;
            count += 1;
        }
        starts[count] = line.len() as u32 + 1;
        Self { line, starts, count }
    }

    #[inline]
    pub(crate) fn get(&self, column: usize) -> &'l [u8] {
        &self.line[self.starts[column] as usize..self.starts[column + 1] as usize - 1]
    }

    /// Returns the field of a column, or an empty one if there is no such column.
    #[inline]
    pub(crate) fn find(&self, column: Option<usize>) -> &'l [u8] {
        column.map_or(b"", |column| self.get(column))
    }
}

/// Parses a field that may be empty. `what` describes it in the error.
#[inline]
pub(crate) fn optional<T: Default>(
    field: &[u8],
    what: &str,
    parse: impl FnOnce(&[u8]) -> Option<T>,
) -> Result<T, String> {
    match field {
        b"" => Ok(T::default()),
        field => required(field, what, parse),
    }
}

/// Parses a field.
#[inline]
pub(crate) fn required<T>(
    field: &[u8],
    what: &str,
    parse: impl FnOnce(&[u8]) -> Option<T>,
) -> Result<T, String> {
    parse(field).ok_or_else(|| format!("{} is not a valid {what}", quoted(field)))
}

/// Parses a size. An impossible one is counted.
#[inline]
pub(crate) fn bytes(field: &[u8], findings: &mut Findings) -> Result<u64, BadLine> {
    match number(field) {
        Some(bytes) if bytes <= MOST_BYTES => Ok(bytes),
        _ => impossible(field.trim_ascii(), findings),
    }
}

#[cold]
fn impossible(field: &[u8], findings: &mut Findings) -> Result<u64, BadLine> {
    let is_digits = |text: &[u8]| !text.is_empty() && text.iter().all(u8::is_ascii_digit);
    let (finding, what) = if field.strip_prefix(b"-").is_some_and(is_digits) {
        (Finding::NegativeBytes, "its size is negative")
    } else if is_digits(field) || number(field).is_some() {
        (Finding::AbsurdBytes, "its size is above 2^62 bytes")
    } else {
        return Err(format!("{} is not a number of bytes", quoted(field)).into());
    };
    findings.count(finding);
    Err(BadLine::Counted(what))
}

/// How a table ends.
#[derive(Default)]
pub(crate) struct TableEnd {
    /// The number of bytes read if the file ends early.
    pub(crate) cut: Option<u64>,
    /// The first line that was skipped.
    skipped: Option<(u64, String)>,
}

impl TableEnd {
    /// Returns the error for a table of this format without events. It names the first line that was skipped.
    pub(crate) fn nothing_left(self, format: Format) -> ReadError {
        match self.skipped {
            Some((line, what)) => ReadError::Csv { line, what },
            None => ReadError::NoMemoryEvents { format },
        }
    }
}

/// Reads all lines of a file.
pub(crate) fn read(source: &mut Source<'_>, table: &mut impl Table) -> Result<TableEnd, ReadError> {
    let mut lines = Lines::new(source);
    let mut end = TableEnd::default();
    // The number of columns, and the number of fields into which lines are split.
    let mut columns = None;
    let cut = loop {
        let (line, last) = match lines.next()? {
            Line::Whole(line) => (line, false),
            Line::Last(line) => (line, true),
            Line::End { cut } => break cut,
        };
        let done = match (line, columns) {
            _ if line.trim_ascii().is_empty() => Ok(()),
            ([b'#', comment @ ..], None) => table.comment(comment).map_err(BadLine::from),
            ([b'#', ..], _) => Ok(()),
            (names, None) => named(names, table)
                .map(|found| columns = Some(found))
                .map_err(BadLine::from),
            (line, Some((columns, split))) => {
                let fields = Fields::new(line, split);
                if fields.count < columns {
                    let what = format!(
                        "it has {} fields, but the table has {columns} columns",
                        fields.count
                    );
                    Err(BadLine::Unreadable(what))
                } else {
                    table.row(&fields)
                }
            }
        };
        let line = lines.number;
        match done {
            Ok(()) => {}
            Err(BadLine::Refused(error)) => return Err(error),
            Err(BadLine::Counted(what)) => {
                end.skipped.get_or_insert_with(|| (line, what.to_owned()));
            }
            // If the last line has no line break and cannot be parsed, the writer did not finish it.
            Err(BadLine::Unreadable(what)) if last && columns.is_some() => {
                end.skipped.get_or_insert((line, what));
                break true;
            }
            Err(BadLine::Unreadable(what)) => return Err(ReadError::Csv { line, what }),
        }
    };
    end.cut = cut.then(|| lines.offset());
    Ok(end)
}

fn named(line: &[u8], table: &mut impl Table) -> Result<(usize, usize), String> {
    let names = Names(line.split(|&byte| byte == b',').map(<[u8]>::trim_ascii).collect());
    let columns = names.len();
    if columns > MOST_COLUMNS {
        return Err(format!(
            "the table has {columns} columns, more than the limit of {MOST_COLUMNS}"
        ));
    }
    Ok((columns, table.columns(&names)?))
}
