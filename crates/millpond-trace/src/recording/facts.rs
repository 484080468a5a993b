//! The facts of recordings that readers of this library use.

/// The name of the moment at which a recording began. Its value is the number of seconds since 1970, with nine decimal places.
const START: &str = "start";
/// The name of the bytes that one recorded stack represents.
const BYTES_PER_STACK: &str = "bytes_per_stack";
/// The latest start in seconds. Later ones do not fit in other formats.
const LATEST: u64 = 9_000_000_000;

/// Sets the moment from which the times of a recording count, in nanoseconds since 1970, among the facts of the recording.
pub fn set_start(facts: &mut Vec<(String, String)>, nanos: u64) {
    let second = 1_000_000_000;
    facts.retain(|(name, _)| name != START);
    facts.push((
        START.to_owned(),
        format!("{}.{:09}", nanos / second, nanos % second),
    ));
}

/// Returns the moment from which the times of a recording count, in nanoseconds since 1970, if the facts contain it.
pub(crate) fn start_of(facts: &[(String, String)]) -> Option<u64> {
    let (_, text) = facts.iter().find(|(name, _)| name == START)?;
    let (seconds, fraction) = text.split_once('.').unwrap_or((text, ""));
    let seconds: u64 = seconds.parse().ok().filter(|seconds| *seconds <= LATEST)?;
    let fraction: u32 = format!("{fraction:0<9.9}").parse().ok()?;
    Some(seconds * 1_000_000_000 + u64::from(fraction))
}

/// States among the facts of a recording that only a sample of its allocations has stacks: each byte was selected with the
/// probability `1 / bytes`, and an allocation has a stack if one of its bytes was selected or if it has at least `bytes` bytes.
pub fn set_bytes_per_stack(facts: &mut Vec<(String, String)>, bytes: u64) {
    facts.retain(|(name, _)| name != BYTES_PER_STACK);
    facts.push((BYTES_PER_STACK.to_owned(), bytes.to_string()));
}

/// Returns the number that [`set_bytes_per_stack`] has set, or `None` if there is none.
pub(crate) fn bytes_per_stack(facts: &[(String, String)]) -> Option<u64> {
    let (_, text) = facts.iter().find(|(name, _)| name == BYTES_PER_STACK)?;
    text.parse().ok().filter(|bytes| *bytes > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_is_read_to_the_nanosecond() {
        let mut facts = Vec::new();
        for nanos in [0, 5, 1_795_915_792_701_498_901] {
            set_start(&mut facts, nanos);
            assert_eq!((start_of(&facts), facts.len()), (Some(nanos), 1));
        }
        let of = |text: &str| start_of(&[("start".to_owned(), text.to_owned())]);
        assert_eq!(of("1700000000.5"), Some(1_700_000_000_500_000_000));
        assert_eq!(of("1700000000"), Some(1_700_000_000_000_000_000));
        for text in ["", "yesterday", "-1.5", "1.-5", "99999999999", "1.é"] {
            assert_eq!(of(text), None, "{text}");
        }
        assert_eq!(start_of(&[]), None);
    }

    #[test]
    fn the_bytes_of_a_stack_are_a_number_above_zero() {
        let mut facts = Vec::new();
        for bytes in [1, 512 << 10, u64::MAX] {
            set_bytes_per_stack(&mut facts, bytes);
            assert_eq!((bytes_per_stack(&facts), facts.len()), (Some(bytes), 1));
        }
        for text in ["", "0", "-1", "1K", "18446744073709551616"] {
            let facts = [("bytes_per_stack".to_owned(), text.to_owned())];
            assert_eq!(bytes_per_stack(&facts), None, "{text}");
        }
    }
}
