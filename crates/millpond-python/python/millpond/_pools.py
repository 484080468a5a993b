"""Pools of memory, with an account of every byte."""

import contextlib
import math
import operator
import os
import sys
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextvars import ContextVar, Token
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, SupportsIndex

from . import _millpond
from ._millpond import Block, Budget, DeviceArray, NumpyHandler, Recorder, set_numpy_handler
from ._millpond import Pool as _Pool
from ._scope import Scope

if TYPE_CHECKING:
    import numpy
    from numpy.typing import DTypeLike

#: The tag of the running code. Each thread and each task has its own.
_TAG: ContextVar[str] = ContextVar("millpond.tag", default="")

#: The pools of NumPy's arrays in this thread or task. None if they are in NumPy's own memory.
numpy_state: ContextVar["NumpyState | None"] = ContextVar("millpond.numpy", default=None)

#: The pools that are used or have blocks.
_POOLS: "weakref.WeakSet[_Pool]" = weakref.WeakSet()
_POOLS_LOCK = threading.Lock()

#: The devices whose pool of PyTorch's memory has an object.
_plugged: set[int] = set()

#: Whether threads have tags for requests that come from outside of Python.
_has_thread_tags = False

#: The folder of this package. Its functions are not reported as places.
_HERE = os.path.dirname(__file__)


class Live(NamedTuple):
    """The live blocks of one tag and one place."""

    pool: str
    """The name of the pool."""
    tag: str
    """The tag, or the empty text."""
    place: str
    """The function and the line that allocated: ``file:function:line``."""
    blocks: int
    """The number of blocks."""
    bytes: int
    """The sum of their bytes."""


class PoolBase:
    """The common interface of pools of all kinds of memory."""

    def __init__(
        self,
        limit: str | int | None,
        name: str | None,
        memory: str,
        device: int | None,
        budget: Budget | None,
        settings: str | None,
    ) -> None:
        self._begin(_Pool(name, memory, device, limit, budget, settings))

    def _begin(self, pool: _Pool) -> None:
        self._pool = pool
        with _POOLS_LOCK:
            _POOLS.add(pool)

    @property
    def name(self) -> str:
        """The name in reports."""
        return self._pool.name

    @property
    def limit(self) -> int | None:
        """The most bytes that the pool takes from the system or the device. It can be changed at any time."""
        return self._pool.limit

    @limit.setter
    def limit(self, limit: str | int) -> None:
        self._pool.limit = limit

    def stats(self) -> dict[str, int]:
        """Returns the figures: ``requested``, ``allocated`` and ``reserved`` bytes with their peaks, and the numbers of ``allocations``,
        ``frees``, ``hits`` (served without the system or the driver) and ``refusals``."""
        return dict(self._pool.stats())

    def live(self) -> list[Live]:
        """Returns the live blocks by tag and place, the largest sum first."""
        return _live(self._pool)

    def trim(self) -> None:
        """Returns free memory to the system or the device."""
        self._pool.trim()

    def reset_peak(self) -> None:
        """Sets the peaks to the present figures."""
        self._pool.reset_peak()

    def __str__(self) -> str:
        return str(self._pool)

    def __repr__(self) -> str:
        return f"<millpond.{type(self).__name__}: {self}>"


