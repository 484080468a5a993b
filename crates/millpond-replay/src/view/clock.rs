//! Places several recordings on one clock.

use millpond_trace::history::History;

/// Returns for each recording the nanoseconds from the earliest start to its own start.
///
/// # Errors
/// Returns the reason if the recordings have no common clock: a recording has no times, its start is unknown, or there is a gap in
/// which no recording was running.
pub fn offsets<'a>(
    recordings: impl IntoIterator<Item = (&'a String, &'a History)>,
) -> Result<Vec<u64>, String> {
    let mut spans = Vec::new();
    for (name, history) in recordings {
        if history.duration == 0 {
            return Err(format!("{name} has no times"));
        }
        let start = history
            .start()
            .ok_or_else(|| format!("{name} does not say when it began"))?;
        spans.push((start, start.saturating_add(history.duration)));
    }
    let mut ordered = spans.clone();
    ordered.sort_unstable();
    let first = ordered.first().map_or(0, |(start, _)| *start);
    let mut latest = first;
    for (start, end) in ordered {
        if start > latest {
            return Err("they were made at different times".to_owned());
        }
        latest = latest.max(end);
    }
    Ok(spans.iter().map(|(start, _)| start - first).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_trace::ReadOptions;
    use millpond_trace::recording::{Kind, Row, Writer, set_start};

    const SECOND: u64 = 1_000_000_000;

    /// Returns the offsets of recordings with these starts, if known, and durations.
    fn offsets_of(spans: &[(Option<u64>, u64)]) -> Result<Vec<u64>, String> {
        // Each test has a thread of its own.
        let thread = std::thread::current().id();
        let name = format!("millpond-clock-{}-{thread:?}.mpr", std::process::id());
        let path = std::env::temp_dir().join(name);
        let open = |(start, duration): &(Option<u64>, u64)| {
            let mut facts = Vec::new();
            if let Some(start) = start {
                set_start(&mut facts, *start);
            }
            let mut writer = Writer::new(Vec::new(), &facts).expect("memory");
            writer.push(&Row::new(Kind::Keyframe, *duration)).expect("memory");
            std::fs::write(&path, writer.finish(*duration).expect("memory")).expect("room");
            History::open(&path, &ReadOptions::default()).expect("a recording")
        };
        let histories: Vec<History> = spans.iter().map(open).collect();
        let names: Vec<String> = (0..spans.len()).map(|at| format!("{at}.mpr")).collect();
        let found = offsets(names.iter().zip(&histories));
        std::fs::remove_file(&path).expect("it is there");
        found
    }

    #[test]
    fn recordings_that_overlap_are_shifted_by_the_difference_of_their_starts() {
        let at = |seconds: u64| Some(1_700_000_000 * SECOND + seconds * SECOND);
        assert_eq!(
            offsets_of(&[(at(3), SECOND), (at(1), 9 * SECOND)]),
            Ok(vec![2 * SECOND, 0])
        );
        // The second and the third are connected by the first.
        let three = [(at(0), 9 * SECOND), (at(1), SECOND), (at(5), 20 * SECOND)];
        assert_eq!(offsets_of(&three), Ok(vec![0, SECOND, 5 * SECOND]));
        assert_eq!(offsets_of(&[(at(7), SECOND)]), Ok(vec![0]));
    }

    #[test]
    fn recordings_without_a_common_clock_have_no_offsets() {
        let at = |seconds: u64| Some(1_700_000_000 * SECOND + seconds * SECOND);
        assert_eq!(
            offsets_of(&[(at(0), SECOND), (at(2), SECOND)]),
            Err("they were made at different times".to_owned())
        );
        assert_eq!(
            offsets_of(&[(at(0), SECOND), (None, SECOND)]),
            Err("1.mpr does not say when it began".to_owned())
        );
        assert_eq!(
            offsets_of(&[(at(0), 0), (at(0), SECOND)]),
            Err("0.mpr has no times".to_owned())
        );
    }
}
