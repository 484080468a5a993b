//! NVRTC, which compiles CUDA C to PTX. It is a separate library, which is loaded with the first compilation.

use super::device::CudaDevice;
use super::kernel_error::KernelError;
use super::library::{self, functions};
use libloading::Library;
use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr::{null, null_mut};
use std::sync::OnceLock;

/// The environment variable with the path of the library, if it is not in the loader's path.
const VARIABLE: &str = "MILLPOND_NVRTC";
/// The names of the library, each with its version of CUDA, the newest first.
const NAMES: &[(u32, &str)] = &[
    (13_000, "libnvrtc.so.13"),
    (12_000, "libnvrtc.so.12"),
    (11_020, "libnvrtc.so.11.2"),
    (0, "libnvrtc.so"),
    (13_000, "nvrtc64_130_0.dll"),
    (12_000, "nvrtc64_120_0.dll"),
];

/// Returns the names in the order in which they are tried with a driver of this version. A driver may refuse the output of a
/// newer compiler, so newer compilers come last.
fn names(driver: Option<u32>) -> Vec<&'static str> {
    let driver = driver.unwrap_or(u32::MAX);
    let (older, newer): (Vec<_>, Vec<_>) = NAMES.iter().copied().partition(|(version, _)| *version <= driver);
    older.into_iter().chain(newer).map(|(_, name)| name).collect()
}

/// `nvrtcResult`.
type Code = c_int;
const SUCCESS: Code = 0;
const COMPILATION: Code = 6;

/// `nvrtcProgram`.
type Handle = *mut std::ffi::c_void;

functions! {
    Functions (Code) {
        create = "nvrtcCreateProgram"(
            program: *mut Handle, source: *const c_char, name: *const c_char, headers: c_int,
            sources: *const *const c_char, names: *const *const c_char,
        );
        destroy = "nvrtcDestroyProgram"(program: *mut Handle);
        compile = "nvrtcCompileProgram"(program: Handle, count: c_int, options: *const *const c_char);
        ptx_size = "nvrtcGetPTXSize"(program: Handle, bytes: *mut usize);
        ptx = "nvrtcGetPTX"(program: Handle, text: *mut c_char);
        log_size = "nvrtcGetProgramLogSize"(program: Handle, bytes: *mut usize);
        log = "nvrtcGetProgramLog"(program: Handle, text: *mut c_char);
    } {
        version = "nvrtcVersion"(major: *mut c_int, minor: *mut c_int);
        cubin_size = "nvrtcGetCUBINSize"(program: Handle, bytes: *mut usize);
        cubin = "nvrtcGetCUBIN"(program: Handle, image: *mut c_char);
        arch_count = "nvrtcGetNumSupportedArchs"(count: *mut c_int);
        archs = "nvrtcGetSupportedArchs"(archs: *mut c_int);
    }
}

type ErrorString = unsafe extern "C" fn(Code) -> *const c_char;

/// The NVRTC library of the process.
pub(super) struct Nvrtc {
    functions: Functions,
    /// This is not in the table, because it returns a text.
    error_string: Option<ErrorString>,
    _library: Library,
}

