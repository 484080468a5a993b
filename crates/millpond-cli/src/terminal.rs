//! Properties of the terminal: its width, and whether it shows colours. Messages on it.

use crate::text::harmless;
use console::{Style, Term};
use std::io::Write;

/// The width if the output is not a terminal and `COLUMNS` is not set.
const USUAL: usize = 100;

/// Returns the width of the output in columns.
pub(crate) fn width() -> usize {
    let asked = std::env::var("COLUMNS")
        .ok()
        .and_then(|text| text.parse::<usize>().ok());
    let term = Term::stdout()
        .size_checked()
        .map(|(_, columns)| usize::from(columns));
    // A width of 0, which some test harnesses report, is ignored.
    term.filter(|columns| *columns > 0)
        .or(asked)
        .unwrap_or(USUAL)
        .max(40)
}

/// Returns whether stdout shows colours: it is a terminal, and `NO_COLOR` is not set.
pub(crate) fn colours() -> bool {
    let refused = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    !refused && console::colors_enabled()
}

/// Styles headings and the most important text.
pub(crate) fn bold(text: &str) -> String {
    paint(Style::new().bold(), text)
}

/// Styles text that is least important.
pub(crate) fn dim(text: &str) -> String {
    paint(Style::new().dim(), text)
}

/// Styles failures.
pub(crate) fn red(text: &str) -> String {
    paint(Style::new().red().bold(), text)
}

/// Styles cautions.
pub(crate) fn yellow(text: &str) -> String {
    paint(Style::new().yellow(), text)
}

/// Styles recommendations.
pub(crate) fn green(text: &str) -> String {
    paint(Style::new().green().bold(), text)
}

/// Styles one of several groups in a picture, by number. Numbers beyond the last colour share one style.
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

/// Returns a text without colours.
pub(crate) fn plain(text: &str) -> String {
    console::strip_ansi_codes(text).into_owned()
}

fn paint(style: Style, text: &str) -> String {
    if colours() {
        style.force_styling(true).apply_to(text).to_string()
    } else {
        text.to_owned()
    }
}

/// Writes a message to stderr in one piece, so that messages of other processes do not interrupt it.
pub(crate) fn say(text: &str) {
    // If stderr is closed, there is no other place for the message.
    let _ = std::io::stderr().write_all(format!("millpond: {}\n", harmless(text, false)).as_bytes());
}
