//! The kernels of tensors. They are CUDA C files in the folder `kernels`, embedded as PTX that `cargo xtask ptx` makes of them.
//!
//! They are loaded on a device when the first of them is launched there, and unloaded with the device's last handle. Their views are passed
//! as sizes, strides and the address of the first element. The launching code guarantees that these are valid.
//!
//! There are few entries. Copies differ only by the size of an element, and the operation and the two types of a cast are arguments, which
//! are the same for every thread of a launch. One entry for each combination would give several hundred entries. The emulated driver has
//! the same entries (`millpond-cuda-emu/src/kernels`), and tests compare their parameters with the PTX.

use super::abi::FunctionHandle;
use super::code::{Code, Loaded};
use super::device::CudaDevice;
use super::error::CudaError;
use super::kernel_error::KernelError;
use super::launch::{self, Arguments, Shape};
use super::stream::CudaStream;

pub use super::code::{Entry, Wide};
use std::collections::HashMap;
use std::ffi::CString;
use std::sync::PoisonError;

const PTX: &str = include_str!("kernels/tensor.ptx");

/// Loads the kernels. The context must be current on this thread.
fn load(device: &CudaDevice) -> Result<Loaded, KernelError> {
    let text = CString::new(PTX).map_err(|error| KernelError::NoText {
        at: error.nul_position(),
    })?;
    // SAFETY: the text ends with a zero.
    let code = unsafe { Code::load(device, text.as_ptr().cast()) }?;
    Ok(Loaded {
        code,
        functions: HashMap::new(),
    })
}

/// Returns the function of a kernel. The context must be current on this thread.
fn function(device: &CudaDevice, entry: Entry) -> Result<FunctionHandle, KernelError> {
    let mut kernels = device.kernels().lock().unwrap_or_else(PoisonError::into_inner);
    let loaded = match kernels.as_mut() {
        Some(loaded) => loaded,
        None => {
            let _beside = device.enter_beside()?;
            kernels.insert(load(device)?)
        }
    };
    if let Some(function) = loaded.functions.get(&entry) {
        return Ok(*function);
    }
    let _beside = device.enter_beside()?;
    let function = loaded.code.function(device, &entry.name())?;
    loaded.functions.insert(entry, function);
    Ok(function)
}

/// Launches a kernel on a stream, with memory of this and other streams.
///
/// # Safety
/// The arguments must be the kernel's. The elements of its views must be in live blocks of the streams. Other code may use them only in the
/// order of the streams.
pub unsafe fn run(
    entry: Entry,
    (stream, others): (&CudaStream, &[&CudaStream]),
    shape: Shape,
    mut arguments: Arguments,
) -> Result<(), KernelError> {
    let device = stream.device();
    for other in others {
        other.expect_on(device)?;
    }
    let _current = stream.enter()?;
    let function = function(device, entry)?;
    launch::among(stream, others, || {
        // SAFETY: the module stays loaded until the last handle of the device is dropped, which waits for all streams that the
        // module ran on. The caller guarantees the rest.
        unsafe { launch::launch(stream, function, shape, &mut arguments) }.map_err(KernelError::from)
    })
}

/// Copies bytes from a device to the host, in the order of a stream, and waits until the copy is complete.
///
/// # Safety
/// This many bytes must be at the address, and they may be written only in the order of the stream.
pub unsafe fn read(stream: &CudaStream, from: u64, bytes: &mut [u8]) -> Result<(), CudaError> {
    let _current = stream.enter()?;
    let (driver, to) = (stream.device().driver(), bytes.as_mut_ptr().cast());
    // SAFETY: the caller guarantees the address. The host's bytes are borrowed until the stream has been waited for below.
    let copied = unsafe { driver.copy_to_host(to, from, bytes.len(), stream.handle()) };
    stream.wait().and(copied)
}

#[cfg(test)]
mod tests {
    use super::*;
    use millpond_pool::dtype::DType;

    /// The PTX contains exactly the kernels that are launched.
    #[test]
    fn the_ptx_contains_exactly_the_launched_kernels() {
        let numbers = || DType::all().filter(|dtype| (*dtype as usize) < DType::Bool as usize);
        let wides = [Wide::Float, Wide::Int, Wide::UInt];
        let mut wanted: Vec<String> = [1, 2, 4, 8, 16].map(|bytes| Entry::Copy(bytes).name()).into();
        wanted.extend(numbers().map(|dtype| Entry::Binary(dtype).name()));
        wanted.extend(numbers().map(|dtype| Entry::Matmul(dtype).name()));
        wanted.extend(wides.iter().map(|wide| Entry::Sum(*wide).name()));
        wanted.extend(wides.iter().map(|wide| Entry::SumDim(*wide).name()));
        wanted.extend([Entry::Cast.name(), Entry::Unpack.name()]);
        let entries = PTX
            .lines()
            .filter_map(|line| line.strip_prefix(".visible .entry "));
        let mut there: Vec<_> = entries
            .map(|name| name.trim_end_matches('(').to_owned())
            .collect();
        wanted.sort();
        there.sort();
        assert_eq!(there, wanted);
    }
}
