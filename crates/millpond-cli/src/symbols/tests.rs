//! Names for addresses of this very process, which has modules, lines and a build id like any that is recorded.

use super::ModuleSymbols;
use super::elf::Elf;
use millpond_trace::history::{Definitions, Symbols};
use millpond_trace::recording::{Kind, Row};
use object::Object;
use std::path::{Path, PathBuf};

#[inline(never)]
fn a_function_of_this_test() -> u64 {
    std::hint::black_box(7)
}

/// Where this program's code is: the mappings of its file.
fn mapped() -> (PathBuf, u64, u64) {
    let path = std::env::current_exe().expect("it runs");
    let maps = std::fs::read_to_string("/proc/self/maps").expect("a Linux");
    let of_it = maps
        .lines()
        .filter(|line| line.ends_with(path.to_str().expect("UTF-8")));
    let range = |line: &str| {
        let (from, to) = line.split_once(' ')?.0.split_once('-')?;
        Some((
            u64::from_str_radix(from, 16).ok()?,
            u64::from_str_radix(to, 16).ok()?,
        ))
    };
    let ranges: Vec<_> = of_it.filter_map(range).collect();
    let (first, last) = (ranges.first().expect("mapped"), ranges.last().expect("mapped"));
    (path, first.0, last.1)
}

fn build_id(path: &Path) -> String {
    let elf = Elf::open(path).expect("it is there");
    let file = elf.parse().expect("ELF");
    let id = file.build_id().expect("notes").expect("linked with one");
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn definitions(build_id: &str, path: &str, base: u64, bytes: u64) -> Definitions {
    let mut definitions = Definitions::default();
    let row = Row {
        address: base,
        bytes,
        ..Row::new(Kind::DefineModule, 0)
    };
    definitions.note(&row, Some(&format!("{build_id}\n{path}")), Some(vec![base]));
    definitions
}

#[test]
fn an_address_is_named_with_its_line() {
    let (path, base, end) = mapped();
    let definitions = definitions(&build_id(&path), path.to_str().expect("UTF-8"), base, end - base);
    let symbols = ModuleSymbols::new(&definitions);
    let function = a_function_of_this_test as fn() -> u64;
    // A call from within returns behind its first byte.
    let frames = symbols.frames(function as usize as u64 + 1);
    let last = frames.last().expect("a name");
    assert!(
        last.function.ends_with("tests::a_function_of_this_test"),
        "{frames:?}"
    );
    assert!(
        last.file.ends_with("symbols/tests.rs") && last.line > 0,
        "{frames:?}"
    );
    assert!(symbols.cautions().is_empty());
    assert!(symbols.frames(base - 1).is_empty() && symbols.frames(0).is_empty());
}

/// A name is never guessed: whatever differs, there is none, and why is said.
#[test]
fn what_differs_has_no_names() {
    let (path, base, end) = mapped();
    let path = path.to_str().expect("UTF-8");
    let own = build_id(Path::new(path));
    let at = (a_function_of_this_test as fn() -> u64) as usize as u64 + 1;
    for (id, path, why) in [
        ("", path, "has no build id of it"),
        ("00112233", path, "another build id"),
        (&*own, "/nowhere/at all", "not on this machine"),
        (&*own, "/dev/zero", "not on this machine"),
        ("../../../..", path, "another build id"),
    ] {
        let definitions = definitions(id, path, base, end - base);
        let symbols = ModuleSymbols::new(&definitions);
        assert!(symbols.frames(at).is_empty(), "{id} {path}");
        let cautions = symbols.cautions();
        assert!(cautions.len() == 1 && cautions[0].contains(why), "{cautions:?}");
    }
}

/// Files that are no ELF, or are damaged anywhere near their beginning, give no names and end nothing.
#[test]
fn damaged_files_give_no_names() {
    let (path, base, end) = mapped();
    let own = build_id(&path);
    let place = std::env::temp_dir().join(format!("millpond-symbols-{}", std::process::id()));
    let text = "no ELF at all".repeat(100);
    std::fs::write(&place, text).expect("room");
    let of = |id: &str| definitions(id, place.to_str().expect("UTF-8"), base, end - base);
    let refused = of(&own);
    let symbols = ModuleSymbols::new(&refused);
    assert!(symbols.frames(base + 1).is_empty());
    assert!(symbols.cautions()[0].contains("cannot be read"));
    let whole = std::fs::read(&path).expect("it is there");
    let at = (a_function_of_this_test as fn() -> u64) as usize as u64 + 1;
    // The header, whose every claim is used: class, order, kind, places and numbers of tables; and a file cut in half.
    for byte in [0, 4, 5, 16, 32, 40, 47, 54, 56, 58, 60, 62, whole.len() / 2] {
        let mut damaged = whole.clone();
        damaged[byte] ^= 0xff;
        if byte > 64 {
            damaged.truncate(byte);
        }
        std::fs::write(&place, &damaged).expect("room");
        let definitions = of(&own);
        let symbols = ModuleSymbols::new(&definitions);
        let _ = symbols.frames(at);
    }
    let _ = std::fs::remove_file(&place);
}

/// Names that the recording itself has hold, whatever files there are.
#[test]
fn recorded_names_hold() {
    let mut definitions = definitions("00", "/nowhere", 0x1000, 0x1000);
    let row = Row::new(Kind::DefineFrame, 0);
    definitions.note(&row, Some("f\nf.rs\n3"), Some(vec![0x1004]));
    let symbols = ModuleSymbols::new(&definitions);
    let frames = symbols.frames(0x1004);
    assert_eq!((frames.len(), &*frames[0].function, frames[0].line), (1, "f", 3));
    assert!(symbols.cautions().is_empty(), "no file was asked for");
}
