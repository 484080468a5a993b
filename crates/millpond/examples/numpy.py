"""Tensors of Millpond as NumPy's arrays and back, without a copy: `python3 numpy.py libnumpy.so`."""

import ctypes
import gc
import sys
import threading
from ctypes import c_bool, c_char_p, c_double, c_size_t, c_uint32, c_uint64, c_void_p

# Otherwise the import would find this file instead of NumPy, because of its name.
sys.path.pop(0)
import numpy as np

lib = ctypes.CDLL(sys.argv[1])
for name, result, arguments in [
    ("ramp", c_void_p, [c_char_p, c_size_t, c_size_t]),
    ("view", c_void_p, [c_void_p, c_uint32]),
    ("drop", None, [c_void_p]),
    ("to_dlpack", c_void_p, [c_void_p]),
    ("into_dlpack", c_void_p, [c_void_p]),
    ("into_dlpack_legacy", c_void_p, [c_void_p]),
    ("copy_to_dlpack", c_void_p, [c_void_p]),
    ("delete", None, [c_void_p]),
    ("from_dlpack", c_void_p, [c_void_p]),
    ("from_dlpack_legacy", c_void_p, [c_void_p]),
    ("copy_from_dlpack", c_void_p, [c_void_p]),
    ("address", c_size_t, [c_void_p]),
    ("numbers", c_size_t, [c_void_p, c_void_p, c_size_t]),
    ("fill", c_bool, [c_void_p, c_double]),
    ("requested", c_uint64, []),
    ("foreign", c_uint64, []),
    ("error", c_char_p, []),
]:
    function = getattr(lib, "pond_" + name)
    function.restype, function.argtypes = result, arguments

# Capsules keep pointers to their name and to their destructor, so both must stay alive.
OLDER, NEWER = b"dltensor", b"dltensor_versioned"
USED = {OLDER: b"used_dltensor", NEWER: b"used_dltensor_versioned"}
python = ctypes.pythonapi
python.PyCapsule_New.restype = ctypes.py_object
python.PyCapsule_New.argtypes = [c_void_p, c_char_p, c_void_p]
IsValid = ctypes.PYFUNCTYPE(ctypes.c_int, c_void_p, c_char_p)(("PyCapsule_IsValid", python))
GetPointer = ctypes.PYFUNCTYPE(c_void_p, c_void_p, c_char_p)(("PyCapsule_GetPointer", python))
SetName = ctypes.PYFUNCTYPE(ctypes.c_int, c_void_p, c_char_p)(("PyCapsule_SetName", python))


@ctypes.PYFUNCTYPE(None, c_void_p)
def unopened(capsule):
    """Whoever opens a capsule gives it another name, and calls the deleter later."""
    if IsValid(capsule, NEWER):
        lib.pond_delete(GetPointer(capsule, NEWER))


def checked(pointer):
    if not pointer:
        raise BufferError(lib.pond_error().decode())
    return pointer


class Tensor:
    """A tensor of Millpond's."""

    def __init__(self, pointer):
        self.pointer = checked(pointer)

    def __del__(self):
        pointer, self.pointer = getattr(self, "pointer", None), None
        if pointer:
            lib.pond_drop(pointer)

    def view(self, how):
        return Tensor(lib.pond_view(self.pointer, how))

    def taken(self):
        pointer, self.pointer = self.pointer, None
        return pointer

    def numbers(self):
        many = lib.pond_numbers(self.pointer, None, 0)
        numbers = np.empty(many)
        lib.pond_numbers(self.pointer, numbers.ctypes.data, many)
        return numbers

    def address(self):
        return lib.pond_address(self.pointer)

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        assert max_version is not None and max_version[0] >= 1, max_version
        made = lib.pond_copy_to_dlpack if copy else lib.pond_to_dlpack
        return python.PyCapsule_New(checked(made(self.pointer)), NEWER, ctypes.cast(unopened, c_void_p))


