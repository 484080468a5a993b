//! Tables that fit the terminal. Columns are distributed over as many tables as necessary.

use crate::terminal;
use comfy_table::{Cell, CellAlignment, LineStyle, Table, TableStyle};

/// The alignment of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    /// For words.
    Left,
    /// For numbers.
    Right,
}

/// The style of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Row {
    /// A normal row.
    #[default]
    Plain,
    /// The recommended row.
    Best,
    /// A bound for comparison.
    Bound,
    /// A row that failed.
    Failed,
}

#[derive(Clone, Debug)]
struct Column {
    head: String,
    align: Align,
    cells: Vec<String>,
    group: usize,
}

impl Column {
    fn width(&self) -> usize {
        let lines = self.head.lines().chain(self.cells.iter().map(String::as_str));
        lines.map(console::measure_text_width).max().unwrap_or(0)
    }
}

/// Columns of cells. The first column names the rows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Grid {
    columns: Vec<Column>,
    group: usize,
}

/// The number of blanks between columns.
const GAP: usize = 2;

impl Grid {
    /// Returns a grid without columns.
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Starts a group. The columns of a group should stay in one table.
    pub(crate) fn start_group(&mut self) {
        self.group += 1;
    }

    /// Adds a column. A line break in its head makes the head two lines high.
    pub(crate) fn column(&mut self, head: &str, align: Align, cells: Vec<String>) {
        self.columns.push(Column {
            head: head.to_owned(),
            align,
            cells,
            group: self.group,
        });
    }

    /// Returns the width of all columns in a single table.
    pub(crate) fn width(&self) -> usize {
        let gaps = GAP * self.columns.len().saturating_sub(1);
        self.columns.iter().map(Column::width).sum::<usize>() + gaps
    }

    /// Returns the heads, each on one line. A word that was hyphenated for two lines is joined.
    pub(crate) fn heads(&self) -> Vec<String> {
        let whole = |column: &Column| column.head.replace("-\n", "").replace('\n', " ");
        self.columns.iter().map(whole).collect()
    }

    /// Returns the cells by row.
    pub(crate) fn rows(&self) -> Vec<Vec<String>> {
        let rows = self
            .columns
            .iter()
            .map(|column| column.cells.len())
            .max()
            .unwrap_or(0);
        let cell = |column: &Column, row| column.cells.get(row).cloned().unwrap_or_default();
        (0..rows)
            .map(|row| self.columns.iter().map(|column| cell(column, row)).collect())
            .collect()
    }

    /// Renders the grid as text that is no wider than the terminal.
    pub(crate) fn render(&self, rows: &[Row]) -> String {
        let tables = self.deal(terminal::width());
        let texts: Vec<String> = tables.iter().map(|columns| draw(columns, rows)).collect();
        texts.join("\n\n")
    }

    /// Renders the grid with one more column of long words at the end. It is placed next to the others if most of it fits,
    /// or else below each row.
    pub(crate) fn render_with_notes(&self, head: &str, notes: &[String], rows: &[Row]) -> String {
        let mut wider = self.clone();
        wider.column(head, Align::Left, notes.to_vec());
        let total: usize = wider.columns.iter().map(|column| column.width() + GAP).sum();
        if total <= terminal::width() + GAP {
            return wider.render(rows);
        }
        let drawn = self.render(rows);
        let mut out = String::with_capacity(drawn.len() * 2);
        // Two lines of heads come first, then one line for each row.
        for (index, line) in drawn.lines().enumerate() {
            out.push_str(line);
            out.push('\n');
            if let Some(note) = index.checked_sub(2).and_then(|row| notes.get(row)) {
                for part in at_commas(note, terminal::width().saturating_sub(9)) {
                    out.push_str(&format!("         {}\n", terminal::dim(&part)));
                }
            }
        }
        out.trim_end().to_owned()
    }

    /// Distributes the columns over tables: whole groups while they fit, then single columns. If a group does not fit, the tables get
    /// about the same width, so that no table has only the one column that is left over.
    fn deal(&self, width: usize) -> Vec<Vec<&Column>> {
        let tables = self.fill(width);
        let groups = 1..=self.group;
        let (fitting, wider): (Vec<usize>, Vec<usize>) = groups
            .map(|group| self.width_with(group))
            .partition(|needed| *needed <= width);
        if wider.is_empty() {
            return tables;
        }
        let narrowest = fitting.into_iter().max().unwrap_or(0);
        let mut narrower = (narrowest..width).map(|width| self.fill(width));
        narrower
            .find(|filled| filled.len() == tables.len())
            .unwrap_or(tables)
    }

    /// Returns the width of a table with only the names and this group.
    fn width_with(&self, group: usize) -> usize {
        let names = self.columns.first().map_or(0, Column::width);
        let rest = self.columns.iter().skip(1);
        let mine = rest.filter(|column| column.group == group);
        names + mine.map(|column| GAP + column.width()).sum::<usize>()
    }

