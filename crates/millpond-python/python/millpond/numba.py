"""Pools as the memory of Numba: ``millpond.numba.enable()``, or ``NUMBA_CUDA_MEMORY_MANAGER=millpond.numba``."""

import ctypes
import functools
import importlib
import os
import threading
import weakref
from typing import Any

from ._devices import DevicePool, by_device

__all__ = ["enable", "pool"]

_lock = threading.Lock()
_pools: dict[int, DevicePool] = {}


def enable(*pools: DevicePool) -> None:
    """Makes Numba take the memory of its device arrays from pools, until the process ends.

        import millpond

        millpond.numba.enable()
        train()
        print(millpond.numba.pool())

    Call this before the program uses the device for the first time, because Numba chooses its memory manager then. The environment variable
    ``NUMBA_CUDA_MEMORY_MANAGER=millpond.numba`` does the same without a change of the program.

    Numba does not report which streams use an array. So the memory of a freed array is reused when all work that is queued by then is
    complete, on the default stream and on the streams that are ordered with it. These are all streams that ``numba.cuda.stream`` makes.

    Args:
        pools: Pools of different devices. Another device gets a pool at its first array, with 80 % of its memory as the limit, or with the
            settings in ``MILLPOND_CONF``.

    Raises:
        ImportError: Numba is not installed.
        TypeError: A pool is not a :class:`DevicePool`.
        ValueError: Two pools are of the same device.
    """
    cuda: Any = importlib.import_module("numba.cuda")
    given = by_device(pools)
    with _lock:
        _pools.update(given)
    cuda.set_memory_manager(_manager())


def pool(device: int = 0) -> DevicePool:
    """Returns the pool from which Numba allocates on a device. It is created if there is none.

    Raises:
        RuntimeError: There is no such device.
    """
    with _lock:
        if device not in _pools:
            _pools[device] = DevicePool(device=device, name=f"numba {device}")
        return _pools[device]


def __getattr__(name: str) -> Any:
    # Numba imports the module that NUMBA_CUDA_MEMORY_MANAGER names, and reads this attribute.
    if name == "_numba_memory_manager":
        return _manager()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


@functools.cache
def _manager() -> Any:
    """Returns the class of the memory manager. Its base class exists only if Numba is installed."""
    cuda: Any = importlib.import_module("numba.cuda")
    outside = os.path.dirname(os.path.dirname(cuda.__file__))

    class PoolMemoryManager(cuda.GetIpcHandleMixin, cuda.HostOnlyCUDAMemoryManager):  # type: ignore[misc]
        """Numba's memory manager for one context. Memory of the host is Numba's own."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            #: A stream without work, which the arrays belong to.
            self._stream: Any = None

        def memalloc(self, size: int) -> Any:
            if self._stream is None:
                self._stream = cuda.stream()
            array = pool(self.context.device.id)._bytes(size, self._stream, outside)
            held = [array]

            def free() -> None:
                # The default stream is ordered after all streams of Numba. So the memory is reused when their present work is complete.
                held.pop().record_use(0)

            context, address = weakref.proxy(self.context), ctypes.c_void_p(array.address)
            return cuda.MemoryPointer(context, address, size, finalizer=free)

        def initialize(self) -> None:
            # The pool needs no preparation.
            pass

        def get_memory_info(self) -> Any:
            of = pool(self.context.device.id)
            total = of.limit or 0
            return cuda.MemoryInfo(free=max(total - of.stats()["allocated"], 0), total=total)

        @property
        def interface_version(self) -> int:
            return 1

    return PoolMemoryManager
