from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy
from typing_extensions import Buffer

def command(arguments: list[str]) -> int:
    """Runs the command ``millpond`` with these arguments. Returns the exit code."""

class Recording:
    """A recording in memory. Options are those of the command line."""

    def __init__(self, path: str | PathLike[str]) -> None: ...
    @property
    def devices(self) -> list[int]: ...
    def heaviest(self) -> int: ...
    def replay(self, device: int | None, options: list[str]) -> list[Answer]: ...
    def tune(self, device: int | None, options: list[str]) -> Answer: ...
    def report(self, options: list[str]) -> Answer: ...
    def timeline(self, options: list[str]) -> tuple[list[tuple[str, list[int]]], list[str], str]: ...
    def events(self) -> Table: ...

class Answer:
    """The answer of a command."""

    @property
    def device(self) -> int: ...
    @property
    def sentences(self) -> list[str]: ...
    @property
    def text(self) -> str: ...
    @property
    def json(self) -> str: ...
    @property
    def page(self) -> Path | None: ...

class Table:
    """A table in the memory layout of Arrow. pandas, polars and DuckDB take it without a copy."""

    def __init__(self, columns: Sequence[tuple[str, Sequence[bool | int | float | str | None]]]) -> None:
        """Returns a table of these columns, which have one type each. None is a missing value."""

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""

    def __len__(self) -> int: ...
    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...
    def __arrow_c_schema__(self) -> object: ...

class Pool:
    """A pool of memory."""

    def __init__(self, name: str | None, memory: str, device: int | None, limit: str | int | None, budget: Budget | None, settings: str | None) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def limit(self) -> int | None: ...
    @limit.setter
    def limit(self, limit: str | int) -> None: ...
    def block(self, bytes: int, zeroed: bool, tag: str) -> Block: ...
    def stats(self) -> list[tuple[str, int]]: ...
    def live(self) -> list[tuple[str, int, int]]: ...
    def trim(self) -> None: ...
    def reset_peak(self) -> None: ...

class Block:
    """A block of a pool. It goes back to the pool when neither the block nor a view of it is used any more."""

    def __len__(self) -> int: ...
    @property
    def address(self) -> int:
        """The address of the first byte, a multiple of 64."""

    def __buffer__(self, flags: int, /) -> memoryview: ...

class DeviceArray:
    """An array in a device's memory, with its elements in C order. PyTorch, CuPy, Numba and other libraries use it without a copy.

    The memory goes back to the pool when neither the array nor an object of another library uses it any more.
    """

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes of the dimensions."""

    @property
    def dtype(self) -> str:
        """The type of the elements, such as ``"float32"``."""

    @property
    def nbytes(self) -> int:
        """The number of bytes."""

    @property
    def device(self) -> str:
        """The name of the device, such as ``"cuda:0"``."""

    @property
    def address(self) -> int:
        """The address of the first element on the device, a multiple of 256, or 0 if there are no elements."""

    def record_use(self, stream: object) -> None:
        """Declares that work on a stream uses the array. After the array is freed, its memory is reused only when the work that is queued
        on the stream by then is complete. A stream that the object does not own must live as long as the pool."""

    def copy_from(self, array: Buffer | numpy.ndarray[Any, Any]) -> None:
        """Copies the bytes of an object with the buffer protocol, such as a NumPy array, to the array, and waits until the copy is
        complete. The copy comes after the work on the array that is queued on its streams."""

    def copy_to(self, array: Buffer | numpy.ndarray[Any, Any]) -> None:
        """Copies the bytes of the array to an object with the buffer protocol, and waits until the copy is complete. The copy comes after
        the work on the array that is queued on its streams."""

    def to_numpy(self) -> numpy.ndarray[Any, Any]:
        """Copies the array to NumPy's memory, like :meth:`copy_to`, and returns the NumPy array.

        Raises:
            ImportError: NumPy is not installed.
            TypeError: NumPy has no such type of elements, which is the case for bfloat16 without ``ml_dtypes``.
        """

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> object: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __len__(self) -> int: ...

def device_array(pool: Pool, shape: Sequence[int], dtype: str, zeroed: bool, tag: str, stream: object) -> DeviceArray:
    """Allocates an array with a tag, with arbitrary contents or with zeros."""

def device_copy(pool: Pool, array: object, tag: str, stream: object) -> DeviceArray:
    """Allocates an array with a tag, and copies the elements of an object that supports DLPack."""

class Budget:
    """A limit on the memory of several pools together, such as that of one tenant.

    Args:
        name: The name in reports.
        limit: The most bytes, such as ``"1GiB"``. Without it, the budget only counts.
        parent: A budget that also counts and limits this memory.

    Raises:
        ValueError: A value is wrong.
    """

    def __init__(self, name: str, limit: str | int | None = None, *, parent: Budget | None = None) -> None: ...
    @property
    def name(self) -> str: ...
    @property
    def limit(self) -> int | None:
        """The most bytes. It can be changed at any time."""

    @limit.setter
    def limit(self, limit: str | int | None) -> None: ...
    @property
    def used(self) -> int:
        """The bytes that pools have now."""

    @property
    def peak(self) -> int:
        """The most bytes that pools have had."""

    @property
    def refusals(self) -> int:
        """The number of refusals. A pool asks again with less before it refuses a request."""

class LimitsScope:
    """A part of this thread's program whose memory is measured. The part begins with the creation of the scope, and ends with ``end``."""

    def __init__(self, peak: str | int | None, total: str | int | None, leaked: str | int | None, allocations: int | None) -> None: ...
    def end(self) -> tuple[list[tuple[str, int]], str | None]: ...

class NumpyHandler:
    """A handler of NumPy that allocates from a pool."""

    def __init__(self, pool: Pool, tag: str) -> None: ...
    def enter(self) -> object: ...

def plug(pool: Pool) -> None:
    """Makes PyTorch allocate from a pool on the pool's device."""

def plugged(device: int) -> Pool:
    """Returns the pool from which PyTorch allocates on a device, and creates it if there is none."""

def private_stats(device: int) -> list[list[tuple[str, int]]]:
    """Returns the figures of PyTorch's private pools on a device."""

def plugged_devices() -> list[int]:
    """Returns the devices on which PyTorch allocates from a pool."""

def reset_private_peaks(device: int) -> None:
    """Sets the peaks of PyTorch's private pools on a device to the present figures."""

def set_thread_tag(name: str) -> None:
    """Sets the tag of this thread for requests that come from outside of Python. An empty text removes the tag."""

def refusals() -> int:
    """Returns the number of requests of this process that were refused."""

def take_numpy_refusal(pool: Pool) -> str | None:
    """Forgets the last refusal of memory to NumPy in this thread, and returns its text if this pool has refused."""

def set_numpy_handler(handler: object) -> object:
    """Makes NumPy use a handler in this thread or task. Returns the handler that was in use."""

class Recorder:
    """A recording of all pools, until it is stopped."""

    def __init__(self, path: str | PathLike[str]) -> None: ...
    def stop(self) -> None: ...

def mark(text: str) -> None:
    """Marks this moment in the recording of this process, if there is one."""
