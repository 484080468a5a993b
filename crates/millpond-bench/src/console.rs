//! Arguments and output of the programs. A closed stdout, as after `| head`, is not an error.

use clap::Parser;
use std::error::Error;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

/// Writes a line to stderr. Ignores errors, because there is no other place to report them.
pub fn say(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Writes to stdout. Ends the program without a message if the reader has gone.
///
/// # Errors
/// Returns an error if writing fails for any other reason.
pub fn print(text: impl Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => std::process::exit(0),
        written => written,
    }
}

/// Returns the exit code of a program. After an error, prints it and returns 2.
pub fn exit(name: &str, outcome: Result<(), Box<dyn Error>>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(format_args!("{name}: {error}"));
            ExitCode::from(2)
        }
    }
}

/// Parses the arguments of a program. Ends it after invalid arguments or `--help`, as usual.
pub(crate) fn parse<T: Parser>(name: &str, arguments: impl Iterator<Item = String>) -> T {
    T::parse_from(std::iter::once(name.to_owned()).chain(arguments))
}

/// Parses a number of rounds or of other repetitions.
///
/// # Errors
/// Returns an error if the text is not a number, or if the number is 0.
pub fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("the number must be at least 1".to_owned()),
        Ok(number) => Ok(number),
        Err(error) => Err(format!("{error}")),
    }
}

/// The width of the output in columns.
pub(crate) const WIDTH: usize = 100;

/// Breaks a text into lines that fit the output.
pub(crate) fn wrap(text: &str) -> String {
    wrap_to(text, WIDTH)
}

/// Breaks a text into lines that begin with two spaces and fit the output.
pub(crate) fn indented(text: &str) -> String {
    format!("  {}", wrap_to(text, WIDTH - 2).replace('\n', "\n  "))
}

/// Breaks a text into lines of at most `width` columns.
pub(crate) fn wrap_to(text: &str, width: usize) -> String {
    let (mut out, mut column) = (String::with_capacity(text.len() + 8), 0);
    for word in text.split_whitespace() {
        let length = word.chars().count();
        if column > 0 {
            let fits = column + 1 + length <= width;
            out.push(if fits { ' ' } else { '\n' });
            column = if fits { column + 1 } else { 0 };
        }
        out.push_str(word);
        column += length;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words_at_the_width() {
        assert_eq!(wrap_to("a bb  ccc\ndd", 4), "a bb\nccc\ndd");
        assert_eq!(wrap_to("abcdef a", 3), "abcdef\na");
    }
}
