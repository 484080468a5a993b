"""The fixture that numba-cuda's tests take from a file that is not in the package."""

import pytest


@pytest.fixture(scope="class")
def initialize_from_pytest_config(request):
    request.cls._dump_failed_filechecks = False
