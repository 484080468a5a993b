"""A pytest plugin that writes a line of JSON when a test begins and when it ends.

The lines go to the file that MILLPOND_REPORT names. Tests that began in an earlier run of the same file are left out, so that a run that
a test has ended can be continued behind this test.
"""

import json
import os

import pytest

PLACE = os.environ["MILLPOND_REPORT"]
LONGEST = 20_000


def write(**line):
    with open(PLACE, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")


def begun():
    if not os.path.exists(PLACE):
        return set()
    with open(PLACE, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return {line["test"] for line in lines if line["event"] == "begin"}


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items):
    before = begun()
    again = [item for item in items if item.nodeid in before]
    if again:
        items[:] = [item for item in items if item.nodeid not in before]
        config.hook.pytest_deselected(items=again)


def pytest_runtest_logstart(nodeid, location):
    write(event="begin", test=nodeid)


def pytest_runtest_logreport(report):
    if report.when == "call" or not report.passed:
        write(event=report.outcome, test=report.nodeid, **reason(report))
    if report.when == "teardown":
        write(event="end", test=report.nodeid)


def pytest_collectreport(report):
    if report.outcome != "passed":
        write(event="begin", test=report.nodeid)
        write(event=report.outcome, test=report.nodeid, **reason(report))
        write(event="end", test=report.nodeid)


def reason(report):
    if report.passed:
        return {"why": "", "text": ""}
    if isinstance(report.longrepr, tuple):
        return {"why": report.longrepr[2], "text": ""}
    crash = getattr(report.longrepr, "reprcrash", None)
    text = report.longreprtext
    why = crash.message if crash is not None else text.strip()
    why = why if report.failed else getattr(report, "wasxfail", why)
    captured = "\n".join(section for _, section in report.sections)
    return {"why": why[-LONGEST:], "text": (text + "\n" + captured)[-LONGEST:]}
