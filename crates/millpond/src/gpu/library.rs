//! CUDA's libraries beside the driver, each looked for when it is first needed. What is not there is a value.

use libloading::Library;
use std::ffi::OsStr;

/// Loads the library that a variable of the environment names, or else the first of these names that the loader finds. Nothing is
/// looked for beside what the variable says. Answers why there is none.
pub(super) fn open(variable: &str, names: &[&str]) -> Result<Library, String> {
    if let Some(said) = std::env::var_os(variable).filter(|said| !said.is_empty()) {
        return load(&said).map_err(|why| format!("{variable} is set, and {why}"));
    }
    let found = names.iter().find_map(|name| load(name.as_ref()).ok());
    found.ok_or_else(|| format!("the loader finds none of {}", names.join(", ")))
}

fn load(name: &OsStr) -> Result<Library, String> {
    // SAFETY: a library of CUDA's, or what the user says is one. They do nothing of note when they are loaded.
    unsafe { Library::new(name) }.map_err(|error| error.to_string())
}

/// A table of a library's functions: those it has to have, then those it may have.
///
/// ```ignore
/// functions! { Functions { create = "fooCreate"(foo: *mut Foo); } { version = "fooVersion"(version: *mut c_int); } }
/// ```
macro_rules! functions {
    (
        $(#[$meta:meta])* $table:ident ($answer:ty)
        { $($name:ident = $symbol:literal($($arg:ident: $of:ty),* $(,)?);)* }
        { $($other:ident = $may:literal($($arg2:ident: $of2:ty),* $(,)?);)* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy)]
        struct $table {
            $($name: unsafe extern "C" fn($($arg: $of),*) -> $answer,)*
            $($other: Option<unsafe extern "C" fn($($arg2: $of2),*) -> $answer>,)*
        }

        impl $table {
            /// Or the name of the first that is missing.
            ///
            /// # Safety
            /// The library's functions of these names have these signatures. It stays loaded as long as they are called.
            unsafe fn of(library: &libloading::Library) -> Result<Self, &'static str> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the caller's.
                        let found = unsafe { library.get(concat!($symbol, "\0").as_bytes()) };
                        *found.map_err(|_| $symbol)?
                    },)*
                    $($other: {
                        // SAFETY: the caller's.
                        let found = unsafe { library.get(concat!($may, "\0").as_bytes()) };
                        found.ok().map(|function| *function)
                    },)*
                })
            }
        }
    };
}
pub(super) use functions;