class Given:
    """A tensor that is given away, in either form."""

    def __init__(self, tensor, name):
        self.tensor, self.name = tensor, name

    def __dlpack_device__(self):
        return (1, 0)

    def __dlpack__(self, **_):
        older = self.name == OLDER
        into = lib.pond_into_dlpack_legacy if older else lib.pond_into_dlpack
        pointer = checked(into(self.tensor.taken()))
        return python.PyCapsule_New(pointer, self.name, None if older else ctypes.cast(unopened, c_void_p))


def opened(capsule, name):
    """What a capsule holds, which is then ours to delete."""
    pointer = GetPointer(id(capsule), name)
    SetName(id(capsule), USED[name])
    return pointer


def of(array, copy=False):
    pointer = opened(array.__dlpack__(max_version=(1, 3)), NEWER)
    return Tensor((lib.pond_copy_from_dlpack if copy else lib.pond_from_dlpack)(pointer))


def fails(work, says):
    try:
        work()
    except BufferError as error:
        assert says in str(error), error
    else:
        raise AssertionError(f"nothing was said of {says}")


def at_rest():
    gc.collect()
    assert (lib.pond_requested(), lib.pond_foreign()) == (0, 0), (lib.pond_requested(), lib.pond_foreign())


NAMES = "f8 f4 f2 i1 i2 i4 i8 u1 u2 u4 u8 c8 c16 ?".split()
OURS = "f64 f32 f16 i8 i16 i32 i64 u8 u16 u32 u64 complex64 complex128 bool".split()
VIEWS = [
    lambda a: a,
    lambda a: a.T,
    lambda a: a[:, -1],
    lambda a: a[1:, ::2],
    lambda a: np.broadcast_to(a[1], (3, a.shape[1])),
    lambda a: a[:, a.shape[1]:],
    lambda a: a[1, 1],
    lambda a: a[:, None],
]
seen = 0
for name, ours in zip(NAMES, OURS):
    made = lib.pond_ramp(ours.encode(), 4, 6)
    if not made and ours == "f16":
        print("skipped: f16, whose numbers take the feature `half`")
        continue
    tensor = Tensor(made)
    numbers = np.arange(24).reshape(4, 6)
    expected = (numbers % 2 if name == "?" else numbers).astype(name)
    size = expected.itemsize
    for how, view in enumerate(VIEWS):
        # Millpond's tensors as NumPy's arrays.
        there = view(expected)
        here = tensor.view(how)
        array = np.from_dlpack(here)
        assert array.dtype == there.dtype and array.shape == there.shape, (name, how, array.dtype, array.shape)
        assert (array == there).all(), (name, how)
        # Without elements NumPy makes an array of its own.
        assert not array.size or not array.flags.writeable, "the tensor shares it"
        if there.size > 1:
            assert array.ctypes.data == here.address(), (name, how)
            moving = [dim for dim in range(array.ndim) if array.shape[dim] > 1]
            assert [array.strides[dim] for dim in moving] == [there.strides[dim] for dim in moving], (name, how)
        # Only the array holds the memory.
        used = lib.pond_requested()
        del here
        assert lib.pond_requested() == used == 24 * size
        copy = np.from_dlpack(tensor.view(how), copy=True)
        assert copy.flags.writeable and (copy == there).all()
        del array, copy
        # NumPy's arrays as Millpond's tensors.
        if not there.flags.writeable:
            there = np.array(there)
        back = of(there)
        assert (back.numbers() == np.real(there).astype(float).ravel()).all(), (name, how)
        assert not there.size or back.address() == there.ctypes.data
        seen += 1
        del back, there
    del tensor
    at_rest()

