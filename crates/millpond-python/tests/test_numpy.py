"""Tests of NumPy's arrays in pools. They run where NumPy is installed."""

import asyncio
import gc
import importlib.util
import threading
import unittest

import millpond

MIB = 1 << 20
HAS_NUMPY = importlib.util.find_spec("numpy") is not None


@unittest.skipIf(HAS_NUMPY, "NumPy is installed")
class Missing(unittest.TestCase):
    def test_numpy_is_needed(self):
        with self.assertRaises(ImportError):
            millpond.numpy.enable()
        # Nothing was changed.
        with millpond.tag("any"):
            pass


@unittest.skipUnless(HAS_NUMPY, "needs NumPy")
class Enabled(unittest.TestCase):
    def setUp(self):
        self.pool = millpond.Pool("64MiB", name=self.id())
        self.before = self.handler()

    def tearDown(self):
        self.assertEqual(self.handler(), self.before)

    def handler(self):
        import numpy

        multiarray = getattr(numpy, "_core", None) or numpy.core
        return multiarray.multiarray.get_handler_name()

    def test_arrays_are_in_the_pool_and_outlive_the_block(self):
        import numpy

        with millpond.numpy.enable(self.pool):
            self.assertEqual(self.handler(), "millpond")
            with millpond.tag("ones"):
                ones = numpy.ones((1024, 1024), "u1")
                with millpond.tag("sums"):
                    sums = ones + ones
            rest = numpy.zeros(5)
        outside = numpy.ones(MIB)
        self.assertEqual((ones.ctypes.data % 64, int(sums.sum()), rest.tolist()), (0, 2 * MIB, [0.0] * 5))
        live = {one.tag: one.bytes // MIB for one in self.pool.live()}
        self.assertEqual(live, {"ones": 1, "sums": 1, "": 0})
        self.assertEqual(len(millpond.leaks()), 3)
        row = ones[3]
        del ones, sums, rest, outside
        gc.collect()
        self.assertEqual([(one.tag, one.blocks) for one in self.pool.live()], [("ones", 1)])
        del row
        self.assertEqual(self.pool.live(), [])

    def test_data_is_grown_and_zeroed(self):
        import numpy

        with millpond.numpy.enable(self.pool):
            for size in [0, 1, 7, 100, 5000, MIB]:
                array = numpy.arange(size, dtype="u4")
                array.resize(2 * size + 1, refcheck=False)
                self.assertEqual(array.tolist(), list(range(size)) + [0] * (size + 1))
                array.resize(size // 2, refcheck=False)
                self.assertEqual(array.tolist(), list(range(size // 2)))
                self.assertEqual(int(numpy.zeros(size).sum()), 0)
        del array
        self.assertEqual(self.pool.stats()["requested"], 0)

    def test_a_limit_refuses_with_a_post_mortem(self):
        import numpy

        with self.assertRaises(MemoryError) as refused:
            with millpond.numpy.enable(self.pool):
                with millpond.tag("images"):
                    images = numpy.empty(40 * MIB, "u1")
                numpy.empty(30 * MIB, "u1")
        note = "\n".join(refused.exception.__notes__)
        self.assertIn("30.0 MiB requested, and the pool's limit is 64.0 MiB", note)
        self.assertIn("held by images", note)
        with millpond.numpy.enable(self.pool):
            with self.assertRaises(MemoryError):
                images.resize(70 * MIB, refcheck=False)
            self.assertEqual(images.nbytes, 40 * MIB)
            numpy.empty(10 * MIB, "u1")
        del images

    def test_without_a_block_one_line_undoes_it(self):
        import numpy

        enabled = millpond.numpy.enable(self.pool)
        array = numpy.ones(MIB, "u1")
        enabled.disable()
        enabled.disable()
        self.assertEqual(self.handler(), self.before)
        other = numpy.ones(MIB, "u1")
        self.assertEqual([one.blocks for one in self.pool.live()], [1])
        del array, other

    def test_threads_and_tasks_have_their_own(self):
        import numpy

        names = {}

        async def work(name, pool):
            with millpond.numpy.enable(pool), millpond.tag(name):
                await asyncio.sleep(0)
                array = numpy.ones(MIB, "u1")
                names[name] = [one.tag for one in pool.live()]
                del array

        async def both():
            await asyncio.gather(work("one", self.pool), work("two", millpond.Pool()))

        asyncio.run(both())
        self.assertEqual(names, {"one": ["one"], "two": ["two"]})
        with millpond.numpy.enable(self.pool):
            array = numpy.ones(MIB, "u1")
            thread = threading.Thread(target=lambda: names.update(thread=self.handler()))
            thread.start()
            thread.join()
        # Arrays are freed in any thread.
        held = [array]
        del array
        thread = threading.Thread(target=held.clear)
        thread.start()
        thread.join()
        self.assertEqual((names["thread"], self.pool.live()), (self.before, []))

    def test_the_order_of_ends_does_not_matter(self):
        import numpy

        other = millpond.Pool()
        first, second = millpond.numpy.enable(self.pool), millpond.numpy.enable(other)
        first.disable()
        array = numpy.ones(MIB, "u1")
        self.assertEqual((len(self.pool.live()), len(other.live())), (0, 1))
        second.disable()
        self.assertEqual(self.handler(), self.before)
        with millpond.tag("tag"):
            first = millpond.numpy.enable(self.pool)
            tagged = numpy.ones(MIB, "u1")
        untagged = numpy.ones(2 * MIB, "u1")
        self.assertEqual([one.tag for one in self.pool.live()], ["", "tag"])
        with millpond.tag("tag"):
            first.disable()
        self.assertEqual(self.handler(), self.before)
        with first:
            self.assertEqual(self.handler(), "millpond")
        errors = []

        def disable():
            try:
                second.disable()
                third.disable()
            except RuntimeError as error:
                errors.append(str(error))

        third = millpond.numpy.enable(self.pool)
        thread = threading.Thread(target=disable)
        thread.start()
        thread.join()
        self.assertIn("disable it there", errors[0])
        self.assertEqual(self.handler(), "millpond")
        third.disable()
        del array, tagged, untagged

    def test_the_note_is_of_the_error(self):
        import numpy

        with self.assertRaises(MemoryError) as refused:
            with millpond.numpy.enable(self.pool):
                with millpond.tag("first"), self.assertRaises(MemoryError):
                    numpy.empty(70 * MIB, "u1")
                with millpond.tag("second"):
                    numpy.empty(80 * MIB, "u1")
        self.assertIn("80.0 MiB requested", refused.exception.__notes__[0])
        with self.assertRaises(MemoryError) as other:
            with millpond.numpy.enable(self.pool):
                with self.assertRaises(MemoryError):
                    numpy.empty(70 * MIB, "u1")
                bytearray(1 << 62)
        self.assertFalse(hasattr(other.exception, "__notes__"))

    def test_a_refusal_of_earlier_is_no_note(self):
        import numpy

        enabled = millpond.numpy.enable(self.pool)
        with self.assertRaises(MemoryError):
            numpy.empty(70 * MIB, "u1")
        enabled.disable()
        with self.assertRaises(MemoryError) as other:
            with millpond.numpy.enable(self.pool):
                raise MemoryError("cannot allocate anything")
        self.assertFalse(hasattr(other.exception, "__notes__"))

    def test_objects_are_in_arrays_too(self):
        import numpy

        with millpond.numpy.enable(self.pool):
            array = numpy.array([{"a": 1}, [2], "three"], dtype=object)
        self.assertEqual(array[1], [2])
        with self.assertRaises(TypeError):
            millpond._millpond.set_numpy_handler(object())


if __name__ == "__main__":
    unittest.main()
