"""Tests of recordings in memory. Those with pandas, polars and DuckDB run where these are installed."""

import contextlib
import ctypes
import html
import importlib.util
import json
import os
import signal
import sys
import tempfile
import threading
import time
import types
import unittest
import unittest.mock
from pathlib import Path

import millpond
from millpond import _notebook
from millpond.__main__ import main

ROOT = Path(__file__).resolve().parents[3]
TRACE = ROOT / "traces" / "pairs" / "unet.csv.zst"
GIB = 1 << 30


def has(*names):
    return all(importlib.util.find_spec(name) for name in names)


def threads_at_work():
    """Returns the number of threads of the package that work."""
    names = []
    for task in Path("/proc/self/task").iterdir():
        # A thread may end meanwhile.
        with contextlib.suppress(OSError):
            names.append((task / "comm").read_text())
    return names.count("millpond\n")


class Array(ctypes.Structure):
    """Arrow's C data interface."""


Array._fields_ = [
    ("length", ctypes.c_int64),
    ("null_count", ctypes.c_int64),
    ("offset", ctypes.c_int64),
    ("n_buffers", ctypes.c_int64),
    ("n_children", ctypes.c_int64),
    ("buffers", ctypes.POINTER(ctypes.c_void_p)),
    ("children", ctypes.POINTER(ctypes.POINTER(Array))),
    ("dictionary", ctypes.POINTER(Array)),
    ("release", ctypes.CFUNCTYPE(None, ctypes.POINTER(Array))),
    ("private_data", ctypes.c_void_p),
]


class Stream(ctypes.Structure):
    """Arrow's C stream interface."""


Stream._fields_ = [
    ("get_schema", ctypes.c_void_p),
    ("get_next", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Stream), ctypes.POINTER(Array))),
    ("get_last_error", ctypes.c_void_p),
    ("release", ctypes.c_void_p),
    ("private_data", ctypes.c_void_p),
]


def numbers(table, column):
    """Returns the address of the numbers of a column in the first batch, and the numbers."""
    capsule = table.__arrow_c_stream__()
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.POINTER(Stream), [ctypes.py_object, ctypes.c_char_p]
    stream, batch = pointer(capsule, b"arrow_array_stream"), Array()
    if stream.contents.get_next(stream, batch) != 0:
        raise AssertionError("no batch")
    child = batch.children[table.columns.index(column)].contents
    address = child.buffers[1]
    values = list((ctypes.c_int64 * child.length).from_address(address))
    batch.release(batch)
    return address, values


