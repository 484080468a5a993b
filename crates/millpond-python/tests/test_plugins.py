"""Tests of pools as the memory of other libraries, without these libraries: their functions are called as they call them. `cargo xtask python
--plugins` runs the libraries themselves."""

import ctypes
import importlib.util
import unittest

import millpond
from millpond import _millpond

MIB = 1 << 20


def has_device():
    try:
        millpond.DevicePool("2MiB")
    except RuntimeError:
        return False
    return True


def functions():
    """Returns the functions that a library gets, with their types."""
    library = ctypes.CDLL(_millpond.__file__)
    library.millpond_plugin_alloc.restype = ctypes.c_void_p
    library.millpond_plugin_alloc.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    for free in (library.millpond_plugin_free, library.millpond_torch_free_segment):
        free.restype, free.argtypes = None, [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
    library.millpond_last_error.restype = ctypes.c_char_p
    return library


@unittest.skipUnless(has_device(), "there is no CUDA driver")
class Functions(unittest.TestCase):
    def test_blocks_are_in_the_pool_of_their_device(self):
        library, pool = functions(), millpond.torch.pool()
        self.assertIs(millpond.torch.pool(0), pool)
        self.assertEqual(pool.device, 0)
        block = library.millpond_plugin_alloc(3 * MIB, 0, None)
        self.assertEqual((block % 256, pool.stats()["requested"]), (0, 3 * MIB))
        self.assertIn(3 * MIB, [live.bytes for live in millpond.leaks()])
        library.millpond_plugin_free(block, 3 * MIB, 0, None)
        segment = library.millpond_plugin_alloc(2 * MIB, 0, None)
        library.millpond_torch_free_segment(segment, 2 * MIB, 0, None)
        self.assertEqual(pool.stats()["requested"], 0)
        self.assertIsNone(library.millpond_plugin_alloc(0, 0, None))

    def test_refusals_are_counted_and_have_a_reason(self):
        library, before = functions(), _millpond.refusals()
        self.assertIsNone(library.millpond_plugin_alloc(1 << 50, 0, None))
        self.assertIn(b"1.00 PiB", library.millpond_last_error())
        self.assertIsNone(library.millpond_plugin_alloc(1000, 77, None))
        self.assertEqual(_millpond.refusals(), before + 2)

    def test_a_tag_is_that_of_the_thread(self):
        library, pool = functions(), millpond.torch.pool()
        millpond._pools.begin_thread_tags()
        with millpond.tag("outer"):
            with millpond.tag("inner"):
                inner = library.millpond_plugin_alloc(1000, 0, None)
            outer = library.millpond_plugin_alloc(2000, 0, None)
        none = library.millpond_plugin_alloc(3000, 0, None)
        tags = {live.tag: live.blocks for live in pool.live()}
        for block in (inner, outer, none):
            library.millpond_plugin_free(block, 0, 0, None)
        self.assertEqual(tags, {"inner": 1, "outer": 1, "": 1})

    def test_wrong_pools_are_refused(self):
        pool, other = millpond.DevicePool("2MiB"), millpond.DevicePool("2MiB")
        for enable in (millpond.torch.enable, millpond.torch.mem_pool, millpond.cupy.allocator):
            with self.assertRaisesRegex((TypeError, ImportError), "DevicePool|torch"):
                enable(millpond.Pool())
        with self.assertRaisesRegex(ValueError, "two pools are of device 0"):
            millpond.cupy.allocator(pool, other)
        with self.assertRaises(RuntimeError):
            millpond.torch.pool(-1)
        with self.assertRaises(TypeError):
            millpond.torch.pool("cuda:0")
        with self.assertRaises(TypeError):
            millpond.cuda_core.memory_resource(millpond.Pool())


class Missing(unittest.TestCase):
    @unittest.skipIf(importlib.util.find_spec("cupy"), "CuPy is installed")
    def test_a_missing_library_is_named(self):
        with self.assertRaisesRegex(ImportError, "cupy"):
            millpond.cupy.enable()


if __name__ == "__main__":
    unittest.main()
