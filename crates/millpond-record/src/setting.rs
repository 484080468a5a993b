//! The environment variable that starts a recording.

use super::{RecordStacks, Recorder, RecorderBuilder, with_process};
use millpond_os as os;
use millpond_os::reentrancy::quiet;
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const VARIABLE: &str = "MILLPOND_RECORD";

/// An invalid setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "MILLPOND_RECORD: {part:?} is not a setting; write a path, optionally followed by stacks=512K (or all, or none), sums=100ms (or none), ring=64M and pid=4711 (the only process to record), as in run.%p.mpr,stacks=512K"
)]
pub struct RecordSettingError {
    /// The invalid part.
    pub part: String,
}

/// Starts the recording that the environment requests, at most once in a process.
pub(super) fn begin_by_environment() {
    static LOOKED: AtomicBool = AtomicBool::new(false);
    if LOOKED.load(Ordering::Relaxed) || LOOKED.swap(true, Ordering::AcqRel) {
        return;
    }
    let _quiet = quiet();
    let Some(value) = std::env::var_os(VARIABLE).filter(|value| !value.is_empty()) else {
        return;
    };
    let value = value.to_string_lossy();
    let begun = match parse(&value) {
        Ok(setting) if setting.only.is_some_and(|process| process != process::id()) => return,
        Ok(Setting { path, builder, only }) => {
            let path = Path::new(path);
            // The child of a fork is another process. It is not recorded if the path contains no `%p`.
            let path = only.map_or_else(|| path.to_owned(), |_| with_process(path));
            builder.start(path).map_err(|error| error.to_string())
        }
        Err(error) => Err(error.to_string()),
    };
    match begun {
        // The recording runs until the process ends.
        Ok(recorder) => std::mem::forget(recorder),
        Err(error) => os::say(&format!("millpond: nothing is recorded: {error}\n")),
    }
}

/// A path, the settings of the recording, and the only process that is recorded if there is one.
struct Setting<'a> {
    path: &'a str,
    builder: RecorderBuilder,
    only: Option<u32>,
}

fn parse(value: &str) -> Result<Setting<'_>, RecordSettingError> {
    let mut parts = value.split(',');
    let path = parts.next().unwrap_or_default();
    let (mut builder, mut only) = (Recorder::builder(), None);
    for part in parts {
        let wrong = || RecordSettingError {
            part: part.chars().take(40).collect(),
        };
        let (name, value) = part.split_once('=').ok_or_else(wrong)?;
        builder = match (name, value) {
            ("stacks", "all") => builder.stacks(RecordStacks::Always),
            ("stacks", "none") => builder.stacks(RecordStacks::Never),
            ("stacks", every) => builder.stacks(RecordStacks::Bytes(bytes(every).ok_or_else(wrong)?)),
            ("sums", "none") => builder.sums_every(None),
            ("sums", every) => {
                let every = every.strip_suffix("ms").and_then(|number| number.parse().ok());
                builder.sums_every(Some(Duration::from_millis(every.ok_or_else(wrong)?)))
            }
            ("ring", room) => {
                let room = bytes(room).and_then(|bytes| usize::try_from(bytes).ok());
                builder.ring_bytes(room.ok_or_else(wrong)?)
            }
            ("pid", process) => {
                only = Some(process.parse().map_err(|_| wrong())?);
                builder
            }
            _ => return Err(wrong()),
        };
    }
    if path.is_empty() {
        return Err(RecordSettingError {
            part: value.chars().take(40).collect(),
        });
    }
    Ok(Setting { path, builder, only })
}

/// Parses a number of bytes, such as `512K`.
fn bytes(text: &str) -> Option<u64> {
    millpond_engine::parse_size(text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read() {
        let setting = parse("run.%p.mpr,stacks=512K,sums=20ms,ring=1M,pid=7").expect("settings");
        let Setting { path, builder, only } = setting;
        assert_eq!((path, only), ("run.%p.mpr", Some(7)));
        assert_eq!(builder.stacks, RecordStacks::Bytes(512 << 10));
        assert_eq!(builder.sums_every, Some(Duration::from_millis(20)));
        assert_eq!(builder.ring_bytes, 1 << 20);
        for (setting, wrong) in [
            ("", ""),
            ("a,b", "b"),
            ("a,stacks=", "stacks="),
            ("a,stacks=1X", "stacks=1X"),
            ("a,sums=3", "sums=3"),
            ("a,pid=-1", "pid=-1"),
            (",stacks=all", ",stacks=all"),
        ] {
            let error = parse(setting).err().expect("no setting");
            assert_eq!(error.part, wrong, "{setting}");
            assert!(error.to_string().contains("stacks=512K"));
        }
    }
}
