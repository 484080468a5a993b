//! The driver's error codes, with their names and descriptions.

/// An error code of the C interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub i32);

/// The result of a call.
pub type Answer<T = ()> = Result<T, Code>;

impl Code {
    /// `CUDA_ERROR_INVALID_VALUE`.
    pub const INVALID_VALUE: Self = Self(1);
    /// `CUDA_ERROR_OUT_OF_MEMORY`.
    pub const OUT_OF_MEMORY: Self = Self(2);
    /// `CUDA_ERROR_NOT_INITIALIZED`.
    pub const NOT_INITIALIZED: Self = Self(3);
    /// `CUDA_ERROR_DEVICE_UNAVAILABLE`.
    pub const DEVICE_UNAVAILABLE: Self = Self(46);
    /// `CUDA_ERROR_NO_DEVICE`.
    pub const NO_DEVICE: Self = Self(100);
    /// `CUDA_ERROR_INVALID_DEVICE`.
    pub const INVALID_DEVICE: Self = Self(101);
    /// `CUDA_ERROR_INVALID_IMAGE`.
    pub const INVALID_IMAGE: Self = Self(200);
    /// `CUDA_ERROR_INVALID_CONTEXT`.
    pub const INVALID_CONTEXT: Self = Self(201);
    /// `CUDA_ERROR_MAP_FAILED`.
    pub const MAP_FAILED: Self = Self(205);
    /// `CUDA_ERROR_NO_BINARY_FOR_GPU`.
    pub const NO_BINARY_FOR_GPU: Self = Self(209);
    /// `CUDA_ERROR_ECC_UNCORRECTABLE`.
    pub const ECC_UNCORRECTABLE: Self = Self(214);
    /// `CUDA_ERROR_PEER_ACCESS_UNSUPPORTED`.
    pub const PEER_ACCESS_UNSUPPORTED: Self = Self(217);
    /// `CUDA_ERROR_INVALID_PTX`.
    pub const INVALID_PTX: Self = Self(218);
    /// `CUDA_ERROR_UNSUPPORTED_PTX_VERSION`.
    pub const UNSUPPORTED_PTX_VERSION: Self = Self(222);
    /// `CUDA_ERROR_INVALID_SOURCE`.
    pub const INVALID_SOURCE: Self = Self(300);
    /// `CUDA_ERROR_FILE_NOT_FOUND`.
    pub const FILE_NOT_FOUND: Self = Self(301);
    /// `CUDA_ERROR_OPERATING_SYSTEM`.
    pub const OPERATING_SYSTEM: Self = Self(304);
    /// `CUDA_ERROR_INVALID_HANDLE`.
    pub const INVALID_HANDLE: Self = Self(400);
    /// `CUDA_ERROR_ILLEGAL_STATE`.
    pub const ILLEGAL_STATE: Self = Self(401);
    /// `CUDA_ERROR_NOT_FOUND`.
    pub const NOT_FOUND: Self = Self(500);
    /// `CUDA_ERROR_NOT_READY`.
    pub const NOT_READY: Self = Self(600);
    /// `CUDA_ERROR_ILLEGAL_ADDRESS`.
    pub const ILLEGAL_ADDRESS: Self = Self(700);
    /// `CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED`.
    pub const PEER_ACCESS_ALREADY_ENABLED: Self = Self(704);
    /// `CUDA_ERROR_PEER_ACCESS_NOT_ENABLED`.
    pub const PEER_ACCESS_NOT_ENABLED: Self = Self(705);
    /// `CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE`.
    pub const PRIMARY_CONTEXT_ACTIVE: Self = Self(708);
    /// `CUDA_ERROR_CONTEXT_IS_DESTROYED`.
    pub const CONTEXT_IS_DESTROYED: Self = Self(709);
    /// `CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED`.
    pub const HOST_MEMORY_ALREADY_REGISTERED: Self = Self(712);
    /// `CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED`.
    pub const HOST_MEMORY_NOT_REGISTERED: Self = Self(713);
    /// `CUDA_ERROR_LAUNCH_FAILED`.
    pub const LAUNCH_FAILED: Self = Self(719);
    /// `CUDA_ERROR_NOT_PERMITTED`.
    pub const NOT_PERMITTED: Self = Self(800);
    /// `CUDA_ERROR_NOT_SUPPORTED`.
    pub const NOT_SUPPORTED: Self = Self(801);
    /// `CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED`.
    pub const STREAM_CAPTURE_UNSUPPORTED: Self = Self(900);
    /// `CUDA_ERROR_STREAM_CAPTURE_INVALIDATED`.
    pub const STREAM_CAPTURE_INVALIDATED: Self = Self(901);
    /// `CUDA_ERROR_STREAM_CAPTURE_MERGE`.
    pub const STREAM_CAPTURE_MERGE: Self = Self(902);
    /// `CUDA_ERROR_STREAM_CAPTURE_UNMATCHED`.
    pub const STREAM_CAPTURE_UNMATCHED: Self = Self(903);
    /// `CUDA_ERROR_STREAM_CAPTURE_UNJOINED`.
    pub const STREAM_CAPTURE_UNJOINED: Self = Self(904);
    /// `CUDA_ERROR_STREAM_CAPTURE_ISOLATION`.
    pub const STREAM_CAPTURE_ISOLATION: Self = Self(905);
    /// `CUDA_ERROR_STREAM_CAPTURE_IMPLICIT`.
    pub const STREAM_CAPTURE_IMPLICIT: Self = Self(906);
    /// `CUDA_ERROR_CAPTURED_EVENT`.
    pub const CAPTURED_EVENT: Self = Self(907);
    /// `CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD`.
    pub const STREAM_CAPTURE_WRONG_THREAD: Self = Self(908);
    /// `CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE`.
    pub const GRAPH_EXEC_UPDATE_FAILURE: Self = Self(910);
    /// `CUDA_ERROR_EXTERNAL_DEVICE`.
    pub const EXTERNAL_DEVICE: Self = Self(911);
    /// `CUDA_ERROR_UNKNOWN`.
    pub const UNKNOWN: Self = Self(999);