class Recordings(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.recording = millpond.read(TRACE)
        cls.replay = cls.recording.replay(["torch-native", "millpond"], "24GiB")

    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def test_the_verdict_is_that_of_the_command(self):
        page = self.folder / "out.json"
        with open(page, "w") as out:
            saved = os.dup(1)
            os.dup2(out.fileno(), 1)
            try:
                code = main(["replay", "--json", "--device=24GiB", str(TRACE)])
            finally:
                os.dup2(saved, 1)
                os.close(saved)
        self.assertEqual(code, 0)
        told = json.loads(page.read_text())
        verdict = self.recording.verdict(24 * GIB)
        self.assertEqual(verdict.data["verdict"]["sentences"], told["verdict"]["sentences"])
        self.assertEqual(str(verdict), "\n".join(told["verdict"]["sentences"]))
        self.assertTrue(verdict.fits)
        self.assertEqual(verdict.needs, told["verdict"]["own"]["result"]["smallest_device_bytes"])
        # What it needs is enough, and less is not.
        self.assertTrue(self.recording.verdict(verdict.needs).fits)
        less = self.recording.verdict(verdict.needs - (2 << 20))
        self.assertFalse(less.fits)
        self.assertIn("runs out of memory", str(less).replace("\n", " "))

    def test_a_setting_or_an_edit_lowers_what_it_needs(self):
        before = self.recording.verdict()
        half = self.recording.verdict(edits="scale=0.5")
        self.assertLess(half.needs, before.needs)
        self.assertEqual(half.data["edits"][0]["edit"], "scale=0.5")
        both = self.recording.verdict(edits=["scale=0.5"], torch_conf="expandable_segments:True")
        self.assertLessEqual(both.needs, half.needs)
        if before.apply is not None:
            self.assertLess(before.then_needs, before.needs)

    def test_results_are_a_table(self):
        self.assertEqual([result["policy"] for result in self.replay.results], ["torch-native", "millpond"])
        self.assertIn("torch-native", str(self.replay))
        self.assertNotIn("\x1b", str(self.replay))
        self.assertEqual(len(self.replay.table), 2)
        _, peaks = numbers(self.replay.table, "peak_reserved_bytes")
        self.assertEqual(peaks, [result["peak_reserved_bytes"] for result in self.replay.results])
        with unittest.mock.patch.dict(os.environ, {"CLICOLOR_FORCE": "1"}):
            self.assertNotIn("\x1b", str(self.recording.replay(["none"])))

    def test_tables_are_not_copied(self):
        events = self.recording.events()
        first, times = numbers(events, "time")
        second, _ = numbers(events, "time")
        self.assertEqual(first, second)
        self.assertEqual(times, sorted(times))
        self.assertIs(events, self.recording.events())

    def test_settings_are_searched(self):
        tuned = self.recording.tune("24GiB")
        self.assertEqual(len(tuned.table), len(tuned.trials))
        self.assertIn("PYTORCH_CUDA_ALLOC_CONF", str(tuned))
        self.assertTrue(tuned.trials[0]["fits"])

    def test_the_report_and_the_timeline_agree(self):
        report, timeline = self.recording.report(), self.recording.timeline()
        _, held = numbers(timeline.table, "held")
        self.assertEqual(max(held), report.data["summary"]["peak"]["bytes"])
        groups = [numbers(timeline.table, group)[1] for group in timeline.groups]
        self.assertEqual([sum(row) for row in zip(*groups)], held)
        self.assertTrue(timeline.picture.startswith("<svg"))
        timeline.save(self.folder / "run.svg")
        self.assertEqual((self.folder / "run.svg").read_text(), timeline.picture)
        with self.assertRaises(OSError):
            timeline.save("/dev/full")
        self.assertIn("svg", self.recording._repr_html_())
        self.assertIsInstance(report.findings, list)

    def test_without_matplotlib_the_plot_is_the_picture(self):
        timeline = self.recording.timeline("site")
        with unittest.mock.patch.dict(sys.modules, {"matplotlib": None}):
            self.assertIs(timeline.plot(), timeline)
            with self.assertRaises(ImportError):
                timeline.plot(object())

    def test_wrong_values_are_told(self):
        for call, said in [
            (lambda: self.recording.verdict("24Q"), "'24Q' is not a size"),
            (lambda: self.recording.verdict(edits="batch"), "it has no `=`"),
            (lambda: self.recording.replay(["nope"]), "unknown policy 'nope'"),
            (lambda: self.recording.replay(conf="nope:1"), "nope"),
            (lambda: self.recording.tune(of=7), "has no device 7"),
            (lambda: self.recording.report(by="colour"), "colour"),
            (lambda: millpond.read(__file__), "no known format"),
            (lambda: millpond.Table([("a", [1, "b"])]), "different types"),
            (lambda: millpond.Table([("a", [1]), ("b", [])]), "same"),
        ]:
            with self.assertRaises(ValueError) as raised:
                call()
            self.assertIn(said, str(raised.exception))
            self.assertNotIn("\n", str(raised.exception))
        with self.assertRaises(FileNotFoundError) as missing:
            millpond.read(self.folder / "none.csv")
        self.assertEqual(missing.exception.filename, str(self.folder / "none.csv"))
        with self.assertRaises(OSError):
            millpond.read(self.folder)

    def test_other_threads_go_on(self):
        counted, ends = [0], threading.Event()

        def count():
            while not ends.wait(0.01):
                counted[0] += 1

        counter = threading.Thread(target=count)
        counter.start()
        slow = millpond.read(ROOT / "traces" / "llama1b_train_varlen.csv.zst")
        before = counted[0]
        slow.replay(["torch-native", "millpond"], fit=True)
        after = counted[0]
        ends.set()
        counter.join()
        self.assertGreater(after - before, 3)

    def test_a_signal_interrupts_long_work(self):
        slow = millpond.read(ROOT / "traces" / "llama1b_train_varlen.csv.zst")
        signals = []

        def handle(*_):
            signals.append(1)
            # Signals that arrive within one call of the library are handled before its end. Otherwise they would be handled once, after it.
            if len(signals) == 3:
                raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, 0.1, 0.1)
        try:
            with self.assertRaises(KeyboardInterrupt):
                slow.tune(policies=["torch", "millpond"])
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        # The recording still answers.
        self.assertEqual(len(slow.replay(["none"]).results), 1)

    def test_an_interrupt_ends_the_work(self):
        def write(name, steps):
            with open(self.folder / name, "w") as out:
                out.write("time_us,action,id,bytes,stream,tag\n")
                for step in range(steps):
                    out.writelines(f"{step},alloc,{at},{(1 + at) << 12},0,layer {at % 7}\n" for at in range(1000))
                    out.writelines(f"{step},free,{at},{(1 + at) << 12},0,\n" for at in range(1000))
            return self.folder / name

        file = write("long.csv", 400)
        # Reports and replays run the program many times.
        long, short = millpond.read(file), millpond.read(write("short.csv", 40))
        for work in (
            lambda: millpond.read(file),
            long.timeline,
            lambda: long._recording.events(),
            short.report,
            lambda: short.replay(["millpond"], fit=True),
        ):
            began = time.monotonic()
            work()
            whole = time.monotonic() - began
            before = signal.signal(signal.SIGALRM, signal.default_int_handler)
            signal.setitimer(signal.ITIMER_REAL, whole / 5)
            try:
                with self.assertRaises(KeyboardInterrupt):
                    work()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, before)
            # Four fifths of the work are left. The thread does not do them.
            until = time.monotonic() + whole * 2 / 5
            while threads_at_work():
                self.assertLess(time.monotonic(), until, work)
                time.sleep(0.005)

    def test_a_child_answers_too(self):
        self.recording.events()
        child = os.fork()
        if child == 0:
            try:
                answered = self.recording.verdict("24GiB").fits and len(self.recording.events()) > 0
            finally:
                os._exit(0 if answered else 1)
        self.assertEqual(os.waitpid(child, 0)[1], 0)