class Pool(PoolBase):
    """A pool of memory. Freed memory is kept for later requests, up to a limit, and every live byte has a tag and a place.

        pool = millpond.Pool(limit="2GiB")
        with millpond.tag("weights"):
            weights = pool.zeros((1024, 1024), "float32")
        print(pool, pool.live())

    A pool may be used by several threads, and in the child of a fork. Arrays keep the memory of their pool, also after the pool is dropped.

    Args:
        limit: The most bytes that the pool takes from the system, such as ``"2GiB"``. Without it, the system's memory is the limit.
        name: The name in reports.
        memory: ``"host"``, or ``"pinned"`` for memory that is locked in place.
        budget: A limit that several pools share.
        settings: Further settings, as in ``MILLPOND_CONF``.

    Raises:
        ValueError: A value is wrong, or the system has no address space for the pool.
    """

    def __init__(
        self,
        limit: str | int | None = None,
        *,
        name: str | None = None,
        memory: str = "host",
        budget: Budget | None = None,
        settings: str | None = None,
    ) -> None:
        super().__init__(limit, name, memory, None, budget, settings)
        self._handlers: dict[str, NumpyHandler] = {}

    def block(self, bytes: int, *, zeroed: bool = False) -> Block:
        """Allocates bytes at a multiple of 64. ``memoryview`` and other users of the buffer protocol read and write them.

        Raises:
            MemoryError: There is not enough memory. The text is a post-mortem: the holders of the memory, and the bytes to free.
            ValueError: The number is negative, or larger than any memory.
        """
        if not 0 <= bytes <= sys.maxsize:
            raise ValueError(f"{bytes} is not a valid number of bytes")
        return self._pool.block(bytes, zeroed, tag_here("block"))

    def empty(self, shape: "SupportsIndex | Sequence[SupportsIndex]", dtype: "DTypeLike" = "float64") -> "numpy.ndarray[Any, Any]":
        """Returns a NumPy array of the pool's memory with arbitrary contents.

        Raises:
            ImportError: NumPy is not installed.
            MemoryError: There is not enough memory. The text is a post-mortem: the holders of the memory, and the bytes to free.
            ValueError: The shape is invalid, or the elements are Python objects.
        """
        return self._array(shape, dtype, "empty")

    def zeros(self, shape: "SupportsIndex | Sequence[SupportsIndex]", dtype: "DTypeLike" = "float64") -> "numpy.ndarray[Any, Any]":
        """Returns a NumPy array of the pool's memory, filled with zeros. Raises the same errors as :meth:`empty`."""
        return self._array(shape, dtype, "zeros")

    def copy(self, array: Any) -> "numpy.ndarray[Any, Any]":
        """Copies an array to the pool. The array is one of NumPy, one of another library that NumPy can read, or a :class:`DeviceArray`.
        Raises the same errors as :meth:`empty`, and those of NumPy."""
        import numpy

        if isinstance(array, DeviceArray):
            copy = self._array(array.shape, array.dtype, "copy")
            # Arrays of a type that NumPy itself does not have may lack the buffer protocol.
            array.copy_to(copy.reshape(-1).view("uint8"))
            return copy
        source = numpy.asarray(array)
        copy = self._array(source.shape, source.dtype, "copy")
        copy[...] = source
        return copy

    def _array(self, shape: "SupportsIndex | Sequence[SupportsIndex]", dtype: "DTypeLike", operation: str) -> "numpy.ndarray[Any, Any]":
        try:
            import numpy
        except ImportError as error:
            raise ImportError("arrays need NumPy; without it, Pool.block allocates bytes") from error
        # This gives texts without a length the length that NumPy gives them.
        kind = numpy.empty(0, dtype).dtype
        if kind.hasobject:
            raise ValueError("a pool holds no Python objects: choose a dtype of numbers")
        sizes = sizes_of(shape, kind.itemsize)
        block = self._pool.block(kind.itemsize * math.prod(sizes), operation == "zeros", tag_here(operation))
        return numpy.ndarray(sizes, kind, buffer=memoryview(block))


def leaks() -> list[Live]:
    """Returns the live blocks of all pools of this process by tag and place, the largest sum first.

    At the end of a test, or at another point where no block should be live, these are the blocks that the program forgot to free.
    """
    with _POOLS_LOCK:
        pools = list(_POOLS)
    pools += [_millpond.plugged(device) for device in _millpond.plugged_devices() if device not in _plugged]
    found = [live for pool in pools for live in _live(pool)]
    return sorted(found, key=lambda live: -live.bytes)


class tag(Scope):
    """Names the memory that is allocated in a block or in a decorated function: ``with millpond.tag("weights"):``.

    The tag belongs to the thread or the task that enters the block. The innermost tag counts. While a generator waits inside the block, its
    caller has the tag too. PyTorch's tensors get the tag that their thread entered last, even if another task entered it. There are at most
    65,536 pairs of tags and places, so a tag should not contain a counter.
    """

    def __init__(self, name: str) -> None:
        self._name = _text(name)
        self._before: list[Token[str]] = []

    def _again(self) -> Self:
        return type(self)(self._name)

    def __enter__(self) -> None:
        self._before.append(_TAG.set(self._name))
        _apply_tag()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # If a generator is ended by another task, the task that entered the block is gone.
        with contextlib.suppress(ValueError):
            _TAG.reset(self._before.pop())
        _apply_tag()


def _apply_tag() -> None:
    """Passes the tag of the running code to other libraries."""
    apply_numpy()
    if _has_thread_tags:
        _millpond.set_thread_tag(_TAG.get())


def begin_thread_tags() -> None:
    """Makes tags count for requests that come from outside of Python, such as those of PyTorch's tensors."""
    global _has_thread_tags
    _has_thread_tags = True
    _apply_tag()


@contextlib.contextmanager
def record(path: str | os.PathLike[str]) -> Iterator[None]:
    """Records the allocations and frees of all pools of this process until the end of the block: ``with millpond.record("run.mpr"):``.

    :func:`millpond.read` and the command read the recording.

    Raises:
        OSError: The process already has a recording, or the file cannot be written.
    """
    # A process has one recording. The program asks for this one, so it replaces that of `catch_oom`.
    PoolRecording.discard()
    recorder = Recorder(path)
    try:
        yield
    except BaseException as error:
        # The error of the program is more important than that of its recording.
        try:
            recorder.stop()
        except OSError as incomplete:
            error.add_note(str(incomplete))
        raise
    recorder.stop()


def mark(text: str) -> None:
    """Marks this moment in the recording of this process, if there is one."""
    _millpond.mark(_text(text))


