//! Tests names for addresses of this process, which has modules, line tables and a build id like any recorded process.

use super::ModuleSymbols;
use super::code::Code;
use super::elf::{Elf, Files};
use millpond_trace::history::{Definitions, Frame, Symbols};
use millpond_trace::recording::{Kind, Row};
use object::Object;
use std::path::{Path, PathBuf};
use std::process::Command;

#[inline(never)]
fn a_function_of_this_test() -> u64 {
    std::hint::black_box(7)
}

/// A mapping of code: start address, end address, and offset in the file.
type Mapping = (u64, u64, u64);

/// Returns the mappings of a file's code, from the text of a process's `/proc/PID/maps`.
fn code_of(path: &Path, maps: &str) -> Vec<Mapping> {
    let number = |text: &str| u64::from_str_radix(text, 16).ok();
    let mapping = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (from, to) = fields.next()?.split_once('-')?;
        let is_code = fields.next()?.contains('x');
        let offset = number(fields.next()?)?;
        is_code.then_some((number(from)?, number(to)?, offset))
    };
    let of_it = maps
        .lines()
        .filter(|line| line.ends_with(path.to_str().expect("UTF-8")));
    of_it.filter_map(mapping).collect()
}

/// Returns the path of this program and the mappings of its code.
fn mapped() -> (PathBuf, Vec<Mapping>) {
    let path = std::env::current_exe().expect("it runs");
    let maps = std::fs::read_to_string("/proc/self/maps").expect("a Linux");
    let code = code_of(&path, &maps);
    (path, code)
}

