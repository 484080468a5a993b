"""Compares the results of two runs of the same tests, in the files that pytest writes with --junitxml. Fails if a test differs."""

import collections
import sys
import xml.etree.ElementTree as tree


def results(file):
    found = {}
    for case in tree.parse(file).getroot().iter("testcase"):
        name = f"{case.get('classname')}::{case.get('name')}"
        found[name] = next((child.tag for child in case if child.tag in ("failure", "error", "skipped")), "passed")
    return found


before, after = results(sys.argv[1]), results(sys.argv[2])
for title, found in [("without", before), ("with", after)]:
    print(f"{title}:", dict(collections.Counter(found.values())))
differing = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
for name in differing:
    print(f"{name}: {before.get(name)} -> {after.get(name)}")
print(f"{len(differing)} tests differ")
sys.exit(bool(differing))