class Cell:
    """A fake of a notebook, with the contents that its cell has shown."""

    def __init__(self, shell, interrupts=False):
        self.shown, self.updated, self.interrupts = [], threading.Event(), interrupts
        display = types.SimpleNamespace(display=self.display)
        self.modules = {"IPython": types.SimpleNamespace(get_ipython=lambda: shell, display=display), "IPython.display": display}

    def display(self, data, raw, display_id):
        assert raw and display_id
        self.update(data, raw)
        return self

    def update(self, data, raw):
        self.shown.append(data)
        if len(self.shown) == 3:
            self.updated.set()
        if self.interrupts:
            raise KeyboardInterrupt


@unittest.skipUnless(hasattr(os, "mkfifo"), "needs named pipes")
class Progress(unittest.TestCase):
    """A pipe delays the work as long as needed."""

    def setUp(self):
        self.pipe = Path(self.enterContext(tempfile.TemporaryDirectory())) / "run<1>.csv"
        os.mkfifo(self.pipe)

    def read(self, cell, ready):
        """Reads a recording whose end arrives when ``ready`` returns."""

        def write():
            with open(self.pipe, "w") as out:
                out.write("action,id,bytes\n")
                out.flush()
                ready()
                out.write("alloc,1,4096\n")

        writer = threading.Thread(target=write)
        writer.start()
        try:
            with unittest.mock.patch.dict(sys.modules, cell.modules):
                return millpond.read(self.pipe)
        finally:
            writer.join()

    def test_a_notebook_shows_progress_while_work_takes_long(self):
        cell = Cell(types.SimpleNamespace(kernel=None))
        recording = self.read(cell, lambda: cell.updated.wait(60))
        self.assertEqual(recording.devices, [0])
        self.assertEqual(cell.shown[0]["text/plain"], "reading run<1>.csv")
        self.assertEqual(cell.shown[0]["text/html"], f"<progress></progress> {html.escape('reading run<1>.csv')}")
        self.assertEqual(cell.shown[-1], {"text/plain": "", "text/html": ""})
        # Short work shows nothing.
        shown = len(cell.shown)
        with unittest.mock.patch.dict(sys.modules, cell.modules):
            recording.replay(["none"])
        self.assertEqual(len(cell.shown), shown)

    def test_an_interrupt_while_progress_is_shown_ends_the_work(self):
        cell = Cell(types.SimpleNamespace(kernel=None), interrupts=True)
        slow = millpond.read(ROOT / "traces" / "llama1b_train_varlen.csv.zst")
        with unittest.mock.patch.dict(sys.modules, cell.modules), self.assertRaises(KeyboardInterrupt):
            slow.tune(policies=["torch", "millpond"])
        self.assertRegex(cell.shown[0]["text/plain"], r"^trying settings(: \d+ of \d+)?$")

    def test_a_bar_has_a_share(self):
        cell = Cell(types.SimpleNamespace(kernel=None))
        progress = _notebook.Progress()
        with unittest.mock.patch.dict(sys.modules, cell.modules):
            progress.show("trying settings: 1 of 8", 0.125)
        self.assertEqual(cell.shown[0]["text/html"], '<progress value="0.125"></progress> trying settings: 1 of 8')

    def test_a_terminal_and_a_display_that_fails_show_nothing(self):
        terminal = Cell(types.SimpleNamespace())
        self.read(terminal, lambda: time.sleep(0.8))
        self.assertEqual(terminal.shown, [])
        cell, asked = Cell(types.SimpleNamespace(kernel=None)), threading.Event()

        def refuse(*_, **__):
            asked.set()
            raise RuntimeError("no display")

        cell.modules["IPython.display"].display = refuse
        self.assertEqual(self.read(cell, lambda: asked.wait(60)).devices, [0])


