//! The Python package as users get it: its wheel, and its tests with the packages of others.

mod torch;

use crate::shell::{Result, emulated_driver, root, shell, target};
use std::path::{Path, PathBuf};
use std::time::Instant;
use xshell::{Shell, cmd};

/// The packages that check a wheel and types, those that the tests and `mypy` use, and those that NumPy's tests use.
const CHECKERS: [&str; 3] = ["twine", "auditwheel", "pyright"];
const OTHERS: [&str; 9] = [
    "mypy",
    "numpy",
    "pandas",
    "polars",
    "duckdb",
    "pyarrow",
    "matplotlib",
    "pytest",
    "pytest-timeout",
];
const NUMPY_TESTS: [&str; 5] = ["hypothesis", "meson", "ninja", "cython", "setuptools"];
/// The other libraries that can take their memory from a pool.
const PLUGGED: [&str; 3] = ["cupy-cuda13x", "numba-cuda", "cuda-core"];
/// This build of PyTorch needs a driver of the version that the emulated driver is set to report.
const TORCH: &str = "torch==2.15.0";
const PACKAGE: &str = "crates/millpond-python/python/millpond";
const EXAMPLES: &str = "crates/millpond-python/examples";
const PIP: [&str; 5] = ["--quiet", "--retries", "1", "--timeout", "60"];

/// Builds the wheel, installs it in a new environment, and runs its tests there. With `--numpy`, also runs NumPy's own tests with and
/// without arrays in a pool. With `--torch`, also runs programs of PyTorch that run out of memory, on the emulated driver. With `--plugins`,
/// also runs PyTorch, CuPy, Numba and cuda.core with their memory in a pool there.
pub(crate) fn run(arguments: &[String]) -> Result {
    let (mut with_numpy, mut with_torch, mut with_plugins) = (false, false, false);
    for argument in arguments {
        match argument.as_str() {
            "--numpy" => with_numpy = true,
            "--torch" => with_torch = true,
            "--plugins" => with_plugins = true,
            _ => return Err("`cargo xtask python` takes --numpy, --torch and --plugins, or nothing".into()),
        }
    }
    let sh = shell()?;
    let (folder, bin) = environment(&sh)?;
    let python = bin.join("python");
    cmd!(sh, "{python} -m pip install {PIP...} {CHECKERS...}").run()?;
    let wheel = wheel(&sh, &folder, &bin, &["--release"])?;
    check_wheel(&sh, &bin, &wheel)?;
    tests(&sh, &folder, &python)?;
    mypy(&sh, &bin)?;
    pyright(&sh, &bin)?;
    if with_numpy {
        cmd!(sh, "{python} -m pip install {PIP...} {NUMPY_TESTS...}").run()?;
        numpy(&sh, &folder, &bin)?;
    }
    if with_torch {
        cmd!(sh, "{python} -m pip install {PIP...} {TORCH}").run()?;
        torch::run(&sh, &folder, &python)?;
    }
    if with_plugins {
        cmd!(sh, "{python} -m pip install {PIP...} {TORCH} {PLUGGED...}").run()?;
        plugins(&sh, &folder, &python)?;
    }
    Ok(())
}

/// Runs the libraries that can take their memory from a pool, on the emulated driver.
fn plugins(sh: &Shell, folder: &Path, python: &Path) -> Result {
    let programs = root().join("xtask/python/plugins");
    let driver = emulated_driver(sh)?;
    // The programs must not find the package in the repository.
    let _folder = sh.push_dir(folder);
    let _driver = sh.push_env("LD_LIBRARY_PATH", &driver);
    for program in ["torch_plugged.py", "others_plugged.py"] {
        println!("{program}");
        let program = programs.join(program);
        cmd!(sh, "{python} {program}")
            .env("MILLPOND_CUDA_EMU", "memory:600M,version:13020")
            .run()?;
    }
    Ok(())
}

/// Builds the wheel in the dev profile, installs it in a new environment, runs its tests there with the packages of others, and checks its
/// types. Does nothing if these packages cannot be installed.
pub(crate) fn check() -> std::result::Result<(), String> {
    let sh = shell().map_err(|error| error.to_string())?;
    let (folder, bin) = match environment(&sh) {
        Ok(environment) => environment,
        Err(error) => {
            println!(
                "skipped: the wheel of the Python package, because its tools cannot be installed: {error}"
            );
            return Ok(());
        }
    };
    let tested = wheel(&sh, &folder, &bin, &[])
        .and_then(|_| tests(&sh, &folder, &bin.join("python")))
        .and_then(|()| mypy(&sh, &bin));
    tested.map_err(|error| error.to_string())
}

