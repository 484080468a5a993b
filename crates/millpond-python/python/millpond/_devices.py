"""Pools of the memory of CUDA devices."""

from collections.abc import Sequence
from typing import Any, SupportsIndex

from ._millpond import Budget, DeviceArray, device_array, device_copy
from ._pools import PoolBase, sizes_of, tag_here


class DevicePool(PoolBase):
    """A pool of the memory of a CUDA device. Its arrays are used by PyTorch, CuPy, Numba and other libraries without a copy.

        pool = millpond.DevicePool("4GiB")
        with millpond.tag("features"):
            features = pool.zeros((1024, 1024), "float32")
        tensor = torch.from_dlpack(features)
        print(pool, pool.live())

    An array belongs to a stream, by default to the default stream of the device. Its memory is used again at once on that stream, and on other
    streams when the work that uses the array is complete. The default stream, and the streams that PyTorch and CuPy use when they get the
    array, are known. Declare the use on another stream by :meth:`DeviceArray.record_use`.

    Args:
        limit: The most bytes that the pool takes from the device, such as ``"4GiB"``. Without it, 80 % of the device's memory is the limit.
        device: The number of the device.
        name: The name in reports.
        budget: A limit that several pools share.
        settings: Further settings, as in ``MILLPOND_CONF``.

    Raises:
        RuntimeError: There is no driver or no such device, or the driver returns an error.
        ValueError: A value is wrong.
    """

    def __init__(
        self,
        limit: str | int | None = None,
        *,
        device: int = 0,
        name: str | None = None,
        budget: Budget | None = None,
        settings: str | None = None,
    ) -> None:
        if not 0 <= device < 1 << 31:
            raise ValueError(f"{device} is no number of a device, which begin at 0")
        super().__init__(limit, name, "", device, budget, settings)

    def empty(self, shape: SupportsIndex | Sequence[SupportsIndex], dtype: Any = "float32", *, stream: object = None) -> DeviceArray:
        """Returns an array with arbitrary contents.

        Args:
            shape: The sizes of the dimensions.
            dtype: The type of the elements: a text such as ``"bfloat16"``, or a type of NumPy or PyTorch.
            stream: The stream that the array belongs to: an object of PyTorch, CuPy, Numba or cuda.core, which is kept.

        Raises:
            MemoryError: There is not enough memory. The text is a post-mortem: who holds the memory, and how much must be freed.
            TypeError: The object is no stream.
            ValueError: The shape is no shape, or there is no such type.
        """
        return self._array(shape, dtype, "empty", stream)

    def zeros(self, shape: SupportsIndex | Sequence[SupportsIndex], dtype: Any = "float32", *, stream: object = None) -> DeviceArray:
        """Returns an array filled with zeros, in the order of its stream. Arguments and errors are those of :meth:`empty`."""
        return self._array(shape, dtype, "zeros", stream)

    def copy(self, array: Any, *, stream: object = None) -> DeviceArray:
        """Returns a copy of an array with DLPack, on the host or on this device, when the copy is complete.

        Raises:
            BufferError: The elements are on another device, have a type that is not known here, or are not in C order.
            MemoryError: There is not enough memory.
            RuntimeError: The driver returns an error.
            TypeError: The object has no DLPack, or the other object is no stream.
        """
        if not hasattr(array, "__dlpack__"):
            raise TypeError(f"a pool copies arrays with DLPack, such as those of NumPy and PyTorch, and not {type(array)}")
        return device_copy(self._pool, array, tag_here("copy"), stream)

    def _array(self, shape: SupportsIndex | Sequence[SupportsIndex], dtype: Any, operation: str, stream: object) -> DeviceArray:
        return device_array(self._pool, sizes_of(shape, 16), _name(dtype), operation == "zeros", tag_here(operation), stream)


def _name(dtype: Any) -> str:
    """Returns the name of a type of elements: a text, or a type of Python, NumPy or PyTorch."""
    if isinstance(dtype, str):
        return dtype
    if isinstance(dtype, type):
        known = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
        return known.get(dtype, dtype.__name__)
    return str(getattr(dtype, "name", dtype)).removeprefix("torch.")