class PoolRecording:
    """The recording of all pools while blocks of ``catch_oom`` are open. It gets its name only when it is kept."""

    _lock = threading.Lock()
    _recorder: "Recorder | None" = None
    _file: Path | None = None
    _process = 0
    _open = 0

    @classmethod
    def begin(cls, page: Path) -> None:
        """Begins the recording next to a page, or continues the current one.

        Raises:
            OSError: The process has another recording, or the file cannot be written.
        """
        with cls._lock:
            if cls._recorder is None or cls._process != os.getpid():
                file = page.with_name(f".{page.stem}.{os.getpid()}.mpr.part")
                cls._recorder, cls._file, cls._process, cls._open = Recorder(file), file, os.getpid(), 0
            cls._open += 1

    @classmethod
    def keep(cls, file: Path) -> None:
        """Completes the recording, and gives it this name.

        Raises:
            OSError: The recording has ended, it cannot be completed, or a file with this name exists that is not a recording.
        """
        with cls._lock:
            if cls._recorder is None or cls._file is None:
                raise OSError("the recording was saved for an earlier error, or the program records its pools itself")
            recorder, part = cls._recorder, cls._file
            cls._recorder = cls._file = None
            try:
                recorder.stop()
                with open(part, "rb") as written:
                    mark = written.read(6)
                refuse_others(file, mark)
                os.replace(part, file)
            finally:
                part.unlink(missing_ok=True)

    @classmethod
    def end(cls) -> None:
        """Ends a block. The last one discards the recording."""
        with cls._lock:
            cls._open -= 1
            is_last = cls._open == 0
        if is_last:
            cls.discard()

    @classmethod
    def discard(cls) -> None:
        """Ends the recording if there is one, and removes it."""
        with cls._lock:
            if cls._recorder is None or cls._file is None or cls._process != os.getpid():
                return
            recorder, part = cls._recorder, cls._file
            cls._recorder = cls._file = None
            try:
                recorder.stop()
            finally:
                part.unlink(missing_ok=True)


def refuse_others(file: Path, *marks: bytes) -> None:
    """Refuses to replace a file whose first bytes contain none of these marks of recordings.

    Raises:
        FileExistsError: The file exists and contains none of the marks.
    """
    with contextlib.suppress(FileNotFoundError), open(file, "rb") as there:
        begin = there.read(256)
        if not any(mark in begin for mark in marks):
            raise FileExistsError(f"{file} already exists, and is not a recording: choose another page, or remove it")


class NumpyState(NamedTuple):
    """The pools of NumPy's arrays in a thread or task."""

    original: object
    """The handler that NumPy used before."""
    enabled: tuple[tuple[object, Pool], ...]
    """The objects that enabled a pool, each with its pool. The last pool is in use."""


def apply_numpy() -> None:
    """Makes NumPy use the last pool of this thread or task, with the tag of the running code."""
    state = numpy_state.get()
    if state is not None:
        enter_numpy(state.enabled[-1][1])


def enter_numpy(pool: Pool) -> object:
    """Makes NumPy use a pool with the tag of the running code. Returns the handler that NumPy used before."""
    tag = _TAG.get()
    # Several threads may make the same handler. One of them is kept.
    handler = pool._handlers.get(tag) or pool._handlers.setdefault(tag, NumpyHandler(pool._pool, tag))
    return handler.enter()


def _live(pool: _Pool) -> list[Live]:
    found = []
    for text, blocks, bytes in pool.live():
        name, _, _, place = (text.split(";", 3) + ["", "", ""])[:4]
        found.append(Live(pool.name, "" if name == _short(place) else name, place, blocks, bytes))
    return found


def sizes_of(shape: "SupportsIndex | Sequence[SupportsIndex]", itemsize: int) -> tuple[int, ...]:
    """Returns the sizes of the dimensions of an array.

    Raises:
        ValueError: A size is negative, or memory cannot have so many bytes.
    """
    sizes = tuple(map(operator.index, shape)) if isinstance(shape, Sequence) else (operator.index(shape),)
    if any(size < 0 for size in sizes):
        raise ValueError(f"the shape {sizes} has a negative size")
    if itemsize * math.prod(size or 1 for size in sizes) > sys.maxsize:
        raise ValueError(f"an array of shape {sizes} is larger than the address space")
    return sizes


def tag_here(operation: str, library: str = "") -> str:
    """Returns the tag with the operation and the place that calls this package. If a library in the folder ``library`` calls it, the place is the
    one that calls the library."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        file = frame.f_code.co_filename
        if os.path.dirname(file) != _HERE and not (library and file.startswith(library)):
            break
        frame = frame.f_back
    code = frame.f_code
    place = _text(f"{code.co_filename}:{code.co_name}:{frame.f_lineno}")
    # Memory without a tag gets the name of its place.
    return f"{_TAG.get() or _short(place)};;{operation};{place}"


def _short(place: str) -> str:
    """Returns the file and the line of a place."""
    file, _, line = place.rpartition(":")
    return f"{os.path.basename(file.rpartition(':')[0])}:{line}"


def _text(text: str) -> str:
    """Returns a text for the account: commas replace semicolons, which separate the parts of a tag, and escapes replace lone surrogates."""
    return text.replace(";", ",").encode("utf-8", "backslashreplace").decode()
