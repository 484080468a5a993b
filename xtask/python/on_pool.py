"""A plug-in of pytest: NumPy's arrays are in a pool, and the pool is shown at the end."""

import millpond

enabled = millpond.numpy.enable(millpond.Pool(name="tests"))


def pytest_terminal_summary(terminalreporter):
    terminalreporter.write_line(str(enabled.pool))
