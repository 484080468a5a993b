// The resource of device memory under the concepts of cuda::mr, of the version of CCCL that is there.
#include <millpond.hpp>

#ifndef MILLPOND_HAS_CUDA_MR
#error "millpond.hpp did not find cuda::mr"
#endif

#if CCCL_MAJOR_VERSION >= 3
static_assert(cuda::mr::synchronous_resource<millpond::device_resource>);
static_assert(cuda::mr::resource<millpond::device_resource>);
static_assert(cuda::mr::resource_with<millpond::device_resource, cuda::mr::device_accessible>);
static_assert(!cuda::mr::synchronous_resource_with<millpond::device_resource, cuda::mr::host_accessible>);
#else
static_assert(cuda::mr::resource<millpond::device_resource>);
static_assert(cuda::mr::async_resource<millpond::device_resource>);
static_assert(cuda::mr::async_resource_with<millpond::device_resource, cuda::mr::device_accessible>);
static_assert(!cuda::mr::resource_with<millpond::device_resource, cuda::mr::host_accessible>);
#endif

int main() {
    try {
        millpond::device_resource resource{millpond::device_pool(0)};
        const cuda::stream_ref stream{cudaStream_t{}};
#if CCCL_MAJOR_VERSION >= 3
        void *block = resource.allocate(stream, 1000, 256);
        const bool held = resource.pool().stats().requested == 1000;
        resource.deallocate(stream, block, 1000, 256);
#else
        void *block = resource.allocate_async(1000, 256, stream);
        const bool held = resource.pool().stats().requested == 1000;
        resource.deallocate_async(block, 1000, 256, stream);
#endif
        const bool refused = [&] {
            try {
                resource.allocate_sync(1000, 512);
            } catch (const millpond::error &) {
                return true;
            }
            return false;
        }();
        std::printf("held %d, refused %d, left %d\n", held, refused, int(resource.pool().stats().requested));
    } catch (const std::exception &failed) {
        std::fprintf(stderr, "failed: %s\n", failed.what());
        return 1;
    }
}
