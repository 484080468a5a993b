"""Tests of limits. Those of the plug-in run where pytest is installed."""

import asyncio
import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

import millpond

MIB = 1 << 20


class Limits(unittest.TestCase):
    def setUp(self):
        self.pool = millpond.Pool()

    def test_a_part_within_its_limits_is_measured(self):
        with millpond.limits(peak="2MiB", leaked=0, allocations=3) as part:
            for _ in range(3):
                self.pool.block(MIB)
        self.assertEqual(part.usage, {"peak": MIB, "total": 3 * MIB, "leaked": 0, "allocations": 3})

    def test_more_is_refused_with_its_tag(self):
        for limits, said in [
            ({"peak": "1MiB"}, "peak: 2.00 MiB, and the limit is 1.00 MiB"),
            ({"total": MIB}, "total: 2.00 MiB"),
            ({"leaked": 0}, "2.00 MiB"),
            ({"allocations": 0}, "1"),
        ]:
            with self.assertRaises(AssertionError) as exceeded:
                with millpond.limits(**limits), millpond.tag("images"):
                    kept = self.pool.block(2 * MIB)
            text = str(exceeded.exception)
            self.assertIn(said, text)
            self.assertIn("images", text)
            self.assertNotIn(";;", text)
            del kept

    def test_what_hangs_together_is_not_leaked(self):
        with millpond.limits(leaked=0):
            both = [memoryview(self.pool.block(MIB))]
            both.append(both)
            del both

    def test_an_error_of_the_program_goes_on(self):
        with self.assertRaises(KeyError):
            with millpond.limits(peak=0):
                self.pool.block(MIB)
                raise KeyError

    def test_a_function_is_limited_in_each_call(self):
        @millpond.limits(leaked=0)
        def step(keep):
            block = self.pool.block(MIB)
            return block if keep else None

        step(False)
        with self.assertRaises(AssertionError):
            step(True)
        step(False)

    def test_threads_and_coroutines_have_limits_of_their_own(self):
        results = []

        @millpond.limits(peak="2MiB")
        def step(first, second, size):
            first.wait(10)
            block = self.pool.block(size)
            second.set()
            del block

        def work(*arguments):
            try:
                step(*arguments)
                results.append("within")
            except AssertionError:
                results.append("beyond")

        begin, middle, end = threading.Event(), threading.Event(), threading.Event()
        threads = [threading.Thread(target=work, args=(begin, middle, MIB)), threading.Thread(target=work, args=(middle, end, 3 * MIB))]
        for thread in threads:
            thread.start()
        begin.set()
        for thread in threads:
            thread.join()
        self.assertEqual(sorted(results), ["beyond", "within"])

        @millpond.limits(peak=0)
        async def coroutine():
            self.pool.block(MIB)

        with self.assertRaises(AssertionError):
            asyncio.run(coroutine())
        scope, errors = millpond.limits(), []
        with scope:
            def end_elsewhere():
                try:
                    scope.__exit__(None, None, None)
                except RuntimeError as error:
                    errors.append(str(error))

            thread = threading.Thread(target=end_elsewhere)
            thread.start()
            thread.join()
        self.assertIn("belongs to one thread", errors[0])

    def test_a_limit_is_a_size(self):
        with self.assertRaises(ValueError):
            with millpond.limits(peak="2 cups"):
                pass
        for limits in [{"peak": -1}, {"allocations": -1}]:
            with self.assertRaises(ValueError):
                with millpond.limits(**limits):
                    pass
        with self.assertRaises(TypeError):
            with millpond.limits(peak=1.5):
                pass


@unittest.skipUnless(importlib.util.find_spec("pytest"), "needs pytest")
class Plugin(unittest.TestCase):
    def test_the_marker_and_the_fixture(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "test_it.py").write_text(
                """
import millpond, pytest

pool = millpond.Pool()

@pytest.mark.memory_limits(peak="2MiB", leaked=0)
def test_within():
    pool.block(1 << 20)

@pytest.mark.memory_limits(peak="2MiB")
def test_beyond():
    pool.block(3 << 20)

def test_part(memory_limits):
    with pytest.raises(AssertionError), memory_limits(peak=0):
        pool.block(1)
"""
            )
            # An installed package brings its plug-in itself.
            is_installed = any(one.value == "millpond._pytest" for one in importlib.metadata.entry_points(group="pytest11"))
            plugin = [] if is_installed else ["-p", "millpond._pytest"]
            done = subprocess.run(
                [sys.executable, "-B", "-m", "pytest", *plugin, "-q", "--strict-markers", "-p", "no:cacheprovider", folder],
                capture_output=True,
                text=True,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            )
            self.assertIn("1 failed, 2 passed", done.stdout + done.stderr)
            self.assertIn("peak: 3.00 MiB, and the limit is 2.00 MiB", done.stdout)


if __name__ == "__main__":
    unittest.main()
