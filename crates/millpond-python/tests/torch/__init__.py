"""The part of PyTorch that `catch_oom` uses. It returns a recorded snapshot. The test sets what it needs."""

import types


class OutOfMemoryError(RuntimeError):
    pass


class State:
    """The behaviour of the fake, and the calls that it received."""

    is_available = True
    is_initialized = False
    is_enabled = False
    refuses = False
    snapshot = None
    observers = []
    calls = []


def allocate():
    """Fails like an allocation for which there is no memory."""
    for observer in State.observers:
        observer(0, 150 << 20, 150 << 20, 10 << 20)
    raise OutOfMemoryError("CUDA out of memory. Tried to allocate 150.00 MiB.")


def _record(enabled="all", **options):
    if State.refuses:
        raise RuntimeError("cudaMallocAsync does not yet support recordHistory.")
    State.is_initialized = True
    State.is_enabled = enabled is not None
    State.calls.append((enabled, options))


def _is_enabled():
    if not State.is_initialized:
        raise SystemError("PyTorch crashes here")
    return State.is_enabled


cuda = types.SimpleNamespace(
    is_available=lambda: State.is_available,
    is_initialized=lambda: State.is_initialized,
    OutOfMemoryError=OutOfMemoryError,
    memory=types.SimpleNamespace(_record_memory_history=_record, _snapshot=lambda: State.snapshot),
)
_C = types.SimpleNamespace(
    _cuda_attach_out_of_memory_observer=State.observers.append,
    _cuda_isHistoryEnabled=_is_enabled,
)