    /// Returns the code's name in the driver's header.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        self.row().map(|row| NAMES[row].1.trim_end_matches('\0'))
    }

    /// Returns the code with this name or this number.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let number = text.parse().ok();
        NAMES
            .iter()
            .find(|row| number == Some(row.0) || row.1.trim_end_matches('\0') == text)
            .map(|row| Self(row.0))
    }

    pub(crate) fn name_c(self) -> Option<&'static str> {
        self.row().map(|row| NAMES[row].1)
    }

    pub(crate) fn text_c(self) -> Option<&'static str> {
        self.row().map(|row| NAMES[row].2)
    }

    fn row(self) -> Option<usize> {
        NAMES.binary_search_by_key(&self.0, |row| row.0).ok()
    }
}

/// Every code in order, with its name and description as C strings.
#[rustfmt::skip]
const NAMES: &[(i32, &str, &str)] = &[
    (0, "CUDA_SUCCESS\0", "no error\0"),
    (1, "CUDA_ERROR_INVALID_VALUE\0", "invalid argument\0"),
    (2, "CUDA_ERROR_OUT_OF_MEMORY\0", "out of memory\0"),
    (3, "CUDA_ERROR_NOT_INITIALIZED\0", "initialization error\0"),
    (4, "CUDA_ERROR_DEINITIALIZED\0", "driver shutting down\0"),
    (5, "CUDA_ERROR_PROFILER_DISABLED\0", "profiler disabled\0"),
    (6, "CUDA_ERROR_PROFILER_NOT_INITIALIZED\0", "profiler not initialized\0"),
    (7, "CUDA_ERROR_PROFILER_ALREADY_STARTED\0", "profiler already started\0"),
    (8, "CUDA_ERROR_PROFILER_ALREADY_STOPPED\0", "profiler already stopped\0"),
    (34, "CUDA_ERROR_STUB_LIBRARY\0", "CUDA driver is a stub library\0"),
    (36, "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER\0", "call requires newer driver\0"),
    (46, "CUDA_ERROR_DEVICE_UNAVAILABLE\0", "CUDA-capable device(s) is/are busy or unavailable\0"),
    (47, "CUDA_ERROR_MULTICAST_RESOURCE_FULL\0", "multicast resource full\0"),
    (100, "CUDA_ERROR_NO_DEVICE\0", "no CUDA-capable device is detected\0"),
    (101, "CUDA_ERROR_INVALID_DEVICE\0", "invalid device ordinal\0"),
    (102, "CUDA_ERROR_DEVICE_NOT_LICENSED\0", "device not licensed\0"),
    (200, "CUDA_ERROR_INVALID_IMAGE\0", "device kernel image is invalid\0"),
    (201, "CUDA_ERROR_INVALID_CONTEXT\0", "invalid device context\0"),
    (202, "CUDA_ERROR_CONTEXT_ALREADY_CURRENT\0", "context already current\0"),
    (205, "CUDA_ERROR_MAP_FAILED\0", "mapping of buffer object failed\0"),
    (206, "CUDA_ERROR_UNMAP_FAILED\0", "unmapping of buffer object failed\0"),
    (207, "CUDA_ERROR_ARRAY_IS_MAPPED\0", "array is mapped\0"),
    (208, "CUDA_ERROR_ALREADY_MAPPED\0", "resource already mapped\0"),
    (209, "CUDA_ERROR_NO_BINARY_FOR_GPU\0", "no kernel image is available for execution on the device\0"),
    (210, "CUDA_ERROR_ALREADY_ACQUIRED\0", "already acquired\0"),
    (211, "CUDA_ERROR_NOT_MAPPED\0", "resource not mapped\0"),
    (212, "CUDA_ERROR_NOT_MAPPED_AS_ARRAY\0", "not mapped as array\0"),
    (213, "CUDA_ERROR_NOT_MAPPED_AS_POINTER\0", "not mapped as pointer\0"),
    (214, "CUDA_ERROR_ECC_UNCORRECTABLE\0", "uncorrectable ECC error encountered\0"),
    (215, "CUDA_ERROR_UNSUPPORTED_LIMIT\0", "limit is not supported on this architecture\0"),
    (216, "CUDA_ERROR_CONTEXT_ALREADY_IN_USE\0", "context already in use\0"),
    (217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED\0", "peer access is not supported between these two devices\0"),
    (218, "CUDA_ERROR_INVALID_PTX\0", "a PTX JIT compilation failed\0"),
    (219, "CUDA_ERROR_INVALID_GRAPHICS_CONTEXT\0", "invalid graphics context\0"),
    (220, "CUDA_ERROR_NVLINK_UNCORRECTABLE\0", "nvlink uncorrectable\0"),
    (221, "CUDA_ERROR_JIT_COMPILER_NOT_FOUND\0", "jit compiler not found\0"),
    (222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION\0", "the provided PTX was compiled with an unsupported toolchain.\0"),
    (223, "CUDA_ERROR_JIT_COMPILATION_DISABLED\0", "jit compilation disabled\0"),
    (224, "CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY\0", "unsupported exec affinity\0"),
    (225, "CUDA_ERROR_UNSUPPORTED_DEVSIDE_SYNC\0", "unsupported devside sync\0"),
    (226, "CUDA_ERROR_CONTAINED\0", "contained\0"),
    (227, "CUDA_ERROR_INSUFFICIENT_LOADER_VERSION\0", "insufficient loader version\0"),
    (300, "CUDA_ERROR_INVALID_SOURCE\0", "invalid source\0"),
    (301, "CUDA_ERROR_FILE_NOT_FOUND\0", "file not found\0"),
    (302, "CUDA_ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND\0", "shared object symbol not found\0"),
    (303, "CUDA_ERROR_SHARED_OBJECT_INIT_FAILED\0", "shared object init failed\0"),
    (304, "CUDA_ERROR_OPERATING_SYSTEM\0", "OS call failed or operation not supported on this OS\0"),
    (400, "CUDA_ERROR_INVALID_HANDLE\0", "invalid resource handle\0"),
    (401, "CUDA_ERROR_ILLEGAL_STATE\0", "the operation cannot be performed in the present state\0"),
    (402, "CUDA_ERROR_LOSSY_QUERY\0", "lossy query\0"),
    (500, "CUDA_ERROR_NOT_FOUND\0", "named symbol not found\0"),
    (600, "CUDA_ERROR_NOT_READY\0", "device not ready\0"),
    (700, "CUDA_ERROR_ILLEGAL_ADDRESS\0", "an illegal memory access was encountered\0"),
    (701, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES\0", "too many resources requested for launch\0"),
    (702, "CUDA_ERROR_LAUNCH_TIMEOUT\0", "launch timeout\0"),
    (703, "CUDA_ERROR_LAUNCH_INCOMPATIBLE_TEXTURING\0", "launch incompatible texturing\0"),
    (704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED\0", "peer access is already enabled\0"),
    (705, "CUDA_ERROR_PEER_ACCESS_NOT_ENABLED\0", "peer access has not been enabled\0"),
    (708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE\0", "cannot set while device is active in this process\0"),
    (709, "CUDA_ERROR_CONTEXT_IS_DESTROYED\0", "context is destroyed\0"),
    (710, "CUDA_ERROR_ASSERT\0", "device-side assert triggered\0"),
    (711, "CUDA_ERROR_TOO_MANY_PEERS\0", "too many peers\0"),
    (712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED\0", "part or all of the requested memory range is already mapped\0"),
    (713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED\0", "pointer does not correspond to a registered memory region\0"),
    (714, "CUDA_ERROR_HARDWARE_STACK_ERROR\0", "hardware stack error\0"),
    (715, "CUDA_ERROR_ILLEGAL_INSTRUCTION\0", "illegal instruction\0"),
    (716, "CUDA_ERROR_MISALIGNED_ADDRESS\0", "misaligned address\0"),
    (717, "CUDA_ERROR_INVALID_ADDRESS_SPACE\0", "invalid address space\0"),
    (718, "CUDA_ERROR_INVALID_PC\0", "invalid pc\0"),
    (719, "CUDA_ERROR_LAUNCH_FAILED\0", "unspecified launch failure\0"),
    (720, "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE\0", "cooperative launch too large\0"),
    (721, "CUDA_ERROR_TENSOR_MEMORY_LEAK\0", "tensor memory leak\0"),
    (800, "CUDA_ERROR_NOT_PERMITTED\0", "operation not permitted\0"),
    (801, "CUDA_ERROR_NOT_SUPPORTED\0", "operation not supported\0"),
    (802, "CUDA_ERROR_SYSTEM_NOT_READY\0", "system not ready\0"),
    (803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH\0", "system driver mismatch\0"),
    (804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE\0", "compat not supported on device\0"),
    (805, "CUDA_ERROR_MPS_CONNECTION_FAILED\0", "mps connection failed\0"),
    (806, "CUDA_ERROR_MPS_RPC_FAILURE\0", "mps rpc failure\0"),
    (807, "CUDA_ERROR_MPS_SERVER_NOT_READY\0", "mps server not ready\0"),
    (808, "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED\0", "mps max clients reached\0"),
    (809, "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED\0", "mps max connections reached\0"),
    (810, "CUDA_ERROR_MPS_CLIENT_TERMINATED\0", "mps client terminated\0"),
    (811, "CUDA_ERROR_CDP_NOT_SUPPORTED\0", "cdp not supported\0"),
    (812, "CUDA_ERROR_CDP_VERSION_MISMATCH\0", "cdp version mismatch\0"),
    (900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED\0", "operation not permitted when stream is capturing\0"),
    (901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED\0", "operation failed due to a previous error during capture\0"),
    (902, "CUDA_ERROR_STREAM_CAPTURE_MERGE\0", "operation would result in a merge of separate capture sequences\0"),
    (903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED\0", "capture was not ended in the same stream as it began\0"),
    (904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED\0", "capturing stream has unjoined work\0"),
    (905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION\0", "dependency created on uncaptured work in another stream\0"),
    (906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT\0", "operation would make the legacy stream depend on a capturing blocking stream\0"),
    (907, "CUDA_ERROR_CAPTURED_EVENT\0", "operation not permitted on an event last recorded in a capturing stream\0"),
    (908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD\0", "attempt to terminate a thread-local capture sequence from another thread\0"),
    (909, "CUDA_ERROR_TIMEOUT\0", "timeout\0"),
    (910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE\0", "graph exec update failure\0"),
    (911, "CUDA_ERROR_EXTERNAL_DEVICE\0", "external device\0"),
    (912, "CUDA_ERROR_INVALID_CLUSTER_SIZE\0", "invalid cluster size\0"),
    (913, "CUDA_ERROR_FUNCTION_NOT_LOADED\0", "function not loaded\0"),
    (914, "CUDA_ERROR_INVALID_RESOURCE_TYPE\0", "invalid resource type\0"),
    (915, "CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION\0", "invalid resource configuration\0"),
    (916, "CUDA_ERROR_KEY_ROTATION\0", "key rotation\0"),
    (917, "CUDA_ERROR_STREAM_DETACHED\0", "stream detached\0"),
    (918, "CUDA_ERROR_GRAPH_RECAPTURE_FAILURE\0", "graph recapture failure\0"),
    (919, "CUDA_ERROR_FABRIC_NOT_READY\0", "fabric not ready\0"),
    (999, "CUDA_ERROR_UNKNOWN\0", "unknown error\0"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_in_order_and_end_as_c_strings() {
        assert!(NAMES.is_sorted_by(|a, b| a.0 < b.0));
        for row in NAMES {
            assert!(row.1.ends_with('\0') && row.2.ends_with('\0'), "{row:?}");
        }
    }

    #[test]
    fn a_code_is_found_by_name_and_by_number() {
        assert_eq!(Code::parse("700"), Some(Code::ILLEGAL_ADDRESS));
        assert_eq!(
            Code::parse("CUDA_ERROR_ILLEGAL_ADDRESS"),
            Some(Code::ILLEGAL_ADDRESS)
        );
        assert_eq!(Code::ILLEGAL_ADDRESS.name(), Some("CUDA_ERROR_ILLEGAL_ADDRESS"));
        assert_eq!(Code::parse("7000"), None);
        assert_eq!(Code(7000).name(), None);
    }
}
