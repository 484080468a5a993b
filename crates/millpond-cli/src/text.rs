//! Formats sentences and numbers.

use millpond_engine::display_size;
use std::path::Path;

/// Breaks a text into lines of at most `width` columns. All lines but the first are indented by `indent` blanks.
///
/// Words longer than a line, such as paths, get their own line and are not cut. An option and its value in quotes stay on one line, so
/// that they can be copied to a command line.
pub(crate) fn wrap(text: &str, width: usize, indent: usize) -> String {
    let mut out = String::with_capacity(text.len() + 16);
    let mut column = 0;
    for word in words(text) {
        let length = console::measure_text_width(word);
        if column > 0 && column + 1 + length > width {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent));
            column = indent;
        } else if column > 0 {
            out.push(' ');
            column += 1;
        }
        out.push_str(word);
        column += length;
    }
    out
}

/// Returns the words of a text. An option with a value in quotes is one word.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let mut rest = text.trim_start();
    std::iter::from_fn(move || {
        let end = rest.find(char::is_whitespace).unwrap_or(rest.len());
        let (option, after) = rest.split_at(end);
        let value = after.strip_prefix(" '").filter(|_| option.starts_with("--"));
        let end = value
            .and_then(|value| value.find('\''))
            .map_or(end, |len| end + 2 + len + 1);
        let word;
        (word, rest) = rest.split_at(end);
        rest = rest.trim_start();
        (!word.is_empty()).then_some(word)
    })
}

/// Formats a sentence after a mark. Its lines are aligned.
pub(crate) fn item(mark: &str, text: &str, width: usize) -> String {
    let indent = console::measure_text_width(mark) + 1;
    format!(
        "{mark} {}",
        wrap(text, width.saturating_sub(indent), 0).replace('\n', &format!("\n{}", " ".repeat(indent)))
    )
}

/// Formats a name and its value on lines of `width` columns. The value begins at a column, and so do its further lines.
pub(crate) fn fact(name: &str, value: &str, column: usize, width: usize) -> String {
    let room = width.saturating_sub(column).max(20);
    let value = wrap(value, room, 0).replace('\n', &format!("\n{}", " ".repeat(column)));
    format!("  {name:<names$}{value}\n", names = column.saturating_sub(2))
}

/// Returns the name that a misspelt one most likely means, or `None` if no name is similar.
pub(crate) fn nearest<'a>(typed: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let typed = typed.to_lowercase();
    let alike = names.map(|name| (strsim::jaro_winkler(&typed, name), name));
    let (likeness, name) = alike.max_by(|a, b| a.0.total_cmp(&b.0))?;
    (likeness > 0.75).then_some(name)
}

/// Cuts a text to `width` columns, with an ellipsis if it was cut.
pub(crate) fn short(text: &str, width: usize) -> String {
    console::truncate_str(text, width, "…").into_owned()
}

/// The unit of a column of sizes. All sizes share it, so that they can be compared easily.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// For columns whose largest size is a GiB or more.
    GiB,
    /// For columns whose largest size is a MiB or more.
    MiB,
    /// For columns of smaller sizes.
    KiB,
}

impl Unit {
    /// Returns the unit for a column with this largest size.
    pub(crate) fn for_largest(bytes: u64) -> Self {
        match bytes {
            _ if bytes >= 1 << 30 => Self::GiB,
            _ if bytes >= 1 << 20 => Self::MiB,
            _ => Self::KiB,
        }
    }

    /// Formats a size in this unit with two decimals, so that one per cent of most peaks is visible. A size that would show as
    /// 0 gets its own unit.
    pub(crate) fn show(self, bytes: u64) -> String {
        let (scale, name) = self.scale();
        let value = bytes as f64 / (1u64 << scale) as f64;
        // No memory is this large. Such a number comes from a hostile file, and its length would break the layout.
        if bytes > 0 && value < 0.005 || value >= 1e7 {
            return size(bytes);
        }
        format!("{value:.2} {name}")
    }

