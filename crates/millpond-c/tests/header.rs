//! The header is the one that cbindgen generates from the code.

use std::fs;
use std::path::Path;

const PREAMBLE: &str = "\
/* The C library of Millpond: pools of host and device memory, budgets, statistics, tags and recordings.
 *
 * This file is generated from the code of the crate `millpond-c`.
 *
 * Every function that can fail returns a `millpond_status`, and `millpond_last_error` returns the text. Results are written through the
 * last parameters, and only if the call succeeds. All functions may be called from any thread, and a tag belongs to the thread that sets it.
 *
 * Rules on arguments. A handle that is null, was destroyed or is of another kind is answered by a code, and so are null and misaligned
 * pointers, texts that are not UTF-8, and wrong sizes, alignments and flags. These rules cannot be checked:
 *   - A pointer to a result is valid for a write of its type. A structure has the bytes that its field `size` says.
 *   - A text ends with a zero byte.
 *   - A stream is a live stream of the device's primary context.
 *   - Nothing uses a block when it is freed.
 */";

/// Returns the header that cbindgen generates from the code.
fn generate() -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let text = r#"
language = "C"
include_guard = "MILLPOND_H"
cpp_compat = true
no_includes = true
sys_includes = ["stddef.h", "stdint.h"]
usize_is_size_t = true
style = "type"
documentation_style = "c99"
line_length = 120
after_includes = "\n#define MILLPOND_VERSION_MAJOR @MAJOR@\n#define MILLPOND_VERSION_MINOR @MINOR@\n#define MILLPOND_VERSION_PATCH @PATCH@"

[export]
item_types = ["constants", "enums", "structs", "opaque", "functions"]

[fn]
sort_by = "None"
"#;
    let text = text
        .replace("@MAJOR@", env!("CARGO_PKG_VERSION_MAJOR"))
        .replace("@MINOR@", env!("CARGO_PKG_VERSION_MINOR"))
        .replace("@PATCH@", env!("CARGO_PKG_VERSION_PATCH"));
    let config = toml(&text);
    let mut builder = cbindgen::Builder::new().with_config(config).with_header(PREAMBLE);
    for file in [
        "status",
        "handles",
        "pool",
        "figures",
        "block",
        "device",
        "plugin",
        "budget",
        "tag",
        "recording",
    ] {
        builder = builder.with_src(source.join(format!("{file}.rs")));
    }
    let mut header = Vec::new();
    builder
        .generate()
        .expect("the code is understood")
        .write(&mut header);
    let header = String::from_utf8(header).expect("UTF-8");
    // C has no word for unsafe functions. The rules on arguments are at the top, so only further ones stay.
    header
        .replace("//\n// # Safety\n// The rules on arguments apply.\n", "")
        .replace("// # Safety\n// The rules on arguments apply. ", "// Rules: ")
        .replace("// # Safety\n// ", "// Rules: ")
}

fn toml(text: &str) -> cbindgen::Config {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cbindgen-{}.toml", std::process::id()));
    fs::write(&path, text).expect("written");
    let config = cbindgen::Config::from_file(&path).expect("a configuration");
    let _ = fs::remove_file(&path);
    config
}

#[test]
fn the_header_matches_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("include/millpond.h");
    let header = generate();
    if std::env::var_os("MILLPOND_UPDATE").is_some() {
        fs::write(&path, &header).expect("written");
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == header,
        "include/millpond.h is not that of the code: renew it with MILLPOND_UPDATE=1 cargo test -p millpond-c --test header"
    );
}
