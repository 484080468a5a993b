"""Explains why a PyTorch program ran out of GPU memory, and what to change.

    import millpond

    with millpond.catch_oom("run.html"):
        train()

If memory runs out inside the block, the reason and the remedy are printed, the page ``run.html`` shows the details, and the exception
propagates.
``python -m millpond run train.py`` does the same for a whole program.

Answers to a recording, such as a snapshot of PyTorch:

    recording = millpond.read("run.pickle")
    print(recording.verdict(device="24GiB"))
    table = recording.events()

Memory with an account of every byte:

    pool = millpond.Pool(limit="2GiB")
    with millpond.tag("weights"):
        weights = pool.zeros((1024, 1024), "float32")

Pools as the memory of other libraries:

    millpond.torch.enable()
    millpond.cupy.enable()
    millpond.numba.enable()
    memory = millpond.cuda_core.memory_resource()

``python -m millpond`` is the command ``millpond``.
"""

from . import cuda_core, cupy, numba, numpy, torch
from ._devices import DevicePool
from ._millpond import Block, Budget, DeviceArray, Table
from ._limits import limits
from ._oom import catch_oom
from ._pools import Live, Pool, leaks, mark, record, tag
from ._recording import Recording, Replay, Report, Timeline, Tuned, Verdict, read

__all__ = [
    "Block",
    "Budget",
    "DeviceArray",
    "DevicePool",
    "Live",
    "Pool",
    "Recording",
    "Replay",
    "Report",
    "Table",
    "Timeline",
    "Tuned",
    "Verdict",
    "catch_oom",
    "cuda_core",
    "cupy",
    "leaks",
    "limits",
    "mark",
    "numba",
    "numpy",
    "read",
    "record",
    "tag",
    "torch",
]