    /// Formats the size of a device that is needed. It is rounded up, so that a device of the printed size is large enough.
    pub(crate) fn show_needed(self, bytes: u64) -> String {
        let unit = 1u64 << self.scale().0;
        let hundredths = (u128::from(bytes) * 100).div_ceil(u128::from(unit));
        let up = (hundredths * u128::from(unit)).div_ceil(100);
        self.show(u64::try_from(up).unwrap_or(bytes))
    }

    /// Returns the power of two of the unit, and its name.
    fn scale(self) -> (u32, &'static str) {
        match self {
            Self::GiB => (30, "GiB"),
            Self::MiB => (20, "MiB"),
            Self::KiB => (10, "KiB"),
        }
    }
}

/// Formats peak reserved over peak requested. Ratios below 100 have three decimals, so that policies can be told apart.
pub(crate) fn overhead(ratio: f64) -> String {
    match ratio {
        _ if ratio < 100.0 => format!("{ratio:.3}"),
        _ if ratio < 1000.0 => format!("{ratio:.1}"),
        _ => number(ratio.round() as u64),
    }
}

/// Formats a share in per cent. Small shares have one decimal. A share below 100 per cent never shows as 100.
pub(crate) fn percent(share: f64) -> String {
    let hundredths = share * 100.0;
    match hundredths {
        h if h >= 9.95 || h == 0.0 => format!("{:.0} %", if h > 99.0 && h < 100.0 { 99.0 } else { h }),
        h if h < 0.05 => "<0.1 %".to_owned(),
        h => format!("{h:.1} %"),
    }
}

