//! Element types and devices as the standard's numbers.

use super::abi::{DLDataType, DLDevice};
use millpond_os::device::Device;
use millpond_pool::dtype::DType;
use std::fmt;

const INT: u8 = 0;
const UINT: u8 = 1;
const FLOAT: u8 = 2;
const BFLOAT: u8 = 4;
const COMPLEX: u8 = 5;
const BOOL: u8 = 6;

const HOST: i32 = 1;
const CUDA: i32 = 2;

/// Kinds of devices: the number, the name, and whether their memory is the host's, which includes memory pinned by a
/// driver.
const DEVICES: [(i32, &str, bool); 16] = [
    (HOST, "the host", true),
    (CUDA, "CUDA", false),
    (3, "the host, pinned by CUDA", true),
    (4, "OpenCL", false),
    (7, "Vulkan", false),
    (8, "Metal", false),
    (9, "VPI", false),
    (10, "ROCm", false),
    (11, "the host, pinned by ROCm", true),
    (12, "an extension device", false),
    (13, "CUDA, managed", false),
    (14, "oneAPI", false),
    (15, "WebGPU", false),
    (16, "Hexagon", false),
    (17, "MAIA", false),
    (18, "Trainium", false),
];

impl From<DType> for DLDataType {
    fn from(dtype: DType) -> Self {
        let code = match dtype {
            DType::F64 | DType::F32 | DType::F16 => FLOAT,
            DType::BF16 => BFLOAT,
            DType::I8 | DType::I16 | DType::I32 | DType::I64 => INT,
            DType::U8 | DType::U16 | DType::U32 | DType::U64 => UINT,
            DType::Bool => BOOL,
            DType::Complex64 | DType::Complex128 => COMPLEX,
        };
        Self {
            code,
            // The size is at most 128 bits.
            bits: dtype.size() as u8 * 8,
            lanes: 1,
        }
    }
}

impl DLDataType {
    /// Returns the corresponding type of this crate, or `None` if there is none.
    #[must_use]
    pub fn dtype(self) -> Option<DType> {
        DType::all().find(|dtype| Self::from(*dtype) == self)
    }
}

impl fmt::Display for DLDataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dtype() {
            Some(dtype) => dtype.fmt(f),
            None => write!(
                f,
                "type {} of {} bits and {} lanes",
                self.code, self.bits, self.lanes
            ),
        }
    }
}

impl From<Device> for DLDevice {
    fn from(device: Device) -> Self {
        let (device_type, number) = match device.cuda_number() {
            None => (HOST, 0),
            Some(number) => (CUDA, number),
        };
        Self {
            device_type,
            device_id: i32::try_from(number).unwrap_or(i32::MAX),
        }
    }
}

impl DLDevice {
    /// Returns the corresponding device of this crate, or `None` if there is none.
    #[must_use]
    pub fn device(self) -> Option<Device> {
        let row = DEVICES.iter().find(|row| row.0 == self.device_type)?;
        row.2.then_some(Device::Host)
    }
}

impl fmt::Display for DLDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match DEVICES.iter().find(|row| row.0 == self.device_type) {
            Some(row) => write!(f, "{} ({})", row.1, self.device_id),
            None => write!(f, "device type {} ({})", self.device_type, self.device_id),
        }
    }
}
