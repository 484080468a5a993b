"""Runs the examples."""

import os
import subprocess
import sys
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]


def run(example, *arguments):
    path = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-B", HERE / "examples" / example, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PYTHONPATH": path}).stdout


class Examples(unittest.TestCase):
    def test_answers(self):
        told = run("answers.py", HERE.parents[1] / "traces" / "gpt_varlen_h200.csv.zst", "12.5GiB")
        self.assertTrue(told.endswith("with expandable_segments:True: it finishes\n"), told)

    def test_pools(self):
        told = run("pools.py")
        self.assertIn("40.0 MiB in 1 block held by weights", told)
        self.assertTrue(told.endswith("this part used 1048576 bytes; live now: [('weights', 41943040)]\n"), told)


if __name__ == "__main__":
    unittest.main()
