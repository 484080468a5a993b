"""Pools as the memory of PyTorch: ``millpond.torch.enable()``."""

import ctypes
import importlib
import operator
import threading
from typing import Any

from . import _millpond, _pools
from ._devices import DevicePool, by_device

__all__ = ["enable", "is_enabled", "mem_pool", "pool"]

_lock = threading.RLock()
#: The pools of the devices that Python code has requested or set.
_pools_of: dict[int, DevicePool] = {}
#: The functions that allocate, and those that free their blocks.
_FREE = {"millpond_torch_alloc": "millpond_plugin_free", "millpond_plugin_alloc": "millpond_torch_free_segment"}
#: PyTorch's objects for the functions, by the name of the function that allocates. PyTorch does not keep them.
_allocators: dict[str, Any] = {}
_is_enabled = False

#: PyTorch's setters, and the functions that they get. Versions of PyTorch before 2.3 lack some.
_HOOKS = {
    "set_record_stream_fn": "millpond_torch_record_stream",
    "set_reset_fn": "millpond_torch_empty_cache",
    "set_memory_fraction_fn": "millpond_torch_set_memory_fraction",
    "set_begin_allocate_to_pool": "millpond_torch_begin_allocate_to_pool",
    "set_end_allocate_to_pool_fn": "millpond_torch_end_allocate_to_pool",
    "set_release_pool": "millpond_torch_release_pool",
}

#: PyTorch's figures in bytes, and the figures of a pool with the same meaning. PyTorch's other figures in bytes are zero.
_BYTES = {
    "requested_bytes": "requested",
    "allocated_bytes": "allocated",
    "active_bytes": "allocated",
    "reserved_bytes": "reserved",
}
_GAUGES = (*_BYTES, "allocation", "active", "segment", "inactive_split", "inactive_split_bytes")
_NUMBERS = ("num_alloc_retries", "num_sync_all_streams", "num_device_alloc", "num_device_free", "num_oom_rejections")


def enable(*pools: DevicePool) -> None:
    """Makes PyTorch take the memory of its CUDA tensors from pools, until the process ends.

        import millpond

        millpond.torch.enable()
        train()
        print(millpond.torch.pool())

    Call this before the program uses CUDA memory for the first time, and before a block of ``catch_oom``, in which PyTorch begins to record. A
    device without a pool gets one at its first tensor. The limit of that pool is the device's memory, and its settings are those of the
    environment variable ``MILLPOND_CONF``. A later call may set other pools.

    If memory runs out, PyTorch raises ``torch.OutOfMemoryError`` with the post-mortem of the pool: the holders of the memory, and the bytes
    to free. ``millpond.tag`` tags the tensors that the thread allocates, ``millpond.record`` records them, and ``catch_oom`` explains the
    error.
    Streams, ``record_stream``, ``empty_cache``, the memory fraction and CUDA graphs work as before, and so do ``torch.cuda.memory_allocated``
    and the other figures.

    ``python -m millpond run --pools train.py`` does the same for an unchanged program.

    PyTorch offers these only with its own allocator: ``torch.cuda.memory._snapshot`` and its history, ``torch.cuda.MemPool``,
    ``torch.cuda.memory_snapshot``, tensors that are shared between processes, and the trees of graphs of ``torch.compile``. The figures of
    ``torch.accelerator`` are zero.

    A stream that PyTorch does not own (``torch.cuda.ExternalStream``) must live until the process ends.

    Args:
        pools: Pools of different devices, which serve these devices.

    Raises:
        ImportError: PyTorch is not installed.
        RuntimeError: The program has used CUDA memory before, PyTorch was built without CUDA, or this process is the child of a fork.
        TypeError: A pool is not a :class:`DevicePool`.
        ValueError: Two pools are of the same device.
    """
    global _is_enabled
    torch: Any = importlib.import_module("torch")

    given = by_device(pools)
    with _lock:
        if not _is_enabled:
            allocator = _allocator(torch, "millpond_torch_alloc")
            try:
                torch.cuda.memory.change_current_allocator(allocator)
            except RuntimeError as error:
                raise RuntimeError(
                    "PyTorch's allocator is in use already: call millpond.torch.enable() at the start of the program, before the first tensor is"
                    f" moved to a device and before a block of millpond.catch_oom ({error})"
                ) from error
            _is_enabled = True
            _replace_figures(torch)
            _pools.begin_thread_tags()
        _plug(given)


def is_enabled() -> bool:
    """Returns whether :func:`enable` was called in this process."""
    return _is_enabled


