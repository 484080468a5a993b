//! Modules, functions and launches. Attributes of functions and occupancy are plausible, not measured. A function here has no
//! registers, and any block of up to 1,024 threads runs.

use super::args::{self, In, Out, Text};
use super::entries;
use crate::calls::Call;
use crate::driver::State;
use crate::error::{Answer, Code};
use crate::kernels::{Launch, Params};
use crate::work::action::Action;
use std::ffi::{CStr, c_char};
use std::sync::{Arc, MutexGuard};

/// The first bytes of images that are not text: an ELF file, several images in one, and the structure with which the runtime points to
/// those.
const BINARIES: [[u8; 4]; 3] = [
    *b"\x7fELF",
    0xba55_ed50_u32.to_le_bytes(),
    0x4662_43b1_u32.to_le_bytes(),
];

/// The image of a module. Only the names of its kernels are stored with the module.
pub(super) enum Image {
    Text(String),
    Cubin(Vec<String>),
}

impl Image {
    pub(super) fn read(image: In<u8>) -> Answer<Self> {
        let first = image.get()?;
        // A text has at least its first byte and a final zero. A binary has a header.
        if BINARIES.iter().any(|begin| begin[0] == first) {
            let begins = image.cast::<[u8; 4]>().get()?;
            if begins == BINARIES[0] && CUBINS.contains(&image.cast::<[u8; 8]>().get()?[7]) {
                return Ok(Self::Cubin(cubin(image)?));
            }
            Code::NO_BINARY_FOR_GPU.when(BINARIES.contains(&begins))?;
        }
        let start: *const c_char = std::ptr::with_exposed_provenance(image.address());
        // SAFETY: an image that is not binary is a text that ends with a zero, by the contract of `cuModuleLoadData`.
        let text = unsafe { CStr::from_ptr(start) };
        Ok(Self::Text(text.to_string_lossy().into_owned()))
    }

