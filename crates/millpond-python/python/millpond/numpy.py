"""NumPy's arrays in a pool: ``with millpond.numpy.enable(pool):``."""

from types import TracebackType
from typing import Self

from ._millpond import set_numpy_handler
from ._pools import Pool, enter_numpy, numpy_pool

__all__ = ["enable"]


class enable:
    """Makes NumPy allocate the data of its new arrays from a pool, at once and until :meth:`disable` or the end of a ``with`` block.

        with millpond.numpy.enable(millpond.Pool("2GiB")), millpond.tag("features"):
            features = numpy.stack(images)

    Arrays outlive the block, and their memory goes back to the pool with them. The limit of the pool limits the arrays. If a request does not
    fit, NumPy raises ``MemoryError``. When the error leaves the block, it gets a note with the holders of the memory.

    NumPy keeps this setting for each thread and each task of ``asyncio``. A thread that begins later uses NumPy's own memory until it calls
    this too. Memory that NumPy does not allocate, such as that of another library's arrays, is not in the pool.

    Args:
        pool: The pool. Without it, a pool with the name ``numpy``.

    Raises:
        ImportError: NumPy is not installed, or is older than 1.22.
    """

    def __init__(self, pool: Pool | None = None) -> None:
        self.pool: Pool = pool if pool is not None else Pool(name="numpy")
        """The pool."""
        self._token = numpy_pool.set(self.pool)
        try:
            self._before = enter_numpy(self.pool)
        except BaseException:
            numpy_pool.reset(self._token)
            raise
        self._is_enabled = True

    def disable(self) -> None:
        """Makes NumPy allocate as before. Arrays stay valid."""
        if self._is_enabled:
            self._is_enabled = False
            set_numpy_handler(self._before)
            numpy_pool.reset(self._token)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.disable()
        refusal = self.pool._take_refusal()
        if refusal is not None and isinstance(error, MemoryError):
            error.add_note(refusal)
