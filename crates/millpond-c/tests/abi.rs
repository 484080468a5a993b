//! The binary interface: the symbols with their versions, the codes, and the layout of the structures.

mod support;

use std::fmt::Write as _;
use std::fs;
use std::process::Command;
use support::{command, compile, folder, install, is_installed, package, run};

/// Returns the symbols that the library exports, with their versions.
fn symbols(library: &std::path::Path) -> String {
    let printed = run(Command::new("nm").args(["-D", "--defined-only"]).arg(library));
    let mut names: Vec<_> = printed
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .filter(|name| *name != "MILLPOND_0.1")
        .collect();
    names.sort_unstable();
    names.join("\n") + "\n"
}

/// A structure: its name, and the names of its fields.
type Structure = (String, Vec<String>);

/// Returns the names of the constants and codes, and the structures of the header.
fn names(header: &str) -> (Vec<String>, Vec<Structure>) {
    let (mut numbers, mut structures) = (Vec::new(), Vec::new());
    let mut fields = None;
    for line in header.lines().map(str::trim) {
        if let Some(define) = line.strip_prefix("#define MILLPOND_") {
            let name = define.split_whitespace().next().unwrap_or_default();
            if name != "H" && !name.starts_with("VERSION") {
                numbers.push(format!("MILLPOND_{name}"));
            }
        } else if let Some(code) = line.strip_prefix("MILLPOND_") {
            let name = code.split([' ', ',']).next().unwrap_or_default();
            numbers.push(format!("MILLPOND_{name}"));
        } else if line == "typedef struct {" {
            fields = Some(Vec::new());
        } else if let (Some(name), Some(fields)) =
            (line.strip_prefix("} "), fields.take_if(|_| line.starts_with('}')))
        {
            structures.push((name.trim_end_matches(';').to_owned(), fields));
        } else if let (Some(field), Some(fields)) = (line.strip_suffix(';'), &mut fields) {
            fields.push(field.rsplit([' ', '*']).next().unwrap_or_default().to_owned());
        }
    }
    (numbers, structures)
}

/// Returns a program that prints the numbers and the layouts as the compiler sees them.
fn program(header: &str) -> String {
    let (numbers, structures) = names(header);
    assert!(
        numbers.len() > 12 && structures.len() > 4,
        "the header was not understood"
    );
    let mut text = "#include <millpond.h>\n#include <stdio.h>\n\nint main(void) {\n".to_owned();
    for number in numbers {
        let _ = writeln!(
            text,
            r#"printf("{number} %llu\n", (unsigned long long)({number}));"#
        );
    }
    for (name, fields) in structures {
        let _ = writeln!(text, r#"printf("{name}: %zu bytes\n", sizeof({name}));"#);
        for field in fields {
            let _ = writeln!(
                text,
                r#"printf("  {field} at %zu, %zu bytes\n", offsetof({name}, {field}), sizeof((({name} *)0)->{field}));"#
            );
        }
    }
    text + "return 0; }\n"
}

#[test]
fn the_binary_interface_has_not_changed() {
    if !is_installed("cc", "--version") || !is_installed("nm", "--version") {
        return;
    }
    let prefix = folder("abi");
    let library = install(&prefix);
    let header = fs::read_to_string(package().join("include/millpond.h")).expect("the header");
    let source = prefix.join("layout.c");
    fs::write(&source, program(&header)).expect("written");
    let layout = run(&mut command(
        compile("cc", &prefix, &source, &["-std=c11"]),
        &prefix,
    ));
    let found = symbols(&library) + &layout;
    let path = package().join("tests/abi.txt");
    if std::env::var_os("MILLPOND_UPDATE").is_some() {
        fs::write(&path, &found).expect("written");
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        found, expected,
        "the binary interface has changed. Additions are compatible: renew the list with MILLPOND_UPDATE=1. Anything else needs a new number in the library's name"
    );
}

#[test]
fn the_library_has_its_soname_and_needs_only_system_libraries() {
    if !is_installed("cc", "--version") || !is_installed("readelf", "--version") {
        return;
    }
    let library = install(&folder("soname"));
    let dynamic = run(Command::new("readelf").args(["-d", "-W"]).arg(&library));
    assert!(
        dynamic.contains("Library soname: [libmillpond.so.0]"),
        "{dynamic}"
    );
    for line in dynamic.lines().filter(|line| line.contains("(NEEDED)")) {
        let system = [
            "libc.so",
            "libm.so",
            "libgcc_s.so",
            "librt.so",
            "libpthread.so",
            "libdl.so",
            "ld-linux",
        ];
        assert!(system.iter().any(|name| line.contains(name)), "{line}");
    }
}
