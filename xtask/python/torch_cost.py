"""What PyTorch's recording costs: the time of allocations and frees, host memory, and the time of a snapshot and of an answer."""

import os
import pickle
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import millpond
import torch

DEPTHS = (5, 20, 50)
ROUNDS = 9
PAIRS = 20_000
#: An allocation and its free are three entries: the request, the call that frees, and the end of the free.
ENTRIES_OF_PAIR = 3


def pairs(count: int) -> None:
    for _ in range(count):
        block = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
        del block


def at_depth(depth: int, work: Callable[[], object]) -> None:
    """Calls a function with this many frames of Python below it."""
    frames, frame = 0, sys._getframe()
    while frame is not None:
        frames, frame = frames + 1, frame.f_back
    descend(depth - frames, work)


def descend(more: int, work: Callable[[], object]) -> None:
    if more > 0:
        descend(more - 1, work)
    else:
        work()


def timed() -> float:
    """Returns the microseconds of one allocation and free."""
    begin = time.perf_counter()
    pairs(PAIRS)
    return (time.perf_counter() - begin) / PAIRS * 1e6


def show(name: str, values: list[float]) -> str:
    return f"{name}{statistics.median(values):8.2f} ({min(values):.2f} to {max(values):.2f})"


def times() -> None:
    print(f"\nmicroseconds of torch.empty and del, median of {ROUNDS} rounds (least to most)")
    print(f"{'frames':>6}  {'without':>26}  {'recorded':>26}  {'ratio':>22}")
    for depth in DEPTHS:
        without: list[float] = []
        recorded: list[float] = []

        def both() -> None:
            without.append(timed())
            with millpond.catch_oom():
                recorded.append(timed())

        pairs(PAIRS)
        for _ in range(ROUNDS):
            at_depth(depth - 3, both)
        ratios = [after / before for before, after in zip(without, recorded)]
        print(f"{depth:>6}  {show('', without):>26}  {show('', recorded):>26}  {show('', ratios):>22}")


def resident() -> int:
    """Returns the bytes of host memory that this process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def history(entries: int, depth: int) -> None:
    """Fills a recording, takes a snapshot of it, and runs out of memory."""
    with millpond.catch_oom():
        pairs(1)
        begin = time.perf_counter()
        # The first snapshot of a process imports a part of PyTorch.
        torch.cuda.memory._snapshot()
        first = time.perf_counter() - begin
    answered: list[float] = []
    before = resident()
    with tempfile.TemporaryDirectory() as folder:
        try:
            with millpond.catch_oom(f"{folder}/run.html", tell=lambda _: answered.append(time.perf_counter())):
                at_depth(depth, lambda: pairs(entries // ENTRIES_OF_PAIR))
                grown = resident() - before
                begin = time.perf_counter()
                snapshot = torch.cuda.memory._snapshot()
                taken = time.perf_counter() - begin
                count = len(snapshot["device_traces"][0])
                begin = time.perf_counter()
                with open(f"{folder}/other.pickle", "wb") as out:
                    pickle.dump(snapshot, out)
                    size = out.tell()
                written = time.perf_counter() - begin
                del snapshot
                begin = time.perf_counter()
                torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            answer = answered[0] - begin
    row = [f"{count:,}", f"{depth}", f"{grown / count:.0f}", f"{size / count:.0f}"]
    print_row(row + [f"{seconds:.2f}" for seconds in (first, taken, written, answer)])


def print_row(fields: list[str]) -> None:
    print("".join(f"{field:>11}" for field in fields), flush=True)


if len(sys.argv) == 3:
    history(int(sys.argv[1]), int(sys.argv[2]))
else:
    print(f"PyTorch {torch.__version__}, Python {sys.version.split()[0]}")
    times()
    print("\nhost memory and size of the file in bytes for each entry; seconds of the first snapshot, which imports a part of PyTorch,")
    print("of a snapshot, of writing it, and from the failure to the answer")
    print_row(["entries", "frames", "memory", "file", "first", "snapshot", "written", "answer"])
    for entries in (100_000, 999_000):
        for depth in (5, 20):
            subprocess.run([sys.executable, "-W", "ignore", __file__, str(entries), str(depth)], check=True)
