"""Pools as the memory of CuPy: ``millpond.cupy.enable()``."""

import importlib
import os
import threading
from typing import Any

from ._devices import DevicePool, by_device

__all__ = ["allocator", "enable"]


class allocator:
    """An allocator for ``cupy.cuda.set_allocator`` and ``cupy.cuda.using_allocator``, which takes memory from pools.

    An array belongs to the stream that is current when it is allocated. When it is freed, its memory serves requests on that stream at once, and
    on other streams after the work that is queued on it. Before work on another stream uses the array, the program must order the streams,
    as with CuPy's own allocator.

    Args:
        pools: Pools of different devices. Another device gets a pool at its first array, with 80 % of its memory as the limit, or with the
            settings in ``MILLPOND_CONF``.

    Raises:
        TypeError: A pool is not a :class:`DevicePool`.
        ValueError: Two pools are of the same device.
    """

    def __init__(self, *pools: DevicePool) -> None:
        self._pools = by_device(pools)
        self._lock = threading.Lock()

    def pool(self, device: int = 0) -> DevicePool:
        """Returns the pool of a device. It is created if there is none.

        Raises:
            RuntimeError: There is no such device.
        """
        with self._lock:
            if device not in self._pools:
                self._pools[device] = DevicePool(device=device, name=f"cupy {device}")
            return self._pools[device]

    def __call__(self, bytes: int) -> Any:
        """Allocates memory on the current device for the current stream, and returns a ``cupy.cuda.MemoryPointer``.

        Raises:
            MemoryError: There is not enough memory. The text is a post-mortem.
        """
        cupy: Any = importlib.import_module("cupy")
        device = cupy.cuda.runtime.getDevice()
        array = self.pool(device)._bytes(bytes, cupy.cuda.get_current_stream(), os.path.dirname(cupy.__file__))
        memory = cupy.cuda.UnownedMemory(array.address, bytes, array, device)
        return cupy.cuda.MemoryPointer(memory, 0)


def enable(*pools: DevicePool) -> allocator:
    """Makes CuPy take the memory of its arrays from pools, and returns the allocator. ``cupy.cuda.set_allocator()`` ends this.

        import millpond

        memory = millpond.cupy.enable()
        train()
        print(memory.pool())

    Existing arrays stay where they are. ``millpond.tag`` tags arrays, ``millpond.record`` records them, and ``catch_oom`` explains a
    ``MemoryError``. CuPy's own pool, ``cupy.get_default_memory_pool()``, is not used.

    Args:
        pools: As for :class:`allocator`.

    Raises:
        ImportError: CuPy is not installed.
        TypeError: A pool is not a :class:`DevicePool`.
        ValueError: Two pools are of the same device.
    """
    cupy: Any = importlib.import_module("cupy")
    made = allocator(*pools)
    cupy.cuda.set_allocator(made)
    return made
