//! The known failures of each client.

use super::Known;

const ARRAYS: &str = "the driver has no arrays and no textures";
const CONDITIONS: &str = "graphs have no conditional nodes";
const OWN_MANAGER: &str = "Numba skips the tests of its own memory manager";
const PER_THREAD: &str = "uses the per-thread default stream, which pools refuse";
const LIBRARIES: &str = "needs cuBLAS, cuSOLVER or cuSPARSE, which are not installed";

pub(super) const KNOWN: &[Known] = &[
    Known {
        client: "cudarc",
        test: "test_default_pinned_host_reads_are_faster_than_write_combined",
        why: "compares the speed of write-combined memory, which the host does not have",
        always: false,
    },
    Known {
        client: "cudarc",
        test: "test_launch_with_half",
        why: "its kernel includes CUDA's headers, which are not installed",
        always: true,
    },
    Known {
        client: "cuda-core",
        test: "device_buffer_cast_bounds",
        why: "compares the messages of another version of the compiler",
        // A compiler of that version may be the one in use.
        always: false,
    },
    always("cuda-python", "::test_cuda_array", ARRAYS),
    always("cuda-python", "::test_cudart_cudaArrayGetInfo", ARRAYS),
    always("cuda-python", "::test_cudart_cudaGetChannelDesc", ARRAYS),
    always(
        "cuda-python",
        "::test_cudart_cudaGetTextureObjectTextureDesc",
        ARRAYS,
    ),
    always("cuda-python", "::test_cudart_cudaMemcpy*", ARRAYS),
    always("cuda-python", "::test_conditional", CONDITIONS),
    always("cuda-python", "::test_cudart_conditional", CONDITIONS),
    always(
        "cuda-python",
        "::test_cuDeviceGetDevResource",
        "the driver does not split devices: there are no green contexts",
    ),
    always(
        "cuda-python",
        "::test_cuda_coredump_attr",
        "the driver writes no core dumps of devices",
    ),
    always(
        "cuda-python",
        "::test_graph_poly",
        "the parameters of a graph's node cannot be read or changed",
    ),
    always(
        "cuda.core",
        "::test_to_system_device",
        "imports a module that the package of cuda.bindings does not contain",
    ),
    always("cupy", "::test_cublas_handle", LIBRARIES),
    always("cupy", "::test_cusolver_handle", LIBRARIES),
    always("cupy", "::test_cusolver_sp_handle", LIBRARIES),
    always("cupy", "::test_cusparse_handle", LIBRARIES),
    always("cupy in pools", "::TestStream::test_del[ptds]", PER_THREAD),
    always(
        "cupy in pools",
        "::TestStream::test_get_and_add_callback",
        PER_THREAD,
    ),
    always("cupy in pools", "::TestStream::test_launch_host_func", PER_THREAD),
    always("numba-cuda in pools", "::TestDeallocation::*", OWN_MANAGER),
    always("numba-cuda in pools", "::test_ownership", OWN_MANAGER),
    always(
        "numba-cuda in pools",
        "::test_host_alloc_pinned",
        "clears as many bytes as the driver's allocation has, which is the memory of many blocks",
    ),
    always(
        "numba-cuda in pools",
        "::test_host_operators",
        "its context has ended with the error of test_host_alloc_pinned",
    ),
];

const fn always(client: &'static str, test: &'static str, why: &'static str) -> Known {
    Known {
        client,
        test,
        why,
        always: true,
    }
}
