"""Tests of a disk that becomes full. A limit on the size of files simulates it, because that needs no privileges."""

import contextlib
import io
import os
import random
import resource
import signal
import sys
import tempfile
import time
import unittest
import unittest.mock
from pathlib import Path

import millpond
from millpond.__main__ import main

ROOT = Path(__file__).resolve().parents[3]
KIB, MIB = 1 << 10, 1 << 20


class FullDisk(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.pool = millpond.Pool("64MiB", name=self.id())
        # The signal would end the process.
        self.addCleanup(signal.signal, signal.SIGXFSZ, signal.signal(signal.SIGXFSZ, signal.SIG_IGN))
        self.addCleanup(resource.setrlimit, resource.RLIMIT_FSIZE, resource.getrlimit(resource.RLIMIT_FSIZE))
        self.enterContext(unittest.mock.patch.dict(sys.modules, {"torch": None}))

    def limit(self, bytes):
        """Limits the size of files until the end of the test."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (bytes, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

    def allocate(self, blocks):
        """Allocates and frees blocks of sizes that do not compress."""
        sizes = random.Random(7)
        for _ in range(blocks):
            self.pool.block(sizes.randrange(1, 4096))

    def allocate_until_full(self, file):
        """Allocates until a file has reached its limit."""
        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        until = time.monotonic() + 60
        while file.stat().st_size < limit:
            self.allocate(100)
            # The recording is written in parts.
            time.sleep(0.01)
            self.assertLess(time.monotonic(), until, "the file does not grow")

    def files(self):
        return sorted(file.name for file in self.folder.iterdir())

    def test_a_program_goes_on_and_the_recording_says_that_it_is_incomplete(self):
        file = self.folder / "run.mpr"
        kept = memoryview(self.pool.block(MIB, zeroed=True))
        kept[7] = 200
        self.limit(128 * KIB)
        with self.assertRaises(OSError) as full:
            with millpond.record(file):
                self.allocate_until_full(file)
                self.allocate(100_000)
                late = memoryview(self.pool.block(MIB))
                late[7] = 100
        self.assertIn(str(file), str(full.exception))
        self.assertIn("File too large", str(full.exception))
        self.assertIn("the rest is lost", str(full.exception))
        self.assertEqual((kept[7], late[7], self.pool.stats()["requested"]), (200, 100, 2 * MIB))
        # The part that was written is read, and another recording begins.
        self.assertGreater(len(millpond.read(file).events()), 1000)
        with millpond.record(self.folder / "next.mpr"):
            self.allocate(10)
        self.assertEqual(millpond.read(self.folder / "next.mpr").report().data["summary"]["allocated"]["blocks"], 10)

    def test_an_error_of_the_program_goes_on(self):
        file = self.folder / "run.mpr"
        self.limit(128 * KIB)
        with self.assertRaises(KeyError) as error, millpond.record(file):
            self.allocate_until_full(file)
            raise KeyError("theirs")
        self.assertIn("is incomplete", error.exception.__notes__[0])

    def test_a_recording_that_cannot_begin_leaves_no_file(self):
        self.limit(100)
        with self.assertRaises(OSError) as full:
            with millpond.record(self.folder / "run.mpr"):
                self.fail("it has begun")
        self.assertEqual(full.exception.filename, str(self.folder / "run.mpr"))
        self.assertEqual(self.files(), [])
        self.limit(MIB)
        with millpond.record(self.folder / "run.mpr"):
            self.allocate(10)

    def explained(self, work):
        """Returns the answer to a program that runs out of memory."""
        answers, said = [], io.StringIO()
        with contextlib.redirect_stderr(said), self.assertRaises(MemoryError):
            with millpond.catch_oom(self.folder / "run.html", tell=answers.append):
                work()
                self.pool.block(65 * MIB)
        self.assertEqual((len(answers), said.getvalue()), (1, ""))
        return answers[0]

    def test_catch_oom_says_that_the_recording_is_incomplete(self):
        self.limit(32 * KIB)
        part = self.folder / f".run.{os.getpid()}.mpr.part"
        answer = self.explained(lambda: self.allocate_until_full(part))
        self.assertIn("the reason is unknown", answer)
        self.assertIn("File too large", answer)
        self.assertEqual(self.files(), [])
        # The message is also printed if the program does not fail.
        said = io.StringIO()
        with contextlib.redirect_stderr(said), millpond.catch_oom(self.folder / "run.html"):
            self.allocate_until_full(part)
        self.assertIn("File too large", said.getvalue())
        self.assertEqual(self.files(), [])

    def test_catch_oom_keeps_a_recording_whose_page_has_no_room(self):
        self.limit(32 * KIB)
        answer = self.explained(lambda: self.allocate(10))
        self.assertIn(f"File too large: '{self.folder / 'run.html'}'", answer)
        self.assertIn(f"the recording is in {self.folder / 'run.mpr'}", answer)
        self.assertEqual(self.files(), ["run.mpr"])
        self.assertIn("65.0 MiB", str(millpond.read(self.folder / "run.mpr").report()))

    def test_the_page_of_a_replay_is_complete_or_missing(self):
        page = self.folder / "unet.html"
        with open(self.folder / "said", "w") as out:
            saved = os.dup(2)
            os.dup2(out.fileno(), 2)
            try:
                self.limit(32 * KIB)
                code = main(["replay", str(ROOT / "traces" / "pairs" / "unet.csv.zst"), f"--html={page}"])
            finally:
                os.dup2(saved, 2)
                os.close(saved)
        self.assertEqual(code, 2)
        self.assertIn(f"cannot write {page}: File too large", (self.folder / "said").read_text())
        self.assertEqual(self.files(), ["said"])


if __name__ == "__main__":
    unittest.main()
