//! The structures that cross the border, as the standard's C header lays them out.

use std::ffi::c_void;
use std::fmt;

/// The version that structures made here are of.
pub const VERSION: DLPackVersion = DLPackVersion { major: 1, minor: 3 };

/// In [flags](DLManagedTensorVersioned::flags): the elements may not be written.
pub const READ_ONLY: u64 = 1;

/// In [flags](DLManagedTensorVersioned::flags): the elements are a copy, which is its holder's alone.
pub const IS_COPIED: u64 = 1 << 1;

/// A version of the structures. Those of one major version are laid out alike.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLPackVersion {
    /// Another one has other structures.
    pub major: u32,
    /// Another one has other numbers for types and devices.
    pub minor: u32,
}

/// Where memory is.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDevice {
    /// The kind of device: 1 is the host.
    pub device_type: i32,
    /// Which of them; 0 on the host.
    pub device_id: i32,
}

/// The type of elements.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DLDataType {
    /// The kind of number.
    pub code: u8,
    /// Bits of one.
    pub bits: u8,
    /// Numbers in an element.
    pub lanes: u16,
}

/// Where elements lie.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct DLTensor {
    /// Together with `byte_offset` the first element; null where there are none.
    pub data: *mut c_void,
    /// Where the memory is.
    pub device: DLDevice,
    /// Dimensions.
    pub ndim: i32,
    /// The elements' type.
    pub dtype: DLDataType,
    /// Sizes of the dimensions; may be null where there are none.
    pub shape: *mut i64,
    /// Elements between neighbours along each dimension. Null stood for row after row before version 1.2.
    pub strides: *mut i64,
    /// Bytes from `data` to the first element.
    pub byte_offset: u64,
}

/// A tensor that is held by whoever has a pointer to this: the older form, which cannot say that it is read-only.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensor {
    /// Where the elements lie.
    pub dl_tensor: DLTensor,
    /// Whatever the maker needs.
    pub manager_ctx: *mut c_void,
    /// To be called once with the structure, from any thread, when it is no longer needed.
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

/// A tensor that is held by whoever has a pointer to this.
#[repr(C)]
#[derive(Debug)]
pub struct DLManagedTensorVersioned {
    /// Of another major version nothing may be looked at but this, and the deleter called.
    pub version: DLPackVersion,
    /// Whatever the maker needs.
    pub manager_ctx: *mut c_void,
    /// To be called once with the structure, from any thread, when it is no longer needed.
    pub deleter: Option<unsafe extern "C" fn(*mut Self)>,
    /// [`READ_ONLY`], [`IS_COPIED`] and others.
    pub flags: u64,
    /// Where the elements lie.
    pub dl_tensor: DLTensor,
}

impl fmt::Display for DLPackVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}