/// Makes a new environment with the tools and the packages of others. Returns its folder, and that of its programs.
fn environment(sh: &Shell) -> Result<(PathBuf, PathBuf)> {
    let folder = target().join("python");
    sh.remove_path(&folder)?;
    sh.create_dir(&folder)?;
    let environment = folder.join("environment");
    cmd!(sh, "python3 -m venv {environment}").run()?;
    let bin = environment.join("bin");
    let python = bin.join("python");
    cmd!(sh, "{python} -m pip install {PIP...} maturin {OTHERS...}").run()?;
    Ok((folder, bin))
}

/// Builds the wheel and installs it. Returns its path.
fn wheel(sh: &Shell, folder: &Path, bin: &Path, profile: &[&str]) -> Result<PathBuf> {
    let (maturin, pip) = (bin.join("maturin"), bin.join("pip"));
    let begin = Instant::now();
    cmd!(sh, "{maturin} build {profile...} --quiet --out {folder}").run()?;
    println!("building the wheel took {:.0} s", begin.elapsed().as_secs_f64());
    let mut files = sh.read_dir(folder)?.into_iter();
    let wheel = files.find(|file| file.extension().is_some_and(|ending| ending == "whl"));
    let wheel = wheel.ok_or("maturin made no wheel")?;
    println!("the wheel has {} bytes", std::fs::metadata(&wheel)?.len());
    let begin = Instant::now();
    cmd!(sh, "{pip} install --quiet {wheel}").run()?;
    println!("installing it took {:.1} s", begin.elapsed().as_secs_f64());
    Ok(wheel)
}

/// Checks the wheel, and prints the time to a first answer.
fn check_wheel(sh: &Shell, bin: &Path, wheel: &Path) -> Result {
    let (twine, auditwheel) = (bin.join("twine"), bin.join("auditwheel"));
    cmd!(sh, "{twine} check --strict {wheel}").run()?;
    cmd!(sh, "{auditwheel} show {wheel}").run()?;
    let begin = Instant::now();
    let millpond = bin.join("millpond");
    let recording = root().join("traces/gpt_varlen_h200.csv.zst");
    cmd!(sh, "{millpond} replay {recording} --device 12.5GiB")
        .ignore_status()
        .run()?;
    println!("the first answer took {:.1} s", begin.elapsed().as_secs_f64());
    Ok(())
}

/// Runs the package's tests on the installed package, with the emulated driver.
fn tests(sh: &Shell, folder: &Path, python: &Path) -> Result {
    let tests = root().join("crates/millpond-python/tests");
    let driver = emulated_driver(sh)?;
    let _in = sh.push_dir(folder);
    cmd!(sh, "{python} -B -W error -m unittest discover -s {tests}")
        .env("PYTHONPATH", &tests)
        .env("LD_LIBRARY_PATH", driver)
        .run()?;
    Ok(())
}

/// Checks the types of the package and of the examples with mypy.
fn mypy(sh: &Shell, bin: &Path) -> Result {
    let (mypy, python) = (bin.join("mypy"), bin.join("python"));
    for folder in [PACKAGE, EXAMPLES] {
        cmd!(sh, "{mypy} --strict --python-executable {python} {folder}").run()?;
    }
    Ok(())
}

/// Checks the types of the package and of the examples with pyright.
fn pyright(sh: &Shell, bin: &Path) -> Result {
    let (pyright, python) = (bin.join("pyright"), bin.join("python"));
    cmd!(sh, "{pyright} --pythonpath {python} {PACKAGE} {EXAMPLES}").run()?;
    Ok(())
}

/// Runs NumPy's own tests, without and with arrays in a pool, and compares them.
fn numpy(sh: &Shell, folder: &Path, bin: &Path) -> Result {
    let (python, helpers) = (bin.join("python"), root().join("xtask/python"));
    let path = std::env::var("PATH").unwrap_or_default();
    let _path = sh.push_env("PATH", format!("{}:{path}", bin.display()));
    let _helpers = sh.push_env("PYTHONPATH", &helpers);
    let _in = sh.push_dir(folder);
    let quick = "not slow";
    for (name, plugin) in [("without", "no:cacheprovider"), ("with", "on_pool")] {
        let results = folder.join(format!("{name}.xml"));
        let measure = "import resource, subprocess, sys, time; begin = time.time(); subprocess.run(sys.argv[1:]); \
                       used = resource.getrusage(resource.RUSAGE_CHILDREN); \
                       print(f'{time.time() - begin:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of processors, \
                       {used.ru_maxrss >> 10} MiB at the peak')";
        // Failures are compared below.
        cmd!(
            sh,
            "{python} -c {measure} {python} -m pytest -q -p {plugin} -m {quick} --timeout 600 --junitxml {results} --pyargs numpy"
        )
        .run()?;
    }
    cmd!(sh, "{python} {helpers}/compare.py without.xml with.xml").run()?;
    Ok(())
}
