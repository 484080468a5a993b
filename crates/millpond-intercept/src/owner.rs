//! The library that requested memory.

use crate::LIBRARY;

/// The beginnings of the file names of libraries that only pass requests on: the driver, CUDA's runtime, the system, and interpreters.
const SYSTEM: [&str; 14] = [
    LIBRARY,
    "libcuda.so",
    "libcudart",
    "libc.so",
    "libc-",
    "libpthread",
    "libdl.so",
    "libstdc++",
    "libgcc_s",
    "ld-linux",
    "libffi",
    "libpython",
    "python3",
    "linux-vdso",
];
/// The beginnings of the names of Python modules that only bind the driver.
const BINDINGS: [&str; 5] = [
    "cuda.bindings.",
    "_ctypes",
    "_cffi_backend",
    "cuda._cuda",
    "cuda._lib",
];

fn begins(name: &str, with: &[&str]) -> bool {
    with.iter().any(|with| name.starts_with(with))
}

/// Returns the name of a module: the file name, or the name of a Python module.
pub(crate) fn name(path: &str) -> String {
    let file = path.rsplit('/').next().unwrap_or(path);
    let Some((module, _)) = file
        .split_once(".cpython-")
        .or_else(|| file.split_once(".abi3.so"))
    else {
        return file.to_owned();
    };
    let folders = ["/site-packages/", "/dist-packages/"];
    let package = folders
        .into_iter()
        .find_map(|folder| Some(path.rsplit_once(folder)?.1));
    match package.and_then(|inside| inside.rsplit_once('/')) {
        Some((package, _)) => format!("{}.{module}", package.replace('/', ".")),
        None => module.to_owned(),
    }
}

/// Returns the owner among the names of the modules on a stack, innermost first: the first that neither belongs to the driver and the system nor
/// only binds the driver. If there is none, returns the innermost binding, or else the outermost module.
pub(crate) fn of<'a>(modules: impl Iterator<Item = &'a str> + Clone) -> Option<&'a str> {
    let mut of_program = modules.clone().filter(|name| !begins(name, &SYSTEM));
    let own = of_program.clone().find(|name| !begins(name, &BINDINGS));
    let outermost = || modules.filter(|name| !begins(name, &SYSTEM[..4])).last();
    own.or_else(|| of_program.next()).or_else(outermost)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_modules_have_their_own_names() {
        let python =
            "/usr/lib/python3/dist-packages/cuda/bindings/_bindings/cydriver.cpython-311-x86_64-linux-gnu.so";
        assert_eq!(name(python), "cuda.bindings._bindings.cydriver");
        assert_eq!(
            name("/usr/lib/python3.11/lib-dynload/_ctypes.cpython-311-x86_64-linux-gnu.so"),
            "_ctypes"
        );
        assert_eq!(name("/opt/lib/libcublasLt.so.12"), "libcublasLt.so.12");
    }

    #[test]
    fn the_owner_is_the_innermost_library_that_does_not_only_pass_requests_on() {
        let owner = |modules: &[&'static str]| of(modules.iter().copied());
        let runtime = [
            LIBRARY,
            "libcudart.so.12",
            "libc10_cuda.so",
            "libtorch_cuda.so",
            "python3.11",
        ];
        assert_eq!(owner(&runtime), Some("libc10_cuda.so"));
        let core = [
            "cuda.bindings._bindings.cydriver",
            "python3.11",
            "cuda.core._memory",
            "python3.11",
        ];
        assert_eq!(owner(&core), Some("cuda.core._memory"));
        assert_eq!(
            owner(&["cuda.bindings.driver", "python3.11", "libc.so.6"]),
            Some("cuda.bindings.driver")
        );
        assert_eq!(
            owner(&[LIBRARY, "python3.11", "libc.so.6", "python3.11"]),
            Some("python3.11")
        );
        assert_eq!(owner(&[]), None);
    }
}
