"""Runs Numba's own tests of memory twice, with its memory manager and with a pool, and compares the tests that fail.

The emulated driver runs no kernels of Numba, so some tests fail both times.
"""

import os
import re
import subprocess
import sys

MODULES = (
    *("test_cuda_memory", "test_cuda_ndarray", "test_cuda_array_slicing", "test_deallocations", "test_context_stack", "test_pinned"),
    *("test_managed_alloc", "test_reset_device", "test_array_attr", "test_cuda_auto_context", "test_streams"),
    *("test_cuda_devicerecord", "test_events", "test_select_device"),
)
# `test_host_alloc_pinned` clears as many bytes as the driver says that an allocation has. The driver knows only that of the whole pool.
OTHERS = (
    "numba.cuda.tests.cudadrv.test_host_alloc.TestHostAlloc.test_host_alloc_driver",
    "numba.cuda.tests.cudadrv.test_host_alloc.TestHostAlloc.test_host_alloc_mapped",
    "numba.cuda.tests.cudapy.test_cuda_array_interface",
)


def failures(manager):
    """Returns the number of tests that ran with a memory manager, and the names of those that failed."""
    names = [f"numba.cuda.tests.cudadrv.{module}" for module in MODULES]
    done = subprocess.run(
        [sys.executable, "-m", "unittest", *names, *OTHERS],
        env=os.environ | {"NUMBA_CUDA_MEMORY_MANAGER": manager},
        capture_output=True,
        text=True,
    )
    ran = re.search(r"^Ran (\d+) tests", done.stderr, re.MULTILINE)
    if ran is None:
        sys.exit(f"the tests did not run with {manager}: {done.stderr[-2000:]}")
    return int(ran[1]), set(re.findall(r"^(?:FAIL|ERROR): (.+)$", done.stderr, re.MULTILINE))


(ran, own), (also, pooled) = failures("default"), failures("millpond.numba")
print(f"{ran} tests ran with Numba's memory manager, and {also} with a pool; {len(own)} and {len(pooled)} failed")
if ran != also or own != pooled or ran < 100 or len(own) > ran // 2:
    sys.exit("\n".join(["these tests differ:", *sorted(own ^ pooled)]))
