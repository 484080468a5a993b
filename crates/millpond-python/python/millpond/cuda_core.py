"""Pools as memory resources of ``cuda.core``: ``millpond.cuda_core.memory_resource()``."""

import functools
import importlib
import os
from typing import Any

from ._devices import DevicePool
from ._millpond import DeviceArray

__all__ = ["memory_resource"]


def memory_resource(pool: DevicePool | None = None, *, device: int = 0) -> Any:
    """Returns a ``cuda.core.MemoryResource`` that allocates from a pool.

        import millpond
        from cuda.core import Device

        device = Device()
        device.set_current()
        memory = millpond.cuda_core.memory_resource()
        buffer = memory.allocate(1024, stream=device.default_stream)

    The attribute ``pool`` of the resource is the pool. A buffer is freed in the order of the stream that it is closed with, and the stream of
    its allocation. ``device.memory_resource = memory`` makes it the resource of the device.

    Args:
        pool: The pool. Without it, a new pool.
        device: The number of the device of a new pool.

    Raises:
        ImportError: ``cuda.core`` is not installed.
        RuntimeError: There is no such device.
        TypeError: The pool is not a :class:`DevicePool`.
    """
    if pool is None:
        pool = DevicePool(device=device, name=f"cuda.core {device}")
    if not isinstance(pool, DevicePool):
        raise TypeError(f"memory of a device needs a millpond.DevicePool, not {type(pool)}")
    return _resource_class()(pool)


@functools.cache
def _resource_class() -> Any:
    """Returns the class. Its base class exists only if ``cuda.core`` is installed."""
    core: Any = importlib.import_module("cuda.core")
    driver: Any = importlib.import_module("cuda.bindings.driver")
    outside = os.path.dirname(str(core.__file__))
    # Buffers know the stream of their allocation since version 1.2.
    knows_stream = tuple(map(int, core.__version__.split(".")[:2])) >= (1, 2)

    class PoolMemoryResource(core.MemoryResource):  # type: ignore[misc]
        """A memory resource that allocates from a pool."""

        def __init__(self, pool: DevicePool) -> None:
            self.pool = pool
            # There is no lock, because the garbage collector may free a buffer at any point. The operations of the dictionary are atomic.
            self._arrays: dict[int, DeviceArray] = {}

        def allocate(self, size: int, *, stream: Any) -> Any:
            if _is_captured(driver, stream):
                raise RuntimeError(
                    "a pool cannot allocate on a stream that is captured, because a replay of the graph would use the memory after it is "
                    "freed: use cuda.core's GraphMemoryResource there"
                )
            array = self.pool._bytes(size, stream, outside)
            # With a stream of another library, this raises an error. The array is freed then.
            stream_of = {"stream": stream} if knows_stream else {}
            buffer = core.Buffer.from_handle(array.address, size, self, **stream_of)
            if array.address:
                self._arrays[array.address] = array
            return buffer

        def deallocate(self, ptr: Any, size: int, *, stream: Any) -> None:
            # A buffer of 0 bytes has no memory.
            array = self._arrays.pop(int(ptr), None)
            if array is not None:
                array.record_use(stream)

        @property
        def is_device_accessible(self) -> bool:
            return True

        @property
        def is_host_accessible(self) -> bool:
            return False

        @property
        def is_managed(self) -> bool:
            return False

        @property
        def is_ipc_enabled(self) -> bool:
            # Buffers ask any resource for this when a program exports or pickles them.
            return False

        @property
        def device_id(self) -> int:
            return self.pool.device

    return PoolMemoryResource


def _is_captured(driver: Any, stream: Any) -> bool:
    """Returns whether work on a stream of ``cuda.core`` is recorded for a graph."""
    handle = getattr(getattr(stream, "stream", stream), "handle", None)
    if handle is None:
        return False
    error, status = driver.cuStreamIsCapturing(handle)
    return not error and status != driver.CUstreamCaptureStatus.CU_STREAM_CAPTURE_STATUS_NONE
