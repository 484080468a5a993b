//! Plain tables.

use std::fmt;

/// Rows of text below a head. The first column is aligned left, the others right.
#[derive(Clone, Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Creates a table with these column names.
    #[must_use]
    pub fn new(head: &[&str]) -> Self {
        let mut table = Self::default();
        table.row(head.iter().copied());
        table
    }

    /// Adds a row.
    pub fn row<T: Into<String>>(&mut self, cells: impl IntoIterator<Item = T>) {
        self.rows.push(cells.into_iter().map(Into::into).collect());
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut widths: Vec<usize> = Vec::new();
        for row in &self.rows {
            widths.resize(widths.len().max(row.len()), 0);
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.chars().count().max(*width);
            }
        }
        for row in &self.rows {
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                match column {
                    0 => write!(f, "{cell:width$}")?,
                    _ => write!(f, "  {cell:>width$}")?,
                }
            }
            writeln!(f)?;
        }
        Ok(())
    }
}
