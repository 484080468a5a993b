//! Stacks with resolved names.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The place of an allocation or a free: return addresses, the innermost first. Names and lines are resolved on request
/// and need the program's debug information. The first resolution takes milliseconds, and the resolver keeps memory for
/// its tables.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Stack(Arc<[usize]>);

/// One function on a stack. An inlined function has the address of the function that contains it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Frame {
    /// The return address.
    pub address: usize,
    /// The function with its path.
    pub function: Option<String>,
    /// The file.
    pub file: Option<String>,
    /// The line in the file, from 1.
    pub line: Option<u32>,
}

impl Stack {
    pub(super) fn new(addresses: &[usize]) -> Self {
        Self(addresses.into())
    }

    /// Returns the return addresses.
    #[must_use]
    pub fn addresses(&self) -> &[usize] {
        &self.0
    }

    /// Returns all frames, resolved as far as possible.
    #[must_use]
    pub fn frames(&self) -> Vec<Frame> {
        self.frames_by(&resolve)
    }

    /// Returns the frames of the program itself. Frames of this library and the standard library at the inner end are
    /// excluded, and so are the callers of `main` or of the thread at the outer end.
    #[must_use]
    pub fn user_frames(&self) -> Vec<Frame> {
        self.user_frames_by(&resolve)
    }

    fn frames_by(&self, resolve: &dyn Fn(usize) -> Vec<Frame>) -> Vec<Frame> {
        self.0.iter().flat_map(|address| resolve(*address)).collect()
    }

    pub(super) fn user_frames_by(&self, resolve: &dyn Fn(usize) -> Vec<Frame>) -> Vec<Frame> {
        trim(self.frames_by(resolve))
    }
}

/// Writes the program's frames, one per line.
impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, frame) in self.user_frames().iter().enumerate() {
            let newline = if at == 0 { "" } else { "\n" };
            write!(f, "{newline}{frame}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.function {
            Some(function) => f.write_str(function)?,
            None => write!(f, "{:#x}", self.address)?,
        }
        let Some(file) = &self.file else { return Ok(()) };
        let here = std::env::current_dir().unwrap_or_default();
        let path = Path::new(file);
        write!(f, " ({}", path.strip_prefix(here).unwrap_or(path).display())?;
        if let Some(line) = self.line {
            write!(f, ":{line}")?;
        }
        f.write_str(")")
    }
}

/// Prefixes of functions between the program and its blocks, in addition to those of [`PACKAGES`].
const INNER: [&str; 5] = ["alloc::", "core::", "std::", "__r", "_R"];
/// The packages of these functions. They also identify inlined functions, which have no path if the program was built with
/// line tables only.
const PACKAGES: [&str; 16] = [
    "millpond",
    "millpond-account",
    "millpond-c",
    "millpond-codec",
    "millpond-cuda",
    "millpond-cuda-core",
    "millpond-data",
    "millpond-engine",
    "millpond-monitor",
    "millpond-os",
    "millpond-pool",
    "millpond-record",
    "millpond-set",
    "millpond-tensor",
    "backtrace",
    "hashbrown",
];
/// The path of an allocator that wraps this library.
const ALLOCATOR: &str = " as core::alloc::global::GlobalAlloc>::";
const ALLOCATES: [&str; 3] = ["alloc", "alloc_zeroed", "realloc"];
/// Paths of functions that call the program.
const OUTER: [&str; 3] = ["alloc::", "core::", "std::"];
const START: &str = "__rust_begin_short_backtrace";

fn begins(frame: &Frame, with: &[&str]) -> bool {
    let name = frame.function.as_deref().unwrap_or_default();
    let name = name.trim_start_matches(['<', '&', '[']);
    with.iter().any(|with| name.starts_with(with))
}

fn has(frame: &Frame, part: &str) -> bool {
    frame.function.as_deref().is_some_and(|name| name.contains(part))
}

/// Returns a function's name if it has no path.
fn bare(frame: &Frame) -> Option<&str> {
    let name = frame.function.as_deref()?;
    let name = name.split('<').next()?;
    (!name.is_empty() && !name.contains("::")).then_some(name)
}

/// Returns true if the file of a function without a path belongs to the standard library.
fn is_of_std(frame: &Frame) -> bool {
    let file = frame.file.as_deref().unwrap_or_default();
    bare(frame).is_some() && file.starts_with("/rustc/") && file.contains("/library/")
}

/// Returns true if the path of a function begins with the crate of one of [`PACKAGES`].
fn has_path_of_package(frame: &Frame) -> bool {
    let name = frame.function.as_deref().unwrap_or_default();
    let name = name.trim_start_matches(['<', '&', '[']);
    let Some((of, _)) = name.split_once("::") else {
        return false;
    };
    PACKAGES
        .iter()
        .any(|package| of.split('_').eq(package.split('-')))
}

