"""Tests of the package, with a fake of PyTorch."""

import asyncio
import contextlib
import html
import io
import os
import pickle
import subprocess
import sys
import tempfile
import types
import unittest
import unittest.mock
import warnings
from pathlib import Path

import torch

import millpond
from millpond.__main__ import main

MIB = 1 << 20


def snapshot(folder):
    """Returns the snapshot of a program that fragments its memory and then asks for 150 MiB."""
    rows = ["time_us,action,id,bytes,stream,tag,address"]

    def row(action, block, size, address):
        rows.append(f"{len(rows) * 1000},{action},{block},{size},0,net;;mm;net.py:forward:7,{address}")

    for at in range(5):
        start = (1 + at) << 30
        row("segment_alloc", 0, 100 * MIB, start)
        row("alloc", 20 + at, 100 * MIB, start)
        row("free", 20 + at, 100 * MIB, start)
        row("alloc", 2 * at, 40 * MIB, start)
        row("alloc", 2 * at + 1, 40 * MIB, start + 40 * MIB)
    for at in range(5):
        row("free", 2 * at, 40 * MIB, (1 + at) << 30)
    row("oom", 0, 150 * MIB, 10 * MIB)
    csv, file = Path(folder, "made.csv"), Path(folder, "made.pickle")
    csv.write_text("\n".join(rows) + "\n")
    if main(["convert", str(csv), str(file), "--quiet"]) != 0:
        raise AssertionError("the snapshot cannot be made")
    with open(file, "rb") as data:
        return pickle.load(data)


