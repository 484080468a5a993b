//! Libraries, which are modules that belong to no context, and their kernels. A kernel and its function have one handle.

use super::args::{In, Out, Text};
use super::entries;
use super::module::{Image, attribute, find, parameter, set_attribute};
use crate::calls::Call;
use crate::error::{Answer, Code};

/// Returns that a library has no such variable, because code with variables is not run.
fn variable(call: &Call, at: Out<u64>, bytes: Out<usize>, library: u64) -> Answer {
    at.offer(0);
    bytes.offer(0);
    let known = call.driver.state().kernels.is_module(library);
    Err(if known {
        Code::NOT_FOUND
    } else {
        Code::INVALID_HANDLE
    })
}

entries! {
    /// Ignores the options.
    cuLibraryLoadData none 12000 Driver (
        library: Out<u64>,
        image: In<u8>,
        _options: usize,
        _values: usize,
        _count: u32,
        _library_options: usize,
        _library_values: usize,
        _library_count: u32,
    ) |call| { library.make(|| Image::read(image)?.keep(call, call.driver.state())) }
    cuLibraryLoadFromFile none 12000 Driver (
        library: Out<u64>,
        path: Text,
        _options: usize,
        _values: usize,
        _count: u32,
        _library_options: usize,
        _library_values: usize,
        _library_count: u32,
    ) |call| { library.make(|| Image::file(&path.get()?)?.keep(call, call.driver.state())) }
    cuLibraryUnload none 12000 Driver (library: u64) |call| { call.driver.state().kernels.unload(library) }
    cuLibraryGetKernel none 12000 Driver (kernel: Out<u64>, library: u64, name: Text) |call| {
        kernel.make(|| find(call, library, name))
    }
    cuLibraryGetModule none 12000 Driver (module: Out<u64>, library: u64) |call| {
        Code::INVALID_HANDLE.when(!call.driver.state().kernels.is_module(library))?;
        module.set(library)
    }
    cuLibraryGetGlobal none 12000 Driver (at: Out<u64>, bytes: Out<usize>, library: u64, _name: usize) |call| {
        variable(call, at, bytes, library)
    }
    cuLibraryGetManaged none 12000 Driver (at: Out<u64>, bytes: Out<usize>, library: u64, _name: usize) |call| {
        variable(call, at, bytes, library)
    }
    cuLibraryGetUnifiedFunction none 12000 Driver (at: Out<u64>, library: u64, _name: usize) |call| {
        variable(call, at, crate::abi::args::nowhere(), library)
    }
    cuKernelGetFunction none 12000 Driver (function: Out<u64>, kernel: u64) |call| {
        call.driver.state().kernels.get(kernel)?;
        function.set(kernel)
    }
    cuKernelGetLibrary none 12050 Driver (library: Out<u64>, kernel: u64) |call| {
        let found = call.driver.state().kernels.get(kernel)?.module;
        library.set(found)
    }
    cuKernelGetAttribute none 12000 Driver (value: Out<i32>, number: i32, kernel: u64, device: i32) |call| {
        call.known_device(device)?;
        value.set(attribute(call, number, kernel)?)
    }
    cuKernelSetAttribute none 12000 Driver (number: i32, value: i32, kernel: u64, device: i32) |call| {
        call.known_device(device)?;
        set_attribute(call, number, value, kernel)
    }
    cuKernelSetCacheConfig none 12000 Driver (kernel: u64, config: i32, device: i32) |call| {
        call.known_device(device)?;
        Code::INVALID_VALUE.when(!(0..=3).contains(&config))?;
        call.driver.state().kernels.get(kernel).map(|_| ())
    }
    cuKernelGetParamInfo none 12040 Driver (kernel: u64, index: usize, offset: Out<usize>, bytes: Out<usize>) |call| {
        let (at, size) = parameter(call, kernel, index)?;
        bytes.offer(size);
        offset.set(at)
    }
}
