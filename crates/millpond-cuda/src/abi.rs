//! The handles, structures and constants of the driver's functions that are called here.
//!
//! Values of the driver are integers here, because a newer driver may return a value that an enum does not contain.

use std::ffi::{c_int, c_uint, c_ushort, c_void};

/// The code that every function returns.
pub(super) type Code = c_uint;

pub(super) const SUCCESS: Code = 0;
pub(super) const INVALID_VALUE: Code = 1;
pub(super) const OUT_OF_MEMORY: Code = 2;
/// The error of the stub library that a CUDA toolkit provides for linking. The stub is not a driver.
pub(super) const STUB_LIBRARY: Code = 34;
pub(super) const NO_BINARY: Code = 209;
pub(super) const LAUNCH_FAILED: Code = 719;
pub(super) const NOT_FOUND: Code = 500;
pub(super) const NOT_READY: Code = 600;

/// Defines the types of the driver's handles. A handle is opaque and can be used from any thread.
macro_rules! handles {
    ($($(#[$about:meta])* $name:ident;)*) => {
        $(
            $(#[$about])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            #[repr(transparent)]
            pub(super) struct $name(pub(super) *mut c_void);

            impl $name {
                pub(super) const NULL: Self = Self(std::ptr::null_mut());
            }

            // SAFETY: the pointer is never followed here, and the driver takes it from any thread.
            unsafe impl Send for $name {}
            // SAFETY: as above.
            unsafe impl Sync for $name {}
        )*
    };
}

handles! {
    /// A context. Each device has one primary context, which all of its users share.
    ContextHandle;
    /// A stream. Null is the legacy default stream.
    StreamHandle;
    /// An event.
    EventHandle;
    /// A memory pool of the driver.
    PoolHandle;
    /// A graph of captured work.
    GraphHandle;
    /// A graph that is ready to be launched.
    ExecutableHandle;
    /// Loaded code.
    ModuleHandle;
    /// A function of a module, for launches.
    FunctionHandle;
}

/// A function that the driver calls when a stream reaches it. Its arguments are the stream, the status of the context, and the data.
pub(super) type StreamCallback = unsafe extern "C" fn(StreamHandle, Code, *mut c_void);

/// Physical memory that addresses are mapped to.
pub(super) type MemoryHandle = u64;

/// An address on a device, or in an address range that devices share with the host.
pub(super) type DevicePtr = u64;

pub(super) type DeviceNumber = c_int;

/// Attributes of a device.
pub(super) mod attribute {
    use super::c_int;

    pub(crate) const VIRTUAL_MEMORY: c_int = 102;
    pub(crate) const MEMORY_POOLS: c_int = 115;
    pub(crate) const COMPUTE_MAJOR: c_int = 75;
    pub(crate) const COMPUTE_MINOR: c_int = 76;
    pub(crate) const MANAGED: c_int = 83;
    pub(crate) const CONCURRENT_MANAGED: c_int = 89;
    /// Whether memory that is mapped by pages can be exported to other processes as a file descriptor.
    pub(crate) const FILE_HANDLES: c_int = 103;
    /// Whether memory that is mapped by pages can be created for GPUDirect RDMA.
    pub(crate) const RDMA_OF_PAGES: c_int = 110;
}

/// Attributes of an address.
pub(super) const POINTER_MEMORY_TYPE: c_uint = 2;
pub(super) const POINTER_IS_MANAGED: c_uint = 8;
/// The memory type of host memory that the driver knows.
pub(super) const MEMORY_TYPE_HOST: c_uint = 1;

pub(super) const LOCATION_DEVICE: c_uint = 1;
pub(super) const ALLOCATION_PINNED: c_uint = 1;
pub(super) const HANDLE_NONE: c_uint = 0;
/// Memory that can be exported as a file descriptor.
pub(super) const HANDLE_FILE: c_uint = 1;
pub(super) const ACCESS_READ_WRITE: c_uint = 3;
/// The recommended granularity, which is the fastest.
pub(super) const GRANULARITY_RECOMMENDED: c_uint = 1;
/// The number of reserved bytes above which a pool gives free memory back when the device is synchronised.
pub(super) const POOL_RELEASE_THRESHOLD: c_uint = 4;
/// The bytes that a pool reserves from its device, with their peak, and the bytes in use, with their peak.
pub(super) const POOL_RESERVED: c_uint = 5;
pub(super) const POOL_RESERVED_PEAK: c_uint = 6;
pub(super) const POOL_USED: c_uint = 7;
pub(super) const POOL_USED_PEAK: c_uint = 8;
/// An event that records the time.
pub(super) const EVENT_WITH_TIME: c_uint = 0;
/// An event that does not record the time, which is faster.
pub(super) const EVENT_WITHOUT_TIME: c_uint = 2;
/// A stream that does not wait for the legacy default stream.
pub(super) const STREAM_NON_BLOCKING: c_uint = 1;
/// The buffer for the error messages of the PTX compiler, and its bytes.
pub(super) const JIT_ERROR_LOG: c_uint = 5;
pub(super) const JIT_ERROR_LOG_BYTES: c_uint = 6;

/// A capture mode in which only waiting for captured work is refused.
pub(super) const CAPTURE_RELAXED: c_uint = 2;
/// The state of a stream that is not captured. In any other state it is captured, or its capture is invalid.
pub(super) const CAPTURE_NONE: c_uint = 0;

/// Memory that is pinned for all devices, and not only for that of the context.
pub(super) const HOST_PORTABLE: c_uint = 1;
/// Memory that has an address for kernels.
pub(super) const HOST_MAPPED: c_uint = 2;
/// Managed memory that every stream may use.
pub(super) const ATTACH_GLOBAL: c_uint = 1;
/// The host, as a place of managed memory. Other places are numbers of devices.
pub(super) const PLACE_HOST: DeviceNumber = -1;

/// Advice on managed memory. Each value is followed by the value that withdraws the advice.
pub(super) mod advice {
    use super::c_uint;

    pub(crate) const READ_MOSTLY: c_uint = 1;
    pub(crate) const PREFERRED_LOCATION: c_uint = 3;
    pub(crate) const ACCESSED_BY: c_uint = 5;
    /// The difference between an advice and its withdrawal.
    pub(crate) const BACK: c_uint = 1;
}

/// `CUmemLocation`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Location {
    pub(super) kind: c_uint,
    pub(super) id: c_int,
}

/// `CUmemAllocationProp`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct AllocationProperties {
    pub(super) kind: c_uint,
    pub(super) handles: c_uint,
    pub(super) location: Location,
    pub(super) windows: *mut c_void,
    pub(super) compression: u8,
    pub(super) remote: u8,
    pub(super) usage: c_ushort,
    pub(super) reserved: [u8; 4],
}

/// `CUmemAccessDesc`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Access {
    pub(super) location: Location,
    pub(super) flags: c_uint,
}

