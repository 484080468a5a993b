"""Pools of memory, with an account of every byte."""

import contextlib
import os
import sys
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

from ._millpond import Block, Budget, NumpyHandler, Recorder, set_numpy_handler
from ._millpond import Pool as _Pool

if TYPE_CHECKING:
    import numpy
    from numpy.typing import DTypeLike

#: The tag of the running code. Each thread and each task has its own.
_TAG: ContextVar[str] = ContextVar("millpond.tag", default="")

#: The pool of NumPy's arrays in this thread or task. None if they are in NumPy's own memory.
numpy_pool: ContextVar["Pool | None"] = ContextVar("millpond.numpy", default=None)

#: The pools that are used or have blocks.
_POOLS: "weakref.WeakSet[_Pool]" = weakref.WeakSet()

#: The folder of this package, whose functions are no places of the program.
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


class Pool:
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
        self._pool = _Pool(name, memory, limit, budget, settings)
        _POOLS.add(self._pool)
        self._handlers: dict[str, NumpyHandler] = {}

    @property
    def name(self) -> str:
        """The name in reports."""
        return self._pool.name

    @property
    def limit(self) -> int | None:
        """The most bytes that the pool takes from the system. It can be changed at any time."""
        return self._pool.limit

    @limit.setter
    def limit(self, limit: str | int) -> None:
        self._pool.limit = limit

    def block(self, bytes: int, *, zeroed: bool = False) -> Block:
        """Allocates bytes at a multiple of 64. ``memoryview`` and other users of the buffer protocol read and write them.

        Raises:
            MemoryError: There is not enough memory. The text is a post-mortem: who holds the memory, and how much must be freed.
            ValueError: The number is negative.
        """
        if bytes < 0:
            raise ValueError(f"{bytes} is no number of bytes")
        return self._pool.block(bytes, zeroed, _tag_here("block"))

    def empty(self, shape: int | tuple[int, ...], dtype: "DTypeLike" = "float64") -> "numpy.ndarray[Any, Any]":
        """Returns a NumPy array of the pool's memory with arbitrary contents.

        Raises:
            ImportError: NumPy is not installed.
            MemoryError: There is not enough memory. The text is a post-mortem: who holds the memory, and how much must be freed.
            ValueError: The shape is no shape, or the elements are Python objects.
        """
        return self._array(shape, dtype, "empty")

    def zeros(self, shape: int | tuple[int, ...], dtype: "DTypeLike" = "float64") -> "numpy.ndarray[Any, Any]":
        """Returns a NumPy array of the pool's memory, filled with zeros. Raises the same errors as :meth:`empty`."""
        return self._array(shape, dtype, "zeros")

    def _array(self, shape: int | tuple[int, ...], dtype: "DTypeLike", operation: str) -> "numpy.ndarray[Any, Any]":
        try:
            import numpy
        except ImportError as error:
            raise ImportError("arrays need NumPy; without it, Pool.block allocates bytes") from error
        kind = numpy.dtype(dtype)
        if kind.hasobject:
            raise ValueError("a pool holds no Python objects: choose a dtype of numbers")
        sizes = (shape,) if isinstance(shape, int) else tuple(shape)
        bytes = kind.itemsize
        for size in sizes:
            if size < 0:
                raise ValueError(f"the shape {sizes} has a negative size")
            bytes *= size
        if bytes > sys.maxsize:
            raise ValueError(f"an array of shape {sizes} has more bytes than any memory")
        block = self._pool.block(bytes, operation == "zeros", _tag_here(operation))
        return numpy.ndarray(sizes, kind, buffer=memoryview(block))

    def _take_refusal(self) -> str | None:
        """Returns why NumPy got no memory last."""
        refusals = [handler.take_refusal() for handler in self._handlers.values()]
        return next((refusal for refusal in refusals if refusal is not None), None)

    def stats(self) -> dict[str, int]:
        """Returns the figures: ``requested``, ``allocated`` and ``reserved`` bytes with their peaks, and the numbers of ``allocations``,
        ``frees``, ``hits`` (served without the system) and ``refusals``."""
        return dict(self._pool.stats())

    def live(self) -> list[Live]:
        """Returns the live blocks by tag and place, the largest sum first."""
        return _live(self._pool)

    def trim(self) -> None:
        """Returns free memory to the system."""
        self._pool.trim()

    def reset_peak(self) -> None:
        """Lets the peaks begin again at the present figures."""
        self._pool.reset_peak()

    def __str__(self) -> str:
        return str(self._pool)

    def __repr__(self) -> str:
        return f"<millpond.Pool: {self}>"


def leaks() -> list[Live]:
    """Returns the live blocks of all pools of this process by tag and place, the largest sum first.

    Called where nothing should be live any more, such as at the end of a test, it lists what was forgotten.
    """
    found = [live for pool in list(_POOLS) for live in _live(pool)]
    return sorted(found, key=lambda live: -live.bytes)


@contextlib.contextmanager
def tag(name: str) -> Iterator[None]:
    """Names the memory that is allocated in a block or in a decorated function: ``with millpond.tag("weights"):``.

    The tag belongs to the thread or the task that enters the block. The innermost tag counts.
    """
    before = _TAG.set(name.replace(";", ","))
    pool = numpy_pool.get()
    handler = enter_numpy(pool) if pool is not None else None
    try:
        yield
    finally:
        _TAG.reset(before)
        if handler is not None:
            set_numpy_handler(handler)


@contextlib.contextmanager
def record(path: str | os.PathLike[str]) -> Iterator[None]:
    """Records the allocations and frees of all pools of this process until the end of the block: ``with millpond.record("run.mpr"):``.

    :func:`millpond.read` and the command read the recording.

    Raises:
        OSError: The process already has a recording, or the file cannot be written.
    """
    recorder = Recorder(path)
    try:
        yield
    finally:
        recorder.stop()


def enter_numpy(pool: Pool) -> object:
    """Makes NumPy use a pool with the tag of the running code. Returns NumPy's handler before."""
    tag = _TAG.get()
    # Several threads may make the same handler, of which one is kept.
    handler = pool._handlers.get(tag) or pool._handlers.setdefault(tag, NumpyHandler(pool._pool, tag))
    return handler.enter()


def _live(pool: _Pool) -> list[Live]:
    found = []
    for text, blocks, bytes in pool.live():
        name, _, _, place = (text.split(";", 3) + ["", "", ""])[:4]
        found.append(Live(pool.name, "" if name == _short(place) else name, place, blocks, bytes))
    return found


def _tag_here(operation: str) -> str:
    """Returns the tag with the operation and the place that calls this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and os.path.dirname(frame.f_code.co_filename) == _HERE:
        frame = frame.f_back
    code = frame.f_code
    place = f"{code.co_filename.replace(';', ',')}:{code.co_name}:{frame.f_lineno}"
    # Memory without a tag gets the name of its place.
    return f"{_TAG.get() or _short(place)};;{operation};{place}"


def _short(place: str) -> str:
    """Returns the file and the line of a place."""
    file, _, line = place.rpartition(":")
    return f"{os.path.basename(file.rpartition(':')[0])}:{line}"
