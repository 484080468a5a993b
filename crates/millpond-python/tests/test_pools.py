"""Tests of pools. Those of arrays run where NumPy is installed."""

import asyncio
import contextlib
import ctypes
import gc
import importlib.util
import os
import random
import sys
import tempfile
import threading
import unittest
from pathlib import Path

import millpond

MIB = 1 << 20
HAS_NUMPY = importlib.util.find_spec("numpy") is not None


def held(pool):
    return [(live.tag, live.blocks, live.bytes) for live in pool.live()]


class Pools(unittest.TestCase):
    def setUp(self):
        self.pool = millpond.Pool("8MiB", name=self.id())

    def tearDown(self):
        pool = self.pool
        gc.collect()
        self.assertEqual([live for live in millpond.leaks() if live.pool == pool.name], [])

    def test_a_block_is_memory_of_its_pool(self):
        block = self.pool.block(1000, zeroed=True)
        self.assertEqual((len(block), block.address % 64), (1000, 0))
        view = memoryview(block)
        self.assertEqual((view.nbytes, view.readonly, bytes(view)), (1000, False, bytes(1000)))
        view[7] = 200
        self.assertEqual(ctypes.c_ubyte.from_address(block.address + 7).value, 200)
        self.assertEqual(self.pool.stats()["requested"], 1000)
        # A view holds the block.
        del block
        gc.collect()
        self.assertEqual((view[7], self.pool.stats()["requested"]), (200, 1000))
        view.release()
        self.assertEqual(self.pool.stats()["requested"], 0)
        self.assertEqual(len(self.pool.block(0)), 0)

    def test_memory_has_a_tag_and_a_place(self):
        with millpond.tag("weights"):
            first = self.pool.block(MIB)
            with millpond.tag("inner; part"):
                second = self.pool.block(2 * MIB)
            third = self.pool.block(MIB)
        fourth = self.pool.block(64)
        self.assertEqual(held(self.pool), [("inner, part", 1, 2 * MIB), ("weights", 1, MIB), ("weights", 1, MIB), ("", 1, 64)])
        places = {live.place.rpartition(":")[0] for live in self.pool.live()}
        self.assertEqual(places, {f"{__file__}:test_memory_has_a_tag_and_a_place"})
        self.assertEqual([live.blocks for live in millpond.leaks() if live.pool == self.pool.name], [1, 1, 1, 1])
        del first, second, third, fourth

    def test_each_task_and_thread_has_its_own_tag(self):
        blocks = []

        async def work(name):
            with millpond.tag(name):
                await asyncio.sleep(0)
                blocks.append(self.pool.block(MIB))

        async def both():
            await asyncio.gather(work("one"), work("two"))

        asyncio.run(both())

        @millpond.tag("main")
        def main():
            thread = threading.Thread(target=lambda: blocks.append(self.pool.block(MIB)))
            thread.start()
            thread.join()
            blocks.append(self.pool.block(MIB))

        main()
        self.assertEqual(sorted(live.tag for live in self.pool.live()), ["", "main", "one", "two"])
        blocks.clear()

    def test_a_refusal_is_a_post_mortem_and_the_pool_goes_on(self):
        with millpond.tag("weights"):
            weights = self.pool.block(5 * MIB)
        cache = self.pool.block(MIB)
        with self.assertRaises(MemoryError) as refused:
            self.pool.block(4 * MIB)
        text = str(refused.exception)
        self.assertIn("4.00 MiB requested, and the pool's limit is 8.00 MiB", text)
        self.assertIn("5.00 MiB in 1 block held by weights\n", text + "\n")
        self.assertRegex(text, r"1\.00 MiB in 1 block held by test_pools\.py:\d+\b")
        self.assertEqual(self.pool.stats()["refusals"], 1)
        del weights, cache
        self.assertEqual(len(self.pool.block(4 * MIB)), 4 * MIB)

    def test_names_are_any_text(self):
        names = {}
        exec(compile("def allocate(pool):\n    return pool.block(10)\n", "/tmp/\udcff/x;y.py", "exec"), names)
        with millpond.tag("half \ud800"):
            block = names["allocate"](self.pool)
        self.assertEqual([live.tag for live in self.pool.live()], ["half \\ud800"])
        self.assertIn("x,y.py:allocate:2", self.pool.live()[0].place)
        millpond.mark("\ud800")
        del block

    def test_a_generator_may_end_elsewhere(self):
        async def numbers():
            with millpond.tag("inside"):
                yield 1
                yield 2

        async def first():
            async for _ in numbers():
                break

        problems = []

        async def run():
            asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context))
            await first()

        asyncio.run(run())
        self.assertEqual(problems, [])

    def test_pools_are_listed_while_others_are_made(self):
        errors, ends = [], threading.Event()
        many = [millpond.Pool() for _ in range(100)]
        self.addCleanup(sys.setswitchinterval, sys.getswitchinterval())
        sys.setswitchinterval(1e-6)

        def make():
            while not ends.is_set():
                millpond.Pool()

        def listed():
            try:
                for _ in range(200):
                    millpond.leaks()
            except RuntimeError as error:
                errors.append(error)

        makers = [threading.Thread(target=make) for _ in range(2)]
        listers = [threading.Thread(target=listed) for _ in range(2)]
        for thread in makers + listers:
            thread.start()
        for thread in listers:
            thread.join()
        ends.set()
        for thread in makers:
            thread.join()
        self.assertEqual((errors, len(many)), ([], 100))

    def test_pools_share_a_budget(self):
        both = millpond.Budget("both", "7MiB")
        one, two = millpond.Pool(budget=both), millpond.Pool(budget=millpond.Budget("part", parent=both))
        first, second = one.block(2 * MIB), two.block(4 * MIB)
        self.assertEqual((both.used, both.limit), (6 * MIB, 7 * MIB))
        with self.assertRaises(MemoryError) as refused:
            one.block(2 * MIB)
        self.assertIn("over budget 'both'", str(refused.exception))
        both.limit = None
        third = one.block(2 * MIB)
        self.assertIsNone(both.limit)
        self.assertGreater(both.refusals, 0)
        del first, second, third
        one.trim()
        two.trim()
        self.assertEqual((both.used, both.peak), (0, 8 * MIB))

    def test_wrong_values_are_told(self):
        for call, said in [
            (lambda: millpond.Pool("1Q"), "'1Q' is not a size"),
            (lambda: millpond.Pool(memory="disk"), "write 'host' or 'pinned'"),
            (lambda: millpond.Pool(settings="nope:1"), "unknown setting 'nope'"),
            (lambda: millpond.Budget("b", "-1"), "not a size"),
            (lambda: self.pool.block(-1), "not a valid number of bytes"),
            (lambda: self.pool.block(1 << 70), "not a valid number of bytes"),
            (lambda: millpond.Pool(-1), "-1 is not a number of bytes"),
            (lambda: millpond.Pool(1 << 64), "below 2^64"),
            (lambda: millpond.Table([("a", [1 << 63])]), "64 bits"),
            (lambda: millpond.Table([("a", [1]), ("a", [2])]), "two columns"),
        ]:
            with self.assertRaises(ValueError) as raised:
                call()
            self.assertIn(said, str(raised.exception))
        for wrong in [True, 1.5, None]:
            with self.assertRaisesRegex(TypeError, "a size must be a number of bytes"):
                self.pool.limit = wrong
        self.assertEqual(len(millpond.Table([])), 0)
        with self.assertRaises(MemoryError):
            self.pool.block(1 << 62)
        self.pool.limit = "1MiB"
        with self.assertRaises(MemoryError):
            self.pool.block(2 * MIB)

    def test_a_recording_shows_tags_and_places(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "run.mpr")
            with millpond.record(file):
                with millpond.tag("step"):
                    blocks = [self.pool.block(MIB) for _ in range(3)]
                millpond.mark("half")
                with self.assertRaises(OSError):
                    with millpond.record(file):
                        pass
                blocks.clear()
            recording = millpond.read(file)
            self.assertEqual(recording.report().data["summary"]["peak"]["bytes"], 3 * MIB)
            text = str(recording.report("site"))
            self.assertIn("test_pools.py:", text)
            with self.assertRaises(OSError):
                with millpond.record(Path(folder, "none", "run.mpr")):
                    pass

    def test_a_child_of_a_fork_allocates_and_frees(self):
        block = self.pool.block(MIB)
        child = os.fork()
        if child == 0:
            ok = False
            try:
                view = memoryview(self.pool.block(MIB, zeroed=True))
                ok = bytes(view) == bytes(MIB) and len(self.pool.live()) == 2
            finally:
                os._exit(0 if ok else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        del block

    def test_random_programs_keep_their_account(self):
        # More programs are for a run under valgrind.
        for seed in range(int(os.environ.get("MILLPOND_PROGRAMS", "100"))):
            with self.subTest(seed=seed):
                self.run_program(random.Random(seed))

    def run_program(self, chance):
        """Runs a random program on all objects of pools, and compares with what it must have."""
        whole = millpond.Budget("whole", chance.choice([None, 4 * MIB, "32MiB"]))
        budget = chance.choice([None, whole, millpond.Budget("part", 16 * MIB, parent=whole)])
        pool = millpond.Pool(chance.choice([None, 8 * MIB, "64MiB"]), budget=budget, memory="host")
        live = []
        limits = millpond.limits() if chance.random() < 0.1 else None
        with limits or contextlib.nullcontext():
            for _ in range(chance.randrange(20)):
                step = chance.randrange(8)
                if step < 4:
                    size, value = chance.choice([0, 1, 63, 64, 4096, 100_000, MIB]), chance.randrange(256)
                    try:
                        with millpond.tag(chance.choice("abc")):
                            view = memoryview(pool.block(size, zeroed=chance.random() < 0.5))
                    except MemoryError as error:
                        self.assertIn("requested", str(error))
                        continue
                    if size:
                        view[0] = view[-1] = value
                    live.append((view[: chance.choice([size, size // 2])] if chance.random() < 0.3 else view, size, value))
                    del view
                elif step < 6 and live:
                    view, size, value = live.pop(chance.randrange(len(live)))
                    if len(view):
                        self.assertEqual(view[0], value)
                    if chance.random() < 0.5:
                        view.release()
                    del view
                elif step == 6:
                    pool.trim()
                    pool.reset_peak()
                    whole.limit = chance.choice([None, 16 * MIB])
                else:
                    rows = pool.live()
                    table = millpond.Table([("tag", [row.tag for row in rows]), ("bytes", [row.bytes for row in rows])])
                    stream, schema = table.__arrow_c_stream__(), table.__arrow_c_schema__()
                    self.assertEqual(len(table), len(rows))
                    del table, stream, schema
                self.assertEqual(pool.stats()["requested"], sum(size for _, size, _ in live))
        if limits:
            self.assertGreaterEqual(limits.usage["total"], limits.usage["peak"])
        live.clear()
        self.assertEqual((pool.stats()["requested"], pool.live()), (0, []))

    @unittest.skipIf(HAS_NUMPY, "NumPy is installed")
    def test_arrays_need_numpy(self):
        with self.assertRaises(ImportError):
            self.pool.empty(3)


@unittest.skipUnless(HAS_NUMPY, "needs NumPy")
class Arrays(unittest.TestCase):
    def setUp(self):
        self.pool = millpond.Pool("64MiB", name=self.id())

    def test_arrays_are_of_the_pool(self):
        import numpy

        array = self.pool.zeros((3, 4), "float32")
        self.assertEqual((array.shape, array.dtype, array.sum()), ((3, 4), numpy.float32, 0))
        self.assertTrue(array.flags.writeable and array.flags.c_contiguous)
        self.assertEqual(array.ctypes.data % 64, 0)
        row = array[1]
        row[:] = 7
        del array
        gc.collect()
        self.assertEqual(self.pool.stats()["requested"], 48)
        self.assertEqual(row.tolist(), [7.0] * 4)
        del row
        gc.collect()
        self.assertEqual(self.pool.stats()["requested"], 0)

    def test_shapes_are_those_of_numpy(self):
        import numpy

        for shape in [0, 5, (), (0, 3), (2, 3, 4), [2, 2]]:
            for dtype in ["u1", "complex128", "datetime64[s]", [("a", "i4"), ("b", "f8")], "S5"]:
                array, expected = self.pool.zeros(shape, dtype), numpy.zeros(shape, dtype)
                self.assertEqual((array.shape, array.dtype), (expected.shape, expected.dtype))
                self.assertEqual(array.tolist(), expected.tolist())
        for shape in [numpy.int64(3), (numpy.uint8(200), 3), [numpy.int32(2)]]:
            self.assertEqual(self.pool.zeros(shape, "S").shape, numpy.zeros(shape, "S").shape)
        self.assertEqual(self.pool.zeros(3, "S").dtype, numpy.zeros(3, "S").dtype)
        for shape, dtype in [(-1, "f8"), ((2, -3), "f8"), (1 << 62, "f8"), (3, "O")]:
            with self.assertRaises(ValueError):
                self.pool.empty(shape, dtype)

    def test_arrays_of_other_libraries_are_copied(self):
        import numpy

        source = numpy.arange(12, dtype="int16").reshape(3, 4)
        for other in [source, source.T, source[::2, ::-1], [[1, 2], [3, 4]], 7, memoryview(b"abc")]:
            copy, expected = self.pool.copy(other), numpy.asarray(other)
            self.assertEqual((copy.dtype, copy.shape, copy.tolist()), (expected.dtype, expected.shape, expected.tolist()))
            self.assertEqual(self.pool.stats()["requested"], copy.nbytes)
            copy[...] = 0
        self.assertEqual(source.sum(), 66)
        with self.assertRaises(ValueError):
            self.pool.copy([object()])
        with self.assertRaises(MemoryError):
            self.pool.copy(numpy.zeros(65 * MIB, "u1"))

    def test_a_limit_refuses_arrays(self):
        with millpond.tag("images"):
            images = self.pool.empty((32, 1024, 1024), "u1")
        with self.assertRaises(MemoryError) as refused:
            self.pool.empty((64, 1024, 1024), "u1")
        self.assertIn("held by images", str(refused.exception))
        self.assertEqual(images.nbytes, 32 * MIB)


if __name__ == "__main__":
    unittest.main()
