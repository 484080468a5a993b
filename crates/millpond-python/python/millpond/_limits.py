"""Limits on the memory of a part of a program, for tests."""

import gc
import threading
from types import TracebackType
from typing import Self

from . import _millpond
from ._scope import Scope


class limits(Scope):
    """Limits the memory that a block or a function may use: ``with millpond.limits(peak="2MiB", leaked=0):``.

    All memory that the thread allocates from pools within the block counts. The bytes are those of the pool's blocks. A block is slightly
    larger than the request, by the same amount in every run.

        @millpond.limits(peak="2MiB", leaked=0)
        def test_step():
            step()

    With pytest, the marker ``@pytest.mark.memory_limits(peak="2MiB", leaked=0)`` does the same, and the fixture ``memory_limits`` is this class.

    Args:
        peak: The most bytes that may be live at once.
        total: The most bytes of all blocks together.
        leaked: The most bytes that may be live at the end of the block.
        allocations: The most blocks that may be allocated.

    Raises:
        AssertionError: A limit was exceeded. The text names the tags of the memory.
        ValueError: A limit is not a size.
    """

    def __init__(
        self,
        *,
        peak: str | int | None = None,
        total: str | int | None = None,
        leaked: str | int | None = None,
        allocations: int | None = None,
    ) -> None:
        if allocations is not None and allocations < 0:
            raise ValueError(f"{allocations} is not a number of allocations")
        self._limits = (peak, total, leaked, allocations)
        self._open: list[tuple[int, _millpond.LimitsScope]] = []
        self.usage: dict[str, int] = {}
        """The use of the last block: ``peak``, ``total`` and ``leaked`` bytes, and ``allocations``."""

    def _again(self) -> Self:
        peak, total, leaked, allocations = self._limits
        return type(self)(peak=peak, total=total, leaked=leaked, allocations=allocations)

    def __enter__(self) -> Self:
        self._open.append((threading.get_ident(), _millpond.LimitsScope(*self._limits)))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        thread = threading.get_ident()
        at = next((at for at in reversed(range(len(self._open))) if self._open[at][0] == thread), None)
        if at is None:
            raise RuntimeError("a block with limits belongs to one thread: end it in the thread that began it")
        # Objects that refer to each other are not leaked, because they would be freed later.
        gc.collect()
        usage, exceeded = self._open.pop(at)[1].end()
        self.usage = dict(usage)
        if exceeded is not None and error is None:
            raise AssertionError(exceeded)
