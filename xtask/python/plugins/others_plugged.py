"""CuPy, Numba and cuda.core with their memory in a pool."""

import gc
import unittest

import millpond

MIB = 1 << 20


class CuPy(unittest.TestCase):
    def test_arrays_are_in_the_pool(self):
        import cupy

        pool = millpond.DevicePool("100MiB")
        memory = millpond.cupy.enable(pool)
        try:
            self.assertIs(memory.pool(), pool)
            with millpond.tag("features"):
                first = cupy.empty(10 * MIB, dtype=cupy.uint8)
            self.assertEqual([(live.tag, live.bytes) for live in pool.live()], [("features", 10 * MIB)])
            self.assertIn("others_plugged.py", pool.live()[0].place)
            with self.assertRaisesRegex(MemoryError, "features"):
                cupy.empty(200 * MIB, dtype=cupy.uint8)
            address = first.data.ptr
            del first
            again = cupy.empty(10 * MIB, dtype=cupy.uint8)
            self.assertEqual(again.data.ptr, address)
            with cupy.cuda.Stream(non_blocking=True):
                other = cupy.empty(10 * MIB, dtype=cupy.uint8)
                self.assertNotEqual(other.data.ptr, address)
            other.set(cupy.asnumpy(again))
            self.assertEqual(cupy.empty(0).size, 0)
            del again, other
        finally:
            cupy.cuda.set_allocator()
        gc.collect()
        self.assertEqual(pool.stats()["allocated"], 0)


class Numba(unittest.TestCase):
    def test_arrays_are_in_the_pool(self):
        import numpy
        from numba import cuda

        pool = millpond.DevicePool("100MiB")
        millpond.numba.enable(pool)
        with millpond.tag("features"):
            first = cuda.to_device(numpy.arange(MIB, dtype=numpy.uint8))
        self.assertEqual([(live.tag, live.bytes) for live in pool.live()], [("features", MIB)])
        self.assertIn("others_plugged.py", pool.live()[0].place)
        self.assertTrue((first.copy_to_host() == numpy.arange(MIB, dtype=numpy.uint8)).all())
        with self.assertRaisesRegex(MemoryError, "features"):
            cuda.device_array(200 * MIB, dtype=numpy.uint8)
        free, total = cuda.current_context().get_memory_info()
        self.assertEqual((free, total), (99 * MIB, 100 * MIB))
        del first
        gc.collect()
        self.assertEqual(pool.stats()["allocated"], 0)


class CudaCore(unittest.TestCase):
    def test_buffers_are_in_the_pool(self):
        from cuda.core import Device

        device = Device(0)
        device.set_current()
        pool = millpond.DevicePool("100MiB")
        memory = millpond.cuda_core.memory_resource(pool)
        self.assertEqual((memory.device_id, memory.is_device_accessible, memory.is_host_accessible), (0, True, False))
        stream = device.create_stream()
        with millpond.tag("features"):
            buffer = memory.allocate(10 * MIB, stream=stream)
        self.assertEqual([(live.tag, live.bytes) for live in pool.live()], [("features", 10 * MIB)])
        self.assertIn("others_plugged.py", pool.live()[0].place)
        with self.assertRaisesRegex(MemoryError, "features"):
            memory.allocate(200 * MIB, stream=stream)
        # Nothing stays allocated if the library refuses the stream.
        with self.assertRaises(TypeError):
            memory.allocate(MIB, stream=0)
        self.assertFalse(buffer.memory_resource.is_ipc_enabled)
        other = memory.allocate(10 * MIB, stream=device.default_stream)
        buffer.copy_to(other, stream=stream)
        [empty.close() for empty in [memory.allocate(0, stream=stream) for _ in range(2)]]
        buffer.close(stream)
        other.close(stream)
        stream.sync()
        self.assertEqual(pool.stats()["allocated"], 0)
        graph = stream.create_graph_builder().begin_building()
        for captured in (graph, stream):
            with self.assertRaisesRegex(RuntimeError, "captured"):
                memory.allocate(MIB, stream=captured)
        graph.end_building()
        device.memory_resource = memory
        self.assertEqual(device.allocate(MIB, stream=stream).size, MIB)


if __name__ == "__main__":
    unittest.main()