/// Formats a number with its digits in groups of three.
pub(crate) fn number(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Returns a path as one word of a shell's command. A path with spaces or other special characters is quoted.
pub(crate) fn shell_word(path: &Path) -> String {
    let text = path.display().to_string();
    let is_plain = |c: char| c.is_alphanumeric() || "%+,-./:=@_".contains(c);
    match text.chars().all(is_plain) {
        true => text,
        false => format!("'{}'", text.replace('\'', r"'\''")),
    }
}

/// Formats a count with its noun: `1 block`, `2 blocks`.
pub(crate) fn counted(n: u64, noun: &str) -> String {
    format!("{} {noun}{}", number(n), if n == 1 { "" } else { "s" })
}

/// Formats a time in the unit that needs few digits.
pub(crate) fn duration_us(micros: f64) -> String {
    let (value, unit) = match micros {
        us if us < 999.5 => return format!("{us:.0} us"),
        us if us < 999_500.0 => (us / 1e3, "ms"),
        us if us < 600e6 => (us / 1e6, "s"),
        us => (us / 60e6, "min"),
    };
    let digits = if value < 9.995 {
        2
    } else {
        usize::from(value < 99.95)
    };
    format!("{value:.digits$} {unit}")
}

/// Formats a size as [`display_size`] does.
pub(crate) fn size(bytes: u64) -> String {
    display_size(bytes).to_string()
}

/// Returns whether a character is a control character or changes the direction of text.
pub(crate) fn steers(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Removes characters that could control a terminal, because names and tags come from untrusted files.
///
/// Escape sequences are removed too, except this program's own styles if `styled` is true.
pub(crate) fn harmless(text: &str, styled: bool) -> String {
    let steers = |c: char| c != '\n' && steers(c);
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find(steers) {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let style = STYLES.iter().find(|style| styled && from.starts_with(**style));
        let skipped = if let Some(style) = style {
            out.push_str(style);
            style.len()
        } else {
            out.push(char::REPLACEMENT_CHARACTER);
            from.chars().next().map_or(1, char::len_utf8)
        };
        rest = from.get(skipped..).unwrap_or_default();
    }
    out.push_str(rest);
    out
}

/// The escape sequences that `terminal` uses, including the one that resets styles.
const STYLES: [&str; 9] = [
    "\x1b[0m", "\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[33m", "\x1b[34m", "\x1b[35m", "\x1b[36m",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_removed() {
        let hostile = "a\x1b]0;b\x07\x1b[2J\u{9b}31m\u{202e}\r\x1b[8m\u{e9}\n";
        let plain = "a\u{fffd}]0;b\u{fffd}\u{fffd}[2J\u{fffd}31m\u{fffd}\u{fffd}\u{fffd}[8m\u{e9}\n";
        assert_eq!(harmless(hostile, true), plain);
        assert_eq!(harmless(hostile, false), plain);
        assert_eq!(harmless("\x1b[31mno\x1b[0m", true), "\x1b[31mno\x1b[0m");
        assert_eq!(harmless("\x1b[31mno\x1b[0m", false), "\u{fffd}[31mno\u{fffd}[0m");
    }

    #[test]
    fn a_path_is_quoted_as_one_shell_word() {
        for (path, word) in [
            ("/tmp/run.4711-1.mpr", "/tmp/run.4711-1.mpr"),
            ("my runs/a.mpr", "'my runs/a.mpr'"),
            ("it's $HOME", r"'it'\''s $HOME'"),
            ("~", "'~'"),
        ] {
            assert_eq!(shell_word(Path::new(path)), word);
        }
    }

    #[test]
    fn the_styles_of_this_program_are_kept() {
        use console::Style;
        let styles = [
            Style::new().bold(),
            Style::new().dim(),
            Style::new().red().bold(),
            Style::new().yellow(),
            Style::new().green().bold(),
        ];
        for style in styles {
            let painted = style.force_styling(true).apply_to("x").to_string();
            assert_eq!(harmless(&painted, true), painted);
        }
    }

    #[test]
    fn numbers_group_by_three() {
        for (n, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
            assert_eq!(number(n), text);
        }
    }

    #[test]
    fn a_misspelt_name_finds_the_nearest_name() {
        let names = ["millpond", "torch-native", "torch-expandable", "rmm-pool", "none"];
        let near = |typed| nearest(typed, names.into_iter());
        assert_eq!(near("torch-natve"), Some("torch-native"));
        assert_eq!(near("torch_expandable"), Some("torch-expandable"));
        assert_eq!(near("Milpond"), Some("millpond"));
        assert_eq!(near("zzz"), None);
    }

    #[test]
    fn small_sizes_and_large_ratios_keep_their_digits() {
        assert_eq!(Unit::for_largest(700), Unit::KiB);
        assert_eq!(Unit::KiB.show(700), "0.68 KiB");
        assert_eq!(Unit::MiB.show(700), "700 B");
        assert_eq!(Unit::GiB.show(0), "0.00 GiB");
        assert_eq!(Unit::GiB.show(5 << 20), "5.00 MiB");
        assert_eq!(Unit::GiB.show(6 << 20), "0.01 GiB");
        assert_eq!(Unit::GiB.show(3762 << 20), "3.67 GiB");
        assert_eq!(Unit::GiB.show_needed(3762 << 20), "3.68 GiB");
        assert_eq!(Unit::GiB.show_needed(48 << 30), "48.00 GiB");
        assert_eq!(
            [1.0094, 227.88, 20_971.5].map(overhead),
            ["1.009", "227.9", "20,972"]
        );
    }

    #[test]
    fn durations_keep_three_digits() {
        let shown = [0.0, 999.0, 1500.0, 12_345.0, 2.5e6, 3.6e9].map(duration_us);
        assert_eq!(
            shown,
            ["0 us", "999 us", "1.50 ms", "12.3 ms", "2.50 s", "60.0 min"]
        );
    }

    #[test]
    fn wrapped_lines_fit_the_width() {
        let wrapped = item("-", "one two three four five six seven", 14);
        assert_eq!(wrapped, "- one two\n  three four\n  five six\n  seven");
        assert!(wrapped.lines().all(|line| line.len() <= 14));
    }

    #[test]
    fn the_quoted_value_of_an_option_is_not_broken() {
        let text = "  try --edit 'recompute=a b c' --edit 'x' or it's done ";
        let lines = ["try", "--edit 'recompute=a b c'", "--edit 'x' or", "it's done"];
        assert_eq!(wrap(text, 14, 0), lines.join("\n"));
        assert_eq!(wrap("--edit 'a b", 8, 0), "--edit\n'a b");
    }
}
