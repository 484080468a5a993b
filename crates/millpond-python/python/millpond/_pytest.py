"""The plug-in for pytest: the marker and the fixture ``memory_limits``."""

from collections.abc import Generator

import pytest

from ._limits import limits


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "memory_limits(peak, total, leaked, allocations): limits the memory of millpond's pools that the test may use"
    )


@pytest.fixture
def memory_limits() -> type[limits]:
    """Limits the memory that a part of a test may use: ``with memory_limits(peak="2MiB", leaked=0):``."""
    return limits


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    marker = item.get_closest_marker("memory_limits")
    if marker is None:
        yield
        return
    try:
        if marker.args:
            raise TypeError("write its limits with names, as in memory_limits(peak=\"2MiB\")")
        limited = limits(**marker.kwargs)
    except TypeError as error:
        pytest.fail(f"the marker memory_limits is invalid: {error}", pytrace=False)
    with limited:
        yield