/// Returns true if a function without a path belongs to [`PACKAGES`]: its file is `NAME/src/…` or `NAME-1.2.3/src/…`.
fn is_of_package(frame: &Frame) -> bool {
    if bare(frame).is_none() {
        return false;
    }
    let folders: Vec<&str> = frame.file.as_deref().unwrap_or_default().split('/').collect();
    folders.windows(2).any(|pair| {
        pair[1] == "src"
            && PACKAGES.iter().any(|name| {
                let rest = pair[0].strip_prefix(name);
                let version = rest.and_then(|rest| rest.strip_prefix('-'));
                rest == Some("")
                    || version.is_some_and(|version| version.starts_with(|c: char| c.is_ascii_digit()))
            })
    })
}

/// Returns the range of the frames that belong to the program.
pub(super) fn user_part(frames: &[&Frame]) -> Range<usize> {
    let allocates =
        |frame: &Frame| has(frame, ALLOCATOR) || bare(frame).is_some_and(|name| ALLOCATES.contains(&name));
    let ours = |frame: &&&Frame| {
        begins(frame, &INNER)
            || has_path_of_package(frame)
            || allocates(frame)
            || is_of_package(frame)
            || is_of_std(frame)
    };
    let inner = frames.iter().take_while(ours).count();
    let start = frames.iter().position(|frame| has(frame, START));
    let mut outer = start.unwrap_or(frames.len());
    while outer > inner
        && frames
            .get(outer - 1)
            .is_some_and(|last| begins(last, &OUTER) || is_of_std(last))
    {
        outer -= 1;
    }
    if inner >= outer {
        // All frames belong to the library. They are returned because they are more useful than none.
        return 0..frames.len();
    }
    inner..outer
}

fn trim(mut frames: Vec<Frame>) -> Vec<Frame> {
    let part = user_part(&frames.iter().collect::<Vec<_>>());
    frames.truncate(part.end);
    frames.split_off(part.start)
}

/// Returns true if names can be resolved here, which calls the loader.
pub(super) fn may_resolve() -> bool {
    #[cfg(all(feature = "stacks", target_os = "linux"))]
    return millpond_os::may_ask_loader();
    #[cfg(not(all(feature = "stacks", target_os = "linux")))]
    return cfg!(feature = "stacks");
}

#[cfg(feature = "stacks")]
pub(super) fn resolve(address: usize) -> Vec<Frame> {
    let mut frames = Vec::new();
    let looked_up = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        backtrace::resolve(std::ptr::without_provenance_mut(address), |symbol| {
            frames.push(Frame {
                address,
                function: symbol.name().map(|name| format!("{name:#}")),
                file: symbol.filename().map(|file| file.display().to_string()),
                line: symbol.lineno(),
            });
        });
    }));
    if looked_up.is_err() || frames.is_empty() {
        return unnamed(address);
    }
    frames
}

#[cfg(not(feature = "stacks"))]
pub(super) fn resolve(address: usize) -> Vec<Frame> {
    unnamed(address)
}

fn unnamed(address: usize) -> Vec<Frame> {
    vec![Frame {
        address,
        ..Frame::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trimmed(names: &[&str]) -> Vec<String> {
        let frame = |name: &&str| Frame {
            function: Some((*name).to_owned()),
            ..Frame::default()
        };
        let left = trim(names.iter().map(frame).collect());
        left.into_iter().filter_map(|frame| frame.function).collect()
    }

    /// The functions of a crate that is not listed would be shown as the program's.
    #[test]
    fn all_crates_of_the_library_are_listed() {
        let file = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../millpond/Cargo.toml");
        let text = std::fs::read_to_string(file).expect("the manifest of millpond");
        let (_, dependencies) = text.split_once("\n[dependencies]\n").expect("dependencies");
        let (dependencies, _) = dependencies.split_once("\n[").expect("another section");
        let mut crates = 0;
        for line in dependencies.lines().filter(|line| line.starts_with("millpond-")) {
            let name = line.split(['.', ' ']).next().expect("a name");
            // The macros run in the compiler.
            assert!(PACKAGES.contains(&name) || name == "millpond-derive", "{name}");
            crates += 1;
        }
        assert!(crates > 8, "{crates}");
    }

    #[test]
    fn only_the_programs_own_frames_are_shown() {
        let all = [
            "backtrace::backtrace::trace",
            "millpond::ledger::Ledger::record",
            "millpond::pool::Pool::alloc_raw",
            "<app::Global as core::alloc::global::GlobalAlloc>::alloc",
            "__rust_alloc",
            "alloc::vec::Vec<T>::with_capacity",
            "app::load",
            "core::iter::Iterator::map",
            "app::main",
            "core::ops::function::FnOnce::call_once",
            "std::sys::backtrace::__rust_begin_short_backtrace",
            "std::rt::lang_start",
            "main",
        ];
        assert_eq!(
            trimmed(&all),
            ["app::load", "core::iter::Iterator::map", "app::main"]
        );
        // A program whose name begins like a name of this library does not belong to the library.
        assert_eq!(trimmed(&["millpond_cli::main"]), ["millpond_cli::main"]);
        assert_eq!(trimmed(&["millpond_cuda_core::a", "app::b"]), ["app::b"]);
        assert_eq!(trimmed(&["millpond::a", "std::b"]), ["millpond::a", "std::b"]);
        assert_eq!(trimmed(&[]), [""; 0]);
    }
}
