//! The driver's structures, as far as they are used here. A test compares them with those of cudarc.

/// `CUmemLocation`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Location {
    pub(crate) kind: i32,
    pub(crate) id: i32,
}

/// `CUmemAllocationProp`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct AllocationProp {
    pub(crate) kind: i32,
    pub(crate) handle_types: i32,
    pub(crate) location: Location,
    pub(crate) win32: usize,
    pub(crate) flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct AccessDesc {
    pub(crate) location: Location,
    pub(crate) flags: i32,
}

/// `CUmemPoolProps`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct PoolProps {
    pub(crate) kind: i32,
    pub(crate) handle_types: i32,
    pub(crate) location: Location,
    pub(crate) win32: usize,
    pub(crate) max_size: usize,
    pub(crate) usage: u16,
    pub(crate) reserved: [u8; 54],
}

/// `CUDA_MEMCPY2D`.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Memcpy2d {
    pub(crate) src_x: usize,
    pub(crate) src_y: usize,
    pub(crate) src_type: u32,
    pub(crate) src_host: usize,
    pub(crate) src_device: u64,
    pub(crate) src_array: usize,
    pub(crate) src_pitch: usize,
    pub(crate) dst_x: usize,
    pub(crate) dst_y: usize,
    pub(crate) dst_type: u32,
    pub(crate) dst_host: usize,
    pub(crate) dst_device: u64,
    pub(crate) dst_array: usize,
    pub(crate) dst_pitch: usize,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// `CUDA_MEMCPY3D`. In `CUDA_MEMCPY3D_PEER` the reserved places have the contexts of the two ends.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Memcpy3d {
    pub(crate) src_x: usize,
    pub(crate) src_y: usize,
    pub(crate) src_z: usize,
    pub(crate) src_lod: usize,
    pub(crate) src_type: u32,
    pub(crate) src_host: usize,
    pub(crate) src_device: u64,
    pub(crate) src_array: usize,
    pub(crate) reserved0: usize,
    pub(crate) src_pitch: usize,
    pub(crate) src_height: usize,
    pub(crate) dst_x: usize,
    pub(crate) dst_y: usize,
    pub(crate) dst_z: usize,
    pub(crate) dst_lod: usize,
    pub(crate) dst_type: u32,
    pub(crate) dst_host: usize,
    pub(crate) dst_device: u64,
    pub(crate) dst_array: usize,
    pub(crate) reserved1: usize,
    pub(crate) dst_pitch: usize,
    pub(crate) dst_height: usize,
    pub(crate) width: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
}

/// `CUDA_MEMSET_NODE_PARAMS`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct MemsetNode {
    pub(crate) dst: u64,
    pub(crate) pitch: usize,
    pub(crate) value: u32,
    pub(crate) element: u32,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS_v1`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct AllocNode {
    pub(crate) props: PoolProps,
    pub(crate) access: usize,
    pub(crate) access_count: usize,
    pub(crate) bytes: usize,
    pub(crate) address: u64,
}

/// `CUDA_HOST_NODE_PARAMS`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct HostNode {
    pub(crate) function: Option<unsafe extern "C" fn(usize)>,
    pub(crate) data: usize,
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct InstantiateParams {
    pub(crate) flags: u64,
    pub(crate) upload: u64,
    pub(crate) node: u64,
    pub(crate) result: i32,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct KernelNode {
    pub(crate) function: u64,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) params: usize,
    pub(crate) extra: usize,
    pub(crate) kernel: usize,
    pub(crate) context: usize,
}

/// `CUipcMemHandle` and `CUipcEventHandle`, which are passed by value.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct IpcHandle {
    pub(crate) reserved: [u8; 64],
}

#[cfg(test)]
mod tests {
    use super::*;
    use cudarc::driver::sys;
    use std::mem::offset_of;

    macro_rules! same {
        ($ours:ty, $theirs:ty, $($field:ident = $other:ident),*) => {
            assert_eq!(size_of::<$ours>(), size_of::<$theirs>(), stringify!($ours));
            $(assert_eq!(offset_of!($ours, $field), offset_of!($theirs, $other), stringify!($ours.$field));)*
        };
    }

    #[test]
    fn structures_have_the_layout_of_the_driver() {
        same!(Location, sys::CUmemLocation, kind = type_, id = id);
        same!(
            AllocationProp,
            sys::CUmemAllocationProp,
            kind = type_,
            handle_types = requestedHandleTypes,
            location = location,
            win32 = win32HandleMetaData,
            flags = allocFlags
        );
        same!(
            AccessDesc,
            sys::CUmemAccessDesc,
            location = location,
            flags = flags
        );
        same!(
            PoolProps,
            sys::CUmemPoolProps,
            kind = allocType,
            handle_types = handleTypes,
            location = location,
            win32 = win32SecurityAttributes,
            max_size = maxSize,
            usage = usage
        );
        same!(
            Memcpy2d,
            sys::CUDA_MEMCPY2D,
            src_x = srcXInBytes,
            src_type = srcMemoryType,
            src_device = srcDevice,
            src_pitch = srcPitch,
            dst_x = dstXInBytes,
            dst_host = dstHost,
            dst_pitch = dstPitch,
            width = WidthInBytes,
            height = Height
        );
        same!(
            Memcpy3d,
            sys::CUDA_MEMCPY3D,
            src_type = srcMemoryType,
            src_pitch = srcPitch,
            dst_x = dstXInBytes,
            dst_device = dstDevice,
            dst_height = dstHeight,
            width = WidthInBytes,
            depth = Depth
        );
        same!(
            MemsetNode,
            sys::CUDA_MEMSET_NODE_PARAMS_st,
            dst = dst,
            pitch = pitch,
            value = value,
            element = elementSize,
            width = width,
            height = height
        );
        same!(
            AllocNode,
            sys::CUDA_MEM_ALLOC_NODE_PARAMS_v1_st,
            props = poolProps,
            access = accessDescs,
            access_count = accessDescCount,
            bytes = bytesize,
            address = dptr
        );
        same!(
            HostNode,
            sys::CUDA_HOST_NODE_PARAMS_st,
            function = fn_,
            data = userData
        );
        same!(IpcHandle, sys::CUipcMemHandle, reserved = reserved);
        same!(IpcHandle, sys::CUipcEventHandle, reserved = reserved);
        same!(
            InstantiateParams,
            sys::CUDA_GRAPH_INSTANTIATE_PARAMS_st,
            flags = flags,
            upload = hUploadStream,
            node = hErrNode_out,
            result = result_out
        );
        same!(
            KernelNode,
            sys::CUDA_KERNEL_NODE_PARAMS_v2_st,
            function = func,
            grid = gridDimX,
            block = blockDimX,
            shared = sharedMemBytes,
            params = kernelParams,
            context = ctx
        );
    }
}
