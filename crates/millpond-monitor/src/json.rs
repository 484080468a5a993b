//! A JSON writer with the features that a monitor needs.

use std::fmt::Write;

/// A JSON text that is being written. [`object`](Self::object) and [`objects`](Self::objects) write both the opening and
/// the closing bracket.
#[derive(Debug, Default)]
pub(super) struct Json {
    text: String,
    /// True if the next value is the first of its object or array.
    first: bool,
}

impl Json {
    /// Returns the text of one object.
    pub(super) fn of(fill: impl FnOnce(&mut Self)) -> String {
        let mut json = Self::default();
        json.braces('{', '}', fill);
        json.text
    }

    fn braces(&mut self, open: char, close: char, fill: impl FnOnce(&mut Self)) {
        self.text.push(open);
        self.first = true;
        fill(self);
        self.text.push(close);
        self.first = false;
    }

    fn comma(&mut self) {
        if !self.first {
            self.text.push(',');
        }
        self.first = false;
    }

    fn key(&mut self, key: &str) {
        self.comma();
        self.quote(key);
        self.text.push(':');
    }

    fn quote(&mut self, text: &str) {
        self.text.push('"');
        for c in text.chars() {
            match c {
                '"' => self.text.push_str("\\\""),
                '\\' => self.text.push_str("\\\\"),
                c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') => {
                    let _ = write!(self.text, "\\u{:04x}", u32::from(c));
                }
                c => self.text.push(c),
            }
        }
        self.text.push('"');
    }

    pub(super) fn object(&mut self, key: &str, fill: impl FnOnce(&mut Self)) {
        self.key(key);
        self.braces('{', '}', fill);
    }

    /// Writes an array with one object for each item.
    pub(super) fn objects<T>(
        &mut self,
        key: &str,
        all: impl IntoIterator<Item = T>,
        mut fill: impl FnMut(&mut Self, T),
    ) {
        self.key(key);
        self.braces('[', ']', |json| {
            for one in all {
                json.comma();
                json.braces('{', '}', |json| fill(json, one));
            }
        });
    }

    pub(super) fn numbers(&mut self, key: &str, all: &[u64]) {
        self.key(key);
        self.braces('[', ']', |json| {
            for one in all {
                json.comma();
                let _ = write!(json.text, "{one}");
            }
        });
    }

    pub(super) fn text(&mut self, key: &str, value: &str) {
        self.key(key);
        self.quote(value);
    }

    pub(super) fn number(&mut self, key: &str, value: u64) {
        self.key(key);
        let _ = write!(self.text, "{value}");
    }

    /// Writes a number or null.
    pub(super) fn maybe(&mut self, key: &str, value: Option<u64>) {
        match value {
            Some(value) => self.number(key, value),
            None => self.null(key),
        }
    }

    pub(super) fn null(&mut self, key: &str) {
        self.key(key);
        self.text.push_str("null");
    }

    pub(super) fn flag(&mut self, key: &str, value: bool) {
        self.key(key);
        self.text.push_str(if value { "true" } else { "false" });
    }

    /// Writes a number with four decimal places.
    pub(super) fn ratio(&mut self, key: &str, value: f64) {
        self.key(key);
        let value = if value.is_finite() { value } else { 0.0 };
        let _ = write!(self.text, "{value:.4}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    proptest! {
        #[test]
        fn written_values_are_read_back(
            key in "\\PC*", text in proptest::collection::vec(any::<char>(), 0..40),
            numbers in proptest::collection::vec(any::<u64>(), 0..5), ratio in 0.0f64..1.0,
        ) {
            let text: String = text.into_iter().collect();
            let written = Json::of(|json| {
                json.text("text", &text);
                json.numbers("numbers", &numbers);
                json.objects("objects", &numbers, |json, n| json.number(&key, *n));
                json.object("object", |json| {
                    json.ratio("ratio", ratio);
                    json.maybe("none", None);
                    json.flag("flag", true);
                    json.object("empty", |_| {});
                });
                json.maybe("last", numbers.first().copied());
            });
            let read: Value = serde_json::from_str(&written).expect("JSON");
            prop_assert_eq!(read["text"].as_str(), Some(text.as_str()));
            prop_assert_eq!(&read["numbers"], &Value::from(numbers.clone()));
            for (at, number) in numbers.iter().enumerate() {
                prop_assert_eq!(&read["objects"][at][&key], &Value::from(*number));
            }
            prop_assert!((read["object"]["ratio"].as_f64().unwrap_or(9.0) - ratio).abs() < 1e-4);
            prop_assert!(read["object"]["none"].is_null() && read["object"]["empty"].is_object());
            prop_assert_eq!(&read["last"], &numbers.first().map_or(Value::Null, |n| Value::from(*n)));
        }
    }
}
