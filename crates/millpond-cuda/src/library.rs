//! Loads CUDA's libraries other than the driver, each on first use. A missing library is represented as a value.

use libloading::Library;
use std::ffi::OsStr;

/// Loads the library that an environment variable names. If the variable is not set, loads the first of `names` that the loader finds.
/// Returns the reason if there is none.
pub(super) fn open(variable: &str, names: &[&str]) -> Result<Library, String> {
    if let Some(said) = std::env::var_os(variable).filter(|said| !said.is_empty()) {
        return load(&said)
            .map_err(|why| format!("{variable} is set, but the library cannot be loaded: {why}"));
    }
    let found = names.iter().find_map(|name| load(name.as_ref()).ok());
    found.ok_or_else(|| format!("the loader finds none of {}", names.join(", ")))
}

fn load(name: &OsStr) -> Result<Library, String> {
    // SAFETY: the library is one of CUDA's, or one that the user declares to be. Loading it has no relevant side effects.
    unsafe { Library::new(name) }.map_err(|error| error.to_string())
}

/// Defines a table of a library's functions: first the required ones, then the optional ones.
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
            /// Looks up the functions. Returns the name of the first required function that is missing.
            ///
            /// # Safety
            /// The library's functions of these names must have these signatures. It must stay loaded as long as they are called.
            unsafe fn of(library: &libloading::Library) -> Result<Self, &'static str> {
                Ok(Self {
                    $($name: {
                        // SAFETY: the caller guarantees the signature.
                        let found = unsafe { library.get(concat!($symbol, "\0").as_bytes()) };
                        *found.map_err(|_| $symbol)?
                    },)*
                    $($other: {
                        // SAFETY: the caller guarantees the signature.
                        let found = unsafe { library.get(concat!($may, "\0").as_bytes()) };
                        found.ok().map(|function| *function)
                    },)*
                })
            }
        }
    };
}
pub(super) use functions;