def pool(device: int = 0) -> DevicePool:
    """Returns the pool from which PyTorch allocates on a device. It is created if there is none.

    Raises:
        RuntimeError: There is no such device, or the settings in ``MILLPOND_CONF`` are wrong.
    """
    device = operator.index(device)
    if not 0 <= device < 1 << 31:
        raise RuntimeError(f"there is no device {device}")
    with _lock:
        if device not in _pools_of:
            _plugged_object(device, DevicePool._of(_millpond.plugged(device), device))
        return _pools_of[device]


def mem_pool(*pools: DevicePool, **options: Any) -> Any:
    """Returns a ``torch.cuda.MemPool`` whose memory is that of pools: ``with torch.cuda.use_mem_pool(millpond.torch.mem_pool()):``.

    PyTorch's own allocator stays, with its statistics and its snapshots, and takes segments from the pool of the device. This works at any
    time, but not after :func:`enable`. The pools are those that :func:`pool` returns. If a pool has no memory left, PyTorch raises its own error.

    Args:
        pools: Pools of different devices, which serve these devices from now on.
        options: The other arguments of ``torch.cuda.MemPool``.

    Raises:
        ImportError: PyTorch is not installed.
        RuntimeError: :func:`enable` was called before, or the settings in ``MILLPOND_CONF`` are wrong.
        TypeError: A pool is not a :class:`DevicePool`.
        ValueError: Two pools are of the same device.
    """
    torch: Any = importlib.import_module("torch")

    if _is_enabled:
        raise RuntimeError("after millpond.torch.enable(), all memory comes from pools: MemPool is not available")
    given = by_device(pools)
    with _lock:
        _plug(given)
        # If the pool could only be created later, PyTorch would not report the reason for a failure.
        pool(torch.cuda.current_device())
        _pools.begin_thread_tags()
        return torch.cuda.MemPool(_allocator(torch, "millpond_plugin_alloc").allocator(), **options)


def _plug(pools: dict[int, DevicePool]) -> None:
    for device, one in pools.items():
        _millpond.plug(one._pool)
        _plugged_object(device, one)


def _plugged_object(device: int, pool: DevicePool) -> None:
    _pools_of[device] = pool
    _pools._plugged.add(device)


def _allocator(torch: Any, name: str) -> Any:
    """Returns PyTorch's object for the function that allocates, and for its related functions."""
    found = _allocators.get(name)
    if found is None:
        path = str(_millpond.__file__)
        if not hasattr(torch._C, "_cuda_customAllocator"):
            raise RuntimeError("PyTorch was built without CUDA: install a version with CUDA")
        found = torch.cuda.memory.CUDAPluggableAllocator(path, name, _FREE[name])
        library, setters = ctypes.CDLL(path), found.allocator()
        for setter, function in _HOOKS.items():
            if hasattr(setters, setter):
                getattr(setters, setter)(ctypes.cast(getattr(library, function), ctypes.c_void_p).value)
        _allocators[name] = found
    return found


def _replace_figures(torch: Any) -> None:
    """Makes PyTorch's functions for figures return those of the pools, because its own raise an error with another allocator."""
    for name, function in {
        "_cuda_memoryStats": _stats,
        "_cuda_resetPeakMemoryStats": _reset_peak,
        "_cuda_resetAccumulatedMemoryStats": lambda device: None,
        "_cuda_getMemoryFraction": lambda device: min((pool(device).limit or 0) / torch.cuda.get_device_properties(device).total_memory, 1.0),
    }.items():
        if hasattr(torch._C, name):
            setattr(torch._C, name, function)


def _reset_peak(device: int) -> None:
    pool(device).reset_peak()
    _millpond.reset_private_peaks(device)


def _stats(device: int) -> dict[str, Any]:
    """Returns the figures of a device in PyTorch's form. Totals of bytes are not counted, and are zero. The peaks of the pool and of private
    pools are added, so the sum may be above the true peak."""
    figures = pool(device).stats()
    for private in _millpond.private_stats(device):
        for figure, value in private:
            figures[figure] += value
    live = figures["allocations"] - figures["frees"]

    def gauge(current: int = 0, peak: int = 0, allocated: int = 0, freed: int = 0) -> dict[str, int]:
        return {"current": current, "peak": peak, "allocated": allocated, "freed": freed}

    result: dict[str, Any] = {
        name: {kind: gauge() for kind in ("all", "small_pool", "large_pool")} for name in _GAUGES
    }
    for name, figure in _BYTES.items():
        result[name]["all"] = gauge(figures[figure], figures[f"{figure}_peak"])
    for name in ("allocation", "active"):
        result[name]["all"] = gauge(live, live, figures["allocations"], figures["frees"])
    result |= {name: 0 for name in _NUMBERS}
    result |= {"num_ooms": figures["refusals"], "max_split_size": -1}
    return result | {"oversize_allocations": gauge(), "oversize_segments": gauge()}