/// `CUmemPoolProps`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct PoolProperties {
    pub(super) kind: c_uint,
    pub(super) handles: c_uint,
    pub(super) location: Location,
    pub(super) windows: *mut c_void,
    pub(super) most: usize,
    pub(super) usage: c_ushort,
    pub(super) reserved: [u8; 54],
}

impl Location {
    pub(super) fn device(number: DeviceNumber) -> Self {
        Self {
            kind: LOCATION_DEVICE,
            id: number,
        }
    }
}

impl AllocationProperties {
    /// Returns the properties of memory that stays on a device and is not shared with other processes.
    pub(super) fn on(number: DeviceNumber) -> Self {
        Self {
            kind: ALLOCATION_PINNED,
            handles: HANDLE_NONE,
            location: Location::device(number),
            windows: std::ptr::null_mut(),
            compression: 0,
            remote: 0,
            usage: 0,
            reserved: [0; 4],
        }
    }
}

impl PoolProperties {
    /// Returns the properties of a pool that is as large as the device allows. Its memory stays on the device and is not shared with other
    /// processes.
    pub(super) fn on(number: DeviceNumber) -> Self {
        Self {
            kind: ALLOCATION_PINNED,
            handles: HANDLE_NONE,
            location: Location::device(number),
            windows: std::ptr::null_mut(),
            most: 0,
            usage: 0,
            reserved: [0; 54],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cudarc::driver::sys;
    use std::mem::{align_of, offset_of, size_of};

    #[test]
    fn structures_have_the_layout_of_the_driver_header() {
        fn same<Ours, Theirs>() {
            assert_eq!(size_of::<Ours>(), size_of::<Theirs>());
            assert_eq!(align_of::<Ours>(), align_of::<Theirs>());
        }
        same::<Location, sys::CUmemLocation>();
        same::<AllocationProperties, sys::CUmemAllocationProp>();
        same::<Access, sys::CUmemAccessDesc>();
        same::<PoolProperties, sys::CUmemPoolProps>();
        let ours = [
            offset_of!(AllocationProperties, location),
            offset_of!(AllocationProperties, windows),
            offset_of!(AllocationProperties, compression),
            offset_of!(Access, flags),
            offset_of!(PoolProperties, most),
            offset_of!(PoolProperties, usage),
        ];
        let theirs = [
            offset_of!(sys::CUmemAllocationProp, location),
            offset_of!(sys::CUmemAllocationProp, win32HandleMetaData),
            offset_of!(sys::CUmemAllocationProp, allocFlags),
            offset_of!(sys::CUmemAccessDesc, flags),
            offset_of!(sys::CUmemPoolProps, maxSize),
            offset_of!(sys::CUmemPoolProps, usage),
        ];
        assert_eq!(ours, theirs);
    }

    #[test]
    fn constants_have_the_values_of_the_driver_header() {
        use sys::CUdevice_attribute as Attribute;
        assert_eq!(
            [
                attribute::VIRTUAL_MEMORY,
                attribute::MEMORY_POOLS,
                attribute::COMPUTE_MAJOR,
                attribute::COMPUTE_MINOR,
                attribute::MANAGED,
                attribute::CONCURRENT_MANAGED,
                attribute::FILE_HANDLES,
                attribute::RDMA_OF_PAGES,
            ],
            [
                Attribute::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED as c_int,
                Attribute::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED as c_int,
                Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR as c_int,
                Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR as c_int,
                Attribute::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY as c_int,
                Attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS as c_int,
                Attribute::CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED as c_int,
                Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED as c_int,
            ]
        );
        assert_eq!(
            [
                SUCCESS,
                INVALID_VALUE,
                OUT_OF_MEMORY,
                STUB_LIBRARY,
                NO_BINARY,
                LAUNCH_FAILED,
                NOT_FOUND,
                NOT_READY
            ],
            [
                sys::CUresult::CUDA_SUCCESS as Code,
                sys::CUresult::CUDA_ERROR_INVALID_VALUE as Code,
                sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY as Code,
                sys::CUresult::CUDA_ERROR_STUB_LIBRARY as Code,
                sys::CUresult::CUDA_ERROR_NO_BINARY_FOR_GPU as Code,
                sys::CUresult::CUDA_ERROR_LAUNCH_FAILED as Code,
                sys::CUresult::CUDA_ERROR_NOT_FOUND as Code,
                sys::CUresult::CUDA_ERROR_NOT_READY as Code,
            ]
        );
        assert_eq!(
            [
                POINTER_MEMORY_TYPE,
                POINTER_IS_MANAGED,
                MEMORY_TYPE_HOST,
                LOCATION_DEVICE,
                ALLOCATION_PINNED,
                HANDLE_NONE,
                HANDLE_FILE,
                ACCESS_READ_WRITE,
                GRANULARITY_RECOMMENDED,
                POOL_RELEASE_THRESHOLD,
                EVENT_WITH_TIME,
                EVENT_WITHOUT_TIME,
                STREAM_NON_BLOCKING,
                CAPTURE_RELAXED,
                CAPTURE_NONE,
                POOL_RESERVED,
                POOL_RESERVED_PEAK,
                POOL_USED,
                POOL_USED_PEAK,
                JIT_ERROR_LOG,
                JIT_ERROR_LOG_BYTES,
            ],
            [
                sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE as c_uint,
                sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_IS_MANAGED as c_uint,
                sys::CUmemorytype::CU_MEMORYTYPE_HOST as c_uint,
                sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as c_uint,
                sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED as c_uint,
                sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE.0,
                sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR.0,
                sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE as c_uint,
                sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED as c_uint,
                sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD as c_uint,
                sys::CUevent_flags::CU_EVENT_DEFAULT as c_uint,
                sys::CUevent_flags::CU_EVENT_DISABLE_TIMING as c_uint,
                sys::CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint,
                sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as c_uint,
                sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE as c_uint,
                sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT as c_uint,
                sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH as c_uint,
                sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT as c_uint,
                sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH as c_uint,
                sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER as c_uint,
                sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES as c_uint,
            ]
        );
        use sys::CUmem_advise as Advise;
        assert_eq!(
            [
                HOST_PORTABLE,
                HOST_MAPPED,
                HOST_PORTABLE,
                HOST_MAPPED,
                ATTACH_GLOBAL,
            ],
            [
                sys::CU_MEMHOSTALLOC_PORTABLE,
                sys::CU_MEMHOSTALLOC_DEVICEMAP,
                sys::CU_MEMHOSTREGISTER_PORTABLE,
                sys::CU_MEMHOSTREGISTER_DEVICEMAP,
                sys::CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL as c_uint,
            ]
        );
        assert_eq!(
            [
                advice::READ_MOSTLY,
                advice::READ_MOSTLY + advice::BACK,
                advice::PREFERRED_LOCATION,
                advice::PREFERRED_LOCATION + advice::BACK,
                advice::ACCESSED_BY,
                advice::ACCESSED_BY + advice::BACK,
            ],
            [
                Advise::CU_MEM_ADVISE_SET_READ_MOSTLY as c_uint,
                Advise::CU_MEM_ADVISE_UNSET_READ_MOSTLY as c_uint,
                Advise::CU_MEM_ADVISE_SET_PREFERRED_LOCATION as c_uint,
                Advise::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION as c_uint,
                Advise::CU_MEM_ADVISE_SET_ACCESSED_BY as c_uint,
                Advise::CU_MEM_ADVISE_UNSET_ACCESSED_BY as c_uint,
            ]
        );
    }
}