fn build_id(path: &Path) -> String {
    let elf = Elf::open(path).expect("it is there");
    let file = elf.parse().expect("ELF");
    let id = file.build_id().expect("notes").expect("linked with one");
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Defines a file's modules as the recorder does: each mapping of code, and the address that the file's first byte would have.
fn definitions(build_id: &str, path: &str, code: &[Mapping]) -> Definitions {
    let mut definitions = Definitions::default();
    for (from, to, offset) in code {
        let row = Row {
            address: *from,
            bytes: to - from,
            ..Row::new(Kind::DefineModule, 0)
        };
        let base = from.wrapping_sub(*offset);
        definitions.note(&row, Some(&format!("{build_id}\n{path}")), Some(vec![base]));
    }
    definitions
}

#[test]
fn an_address_is_named_with_its_line() {
    let (path, code) = mapped();
    let definitions = definitions(&build_id(&path), path.to_str().expect("UTF-8"), &code);
    let symbols = ModuleSymbols::new(&definitions);
    let function = a_function_of_this_test as fn() -> u64;
    // A call inside the function returns behind its first byte.
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
    let first = code.iter().map(|(from, ..)| *from).min().expect("code");
    assert!(symbols.frames(first).is_empty() && symbols.frames(0).is_empty());
}

/// The names of unknown code are the same in each run, although the addresses differ.
#[test]
fn unknown_code_is_named_by_its_file_and_offset() {
    let definitions = definitions("00", "/nowhere/libx.so.1", &[(0x7000, 0x9000, 0x1000)]);
    let symbols = ModuleSymbols::new(&definitions);
    let of = |address| (&symbols as &dyn Symbols).stack(std::iter::once(address)).next();
    let function = |address| of(address).expect("a frame").function;
    assert_eq!(function(0x7123), "libx.so.1+0x1123");
    assert_eq!(function(0x7000), "0x7000", "the call is before the code");
    assert_eq!(function(0x9000), "libx.so.1+0x3000");
    assert_eq!(function(0x9001), "0x9001");
}

/// A module that differs has no names, and the reason is reported.
#[test]
fn changed_modules_are_not_resolved() {
    let (path, code) = mapped();
    let path = path.to_str().expect("UTF-8");
    let own = build_id(Path::new(path));
    let at = (a_function_of_this_test as fn() -> u64) as usize as u64 + 1;
    for (id, path, why) in [
        ("", path, "has no build id for it"),
        ("00112233", path, "another build id"),
        (&*own, "/nowhere/at all", "not on this machine"),
        (&*own, "/dev/zero", "not on this machine"),
        ("../../../..", path, "another build id"),
    ] {
        let definitions = definitions(id, path, &code);
        let symbols = ModuleSymbols::new(&definitions);
        assert!(symbols.frames(at).is_empty(), "{id} {path}");
        let cautions = symbols.cautions();
        assert!(cautions.len() == 1 && cautions[0].contains(why), "{cautions:?}");
    }
}

/// Files that are not ELF or are damaged near their beginning give no names and do not end the process.
#[test]
fn damaged_files_give_no_names() {
    let (path, code) = mapped();
    let own = build_id(&path);
    let place = std::env::temp_dir().join(format!("millpond-symbols-{}", std::process::id()));
    let text = "no ELF at all".repeat(100);
    std::fs::write(&place, text).expect("room");
    let of = |id: &str| definitions(id, place.to_str().expect("UTF-8"), &code);
    let refused = of(&own);
    let symbols = ModuleSymbols::new(&refused);
    assert!(symbols.frames(code[0].0 + 1).is_empty());
    assert!(symbols.cautions()[0].contains("is not readable"));
    let whole = std::fs::read(&path).expect("it is there");
    let at = (a_function_of_this_test as fn() -> u64) as usize as u64 + 1;
    // Damages the header, whose fields are all used: class, byte order, kind, offsets and sizes of tables. Also cuts the
    // file in half.
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

/// Names in the recording have priority over any file.
#[test]
fn recorded_names_take_precedence_over_files() {
    let mut definitions = definitions("00", "/nowhere", &[(0x1000, 0x2000, 0)]);
    let row = Row::new(Kind::DefineFrame, 0);
    definitions.note(&row, Some("f\nf.rs\n3"), Some(vec![0x1004]));
    let symbols = ModuleSymbols::new(&definitions);
    let frames = symbols.frames(0x1004);
    assert_eq!((frames.len(), &*frames[0].function, frames[0].line), (1, "f", 3));
    assert!(symbols.cautions().is_empty(), "no file was asked for");
}

/// A program that prints the address of its function `known`, and its mappings.
const PROGRAM: &str = r#"use std::fs::read_to_string;
#[inline(never)]
fn known(n: u64) -> u64 { std::hint::black_box(n) }
fn main() {
    println!("{}", known as fn(u64) -> u64 as usize);
    print!("{}", read_to_string("/proc/self/maps").unwrap());
}
"#;
/// The source line of `known`.
const LINE: u32 = 3;

/// Links and runs the program. Returns the address of `known` and the mappings of code, or `None` if this machine cannot link with these
/// options.
fn linked(program: &Path, options: &[&str]) -> Option<(u64, Vec<Mapping>)> {
    let source = program.with_extension("rs");
    std::fs::write(&source, PROGRAM).expect("room");
    let built = Command::new("rustc")
        .args([
            "--edition=2021",
            "-Cdebuginfo=line-tables-only",
            "-Clink-arg=-Wl,--build-id",
        ])
        .args(options)
        .arg("-o")
        .args([program, &source])
        .output();
    let error = match built {
        Ok(built) if built.status.success() => None,
        Ok(built) => Some(String::from_utf8_lossy(&built.stderr).into_owned()),
        Err(error) => Some(error.to_string()),
    };
    if let Some(error) = error {
        eprintln!("skipped: {options:?} cannot be linked here: {error}");
        return None;
    }
    let said = Command::new(program).output().expect("it runs").stdout;
    let said = String::from_utf8(said).expect("UTF-8");
    let (address, maps) = said.split_once('\n').expect("an address and mappings");
    Some((address.parse().expect("a number"), code_of(program, maps)))
}

/// A folder that is removed when the test ends.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("millpond-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("room");
        Self(path.canonicalize().expect("it is there"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn is_known(frames: &[Frame]) -> bool {
    let [frame] = frames else {
        return false;
    };
    frame.function.ends_with("::known") && frame.file.ends_with(".rs") && frame.line == LINE
}

/// Linkers choose the difference between address and file offset for each part of a file. lld adds a page to it from part to part. GNU ld
/// uses none for position-independent programs, and the same one for all parts of other programs.
#[test]
fn functions_are_found_with_every_linker() {
    let folder = Folder::new("linked");
    let (lld, gnu) = ("-Clink-arg=-fuse-ld=lld", "-Clink-arg=-fuse-ld=bfd");
    let fixed = "-Crelocation-model=static";
    for (name, options) in [
        ("lld", &[lld][..]),
        ("lld-fixed", &[lld, fixed]),
        ("gnu", &[gnu]),
        ("gnu-fixed", &[gnu, fixed]),
    ] {
        let program = folder.0.join(name);
        let Some((known, code)) = linked(&program, options) else {
            continue;
        };
        let id = build_id(&program);
        let path = program.to_str().expect("UTF-8");
        let definitions = definitions(&id, path, &code);
        let symbols = ModuleSymbols::new(&definitions);
        // A return address inside the function lies after its first byte.
        let frames = symbols.frames(known + 1);
        assert!(is_known(&frames), "{name}: {frames:?}; {:?}", symbols.cautions());
    }
}

/// A separate debug file holds the names, but not the offset of the code in the original file.
#[test]
fn functions_are_named_from_a_debug_file_alone() {
    let folder = Folder::new("stripped");
    for (name, options) in [("default", &[][..]), ("gnu", &["-Clink-arg=-fuse-ld=bfd"])] {
        let program = folder.0.join(name);
        let Some((known, code)) = linked(&program, options) else {
            continue;
        };
        let debug = program.with_extension("debug");
        let stripped = Command::new("objcopy")
            .arg("--only-keep-debug")
            .args([&program, &debug])
            .status();
        if !stripped.is_ok_and(|status| status.success()) {
            eprintln!("skipped: there is no objcopy here");
            return;
        }
        let definitions = definitions("00", program.to_str().expect("UTF-8"), &code);
        let module = &definitions.modules()[0];
        let named = |bytes| {
            let files = Files {
                own: None,
                debug: Elf::open(&debug),
            };
            let module = millpond_trace::history::Module {
                bytes,
                ..module.clone()
            };
            let code = Code::new(files, &module).unwrap_or_else(|why| panic!("{why}"));
            code.frames(known - module.base)
        };
        let frames = named(module.bytes);
        assert!(is_known(&frames), "{name}: {frames:?}");
        assert!(
            named(module.bytes + 4096).is_empty(),
            "{name}: a mapping of another size gives no names"
        );
    }
}