    pub(super) fn file(path: &str) -> Answer<Self> {
        let bytes = std::fs::read(path).map_err(|_| Code::FILE_NOT_FOUND)?;
        Code::NO_BINARY_FOR_GPU.when(BINARIES.iter().any(|begin| bytes.starts_with(begin)))?;
        Ok(Self::Text(String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Makes a module or a library of the image, and returns its handle.
    pub(super) fn keep(self, call: &Call, mut state: MutexGuard<'_, State>) -> Answer<u64> {
        let handle = state.new_handle();
        match self {
            Self::Text(text) => state.kernels.load(handle, &text, call.options().version)?,
            Self::Cubin(names) => state.kernels.keep(handle, names),
        }
        Ok(handle)
    }
}

fn load(call: &Call, module: Out<u64>, image: In<u8>) -> Answer {
    module.check()?;
    call.context()?;
    let image = Image::read(image)?;
    module.set(image.keep(call, wait(call)?)?)
}

/// Returns the names of the kernels in a cubin, which has a section of code for each kernel. The code is not read, because the emulator
/// does not run foreign code.
fn cubin(image: In<u8>) -> Answer<Vec<String>> {
    let bytes = |at: u64, count: usize| -> Answer<Vec<u8>> {
        let at = usize::try_from(at).map_err(|_| Code::INVALID_IMAGE)?;
        args::at::<u8>(image.address() + at).all(count)
    };
    let number = |bytes: &[u8], at: usize, size: usize| {
        let digits = bytes[at..at + size].iter().rev();
        digits.fold(0, |number, byte| (number << 8) | u64::from(*byte))
    };
    // The header of a 64-bit ELF file has the offset of the section table, the number of sections, and the index of the section with
    // their names.
    let header = bytes(0, 64)?;
    let (table, count, named) = (
        number(&header, 40, 8),
        number(&header, 60, 2),
        number(&header, 62, 2),
    );
    let section = |index: u64| bytes(table + index * 64, 64);
    let names = section(named)?;
    let names = bytes(number(&names, 24, 8), number(&names, 32, 8) as usize)?;
    let mut kernels = Vec::new();
    for index in 0..count {
        let start = number(&section(index)?, 0, 4) as usize;
        let name = names
            .get(start..)
            .and_then(|rest| rest.split(|byte| *byte == 0).next());
        let name = String::from_utf8_lossy(name.unwrap_or_default()).into_owned();
        kernels.extend(name.strip_prefix(".text.").map(str::to_owned));
    }
    Ok(kernels)
}

/// Waits for all work of the context, as a real driver does before it loads or unloads a module.
fn wait(call: &Call) -> Answer<MutexGuard<'static, State>> {
    let context = call.context()?;
    Ok(call.driver.wait_context(call.driver.state(), context))
}

/// Writes the reason why an image was refused to the client's log, if it wants one. Unknown options are ignored, as in the
/// driver.
fn explain(why: Code, count: u32, options: In<i32>, values: In<usize>) -> Answer {
    const LOG: i32 = 5;
    const LOG_BYTES: i32 = 6;
    let (options, values) = (options.all(count as usize)?, values.all(count as usize)?);
    let value = |wanted| {
        let at = options.iter().position(|option| *option == wanted)?;
        values.get(at).copied().filter(|value| *value != 0)
    };
    if let (Some(log), Some(room)) = (value(LOG), value(LOG_BYTES)) {
        let text = match why {
            Code::INVALID_IMAGE => "fatal: no .version, which every PTX text begins with",
            Code::INVALID_PTX => {
                "fatal: not PTX: a PTX text begins with .version and .target, and every .entry has a body in braces"
            }
            Code::UNSUPPORTED_PTX_VERSION => "fatal: the .version is newer than this driver supports",
            Code::NO_BINARY_FOR_GPU => "fatal: the image is compiled code, which this device cannot run",
            _ => "fatal: the image cannot be loaded",
        };
        let mut text = text.as_bytes().to_vec();
        text.truncate((room & 0xffff_ffff).saturating_sub(1));
        text.push(0);
        args::at::<u8>(log).as_out().fill(&text)?;
    }
    Ok(())
}

/// The eighth byte of an ELF file that is a cubin. The first value is that of CUDA 12, the second that of CUDA 13.
const CUBINS: [u8; 2] = [0x33, 0x41];

/// Returns a launch of a function. The parameters are copied from the client's memory at the call, as in the driver.
pub(super) fn launch(
    call: &Call,
    function: u64,
    grid: [u32; 3],
    block: [u32; 3],
    params: In<In<u8>>,
) -> Answer<Launch> {
    let kernel = {
        let state = call.driver.state();
        Arc::clone(&state.kernels.get(function)?.kernel)
    };
    let threads = block.iter().map(|side| u64::from(*side)).product::<u64>();
    Code::INVALID_VALUE.when(grid.contains(&0) || block.contains(&0) || threads > 1024)?;
    let places = params.all(kernel.sizes().len())?;
    let values = places.into_iter().zip(kernel.sizes()).map(|(place, size)| {
        if place.is_null() {
            Err(Code::INVALID_VALUE)
        } else {
            place.all(*size)
        }
    });
    let params = Params(values.collect::<Answer<_>>()?);
    Ok(Launch {
        kernel,
        grid,
        block,
        params,
    })
}

/// Returns a function of a module or of a library.
pub(super) fn find(call: &Call, module: u64, name: Text) -> Answer<u64> {
    let name = name.get()?;
    let mut state = call.driver.state();
    let handle = state.new_handle();
    state.kernels.function(handle, module, &name)
}

/// Returns an attribute of a function: `CUfunction_attribute`.
pub(super) fn attribute(call: &Call, number: i32, function: u64) -> Answer<i32> {
    let state = call.driver.state();
    let found = state.kernels.get(function)?;
    let default = match number {
        0 => 1024,
        1..=3 | 7 | 10..=15 => 0,
        4 => 32,
        5 | 6 => 80,
        8 => 49_152,
        9 => -1,
        _ => return Err(Code::INVALID_VALUE),
    };
    Ok(found.attributes.get(&number).copied().unwrap_or(default))
}

pub(super) fn set_attribute(call: &Call, number: i32, value: i32, function: u64) -> Answer {
    Code::INVALID_VALUE.when(!(8..=15).contains(&number))?;
    let mut state = call.driver.state();
    state.kernels.get_mut(function)?.attributes.insert(number, value);
    Ok(())
}

/// Returns where a parameter of a function lies, and its size.
pub(super) fn parameter(call: &Call, function: u64, index: usize) -> Answer<(usize, usize)> {
    let state = call.driver.state();
    let kernel = &state.kernels.get(function)?.kernel;
    let size = *kernel.sizes().get(index).ok_or(Code::INVALID_VALUE)?;
    Ok((kernel.offset(index), size))
}

fn blocks(size: i32) -> Answer<i32> {
    Code::INVALID_VALUE.when(!(1..=1024).contains(&size))?;
    Ok((2048 / ((size + 31) / 32 * 32)).min(32))
}

fn known(call: &Call, function: u64) -> Answer {
    call.driver.state().kernels.get(function).map(|_| ())
}

entries! {
    cuModuleLoad none 2000 Driver (module: Out<u64>, path: Text) |call| {
        module.check()?;
        call.context()?;
        let image = Image::file(&path.get()?)?;
        module.set(image.keep(call, wait(call)?)?)
    }
    cuModuleLoadData none 2000 Driver (module: Out<u64>, image: In<u8>) |call| { load(call, module, image) }
    cuModuleLoadDataEx none 2010 Driver (module: Out<u64>, image: In<u8>, count: u32, options: In<i32>, values: In<usize>) |call| {
        load(call, module, image).inspect_err(|why| {
            // The error code is the same whether or not it can be explained.
            let _ = explain(*why, count, options, values);
        })
    }
    cuModuleLoadFatBinary none 2000 Driver (_module: Out<u64>, _image: usize) |_call| { Err(Code::NO_BINARY_FOR_GPU) }
    cuModuleUnload none 2000 Driver (module: u64) |call| {
        call.driver.state().refuse_unsafe(call.thread)?;
        wait(call)?.kernels.unload(module)
    }
    cuModuleGetFunction none 2000 Driver (function: Out<u64>, module: u64, name: Text) |call| {
        function.check()?;
        call.context()?;
        function.set(find(call, module, name)?)
    }
    cuModuleGetGlobal_v2 none 3020 Driver (at: Out<u64>, bytes: Out<usize>, module: u64, name: Text) |call| {
        name.get()?;
        at.offer(0);
        bytes.offer(0);
        let known = call.driver.state().kernels.is_module(module);
        Err(if known { Code::NOT_FOUND } else { Code::INVALID_HANDLE })
    }
    cuModuleGetLoadingMode none 11070 Driver (mode: Out<i32>) |_call| {
        // Lazy loading.
        mode.set(2)
    }
    cuFuncGetModule none 11000 Driver (module: Out<u64>, function: u64) |call| {
        let found = call.driver.state().kernels.get(function)?.module;
        module.set(found)
    }
    cuFuncGetAttribute none 2020 Driver (value: Out<i32>, number: i32, function: u64) |call| {
        value.set(attribute(call, number, function)?)
    }
    cuFuncGetParamInfo none 12040 Driver (function: u64, index: usize, offset: Out<usize>, bytes: Out<usize>) |call| {
        offset.check()?;
        call.context()?;
        let (at, size) = parameter(call, function, index)?;
        bytes.offer(size);
        offset.set(at)
    }
    cuFuncSetAttribute none 9000 Driver (function: u64, number: i32, value: i32) |call| {
        set_attribute(call, number, value, function)
    }
    cuFuncSetCacheConfig none 2000 Driver (function: u64, config: i32) |call| {
        Code::INVALID_VALUE.when(!(0..=3).contains(&config))?;
        known(call, function)
    }
    cuLaunchKernel ptsz 4000 Driver (
        function: u64,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared: u32,
        stream: u64,
        params: In<In<u8>>,
        extra: usize,
    ) |call| {
        let stream = call.stream(stream)?;
        Code::NOT_SUPPORTED.when(extra != 0)?;
        Code::INVALID_VALUE.when(shared > 166_912)?;
        let launch = launch(call, function, [grid_x, grid_y, grid_z], [block_x, block_y, block_z], params)?;
        call.driver.submit(stream, Action::Kernel(Arc::new(launch)), call.origin())
    }
    cuLaunchCooperativeKernel ptsz 9000 Driver (
        function: u64,
        grid_x: u32,
        grid_y: u32,
        grid_z: u32,
        block_x: u32,
        block_y: u32,
        block_z: u32,
        shared: u32,
        stream: u64,
        params: In<In<u8>>,
    ) |call| {
        cuLaunchKernel(
            call, function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream, params, 0,
        )
    }
    cuOccupancyMaxActiveBlocksPerMultiprocessor none 6050 Driver (
        count: Out<i32>,
        function: u64,
        size: i32,
        _shared: usize,
    ) |call| {
        known(call, function)?;
        count.set(blocks(size)?)
    }
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags none 7000 Driver (
        count: Out<i32>,
        function: u64,
        size: i32,
        shared: usize,
        _flags: u32,
    ) |call| { cuOccupancyMaxActiveBlocksPerMultiprocessor(call, count, function, size, shared) }
    cuOccupancyMaxPotentialBlockSize none 6050 Driver (
        grid: Out<i32>,
        block: Out<i32>,
        function: u64,
        _shared_of: usize,
        _shared: usize,
        limit: i32,
    ) |call| {
        known(call, function)?;
        let size = if limit > 0 { limit.min(1024) } else { 1024 };
        block.set(size)?;
        grid.set(108 * blocks(size)?)
    }
    cuOccupancyMaxPotentialBlockSizeWithFlags none 7000 Driver (
        grid: Out<i32>,
        block: Out<i32>,
        function: u64,
        shared_of: usize,
        shared: usize,
        limit: i32,
        _flags: u32,
    ) |call| { cuOccupancyMaxPotentialBlockSize(call, grid, block, function, shared_of, shared, limit) }
    cuOccupancyAvailableDynamicSMemPerBlock none 10020 Driver (
        bytes: Out<usize>,
        function: u64,
        count: i32,
        size: i32,
    ) |call| {
        known(call, function)?;
        Code::INVALID_VALUE.when(count < 1 || count > blocks(size)?)?;
        bytes.set((167_936 / count as usize - 1024).min(166_912))
    }
}