# Lifetimes: the storage is freed with the array, on any thread, whether the capsule was consumed or not.
tensor = Tensor(lib.pond_ramp(b"f32", 100, 100))
array = np.from_dlpack(tensor)
del tensor
part = array[50:, 7]
del array
gc.collect()
assert lib.pond_requested() == 40_000 and part[1] == 5107
held = [part]
del part
thread = threading.Thread(target=held.clear)
thread.start()
thread.join()
del thread
at_rest()
capsule = Tensor(lib.pond_ramp(b"u8", 3, 3)).__dlpack__(max_version=(1, 0))
assert lib.pond_requested() == 9
del capsule
at_rest()

# NumPy may write to a transferred tensor, and Rust would see it. It may not write while another tensor shares the storage.
for name in [NEWER, OLDER]:
    tensor = Tensor(lib.pond_ramp(b"i64", 3, 4))
    address = tensor.address()
    array = np.from_dlpack(Given(tensor, name))
    assert array.ctypes.data == address and array[2, 3] == 11
    # NumPy treats the older form as read-only, as Millpond does.
    assert array.flags.writeable == (name == NEWER)
    if name == NEWER:
        array += 1
        back = of(array)
        assert (back.numbers() == np.arange(1, 13)).all()
        del back
    del array, tensor
    at_rest()
tensor = Tensor(lib.pond_ramp(b"i64", 3, 4))
other = tensor.view(1)
array = np.from_dlpack(Given(tensor, NEWER))
assert not array.flags.writeable
fails(lambda: np.from_dlpack(Given(other.view(0), OLDER)), "the older form of DLPack, which cannot mark")
del array, tensor, other
at_rest()

# NumPy's memory is written where NumPy permits it, and kept alive.
array = np.arange(12.0).reshape(3, 4)
tensor = of(array)
assert lib.pond_foreign() == 96 and lib.pond_requested() == 0
assert lib.pond_fill(tensor.pointer, 7.0) and (array == 7).all()
view = tensor.view(1)
assert not lib.pond_fill(tensor.pointer, 8.0) and b"another tensor shares" in lib.pond_error()
del view
address = array.ctypes.data
holders = sys.getrefcount(array)
del tensor
assert sys.getrefcount(array) == holders - 1, "the array is let go"
tensor = of(array)
del array
gc.collect()
assert tensor.address() == address and (tensor.numbers() == 7).all()
del tensor
at_rest()
array = np.arange(5)
array.flags.writeable = False
tensor = of(array)
assert not lib.pond_fill(tensor.pointer, 1.0) and b"belongs to another library and is read-only" in lib.pond_error()
assert array[4] == 4
array = np.arange(6, dtype=np.int16)
tensor = Tensor(lib.pond_from_dlpack_legacy(opened(array.__dlpack__(), OLDER)))
assert tensor.address() == array.ctypes.data and (tensor.numbers() == array).all()
assert not lib.pond_fill(tensor.pointer, 1.0)

# Arrays that cannot be shared are copied.
array = np.arange(12, dtype=np.float32).reshape(3, 4)
for turned in [array[::-1], array[:, ::-1].T, array[::-2, ::-3]]:
    fails(lambda: of(turned), "is negative")
    copied = of(turned, copy=True)
    assert (copied.numbers() == turned.ravel()).all()
bytes = np.zeros(64, dtype=np.uint8)
askew = bytes[8 - bytes.ctypes.data % 8 + 1:][:40].view(np.float64)
askew[:] = range(5)
fails(lambda: of(askew), "not a multiple of 8")
assert (of(askew, copy=True).numbers() == range(5)).all()
windows = np.lib.stride_tricks.sliding_window_view(np.arange(5, dtype=np.int32), 3)
tensor = of(np.lib.stride_tricks.as_strided(np.arange(5, dtype=np.int32), (3, 3), (4, 4)))
assert (tensor.numbers() == windows.ravel()).all()
assert not lib.pond_fill(tensor.pointer, 1.0)
fails(lambda: of(np.zeros((1,) * 9)), "at most 8 dimensions, not 9")
del tensor, turned, copied, array, askew, bytes
at_rest()
print(f"{seen} views there and back, not a byte copied or lost: proven")
