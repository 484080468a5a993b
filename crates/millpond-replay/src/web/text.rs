//! Formats text, JSON and numbers for a page.

use std::fmt::{self, Display, Formatter};

/// Text escaped for HTML. It cannot open a tag or end an attribute.
pub(crate) struct Text<'a>(pub(crate) &'a str);

impl Display for Text<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        for letter in self.0.chars() {
            match letter {
                '&' => out.write_str("&amp;")?,
                '<' => out.write_str("&lt;")?,
                '>' => out.write_str("&gt;")?,
                '"' => out.write_str("&quot;")?,
                '\'' => out.write_str("&#39;")?,
                _ => write!(out, "{letter}")?,
            }
        }
        Ok(())
    }
}

/// JSON that cannot end the element that contains it.
pub(crate) struct Json<'a>(pub(crate) &'a serde_json::Value);

impl Display for Json<'_> {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0.to_string().replace('<', "\\u003c"))
    }
}

/// A number with separated thousands.
pub(crate) struct Count(pub(crate) u64);

impl Display for Count {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (place, digit) in digits.chars().enumerate() {
            if place > 0 && (digits.len() - place).is_multiple_of(3) {
                out.write_str(",")?;
            }
            write!(out, "{digit}")?;
        }
        Ok(())
    }
}

/// Bytes in the largest unit in which the number is at least one.
pub(crate) struct Human(pub(crate) u64);

impl Display for Human {
    fn fmt(&self, out: &mut Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
        let unit = (0..UNITS.len())
            .rev()
            .find(|&unit| self.0 >> (10 * unit) > 0)
            .unwrap_or(0);
        let value = self.0 as f64 / f64::powi(1024.0, unit as i32);
        let digits = if unit == 0 { 0 } else { 2 };
        write!(out, "{value:.digits$} {}", UNITS[unit])
    }
}

/// Returns a name from a file on one line of at most `most` characters. Control characters and invisible
/// characters become blanks.
pub(crate) fn one_line(text: &str, most: usize) -> String {
    let hidden = |c: char| {
        c.is_control()
            || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}')
    };
    let plain = |c: char| if hidden(c) { ' ' } else { c };
    let mut out: String = text.chars().take(most).map(plain).collect();
    if text.chars().nth(most).is_some() {
        out.push('…');
    }
    out
}
