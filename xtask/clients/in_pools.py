"""A pytest plugin that runs a library's tests with its memory in pools. MILLPOND_IN_POOLS is the name of the library.

The library starts each test with the pools as its allocator. A test that sets another one keeps it. At the end, the number of blocks that the
pools have allocated goes to the file that MILLPOND_REPORT names.
"""

import json
import os

import millpond
import pytest

LIBRARY = os.environ["MILLPOND_IN_POOLS"]
if LIBRARY == "numba-cuda":
    os.environ["NUMBA_CUDA_MEMORY_MANAGER"] = "millpond.numba"

pools = {}


def pool(device):
    if device not in pools:
        pools[device] = millpond.numba.pool(device) if LIBRARY == "numba-cuda" else millpond.DevicePool(device=device)
    return pools[device]


@pytest.fixture(autouse=True)
def in_pools(request):
    if LIBRARY == "cupy":
        import cupy

        cupy.cuda.set_allocator(millpond.cupy.allocator(pool(0), pool(1)))
    elif LIBRARY == "cuda.core" and "init_cuda" in request.fixturenames:
        from cuda.core import Device

        # This fixture of the tests makes a device current.
        request.getfixturevalue("init_cuda")
        device = Device()
        device.memory_resource = millpond.cuda_core.memory_resource(pool(device.device_id))


def pytest_sessionfinish():
    allocations = pool(0).stats()["allocations"]
    with open(os.environ["MILLPOND_REPORT"], "a", encoding="utf-8") as file:
        file.write(json.dumps({"event": "pools", "allocations": allocations}) + "\n")