    /// Fills tables of this width one after the other.
    fn fill(&self, width: usize) -> Vec<Vec<&Column>> {
        let Some((names, rest)) = self.columns.split_first() else {
            return Vec::new();
        };
        let mut tables = vec![vec![names]];
        let mut used = names.width();
        for (index, column) in rest.iter().enumerate() {
            let starts = index == 0 || rest[index - 1].group != column.group;
            let group = self.width_with(column.group);
            let needed = if starts && group <= width {
                group - names.width()
            } else {
                GAP + column.width()
            };
            if used + needed > width && tables.last().is_some_and(|table| table.len() > 1) {
                tables.push(vec![names]);
                used = names.width();
            }
            if let Some(table) = tables.last_mut() {
                table.push(column);
            }
            used += GAP + column.width();
        }
        tables
    }
}

/// Breaks a list after commas into lines of at most `width` columns, if its words allow that.
fn at_commas(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_inclusive(',') {
        match lines.last_mut() {
            Some(line) if line.is_empty() || line.len() + word.len() <= width => line.push_str(word),
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn draw(columns: &[&Column], rows: &[Row]) -> String {
    let mut table = Table::new();
    let line = LineStyle::none().fill('─').junction('─');
    table.load_style(TableStyle::new().header_separator(line));
    let aligned = |text: String, align: Align| {
        let side = if align == Align::Left {
            CellAlignment::Left
        } else {
            CellAlignment::Right
        };
        Cell::new(text).set_alignment(side)
    };
    // Heads are aligned at the bottom, directly above their column.
    let height = columns
        .iter()
        .map(|column| column.head.lines().count())
        .max()
        .unwrap_or(1);
    table.set_header(columns.iter().map(|column| {
        let missing = height - column.head.lines().count().max(1);
        aligned(format!("{}{}", "\n".repeat(missing), column.head), column.align)
    }));
    let count = columns.iter().map(|column| column.cells.len()).max().unwrap_or(0);
    let mut looks = Vec::with_capacity(count);
    for row in 0..count {
        // A bound without any figure is not shown.
        if columns
            .iter()
            .skip(1)
            .all(|column| column.cells.get(row).is_none_or(String::is_empty))
        {
            continue;
        }
        looks.push(rows.get(row).copied().unwrap_or_default());
        // Each row is one line, even if a name contains line breaks.
        let cell = |column: &Column| {
            column
                .cells
                .get(row)
                .map_or_else(String::new, |cell| cell.replace('\n', " "))
        };
        table.add_row(columns.iter().map(|column| aligned(cell(column), column.align)));
    }
    let last = columns.len().saturating_sub(1);
    for (index, column) in table.column_iter_mut().enumerate() {
        // The junction of the line under the heads takes one blank of each gap.
        column.set_padding((0, if index == last { 0 } else { GAP as u16 - 1 }));
    }
    let paint = |(at, line): (usize, String)| {
        let line = line.trim_end();
        if at < height {
            return terminal::bold(line);
        }
        // The rule under the heads is one line, between the heads and the rows.
        match at.checked_sub(height + 1).and_then(|row| looks.get(row)) {
            None | Some(Row::Plain) => line.to_owned(),
            Some(Row::Best) => terminal::green(line),
            Some(Row::Bound) => terminal::dim(line),
            Some(Row::Failed) => terminal::red(line),
        }
    };
    let lines: Vec<String> = table.lines().enumerate().map(paint).collect();
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid() -> Grid {
        let mut grid = Grid::new();
        grid.column("name", Align::Left, vec!["a".into(), "bb".into()]);
        for group in ["x", "y"] {
            grid.start_group();
            for n in 0..3 {
                grid.column(
                    &format!("{group}{n}"),
                    Align::Right,
                    vec!["12345678".into(), "1".into()],
                );
            }
        }
        grid
    }

    #[test]
    fn groups_stay_together_while_they_fit() {
        let groups = |width| grid().deal(width).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(groups(80), [7]);
        assert_eq!(groups(50), [4, 4]);
        assert_eq!(groups(30), [3, 3, 3]);
        assert_eq!(groups(1), [2; 6]);
    }

    #[test]
    fn a_group_that_is_too_wide_is_split_evenly() {
        let mut grid = Grid::new();
        grid.column("name", Align::Left, Vec::new());
        grid.start_group();
        for n in 0..5 {
            grid.column(&format!("column{n}"), Align::Right, Vec::new());
        }
        let tables = |width| grid.deal(width).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(tables(49), [6]);
        assert_eq!(tables(48), [4, 3]);
        assert_eq!(tables(30), [3, 3, 2]);
    }

    #[test]
    fn heads_on_one_line_have_no_hyphens() {
        let mut grid = Grid::new();
        for head in ["over-\nhead", "ns per\nevent", "\nstalls"] {
            grid.column(head, Align::Right, Vec::new());
        }
        assert_eq!(grid.heads(), ["overhead", "ns per event", " stalls"]);
    }

    #[test]
    fn no_line_is_wider_than_requested() {
        for columns in grid().deal(50) {
            let drawn = draw(&columns, &[]);
            assert!(
                drawn.lines().all(|line| console::measure_text_width(line) <= 50),
                "{drawn}"
            );
        }
    }
}
