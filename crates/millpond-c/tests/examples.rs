//! Runs the examples with the emulated CUDA driver. An example whose compiler is missing is skipped.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use support::{command, compile, folder, install, is_installed, package, run};

/// Fails unless the lines are in the output in this order.
fn expect(printed: &str, lines: &[&str]) {
    let mut rest = printed;
    for line in lines {
        let at = rest
            .find(line)
            .unwrap_or_else(|| panic!("no '{line}' in its place in:\n{printed}"));
        rest = &rest[at + line.len()..];
    }
    println!("{printed}");
}

#[test]
fn the_example_in_c() {
    if !is_installed("cc", "--version") {
        return;
    }
    let prefix = folder("example-c");
    install(&prefix);
    let source = package().join("examples/c/memory.c");
    let program = compile("cc", &prefix, &source, &["-std=c99", "-pedantic"]);
    let recording = prefix.join("run.mpr");
    let printed = run(command(&program, &prefix).arg(&recording));
    expect(
        &printed,
        &[
            "sum: 1000000",
            "ten steps: 160 allocations",
            "4000000 bytes in use",
            "62 MiB more: MILLPOND_OUT_OF_MEMORY",
            "weights",
            "a pointer into a block: MILLPOND_INVALID_POINTER",
            "weights",
            "after the trim",
            "0 bytes in use",
            "budget: 0 bytes in use, ",
            "device: copied there and back, 2 of 3 allocations without the driver",
            "recorded ",
            "0 lost",
        ],
    );
    assert!(fs::metadata(&recording).expect("the recording").len() > 1000);
}

#[test]
fn the_example_in_cpp() {
    if !is_installed("c++", "--version") {
        return;
    }
    let prefix = folder("example-cpp");
    install(&prefix);
    let source = package().join("examples/cpp/memory.cpp");
    let program = compile("c++", &prefix, &source, &["-std=c++17", "-pedantic"]);
    let printed = run(&mut command(&program, &prefix));
    expect(
        &printed,
        &[
            "reserved at least 32 MiB: yes",
            "aligned for SIMD: yes",
            "names in the pool: 100, pooled",
            "refused: ",
            "tenant",
            "device: copied there and back, 0 bytes in use",
            "left in use: 0 bytes; ",
        ],
    );
}

#[test]
fn the_example_in_go() {
    if !is_installed("go", "version") || !is_installed("pkg-config", "--version") {
        return;
    }
    let prefix = folder("example-go");
    install(&prefix);
    let mut go = command("go", &prefix);
    go.args(["run", "."])
        .current_dir(package().join("examples/go"))
        .env("GOFLAGS", "-mod=mod")
        .env("GOTOOLCHAIN", "local")
        .env("GOCACHE", prefix.join("cache"));
    expect(
        &run(&mut go),
        &[
            "a wrong free: true",
            "copied to the device and back: 1048576",
            "pool: 400 allocations, 400 frees, 0 bytes in use",
            "particles",
            "a double free: true",
        ],
    );
}

#[test]
fn the_example_in_csharp() {
    if !is_installed("mcs", "--version") || !is_installed("mono", "--version") {
        return;
    }
    let prefix = folder("example-csharp");
    install(&prefix);
    let sources = package().join("examples/csharp");
    let program = prefix.join("memory.exe");
    let compile = |file: &str| sources.join(file);
    run(Command::new("mcs")
        .args(["-unsafe", "-warnaserror"])
        .arg(format!("-out:{}", program.display()))
        .args([compile("Millpond.cs"), compile("Program.cs")]));
    let printed = run(command("mono", &prefix).arg(&program));
    expect(
        &printed,
        &[
            "hit rate: 0.99 of 100 allocations",
            "processed: 1000",
            "position: 3",
            "warning: more than 90 % of the limit is in use",
            "refused: OutOfMemory: ",
            "20.0 KiB live in 1 block",
            "left in use: 0",
            "device: copied there and back",
            "a copy beyond a buffer: InvalidPointer",
        ],
    );
}

/// Builds programs with pkg-config and CMake after the folder of the installed library was moved.
#[test]
fn pkg_config_and_cmake_find_a_library_that_was_moved() {
    let cmake = is_installed("cmake", "--version");
    let pkg_config = is_installed("pkg-config", "--version");
    if !is_installed("cc", "--version") || !is_installed("c++", "--version") {
        return;
    }
    let first = folder("package").join("first");
    install(&first);
    let moved = first.with_file_name("moved");
    fs::rename(&first, &moved).expect("moved");
    if pkg_config {
        let flags = run(command("pkg-config", &moved).args(["--cflags", "--libs", "millpond >= 0.1"]));
        let program = moved.join("by-pkg-config");
        run(Command::new("cc")
            .arg(package().join("examples/c/memory.c"))
            .args(flags.split_whitespace())
            .arg("-o")
            .arg(&program));
        run(&mut command(&program, &moved));
    }
    if cmake {
        built_by_cmake(&moved);
    }
}

fn built_by_cmake(prefix: &Path) {
    let (source, build) = (prefix.join("project"), prefix.join("build"));
    fs::create_dir_all(&source).expect("a folder");
    let example = package().join("examples/cpp/memory.cpp");
    let project = format!(
        "cmake_minimum_required(VERSION 3.16)\nproject(memory CXX)\nfind_package(Millpond 0.1 CONFIG REQUIRED)\n\
         add_executable(memory {})\ntarget_compile_features(memory PRIVATE cxx_std_17)\n\
         find_package(Threads REQUIRED)\ntarget_link_libraries(memory Millpond::millpond Threads::Threads)\n",
        example.display()
    );
    fs::write(source.join("CMakeLists.txt"), project).expect("written");
    let configure = |version: &str| {
        let _ = fs::remove_dir_all(&build);
        let text = fs::read_to_string(source.join("CMakeLists.txt")).expect("the project");
        fs::write(
            source.join("CMakeLists.txt"),
            text.replace("Millpond 0.1", version),
        )
        .expect("written");
        let mut cmake = Command::new("cmake");
        cmake
            .arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()))
            .arg("-S")
            .arg(&source)
            .arg("-B")
            .arg(&build);
        cmake
    };
    run(&mut configure("Millpond 0.1"));
    run(Command::new("cmake").arg("--build").arg(&build));
    run(&mut command(build.join("memory"), prefix));
    let newer = configure("Millpond 1.0").output().expect("cmake starts");
    assert!(!newer.status.success(), "a newer version was found");
}

/// Returns the programs in a language on the page of the book.
fn programs(language: &str) -> Vec<String> {
    let page = fs::read_to_string(package().join("../../docs/c.md")).expect("the page");
    let begin = format!("```{language}\n");
    let blocks = page.split(&begin).skip(1);
    blocks
        .filter_map(|block| Some(block.split_once("```")?.0.to_owned()))
        .collect()
}

#[test]
fn the_programs_of_the_book_run() {
    let prefix = folder("book");
    for (language, compiler, standard) in [("c", "cc", "-std=c99"), ("cpp", "c++", "-std=c++17")] {
        if !is_installed(compiler, "--version") {
            continue;
        }
        install(&prefix);
        let programs = programs(language);
        assert!(!programs.is_empty(), "the page has no program in {language}");
        for text in programs {
            let source = prefix.join(format!("page.{language}"));
            fs::write(&source, text).expect("written");
            run(&mut command(
                compile(compiler, &prefix, &source, &[standard]),
                &prefix,
            ));
        }
    }
}