impl Nvrtc {
    /// Returns the library, which is loaded once.
    pub(super) fn get() -> Result<&'static Self, KernelError> {
        static NVRTC: OnceLock<Result<Nvrtc, String>> = OnceLock::new();
        let loaded = NVRTC.get_or_init(Self::load).as_ref();
        loaded.map_err(|why| KernelError::NoCompiler { why: why.clone() })
    }

    fn load() -> Result<Self, String> {
        let library = library::open(VARIABLE, &names(CudaDevice::driver_version().ok()))?;
        // SAFETY: NVRTC's header has these signatures. The library is stored with them.
        let functions = unsafe { Functions::of(&library) };
        let functions = functions.map_err(|name| format!("the library that was found has no {name}"))?;
        // SAFETY: as above.
        let error_string = unsafe { library.get::<ErrorString>(b"nvrtcGetErrorString\0") };
        Ok(Self {
            functions,
            error_string: error_string.ok().map(|function| *function),
            _library: library,
        })
    }

    /// Returns the version of CUDA of the library, such as 12090 for 12.9, or `None` if the library does not report it.
    pub(super) fn version(&self) -> Option<u32> {
        let (mut major, mut minor) = (0, 0);
        let ask = self.functions.version?;
        // SAFETY: the pointers are to locals.
        let told = unsafe { ask(&raw mut major, &raw mut minor) };
        let version = u32::try_from(major * 1000 + minor * 10).ok();
        version.filter(|_| told == SUCCESS)
    }

    /// Returns whether the library can compile to binaries for a device, and not only to PTX.
    pub(super) fn makes_binaries(&self) -> bool {
        self.functions.cubin_size.is_some() && self.functions.cubin.is_some()
    }

    /// Returns the compute capabilities that the library compiles for, such as 90 for 9.0. The list is empty if the library is too old to
    /// report them.
    pub(super) fn architectures(&self) -> Vec<u32> {
        let (Some(count_of), Some(fill)) = (self.functions.arch_count, self.functions.archs) else {
            return Vec::new();
        };
        let mut count = 0;
        // SAFETY: the pointer is to a local.
        let counted = unsafe { count_of(&raw mut count) };
        let count = usize::try_from(count).unwrap_or(0);
        if counted != SUCCESS || count == 0 {
            return Vec::new();
        }
        let mut all: Vec<c_int> = vec![0; count];
        // SAFETY: there is room for as many as the library has just reported.
        if unsafe { fill(all.as_mut_ptr()) } != SUCCESS {
            return Vec::new();
        }
        all.into_iter()
            .filter_map(|arch| u32::try_from(arch).ok())
            .collect()
    }

    /// Compiles a source to PTX. `name` is the source's name in the log.
    pub(super) fn compile(
        &self,
        name: &CStr,
        source: &CStr,
        options: &[CString],
    ) -> Result<String, KernelError> {
        let program = self.compiled(name, source, options)?;
        program.text(
            ("nvrtcGetPTXSize", self.functions.ptx_size),
            ("nvrtcGetPTX", self.functions.ptx),
        )
    }

    /// Compiles a source to a binary for the architecture `sm_…` that the options name.
    pub(super) fn compile_binary(
        &self,
        name: &CStr,
        source: &CStr,
        options: &[CString],
    ) -> Result<Vec<u8>, KernelError> {
        let missing = |name| KernelError::NoCompiler {
            why: format!("the library that was found has no {name}"),
        };
        let size_of = self
            .functions
            .cubin_size
            .ok_or_else(|| missing("nvrtcGetCUBINSize"))?;
        let fill = self.functions.cubin.ok_or_else(|| missing("nvrtcGetCUBIN"))?;
        let program = self.compiled(name, source, options)?;
        program.bytes(("nvrtcGetCUBINSize", size_of), ("nvrtcGetCUBIN", fill))
    }

    fn compiled(&self, name: &CStr, source: &CStr, options: &[CString]) -> Result<Program<'_>, KernelError> {
        let program = self.program(name, source)?;
        let places: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        let count = c_int::try_from(places.len()).unwrap_or(c_int::MAX);
        // SAFETY: the program is live, and there are as many options as `count` says, each a C string.
        let compiled = unsafe { (self.functions.compile)(program.handle, count, places.as_ptr()) };
        match compiled {
            SUCCESS => Ok(program),
            COMPILATION => Err(KernelError::Compile {
                name: name.to_string_lossy().into_owned(),
                log: program.log(),
            }),
            code => Err(self.failed("nvrtcCompileProgram", code, program.log())),
        }
    }

    fn program(&self, name: &CStr, source: &CStr) -> Result<Program<'_>, KernelError> {
        let mut handle = null_mut();
        // SAFETY: the texts end with a zero, the pointer is to a local, and there are no headers.
        let made = unsafe {
            (self.functions.create)(&raw mut handle, source.as_ptr(), name.as_ptr(), 0, null(), null())
        };
        self.check("nvrtcCreateProgram", made)?;
        Ok(Program { of: self, handle })
    }

    fn check(&self, call: &'static str, code: Code) -> Result<(), KernelError> {
        if code == SUCCESS {
            Ok(())
        } else {
            Err(self.failed(call, code, String::new()))
        }
    }

    fn failed(&self, call: &'static str, code: Code, log: String) -> KernelError {
        let name = self.error_string.map(|function| {
            // SAFETY: it takes a number.
            unsafe { function(code) }
        });
        let name = name.filter(|name| !name.is_null()).map(|name| {
            // SAFETY: the library's names are constants that end with a zero, in a library that stays loaded.
            let name = unsafe { CStr::from_ptr(name) };
            name.to_string_lossy().into_owned()
        });
        KernelError::Compiler {
            call,
            code,
            name: name.unwrap_or_else(|| "an unknown error".to_owned()),
            log,
        }
    }
}

/// A program of the compiler. Invariant: the handle is a live program of NVRTC that this value owns.
struct Program<'a> {
    of: &'a Nvrtc,
    handle: Handle,
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: the handle is live by the invariant, and it is not used any more.
        let _ = unsafe { (self.of.functions.destroy)(&raw mut self.handle) };
    }
}

type SizeOf = unsafe extern "C" fn(Handle, *mut usize) -> Code;
type Fill = unsafe extern "C" fn(Handle, *mut c_char) -> Code;

impl Program<'_> {
    /// Returns a text of the program, without the zero that ends it.
    fn text(&self, size: (&'static str, SizeOf), fill: (&'static str, Fill)) -> Result<String, KernelError> {
        let mut text = self.bytes(size, fill)?;
        let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
        text.truncate(end);
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Returns an output of the compilation.
    fn bytes(
        &self,
        (size_call, size_of): (&'static str, SizeOf),
        (call, fill): (&'static str, Fill),
    ) -> Result<Vec<u8>, KernelError> {
        let mut bytes = 0;
        // SAFETY: the program is live, and the pointer is to a local.
        let told = unsafe { size_of(self.handle, &raw mut bytes) };
        self.of.check(size_call, told)?;
        let mut text = vec![0_u8; bytes];
        // SAFETY: the program is live, and there is as much room as it has just reported.
        let filled = unsafe { fill(self.handle, text.as_mut_ptr().cast()) };
        self.of.check(call, filled)?;
        Ok(text)
    }

    /// Returns the compiler's messages, or an empty text if they cannot be read.
    fn log(&self) -> String {
        let log = self.text(
            ("nvrtcGetProgramLogSize", self.of.functions.log_size),
            ("nvrtcGetProgramLog", self.of.functions.log),
        );
        log.map_or_else(|_| String::new(), |log| log.trim().to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn compilers_that_are_not_newer_than_the_driver_are_tried_first() {
        let first = |driver| names(driver).into_iter().take(2).collect::<Vec<_>>();
        assert_eq!(first(Some(13_000)), ["libnvrtc.so.13", "libnvrtc.so.12"]);
        assert_eq!(first(Some(12_080)), ["libnvrtc.so.12", "libnvrtc.so.11.2"]);
        assert_eq!(first(Some(11_080)), ["libnvrtc.so.11.2", "libnvrtc.so"]);
        assert_eq!(first(None), ["libnvrtc.so.13", "libnvrtc.so.12"]);
        assert_eq!(names(Some(11_080)).len(), NAMES.len(), "none is left out");
    }
}
