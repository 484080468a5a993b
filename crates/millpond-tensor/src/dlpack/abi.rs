//! The structures that are exchanged, with the layout of the standard's C header.

use std::ffi::c_void;
use std::fmt;

/// The version of the structures that this crate makes.
pub const VERSION: DLPackVersion = DLPackVersion { major: 1, minor: 3 };

/// A bit of the [flags](DLManagedTensorVersioned::flags): the elements may not be written.
pub const READ_ONLY: u64 = 1;

/// A bit of the [flags](DLManagedTensorVersioned::flags): the elements are a copy that belongs to the holder alone.
pub const IS_COPIED: u64 = 1 << 1;

/// A version of the structures. All versions with the same major number have the same layout.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLPackVersion {
    /// Differs if the structures differ.
    pub major: u32,
    /// Differs if the numbers for types and devices differ.
    pub minor: u32,
}

/// The location of memory.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDevice {
    /// The kind of device: 1 is the host.
    pub device_type: i32,
    /// The number of the device among those of its kind. It is 0 on the host.
    pub device_id: i32,
}

/// The type of elements.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDataType {
    /// The kind of number.
    pub code: u8,
    /// The bits of one number.
    pub bits: u8,
    /// The numbers in an element.
    pub lanes: u16,
}

/// The location and layout of elements.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DLTensor {
    /// The address to which `byte_offset` is added for the first element. Null if there are no elements.
    pub data: *mut c_void,
    /// The device of the memory.
    pub device: DLDevice,
    /// The number of dimensions.
    pub ndim: i32,
    /// The type of the elements.
    pub dtype: DLDataType,
    /// The sizes of the dimensions. May be null if there are no dimensions.
    pub shape: *mut i64,
    /// The distance between neighbours along each dimension, in elements. Before version 1.2, null meant C order.
    pub strides: *mut i64,
    /// The bytes from `data` to the first element.
    pub byte_offset: u64,
}

/// A tensor owned by the holder of a pointer to this. This older form cannot be marked as read-only.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensor {
    /// The location and layout of the elements.
    pub dl_tensor: DLTensor,
    /// Data of the library that made the structure.
    pub manager_ctx: *mut c_void,
    /// Must be called once with the structure, from any thread, when it is no longer needed.
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// A tensor owned by the holder of a pointer to this.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensorVersioned {
    /// If the major version is unknown, only this field may be read and only the deleter called.
    pub version: DLPackVersion,
    /// Data of the library that made the structure.
    pub manager_ctx: *mut c_void,
    /// Must be called once with the structure, from any thread, when it is no longer needed.
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
    /// [`READ_ONLY`], [`IS_COPIED`] and others.
    pub flags: u64,
    /// The location and layout of the elements.
    pub dl_tensor: DLTensor,
}

impl fmt::Display for DLPackVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}
