//! Parses the arguments of protocol 0, which are lines of text.

use super::arena::{Arena, Full};
use super::value::Value;

/// Parses a decimal integer of any length. Returns `None` if `text` is not one.
pub(super) fn decimal(arena: &mut Arena, text: &str) -> Result<Option<Value>, Full> {
    if let Ok(int) = text.parse() {
        return arena.int(int).map(Some);
    }
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |digits| (-1, digits));
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return Ok(None);
    }
    Ok(Some(if sign < 0 { Value::MINUS_HUGE } else { Value::HUGE }))
}

/// Replaces Python's escapes in a text, as far as names use them.
pub(super) fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        plain.extend_from_slice(&rest[..at]);
        let digits = match rest.get(at + 1) {
            Some(b'x') => 2,
            Some(b'u') => 4,
            Some(b'U') => 8,
            _ => 0,
        };
        let code = rest.get(at + 2..at + 2 + digits).filter(|code| !code.is_empty());
        let char = code
            .and_then(|code| u32::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok())
            .and_then(char::from_u32);
        let (char, taken) = match (char, rest.get(at + 1)) {
            (Some(char), _) => (char, 2 + digits),
            (None, Some(b'n')) => ('\n', 2),
            (None, Some(b't')) => ('\t', 2),
            (None, Some(&other @ (b'\\' | b'\'' | b'"'))) => (char::from(other), 2),
            (None, _) => ('\\', 1),
        };
        plain.extend_from_slice(char.encode_utf8(&mut [0; 4]).as_bytes());
        rest = &rest[at + taken..];
    }
    plain.extend_from_slice(rest);
    plain
}
