"""Tests of pools of a device's memory. They need a CUDA driver, which may be the emulated one. Some use CuPy, Numba and PyTorch where installed."""

import contextlib
import ctypes
import gc
import importlib.util
import os
import random
import tempfile
import threading
import time
import unittest
import unittest.mock
from pathlib import Path

import millpond

MIB = 1 << 20
TYPES = ["float64", "float32", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool", "complex64", "complex128"]


def has(name):
    return importlib.util.find_spec(name) is not None


def has_device():
    try:
        millpond.DevicePool("2MiB")
    except RuntimeError:
        return False
    return True


def bytes_of(array):
    host = bytearray(array.nbytes)
    array.copy_to(host)
    return bytes(host)


class Tensor(ctypes.Structure):
    """The part of DLPack's structures that describes an array."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


def tensor_in(capsule, name, offset):
    """Returns the description in a capsule with this name, at this offset of the structure."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return Tensor.from_address(pointer(capsule, name) + offset)


class Library:
    """An array of another library. It returns the structure of one of our arrays after a change."""

    def __init__(self, array, change=None, device=None, versions=True):
        self.array, self.change, self.device, self.versions = array, change, device, versions

    def __dlpack_device__(self):
        return self.device or self.array.__dlpack_device__()

    def __dlpack__(self, **options):
        if not self.versions and "max_version" in options:
            raise TypeError("unexpected argument")
        self.options = options
        capsule = self.array.__dlpack__(**{name: value for name, value in options.items() if name != "stream"})
        name, offset = (b"dltensor_versioned", 32) if self.versions else (b"dltensor", 0)
        if self.change is not None:
            self.change(tensor_in(capsule, name, offset))
        return capsule


@unittest.skipUnless(has_device(), "needs a CUDA driver")
class Devices(unittest.TestCase):
    def setUp(self):
        self.pool = millpond.DevicePool("64MiB", name=self.id())

    def tearDown(self):
        gc.collect()
        self.assertEqual(self.pool.live(), [])

    def test_arrays_are_of_the_pool(self):
        with millpond.tag("weights"):
            array = self.pool.zeros((3, 4), "float32")
        self.assertEqual((array.shape, array.dtype, array.nbytes, array.device), ((3, 4), "float32", 48, "cuda:0"))
        self.assertEqual((array.address % 256, len(array)), (0, 3))
        self.assertEqual(repr(array), "<millpond.DeviceArray: float32 (3, 4) on cuda:0>")
        [live] = self.pool.live()
        self.assertEqual((live.tag, live.blocks, live.place.rpartition(":")[0]), ("weights", 1, f"{__file__}:test_arrays_are_of_the_pool"))
        self.assertIn(live, millpond.leaks())
        self.assertEqual((self.pool.stats()["requested"], bytes_of(array)), (48, bytes(48)))
        array.copy_from(bytes(range(48)))
        self.assertEqual(bytes_of(array), bytes(range(48)))
        # A zeroed array may get memory that was written.
        del array
        self.assertEqual(bytes_of(self.pool.zeros(48, "uint8")), bytes(48))

    def test_types_have_the_names_of_other_libraries(self):
        class Named:
            name = "bfloat16"

        class OfTorch:
            def __str__(self):
                return "torch.float16"

        for dtype, expected in [("bfloat16", "bfloat16"), (Named(), "bfloat16"), (OfTorch(), "float16"), (float, "float64"), (bool, "bool"), *zip(TYPES, TYPES)]:
            self.assertEqual(self.pool.empty(3, dtype).dtype, expected)
        for other in [Named, "float12", None]:
            with self.assertRaisesRegex(ValueError, "choose one of float64, float32"):
                self.pool.empty(3, other)

    def test_shapes_are_those_of_numpy(self):
        for shape, sizes, bytes in [(5, (5,), 20), ((), (), 4), ((0, 3), (0, 3), 0), ([2, 3], (2, 3), 24)]:
            array = self.pool.zeros(shape)
            self.assertEqual((array.shape, array.nbytes, bytes_of(array)), (sizes, bytes, b"\0" * bytes))
            self.assertEqual(self.pool.copy(array).shape, sizes)
        with self.assertRaises(TypeError):
            len(self.pool.empty(()))
        for shape in [-1, (2, -3), 1 << 62, (1 << 40, 1 << 40)]:
            with self.assertRaises(ValueError):
                self.pool.empty(shape)
        for shape in ["three", 2.5, None]:
            with self.assertRaises(TypeError):
                self.pool.empty(shape)

    def test_a_refusal_names_the_holders(self):
        with millpond.tag("images"):
            images = self.pool.empty(48 * MIB, "uint8")
        with self.assertRaises(MemoryError) as refused:
            self.pool.empty(32 * MIB, "uint8")
        self.assertIn("held by images", str(refused.exception))
        self.assertEqual((self.pool.stats()["refusals"], images.nbytes), (1, 48 * MIB))
        del images
        self.pool.trim()
        self.assertEqual(self.pool.stats()["reserved"], 0)
        self.pool.limit = "8MiB"
        self.assertEqual(self.pool.limit, 8 * MIB)
        with self.assertRaises(MemoryError):
            self.pool.empty(9 * MIB, "uint8")

    def test_a_budget_counts_memory_of_devices_and_of_the_host(self):
        budget = millpond.Budget("tenant", "8MiB")
        device, host = millpond.DevicePool(budget=budget), millpond.Pool(budget=budget)
        array = device.empty(5 * MIB, "uint8")
        with self.assertRaises(MemoryError):
            host.block(5 * MIB)
        del array
        device.trim()
        self.assertEqual(len(host.block(5 * MIB)), 5 * MIB)

    def test_wrong_values_are_refused(self):
        for settings in [{"device": 1000}, {"device": -1}, {"limit": "much"}, {"settings": "nonsense:1"}, {"device": 1 << 40}]:
            with self.assertRaises((ValueError, RuntimeError)):
                millpond.DevicePool(**settings)
        array = self.pool.zeros(10)
        for host, error in [(bytearray(3), ValueError), (bytes(40), BufferError), (memoryview(bytearray(80))[::2], BufferError), (7, TypeError)]:
            with self.assertRaises(error):
                array.copy_to(host)
        with self.assertRaises(ValueError):
            array.copy_from(bytes(39))
        for stream in [7, "stream", object()]:
            with self.assertRaises(TypeError):
                self.pool.empty(3, stream=stream)
            with self.assertRaises(TypeError):
                self.pool.copy(array, stream=stream)
            with self.assertRaises(TypeError):
                array.record_use(stream)
        with self.assertRaisesRegex(ValueError, "per-thread"):
            self.pool.empty(3, stream=2)
        with self.assertRaisesRegex(TypeError, "millpond.Pool"):
            millpond.numpy.enable(self.pool)

    def test_arrays_are_described_for_other_libraries(self):
        array = self.pool.empty((2, 3, 4), "int16")
        self.assertEqual(array.__dlpack_device__(), (2, 0))
        for options, name, offset in [({}, b"dltensor", 0), ({"max_version": (0, 8)}, b"dltensor", 0), ({"max_version": (1, 1)}, b"dltensor_versioned", 32)]:
            for stream in [None, -1, 1]:
                capsule = array.__dlpack__(stream=stream, **options)
                tensor = tensor_in(capsule, name, offset)
                self.assertEqual((tensor.data, tensor.device_type, tensor.device, tensor.byte_offset), (array.address, 2, 0, 0))
                self.assertEqual((tensor.code, tensor.bits, tensor.lanes), (0, 16, 1))
                self.assertEqual((tensor.shape[:3], tensor.strides[:3], tensor.ndim), ([2, 3, 4], [12, 4, 1], 3))
        interface = array.__cuda_array_interface__
        expected = {"version": 3, "shape": (2, 3, 4), "typestr": "<i2", "data": (array.address, False), "strides": None, "stream": 1}
        self.assertEqual(interface, expected)
        self.assertFalse(hasattr(self.pool.empty(1, "bfloat16"), "__cuda_array_interface__"))
        for options in [{"dl_device": (1, 0)}, {"copy": True}]:
            with self.assertRaises(BufferError):
                array.__dlpack__(**options)
        for stream in [2, -7]:
            with self.assertRaises(ValueError):
                array.__dlpack__(stream=stream)

    def test_sizes_of_an_array_without_elements_may_be_large(self):
        def set(tensor):
            tensor.shape[0], tensor.shape[1], tensor.shape[2] = 0, 1 << 62, 1 << 62

        copy = self.pool.copy(Library(self.pool.empty((1, 1, 1)), set))
        self.assertEqual(copy.shape, (0, 1 << 62, 1 << 62))
        self.assertIsNotNone(copy.__dlpack__())

    def test_a_capsule_keeps_the_memory(self):
        for options in [{}, {"max_version": (1, 0)}]:
            capsule = self.pool.empty(1000, "uint8").__dlpack__(**options)
            gc.collect()
            self.assertEqual(self.pool.stats()["requested"], 1000)
            del capsule
            self.assertEqual(self.pool.stats()["requested"], 0)

    def test_arrays_of_other_libraries_are_copied(self):
        source = self.pool.empty((4, 5), "float32")
        source.copy_from(bytes(range(80)))
        for versions in [True, False]:
            theirs = Library(source, versions=versions)
            copy = self.pool.copy(theirs)
            self.assertEqual((copy.shape, copy.dtype, bytes_of(copy)), ((4, 5), "float32", bytes(range(80))))
            self.assertNotEqual(copy.address, source.address)
            self.assertEqual(theirs.options["stream"], 1)
        # Memory of the host, which has no stream.
        host = (ctypes.c_uint8 * 80)(*range(80))

        def on_the_host(tensor):
            tensor.data, tensor.device_type, tensor.byte_offset = ctypes.addressof(host) - 16, 1, 16

        theirs = Library(source, on_the_host, (1, 0))
        self.assertEqual((bytes_of(self.pool.copy(theirs)), "stream" in theirs.options), (bytes(host), False))

        def part(tensor):
            tensor.shape[0], tensor.byte_offset = 2, 40

        self.assertEqual(bytes_of(self.pool.copy(Library(source, part))), bytes(range(40, 80)))

    def test_arrays_that_cannot_be_copied_are_refused_and_given_back(self):
        source = self.pool.empty((4, 5), "float32")

        def set(**fields):
            return lambda tensor: [setattr(tensor, name, value) for name, value in fields.items()]

        def transposed(tensor):
            tensor.strides[0], tensor.strides[1] = 1, 4

        def negative(tensor):
            tensor.shape[0] = -4

        def huge(tensor):
            tensor.shape[0] = tensor.strides[0] = 1 << 61

        shapeless = set(shape=ctypes.POINTER(ctypes.c_int64)())
        for change in [set(device=1), set(device_type=4), set(bits=24), set(lanes=2), set(data=None), set(ndim=-1), transposed, negative, huge, shapeless]:
            with self.assertRaises(BufferError):
                self.pool.copy(Library(source, change))
        for other in [[1, 2], "text", None]:
            with self.assertRaises(TypeError):
                self.pool.copy(other)

        class Failing:
            def __dlpack_device__(self):
                return (2, 0)

            def __dlpack__(self, **options):
                raise KeyError("theirs")

        with self.assertRaises(KeyError):
            self.pool.copy(Failing())

        class Other(Failing):
            def __init__(self, capsule):
                self.capsule = capsule

            def __dlpack__(self, **options):
                return self.capsule

        used = source.__dlpack__(max_version=(1, 0))
        self.pool.copy(Other(used))
        for capsule in [used, None, "text"]:
            with self.assertRaisesRegex(BufferError, "capsule"):
                self.pool.copy(Other(capsule))
        # The host has no stream, so the copy would not wait for the other library.
        with self.assertRaisesRegex(BufferError, "different devices"):
            self.pool.copy(Library(source, device=(1, 0)))
        self.assertEqual(self.pool.stats()["requested"], 80)

    def test_a_stream_object_is_kept(self):
        class Stream:
            ended = []

            def __cuda_stream__(self):
                return (0, 1)

            def __del__(self):
                self.ended.append(self)

        array = self.pool.zeros(10, stream=Stream())
        array.record_use(Stream())
        self.assertEqual(array.__cuda_array_interface__["stream"], 1)

        class Broken:
            def __cuda_stream__(self):
                return "stream"

        with self.assertRaises(TypeError):
            self.pool.zeros(10, stream=Broken())

        class Closed:
            def __cuda_stream__(self):
                raise KeyError("closed")

        with self.assertRaises(KeyError):
            self.pool.zeros(10, stream=Closed())

        class Elsewhere:
            device_id, ptr = 1, 1 << 20

        with self.assertRaisesRegex(ValueError, "the stream belongs to cuda:1, but the pool belongs to cuda:0"):
            self.pool.zeros(10, stream=Elsewhere())

    def test_threads_lend_an_array_while_python_code_runs(self):
        class Stream:
            def __cuda_stream__(self):
                return (0, 0)

        class Cuda:
            @staticmethod
            def get_current_stream(device):
                # Other threads run here.
                time.sleep(0.001)
                return Stream()

        array, failures = self.pool.zeros(10), []

        def work():
            try:
                for _ in range(50):
                    array.__cuda_array_interface__
                    array.__dlpack__()
            except BaseException as error:
                failures.append(error)

        with unittest.mock.patch.dict("sys.modules", {"cupy": unittest.mock.Mock(cuda=Cuda)}):
            threads = [threading.Thread(target=work, daemon=True) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
        self.assertEqual((failures, [thread.is_alive() for thread in threads]), ([], [False] * 3))

    def test_threads_share_a_pool(self):
        failures = []

        def work(seed):
            chance = random.Random(seed)
            try:
                held = []
                for round in range(200):
                    size = chance.randrange(1, 5000)
                    array = self.pool.zeros(size, "uint8")
                    array.copy_from(bytes([seed]) * size)
                    held.append((array, self.pool.copy(array), size))
                    if len(held) > 5:
                        for array in held.pop(chance.randrange(len(held)))[:2]:
                            if set(bytes_of(array)) != {seed}:
                                failures.append((seed, round))
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(failures, [])

    def test_random_programs_keep_their_account(self):
        # More programs are for a run under valgrind.
        for seed in range(int(os.environ.get("MILLPOND_PROGRAMS", "100"))):
            with self.subTest(seed=seed):
                self.run_program(random.Random(seed))

    def run_program(self, chance):
        """Runs a random program on arrays of a device, and compares with what they must contain."""
        pool = millpond.DevicePool(chance.choice([None, 8 * MIB, "64MiB"]))
        live, exported = [], []
        for _ in range(chance.randrange(20)):
            step = chance.randrange(8)
            if step < 3:
                size, value = chance.choice([0, 1, 255, 4096, 100_000, MIB, 5 * MIB]), chance.randrange(256)
                try:
                    with millpond.tag(chance.choice("abc")):
                        array = pool.empty(size, "uint8")
                except MemoryError as error:
                    self.assertIn("requested", str(error))
                    continue
                array.copy_from(bytes([value]) * size)
                live.append((array, size, value))
            elif step == 3 and live:
                array, size, value = chance.choice(live)
                with contextlib.suppress(MemoryError):
                    theirs = Library(array, versions=chance.random() < 0.5)
                    live.append((pool.copy(theirs), size, value))
            elif step == 4 and live:
                array, size, value = chance.choice(live)
                options = chance.choice([{}, {"max_version": (1, 0)}])
                exported.append((array.__dlpack__(**options), size))
                self.assertEqual(array.__cuda_array_interface__["data"], (array.address, False))
            elif step < 7 and live:
                array, size, value = live.pop(chance.randrange(len(live)))
                self.assertEqual(bytes_of(array), bytes([value]) * size)
            else:
                exported.clear()
                pool.trim()
                pool.reset_peak()
            array = theirs = None
            self.assertGreaterEqual(pool.stats()["requested"], sum(size for _, size, _ in live))
        live.clear()
        exported.clear()
        self.assertEqual((pool.stats()["requested"], pool.live()), (0, []))

    def test_the_child_of_a_fork_is_told(self):
        array = self.pool.zeros(10)
        child = os.fork()
        if child == 0:
            try:
                self.pool.zeros(10)
            except RuntimeError as error:
                os._exit(0 if "fork" in str(error) else 1)
            os._exit(2)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(bytes_of(array), bytes(40))

    def test_recordings_have_the_device(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "run.mpr")
            with millpond.record(file), millpond.tag("weights"):
                held = [self.pool.zeros(MIB, "uint8") for _ in range(3)]
                del held
            recording = millpond.read(file)
            self.assertEqual(recording.verdict().needs, self.pool.stats()["reserved_peak"])

    def test_an_error_is_explained(self):
        said = []
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder, "run.html")
            without = unittest.mock.patch("millpond._oom._torch", return_value=None)
            with without, self.assertRaises(MemoryError), millpond.catch_oom(page, tell=said.append):
                held = [self.pool.empty(20 * MIB, "uint8") for _ in range(5)]
                del held
            self.assertTrue(page.exists() and page.with_suffix(".mpr").exists())
        self.assertIn("millpond: out of memory", said[0])


@unittest.skipUnless(has_device() and has("numpy"), "needs a CUDA driver and NumPy")
class WithNumpy(unittest.TestCase):
    def test_arrays_go_to_the_device_and_back(self):
        import numpy

        device, host = millpond.DevicePool("64MiB"), millpond.Pool("64MiB")
        for source in [numpy.arange(12, dtype="int16").reshape(3, 4), numpy.ones(()), numpy.zeros((2, 0)), numpy.ones(3, bool)]:
            array = device.copy(source)
            self.assertEqual((array.dtype, array.shape), (source.dtype, source.shape))
            for back in [array.to_numpy(), host.copy(array)]:
                self.assertEqual((back.dtype, back.shape, back.tolist()), (source.dtype, source.shape, source.tolist()))
            array.copy_from(numpy.zeros_like(source))
            self.assertFalse(array.to_numpy().any())
        with self.assertRaisesRegex(BufferError, "C order"):
            device.copy(numpy.ones((3, 4)).T)
        try:
            numpy.dtype("bfloat16")
        except TypeError:
            with self.assertRaisesRegex(TypeError, "ml_dtypes"):
                device.zeros(3, "bfloat16").to_numpy()
        else:
            array = device.zeros((2, 3), "bfloat16")
            self.assertEqual([host.copy(array).dtype, array.to_numpy().dtype], ["bfloat16"] * 2)
        for dtype in [numpy.dtype(">f4"), numpy.dtype("S5"), object, "f4"]:
            with self.assertRaisesRegex(ValueError, "choose one of"):
                device.zeros(3, dtype)


@unittest.skipUnless(has_device() and has("cupy"), "needs a CUDA driver and CuPy")
class WithCupy(unittest.TestCase):
    def test_arrays_are_exchanged_without_a_copy(self):
        import cupy
        import numpy

        pool = millpond.DevicePool("64MiB")
        host = numpy.arange(20, dtype="float32").reshape(4, 5)
        array = pool.copy(host)
        theirs = [cupy.from_dlpack(array), cupy.asarray(array)]
        for one in theirs:
            self.assertEqual((one.shape, one.dtype, one.data.ptr), ((4, 5), "float32", array.address))
            self.assertEqual(cupy.asnumpy(one).tolist(), host.tolist())
        del array
        gc.collect()
        self.assertEqual(pool.stats()["requested"], 80)
        copy = pool.copy(theirs[0])
        self.assertEqual(copy.to_numpy().tolist(), host.tolist())
        with self.assertRaisesRegex(BufferError, "C order"):
            pool.copy(theirs[0].T)
        theirs[0].data.memset(0, 80)
        self.assertEqual(cupy.asnumpy(theirs[1]).sum(), 0)
        del theirs, one
        gc.collect()
        self.assertEqual(pool.stats()["requested"], 80)
        for dtype in TYPES:
            array = pool.zeros((2, 3), dtype)
            self.assertEqual([one.dtype for one in (cupy.from_dlpack(array), cupy.asarray(array), array.to_numpy())], [dtype] * 3)

    def test_streams_are_those_of_cupy(self):
        import cupy

        pool = millpond.DevicePool("64MiB")
        stream = cupy.cuda.Stream(non_blocking=True)
        array = pool.zeros(10, stream=stream)
        self.assertEqual(array.__cuda_array_interface__["stream"], stream.ptr)
        with stream:
            theirs = cupy.from_dlpack(pool.zeros(100, "int32"))
        self.assertEqual(cupy.asnumpy(theirs).sum(), 0)
        # The pool keeps the stream, so its end is no error.
        del stream
        gc.collect()
        del array, theirs
        self.assertEqual(bytes_of(pool.zeros(10)), bytes(40))


@unittest.skipUnless(has_device() and has("numba"), "needs a CUDA driver and Numba")
class WithNumba(unittest.TestCase):
    def test_arrays_are_used_without_a_copy(self):
        import numpy
        from numba import cuda

        pool = millpond.DevicePool("64MiB")
        host = numpy.arange(20, dtype="float32").reshape(4, 5)
        array = pool.copy(host, stream=cuda.stream())
        theirs = cuda.as_cuda_array(array)
        self.assertEqual(theirs.device_ctypes_pointer.value, array.address)
        del array
        gc.collect()
        self.assertEqual(theirs.copy_to_host().tolist(), host.tolist())


def has_torch():
    # Other tests have a module of this name.
    return has("torch") and hasattr(importlib.import_module("torch"), "arange")


@unittest.skipUnless(has_device() and has_torch(), "needs a CUDA driver and PyTorch")
class WithTorch(unittest.TestCase):
    def test_tensors_are_exchanged_without_a_copy(self):
        import torch

        pool = millpond.DevicePool("64MiB")
        array = pool.copy(torch.arange(20, dtype=torch.bfloat16).reshape(4, 5))
        self.assertEqual((array.dtype, array.shape), ("bfloat16", (4, 5)))
        tensor = torch.from_dlpack(array)
        self.assertEqual((tensor.data_ptr(), tensor.dtype, tensor.shape), (array.address, torch.bfloat16, (4, 5)))
        self.assertEqual(tensor.cpu().tolist(), torch.arange(20.0).reshape(4, 5).tolist())
        copy = pool.copy(tensor)
        del array, tensor
        gc.collect()
        self.assertEqual((pool.stats()["requested"], bytes_of(copy)[2:4]), (40, b"\x80\x3f"))
        self.assertEqual(pool.empty(3, torch.float16, stream=torch.cuda.Stream()).dtype, "float16")


if __name__ == "__main__":
    unittest.main()
