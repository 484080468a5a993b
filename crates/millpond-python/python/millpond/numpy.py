"""NumPy's arrays in a pool: ``with millpond.numpy.enable(pool):``."""

from types import TracebackType
from typing import Self

from ._millpond import set_numpy_handler, take_numpy_refusal
from ._pools import NumpyState, Pool, apply_numpy, enter_numpy, numpy_state

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
        TypeError: The pool is not a pool of host memory.
    """

    def __init__(self, pool: Pool | None = None) -> None:
        if not isinstance(pool, Pool | None):
            raise TypeError(f"NumPy's arrays need a millpond.Pool, not {type(pool)}")
        self.pool: Pool = pool if pool is not None else Pool(name="numpy")
        """The pool."""
        self._was_disabled = False
        self._enable()

    def _is_enabled(self) -> bool:
        state = numpy_state.get()
        return state is not None and any(owner is self for owner, _ in state.enabled)

    def _enable(self) -> None:
        take_numpy_refusal(self.pool._pool)
        before = enter_numpy(self.pool)
        state = numpy_state.get() or NumpyState(before, ())
        numpy_state.set(NumpyState(state.original, (*state.enabled, (self, self.pool))))

    def disable(self) -> None:
        """Makes NumPy allocate as it would without this object. Arrays stay valid. A second call does nothing.

        Raises:
            RuntimeError: Another thread or task has enabled it.
        """
        state = numpy_state.get()
        if state is None or not self._is_enabled():
            if self._was_disabled:
                return
            raise RuntimeError("NumPy's memory belongs to the thread or task that called enable: disable it there")
        self._was_disabled = True
        others = tuple(one for one in state.enabled if one[0] is not self)
        numpy_state.set(NumpyState(state.original, others) if others else None)
        if others:
            apply_numpy()
        else:
            set_numpy_handler(state.original)

    def __enter__(self) -> Self:
        if not self._is_enabled():
            self._enable()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.disable()
        refusal = take_numpy_refusal(self.pool._pool)
        # NumPy's own errors begin with one of these texts.
        is_refused = isinstance(error, MemoryError) and str(error).lower().startswith(("unable to allocate", "cannot allocate"))
        if refusal is not None and error is not None and is_refused:
            error.add_note(refusal)
