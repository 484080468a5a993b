//! Links `libmillpond.so` and installs it with its headers and the files for pkg-config and CMake.
//!
//! The tests of `millpond-c` include this file, so that they test what `cargo xtask c-library` installs. It therefore imports nothing of this
//! crate.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The version of the library, and the number in its name, which changes with each incompatible change.
const VERSION: &str = env!("CARGO_PKG_VERSION");
const SONAME: &str = "libmillpond.so.0";

/// All symbols have this version. A later version of the library adds a node for its new symbols, and keeps this one.
const SYMBOLS: &str = "MILLPOND_0.1 {\n  global: millpond_*;\n  local: *;\n};\n";

/// The system libraries that Rust's standard library needs.
const SYSTEM: [&str; 6] = ["-lgcc_s", "-lrt", "-lpthread", "-lm", "-ldl", "-lc"];

const PKG_CONFIG: &str = "\
prefix=${pcfiledir}/../..
libdir=${prefix}/lib
includedir=${prefix}/include

Name: millpond
Description: Memory pools for tensor and GPU computing
Version: @VERSION@
Libs: -L${libdir} -lmillpond
Cflags: -I${includedir}
";

const CONFIG: &str = "\
# Defines the target Millpond::millpond, the C library with its headers for C and C++.
include(\"${CMAKE_CURRENT_LIST_DIR}/MillpondTargets.cmake\")
";

const CONFIG_VERSION: &str = "\
set(PACKAGE_VERSION \"@VERSION@\")
# Before 1.0, versions are compatible if their first two numbers are the same.
if(PACKAGE_VERSION VERSION_LESS PACKAGE_FIND_VERSION)
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
elseif(PACKAGE_FIND_VERSION_COUNT LESS 2
       OR (PACKAGE_FIND_VERSION_MAJOR EQUAL @MAJOR@ AND PACKAGE_FIND_VERSION_MINOR EQUAL @MINOR@))
  set(PACKAGE_VERSION_COMPATIBLE TRUE)
  if(PACKAGE_FIND_VERSION STREQUAL PACKAGE_VERSION)
    set(PACKAGE_VERSION_EXACT TRUE)
  endif()
else()
  set(PACKAGE_VERSION_COMPATIBLE FALSE)
endif()
if(NOT CMAKE_SIZEOF_VOID_P STREQUAL \"\" AND NOT CMAKE_SIZEOF_VOID_P EQUAL 8)
  set(PACKAGE_VERSION_UNSUITABLE TRUE)
endif()
";

const TARGETS: &str = "\
# The folder of this file is lib/cmake/Millpond below the prefix, wherever that is.
get_filename_component(_millpond_prefix \"${CMAKE_CURRENT_LIST_DIR}/../../..\" ABSOLUTE)
if(NOT TARGET Millpond::millpond)
  add_library(Millpond::millpond SHARED IMPORTED)
  set_target_properties(Millpond::millpond PROPERTIES
    IMPORTED_LOCATION \"${_millpond_prefix}/lib/libmillpond.so.@VERSION@\"
    IMPORTED_SONAME \"@SONAME@\"
    INTERFACE_INCLUDE_DIRECTORIES \"${_millpond_prefix}/include\")
endif()
unset(_millpond_prefix)
";

/// Links the shared library from the static one, and installs everything below `prefix`. `package` is the folder of `millpond-c`. Returns the
/// path of the shared library.
pub(crate) fn install(archive: &Path, package: &Path, prefix: &Path) -> Result<PathBuf, String> {
    let library = prefix.join("lib");
    let modules = library.join("cmake/Millpond");
    for folder in [&modules, &library.join("pkgconfig"), &prefix.join("include")] {
        fs::create_dir_all(folder).map_err(|error| failed(folder, &error))?;
    }
    let shared = library.join(format!("libmillpond.so.{VERSION}"));
    link(archive, &shared)?;
    for (name, to) in [(SONAME, &shared), ("libmillpond.so", &library.join(SONAME))] {
        let link = library.join(name);
        let _ = fs::remove_file(&link);
        let to = to.file_name().unwrap_or_default();
        symlink(to, &link).map_err(|error| failed(&link, &error))?;
    }
    for header in ["millpond.h", "millpond.hpp"] {
        let (from, to) = (
            package.join("include").join(header),
            prefix.join("include").join(header),
        );
        fs::copy(&from, &to).map_err(|error| failed(&to, &error))?;
    }
    for (path, text) in [
        (library.join("pkgconfig/millpond.pc"), PKG_CONFIG),
        (modules.join("MillpondConfig.cmake"), CONFIG),
        (modules.join("MillpondConfigVersion.cmake"), CONFIG_VERSION),
        (modules.join("MillpondTargets.cmake"), TARGETS),
    ] {
        let text = text
            .replace("@VERSION@", VERSION)
            .replace("@MAJOR@", env!("CARGO_PKG_VERSION_MAJOR"))
            .replace("@MINOR@", env!("CARGO_PKG_VERSION_MINOR"))
            .replace("@SONAME@", SONAME);
        fs::write(&path, text).map_err(|error| failed(&path, &error))?;
    }
    Ok(shared)
}

/// Links the shared library. Rust's own linking of a `cdylib` cannot give versions to symbols.
fn link(archive: &Path, shared: &Path) -> Result<(), String> {
    let script = shared.with_file_name("millpond.map");
    fs::write(&script, SYMBOLS).map_err(|error| failed(&script, &error))?;
    let arguments = [
        format!("-Wl,-soname,{SONAME}"),
        format!("-Wl,--version-script={}", script.display()),
    ];
    let done = Command::new("cc")
        .args(["-shared", "-o"])
        .arg(shared)
        .arg("-Wl,--whole-archive")
        .arg(archive)
        .args([
            "-Wl,--no-whole-archive",
            "-Wl,--gc-sections",
            "-Wl,-z,relro,-z,now",
            "-Wl,-z,defs",
        ])
        .args(arguments)
        .args(SYSTEM)
        .output()
        .map_err(|error| format!("cc could not start: {error}; install a C compiler"))?;
    let _ = fs::remove_file(&script);
    match done.status.success() {
        true => Ok(()),
        false => Err(format!(
            "libmillpond.so could not be linked: {}",
            String::from_utf8_lossy(&done.stderr)
        )),
    }
}

fn failed(path: &Path, error: &io::Error) -> String {
    format!("{} cannot be written: {error}", path.display())
}