@unittest.skipUnless(has("pyarrow", "pandas", "polars", "duckdb"), "needs pyarrow, pandas, polars and duckdb")
class Libraries(unittest.TestCase):
    """Other libraries use the memory of this package without a copy."""

    @classmethod
    def setUpClass(cls):
        cls.recording = millpond.read(TRACE)
        cls.tables = [cls.recording.events(), cls.recording.replay("all").table, cls.recording.timeline().table]
        cls.columns = ["bytes", "peak_reserved_bytes", "held"]

    def test_pandas_and_polars_do_not_copy(self):
        import pandas
        import polars
        import pyarrow

        for table, column in zip(self.tables, self.columns):
            address, values = numbers(table, column)
            arrow = pyarrow.table(table)
            self.assertEqual(arrow[column].chunk(0).buffers()[1].address, address)
            frame = arrow.to_pandas(types_mapper=pandas.ArrowDtype)
            self.assertEqual(pyarrow.array(frame[column]).buffers()[1].address, address)
            other = polars.DataFrame(table)
            self.assertEqual(other[column].to_arrow().buffers()[1].address, address)
            self.assertEqual(other[column].to_list()[: len(values)], values)
            self.assertEqual(frame[column].tolist()[: len(values)], values)

    def test_duckdb_reads_tables(self):
        import duckdb

        events, results, timeline = self.tables
        _, values = numbers(results, "peak_reserved_bytes")
        self.assertEqual(duckdb.sql("select max(peak_reserved_bytes) from results").fetchall(), [(max(values),)])
        self.assertEqual(duckdb.sql("select count(*) from events").fetchall(), [(len(events),)])
        self.assertEqual(duckdb.sql("select count(*) from timeline").fetchall(), [(len(timeline),)])


@unittest.skipUnless(has("matplotlib"), "needs matplotlib")
class Plots(unittest.TestCase):
    def test_matplotlib_draws_the_groups(self):
        import matplotlib

        matplotlib.use("Agg")
        timeline = millpond.read(TRACE).timeline()
        axes = timeline.plot()
        _, labels = axes.get_legend_handles_labels()
        self.assertEqual(labels[: len(timeline.groups)], timeline.groups)
        self.assertIs(timeline.plot(axes), axes)


if __name__ == "__main__":
    unittest.main()
