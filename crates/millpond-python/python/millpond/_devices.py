"""Pools of the memory of CUDA devices."""

from collections.abc import Sequence
from typing import Any, Self, SupportsIndex

from ._millpond import Budget, DeviceArray, device_array, device_copy
from ._millpond import Pool as _Pool
from ._pools import PoolBase, sizes_of, tag_here


#: The names of the types of elements.
_TYPES = (
    *("float64", "float32", "float16", "bfloat16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("bool", "complex64", "complex128"),
)


class DevicePool(PoolBase):
    """A pool of the memory of a CUDA device. PyTorch, CuPy, Numba and other libraries use its arrays without a copy.

        pool = millpond.DevicePool("4GiB")
        with millpond.tag("features"):
            features = pool.zeros((1024, 1024), "float32")
        tensor = torch.from_dlpack(features)
        print(pool, pool.live())

    An array belongs to a stream, by default to the default stream of the device. When the array is freed, the pool reuses its memory at once for
    requests on that stream. For requests on other streams, the pool waits until the work of all streams that use the array is complete. It
    knows the default stream, and the streams that PyTorch and CuPy use when the array is exchanged. Declare other streams with
    :meth:`DeviceArray.record_use`.

    The pool does not work in the child of a fork.

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
            raise ValueError(f"device must be from 0 to {(1 << 31) - 1}, not {device}")
        super().__init__(limit, name, "", device, budget, settings)
        self._device = device

    @classmethod
    def _of(cls, pool: _Pool, device: int) -> Self:
        """Returns an object for an existing pool."""
        made = cls.__new__(cls)
        made._begin(pool)
        made._device = device
        return made

    @property
    def device(self) -> int:
        """The number of the device."""
        return self._device

    def empty(self, shape: SupportsIndex | Sequence[SupportsIndex], dtype: Any = "float32", *, stream: object = None) -> DeviceArray:
        """Returns an array with arbitrary contents.

        Args:
            shape: The sizes of the dimensions.
            dtype: The type of the elements: a text such as ``"bfloat16"``, or a type of NumPy or PyTorch.
            stream: The stream that the array belongs to: an object of PyTorch, CuPy, Numba or cuda.core, which is kept. A stream that the
                object does not own, such as an ``ExternalStream``, must live as long as the pool.

        Raises:
            MemoryError: There is not enough memory. The text is a post-mortem: the holders of the memory, and the bytes to free.
            RuntimeError: The driver returns an error.
            TypeError: ``stream`` is not a stream.
            ValueError: The shape or the type is invalid, or the stream is of another device.
        """
        return self._array(shape, dtype, "empty", stream)

    def zeros(self, shape: SupportsIndex | Sequence[SupportsIndex], dtype: Any = "float32", *, stream: object = None) -> DeviceArray:
        """Returns an array filled with zeros, in the order of its stream. Arguments and errors are those of :meth:`empty`."""
        return self._array(shape, dtype, "zeros", stream)

    def copy(self, array: Any, *, stream: object = None) -> DeviceArray:
        """Copies an array that supports DLPack to the pool. The array is in memory of the host or of this device. Returns when the copy is
        complete.

        Raises:
            BufferError: The elements are on another device, have a type that is not known here, or are not in C order.
            MemoryError: There is not enough memory.
            RuntimeError: The driver returns an error.
            TypeError: The array does not support DLPack, or ``stream`` is not a stream.
        """
        if not hasattr(array, "__dlpack__"):
            raise TypeError(f"a pool copies arrays with DLPack, such as those of NumPy and PyTorch, not {type(array)}")
        return device_copy(self._pool, array, tag_here("copy"), stream)

    def _bytes(self, bytes: int, stream: object, library: str) -> DeviceArray:
        """Returns memory for an array of another library. The place in its tag is the first caller outside of the library's folder."""
        return device_array(self._pool, [bytes], "uint8", False, tag_here("array", library), stream)

    def _array(self, shape: SupportsIndex | Sequence[SupportsIndex], dtype: Any, operation: str, stream: object) -> DeviceArray:
        return device_array(self._pool, sizes_of(shape, 16), _name(dtype), operation == "zeros", tag_here(operation), stream)


def by_device(pools: Sequence[DevicePool]) -> dict[int, DevicePool]:
    """Returns the pools by the numbers of their devices.

    Raises:
        TypeError: A pool is not a :class:`DevicePool`.
        ValueError: Two pools are of the same device.
    """
    found: dict[int, DevicePool] = {}
    for pool in pools:
        if not isinstance(pool, DevicePool):
            raise TypeError(f"arrays on a device need a millpond.DevicePool, not {type(pool)}")
        if pool.device in found:
            raise ValueError(f"two pools are of device {pool.device}: pass one pool for each device")
        found[pool.device] = pool
    return found


def _name(dtype: Any) -> str:
    """Returns the name of a type of elements: a text, or a type of Python, NumPy or PyTorch.

    Raises:
        ValueError: There is no such type on devices.
    """
    if isinstance(dtype, type):
        known = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
        name = known.get(dtype, dtype.__name__)
    else:
        name = str(getattr(dtype, "name", dtype)).removeprefix("torch.")
    if name not in _TYPES or getattr(dtype, "byteorder", "=") == ">":
        raise ValueError(f"there are no arrays of {dtype!r} on devices: choose one of {', '.join(_TYPES)}")
    return name
