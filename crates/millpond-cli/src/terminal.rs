//! What the terminal can show: how wide it is, and whether in colour.

use console::{Style, Term};

/// Columns where the output is no terminal and `COLUMNS` is not set.
const USUAL: usize = 100;

/// Columns to write in.
pub(crate) fn width() -> usize {
    let asked = std::env::var("COLUMNS")
        .ok()
        .and_then(|text| text.parse::<usize>().ok());
    let term = Term::stdout()
        .size_checked()
        .map(|(_, columns)| usize::from(columns));
    // A terminal of no width, as some test harnesses have it, is not believed.
    term.filter(|columns| *columns > 0)
        .or(asked)
        .unwrap_or(USUAL)
        .max(40)
}

/// Whether stdout shows colours: a terminal, and `NO_COLOR` not set.
pub(crate) fn colours() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && console::colors_enabled()
}

/// Headings and what matters most.
pub(crate) fn bold(text: &str) -> String {
    paint(Style::new().bold(), text)
}

/// What is read last.
pub(crate) fn dim(text: &str) -> String {
    paint(Style::new().dim(), text)
}

/// What went wrong.
pub(crate) fn red(text: &str) -> String {
    paint(Style::new().red().bold(), text)
}

/// What to be careful about.
pub(crate) fn yellow(text: &str) -> String {
    paint(Style::new().yellow(), text)
}

/// What to do.
pub(crate) fn green(text: &str) -> String {
    paint(Style::new().green().bold(), text)
}

/// One of several groups in a picture, by number; beyond the last colour they are all alike.
pub(crate) fn band(number: usize, text: &str) -> String {
    let style = Style::new();
    let style = match number {
        0 => style.blue(),
        1 => style.yellow(),
        2 => style.green(),
        3 => style.magenta(),
        4 => style.cyan(),
        5 => style.red(),
        _ => style.dim(),
    };
    paint(style, text)
}

fn paint(style: Style, text: &str) -> String {
    if colours() {
        style.force_styling(true).apply_to(text).to_string()
    } else {
        text.to_owned()
    }
}
