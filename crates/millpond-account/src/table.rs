//! Text tables of reports.

use std::fmt;

/// Writes rows as lines with aligned columns. The first `left` columns are aligned to the left, and the others to the right.
///
/// # Errors
/// Returns the errors of the formatter.
pub fn write_table<const N: usize>(
    f: &mut fmt::Formatter<'_>,
    left: usize,
    rows: &[[String; N]],
) -> fmt::Result {
    let widths: [usize; N] = std::array::from_fn(|column| {
        let lengths = rows.iter().map(|row| row[column].chars().count());
        lengths.max().unwrap_or(0)
    });
    for (line, row) in rows.iter().enumerate() {
        f.write_str(if line == 0 { "" } else { "\n" })?;
        for (column, (cell, width)) in row.iter().zip(widths).enumerate() {
            f.write_str(if column == 0 { "" } else { "  " })?;
            match column < left {
                true => write!(f, "{cell:<width$}"),
                false => write!(f, "{cell:>width$}"),
            }?;
        }
    }
    Ok(())
}