class Package(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.page = self.folder / "run.html"
        torch.State.is_available = True
        torch.State.is_initialized = torch.State.is_enabled = torch.State.refuses = False
        torch.State.snapshot = snapshot(self.folder)
        torch.State.calls.clear()
        for name in ("WORLD_SIZE", "RANK"):
            os.environ.pop(name, None)

    def fail_in(self, catcher):
        """Runs a program that runs out of memory. Returns what was printed."""
        said = io.StringIO()
        with contextlib.redirect_stderr(said), self.assertRaises(torch.OutOfMemoryError):
            with catcher:
                torch.allocate()
        return " ".join(said.getvalue().split())

    def test_the_reason_is_printed_and_the_error_goes_on(self):
        said = self.fail_in(millpond.catch_oom(self.page))
        self.assertIn("150 MiB were requested", said)
        self.assertIn("expandable_segments:True", said)
        self.assertIn(f"page: {self.page}", said)
        self.assertTrue(self.page.read_text().startswith("<!doctype html>"))
        recording = self.folder / "run.pickle"
        self.assertEqual(pickle.loads(recording.read_bytes()), torch.State.snapshot)
        # No part of a file is left.
        self.assertEqual({file.suffix for file in self.folder.iterdir()}, {".csv", ".pickle", ".html"})
        # A second run replaces the files.
        self.assertIn("150 MiB", self.fail_in(millpond.catch_oom(self.page)))

    def test_the_snapshot_is_that_of_the_failure(self):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), self.assertRaises(torch.OutOfMemoryError):
            with millpond.catch_oom(self.page):
                try:
                    torch.allocate()
                finally:
                    # The program frees its tensors while the error passes.
                    torch.State.snapshot = {"segments": [], "device_traces": []}
        self.assertIn("150 MiB were requested", " ".join(said.getvalue().split()))

    def test_recording_begins_and_ends_with_the_block(self):
        with millpond.catch_oom(self.page, max_entries=7):
            self.assertEqual(torch.State.calls, [("all", {"max_entries": 7, "stacks": "python"})])
            with millpond.catch_oom(self.page):
                pass
            self.assertTrue(torch.State.is_enabled)
        self.assertEqual(torch.State.calls[1:], [(None, {})])
        self.assertFalse(self.page.exists())

    def test_the_first_request_may_fail(self):
        # The page of this run would show another failure.
        self.fail_in(millpond.catch_oom(self.page))
        self.assertTrue(self.page.exists())
        frame = {"name": "load", "filename": "train.py", "line": 5}
        refused = {"action": "oom", "addr": 0, "size": 150 << 20, "stream": 0, "time_us": 5, "device_free": 100 << 20, "frames": [frame]}
        torch.State.snapshot = {"segments": [], "device_traces": [[refused]]}
        said = []
        with self.assertRaises(torch.OutOfMemoryError), millpond.catch_oom(self.page, tell=said.append):
            torch.allocate()
        [text] = said
        self.assertFalse(self.page.exists())
        self.assertIn("150 MiB were requested for train.py:load:5.", " ".join(text.split()))
        self.assertIn("The program held nothing, and the device had 100 MiB free, which is 50.0 MiB too little.", " ".join(text.split()))
        self.assertNotIn("page:", text)

    def test_nested_blocks_explain_an_error_once(self):
        said = []
        outer = self.page.with_stem("outer")
        with self.assertRaises(torch.OutOfMemoryError), millpond.catch_oom(outer, tell=said.append):
            with millpond.catch_oom(self.page, tell=said.append):
                torch.allocate()
        self.assertEqual((len(said), self.page.exists(), outer.exists()), (1, True, False))
        # Nor is an error explained again that was raised from it.
        with self.assertRaises(RuntimeError), millpond.catch_oom(outer, tell=said.append):
            try:
                with millpond.catch_oom(self.page, tell=said.append):
                    torch.allocate()
            except torch.OutOfMemoryError as error:
                raise RuntimeError("the step failed") from error
        self.assertEqual((len(said), outer.exists()), (2, False))

    def test_a_program_runs_where_pytorch_does_not_record(self):
        torch.State.refuses = True
        with self.assertWarnsRegex(UserWarning, "records nothing: cudaMallocAsync"), millpond.catch_oom(self.page):
            ran = True
        self.assertTrue(ran)

    def test_the_last_of_overlapping_blocks_ends_the_recording(self):
        first, second = millpond.catch_oom(self.page), millpond.catch_oom(self.page)
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        self.assertTrue(torch.State.is_enabled)
        second.__exit__(None, None, None)
        self.assertFalse(torch.State.is_enabled)

    def test_a_recording_of_the_program_is_left_alone(self):
        torch.State.is_initialized = torch.State.is_enabled = True
        self.assertIn("150 MiB", self.fail_in(millpond.catch_oom(self.page)))
        self.assertEqual(torch.State.calls, [])

    def test_a_decorated_function_can_be_called_again_and_recursively(self):
        @millpond.catch_oom(self.page)
        def times(n):
            return 1 if n == 0 else n * times(n - 1)

        self.assertEqual([times(4), times(3)], [24, 6])
        self.assertFalse(torch.State.is_enabled)

    def test_other_errors_and_handled_ones_are_not_explained(self):
        for other in (KeyError, KeyboardInterrupt, SystemExit):
            with self.assertRaises(other), millpond.catch_oom(self.page):
                raise other
            self.assertFalse(torch.State.is_enabled)
        with millpond.catch_oom(self.page):
            with contextlib.suppress(torch.OutOfMemoryError):
                torch.allocate()
        self.assertFalse(self.page.exists())

    def test_an_error_raised_from_it_is_explained(self):
        said = io.StringIO()
        with contextlib.redirect_stderr(said), self.assertRaises(ValueError):
            with millpond.catch_oom(self.page):
                try:
                    torch.allocate()
                except torch.OutOfMemoryError as error:
                    raise ValueError("the batch is too large") from error
        self.assertIn("150 MiB", " ".join(said.getvalue().split()))

    def test_a_failure_to_write_does_not_replace_the_error(self):
        said = self.fail_in(millpond.catch_oom(self.folder / "missing" / "run.html"))
        self.assertIn("the reason is unknown", said)
        self.assertNotIn("the recording is in", said)
        # A page that another program wrote is not replaced, and the recording is kept.
        self.page.write_text("mine")
        said = self.fail_in(millpond.catch_oom(self.page))
        self.assertIn(f"the recording is in {self.folder / 'run.pickle'}", said)
        self.assertEqual(self.page.read_text(), "mine")
        full = Path("/dev/full")
        if full.exists():
            part = self.folder / f"none.pickle.{os.getpid()}.part"
            part.symlink_to(full)
            said = self.fail_in(millpond.catch_oom(self.folder / "none.html"))
            self.assertIn("No space left", said)
            self.assertFalse(part.is_symlink())

    def test_each_rank_has_files_and_one_prints(self):
        os.environ["WORLD_SIZE"] = "2"
        os.environ["MASTER_PORT"] = self.folder.name
        said = []
        for rank in "01":
            os.environ["RANK"] = rank
            said.append(self.fail_in(millpond.catch_oom(self.page)))
            self.assertTrue((self.folder / f"run-rank{rank}.html").exists())
        self.assertIn("150 MiB", said[0])
        self.assertEqual(said[1], "")
        # The mark of an earlier job of the same parent does not count.
        (mark,) = Path(tempfile.gettempdir()).glob(f"millpond-*-{''.join(c if c.isalnum() else '-' for c in self.folder.name)}")
        self.addCleanup(mark.unlink)
        os.utime(mark, (0, 0))
        said = [self.fail_in(millpond.catch_oom(self.page)) for _ in range(2)]
        self.assertIn("150 MiB", said[0])
        self.assertEqual(said[1], "")

    def test_a_notebook_shows_the_page_in_the_cell(self):
        shown = []
        display = types.SimpleNamespace(display=shown.append, HTML=lambda text: text)
        shell = types.SimpleNamespace(kernel=None)
        notebook = types.SimpleNamespace(get_ipython=lambda: shell, display=display)
        with unittest.mock.patch.dict(sys.modules, {"IPython": notebook, "IPython.display": display}):
            self.fail_in(millpond.catch_oom(self.page))
            self.assertEqual(len(shown), 1)
            frame = html.unescape(shown[0].split('"')[1])
            self.assertEqual(frame, self.page.read_text())
            # A shell in a terminal cannot show it.
            del shell.kernel
            self.fail_in(millpond.catch_oom(self.page))
        self.assertEqual(len(shown), 1)

    def test_pools_are_explained_without_pytorch(self):
        pool = millpond.Pool("8MiB")

        def work():
            with millpond.tag("weights"):
                return pool.block(6 * MIB), pool.block(4 * MIB)

        with unittest.mock.patch.dict(sys.modules, {"torch": None}):
            said = io.StringIO()
            with contextlib.redirect_stderr(said), self.assertRaises(MemoryError):
                with millpond.catch_oom(self.page):
                    work()
            self.assertIn("4.00 MiB were requested for weights", " ".join(said.getvalue().split()))
            self.assertTrue(self.page.read_text().startswith("<!doctype html>"))
            self.assertIn("weights", str(millpond.read(self.folder / "run.mpr").report()))
            # Nothing is left of a program that finishes, or that fails for another reason.
            other = self.folder / "other.html"
            with contextlib.suppress(KeyError), millpond.catch_oom(other):
                raise KeyError
            self.assertEqual(list(self.folder.glob("other*")), [])
            with warnings.catch_warnings(record=True) as warned:
                warnings.simplefilter("always")
                with millpond.catch_oom(other), millpond.catch_oom(other):
                    pass
                with millpond.catch_oom(self.folder / "none" / "run.html"):
                    pass
            self.assertEqual(["records nothing" in str(one.message) for one in warned], [True])
            self.assertEqual(warned[0].filename, __file__)

    def without_torch(self):
        return unittest.mock.patch.dict(sys.modules, {"torch": None})

    def test_files_of_the_program_stay(self):
        pool, kept = millpond.Pool("8MiB"), self.folder / "run.mpr"
        block = pool.block(MIB)
        with self.without_torch():
            with millpond.record(kept):
                pool.block(MIB)
            before = kept.read_bytes()
            with millpond.catch_oom(self.page):
                pool.block(MIB)
            self.assertEqual(kept.read_bytes(), before)
            # The program changes its folder, and a child of it ends.
            below = self.folder / "below"
            below.mkdir()
            (below / "run.mpr").write_text("precious")
            here = os.getcwd()
            os.chdir(self.folder)
            try:
                with contextlib.redirect_stderr(io.StringIO()), self.assertRaises(MemoryError):
                    with millpond.catch_oom("run.html"):
                        os.chdir(below)
                        block = pool.block(6 * MIB), pool.block(6 * MIB)
            finally:
                os.chdir(here)
            self.assertEqual((below / "run.mpr").read_text(), "precious")
            self.assertTrue(self.page.exists())
            # A child that leaves the block explains nothing, and its parent does.
            answers = []
            try:
                with self.assertRaises(MemoryError), millpond.catch_oom(self.page, tell=answers.append):
                    child = os.fork()
                    if child == 0:
                        pool.block(9 * MIB)
                    self.assertEqual(os.waitpid(child, 0)[1], 0)
                    pool.block(9 * MIB)
            finally:
                if child == 0:
                    os._exit(len(answers))
            self.assertEqual(len(answers), 1)
            # A file that is no recording is not replaced.
            (self.folder / "other.mpr").write_text("precious")
            said = io.StringIO()
            with contextlib.redirect_stderr(said), self.assertRaises(MemoryError):
                with millpond.catch_oom(self.folder / "other.html"):
                    pool.block(9 * MIB)
            self.assertIn("is not a recording", said.getvalue())
            self.assertEqual((self.folder / "other.mpr").read_text(), "precious")
        self.assertEqual([file.name for file in self.folder.rglob("*.part")], [])
        del block

    def test_a_recording_of_the_program_goes_before(self):
        pool = millpond.Pool()
        with self.without_torch(), millpond.catch_oom(self.page):
            with millpond.record(self.folder / "own.mpr"):
                pool.block(MIB)
        self.assertIn("1 block", str(millpond.read(self.folder / "own.mpr").report()))

    def test_only_pools_that_run_out_are_explained(self):
        pool = millpond.Pool("8MiB")

        def handled():
            try:
                pool.block(9 * MIB)
            except MemoryError:
                sys.exit(0)

        def hidden():
            try:
                pool.block(9 * MIB)
            except MemoryError:
                raise KeyError from None

        def other():
            raise MemoryError

        def group():
            try:
                pool.block(9 * MIB)
            except MemoryError as error:
                raise ExceptionGroup("tasks", [error]) from None

        with self.without_torch():
            for work, is_explained in [(handled, False), (hidden, False), (other, False), (group, True)]:
                answers = []
                with self.assertRaises((SystemExit, KeyError, MemoryError, ExceptionGroup)):
                    with millpond.catch_oom(self.page, tell=answers.append):
                        pool.block(MIB)
                        work()
                self.assertEqual(len(answers), is_explained, work)

            def refuse(_):
                raise OSError("no terminal")

            said = io.StringIO()
            with contextlib.redirect_stderr(said), self.assertRaises(MemoryError):
                with millpond.catch_oom(self.page, tell=refuse):
                    pool.block(9 * MIB)
            self.assertIn("no terminal", said.getvalue())

    def test_calls_of_a_coroutine_are_explained(self):
        pool, answers = millpond.Pool("8MiB"), []

        @millpond.catch_oom(self.page, tell=answers.append)
        async def work():
            await asyncio.sleep(0)
            return pool.block(6 * MIB), pool.block(6 * MIB)

        async def both():
            return await asyncio.gather(work(), work(), return_exceptions=True)

        with self.without_torch():
            self.assertEqual([type(one) for one in asyncio.run(both())], [MemoryError, MemoryError])
        self.assertEqual(len(answers), 2)
        with self.assertRaises(TypeError):
            @millpond.catch_oom(self.page)
            def generator():
                yield

    def test_without_a_device_the_program_runs_with_a_warning(self):
        torch.State.is_available = False
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            with millpond.catch_oom(self.page):
                pass
        self.assertEqual([str(one.message) for one in warned], ["catch_oom records this package's pools only: PyTorch finds no CUDA device"])
        self.assertEqual(warned[0].filename, __file__)

    def test_wrong_arguments_are_refused(self):
        with self.assertRaisesRegex(ValueError, "at least 1"):
            millpond.catch_oom(self.page, max_entries=0)
        for page in ["", "run.pickle", "run.mpr"]:
            with self.assertRaisesRegex(ValueError, "not a valid name of a page"):
                millpond.catch_oom(page)

    def python(self, *arguments):
        return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=self.folder)

    def test_the_command_is_the_command(self):
        recording = str(self.folder / "made.pickle")
        done = self.python("-m", "millpond", "report", recording)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("150 MiB were requested", " ".join(done.stdout.split()))
        done = self.python("-m", "millpond", "replay", "no-such-file")
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertTrue(done.stderr.startswith("millpond: cannot read no-such-file"), done.stderr)
        done = self.python("-m", "millpond", "replay", recording, "--device", "100MiB")
        self.assertEqual(done.returncode, 3, done.stderr)

    def test_run_runs_a_program_or_a_module(self):
        program = self.folder / "code" / "train.py"
        program.parent.mkdir()
        program.write_text(
            "import pickle, sys, torch, beside\n"
            "import os.path as at\n"
            "assert at.dirname(at.abspath(beside.__file__)) == at.dirname(at.abspath(__file__))\n"
            "assert __name__ == '__main__' and sys.argv[1:] == ['--page', 'x']\n"
            "torch.State.snapshot = pickle.load(open('made.pickle', 'rb'))\n"
            "torch.allocate()\n"
        )
        (program.parent / "beside.py").write_text("")
        (self.folder / "beside.py").write_text("")
        (self.folder / "module.py").write_text(program.read_text())
        for named in (["code/train.py"], ["-m", "module"]):
            self.page.unlink(missing_ok=True)
            done = self.python("-m", "millpond", "run", "--page", "run.html", *named, "--page", "x")
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertIn("150 MiB were requested", " ".join(done.stderr.split()))
            self.assertNotIn("runpy", done.stderr)
            traceback, answer = done.stderr.split("millpond: out of memory")
            self.assertRegex(traceback, r"File \".*\.py\", line 6, in <module>\n(.*\n)*torch.OutOfMemoryError")
            self.assertNotIn("Traceback", answer)
            self.assertTrue(self.page.exists())
        program.write_text("import sys\nsys.exit(7)\n")
        self.assertEqual(self.python("-m", "millpond", "run", "code/train.py").returncode, 7)


if __name__ == "__main__":
    unittest.main()
