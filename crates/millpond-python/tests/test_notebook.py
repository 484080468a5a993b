"""Runs the notebook of the documentation, and compares what it shows. With MILLPOND_UPDATE=1, writes what it shows."""

import ast
import contextlib
import io
import json
import os
import unittest
from pathlib import Path

DOCS = Path(__file__).resolve().parents[3] / "docs"


def run(source, names):
    """Runs a cell as a notebook does. Returns what it shows."""
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed, outputs = io.StringIO(), []
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "cell", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None
    if printed.getvalue():
        outputs.append({"output_type": "stream", "name": "stdout", "text": printed.getvalue().splitlines(True)})
    if value is not None:
        data = {"text/plain": repr(value).splitlines(True)}
        for kind, method in [("text/html", "_repr_html_"), ("image/svg+xml", "_repr_svg_")]:
            if hasattr(value, method):
                data[kind] = getattr(value, method)().splitlines(True)
        outputs.append({"output_type": "execute_result", "data": data, "metadata": {}, "execution_count": None})
    return outputs


class Notebook(unittest.TestCase):
    def test_the_notebook_shows_what_it_contains(self):
        file = DOCS / "python.ipynb"
        notebook = json.loads(file.read_text(encoding="utf-8"))
        names = {}
        before = os.getcwd()
        os.chdir(DOCS)
        try:
            shown = [run("".join(cell["source"]), names) for cell in notebook["cells"] if cell["cell_type"] == "code"]
        finally:
            os.chdir(before)
        code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
        if os.environ.get("MILLPOND_UPDATE"):
            for cell, outputs in zip(code, shown):
                cell["outputs"] = outputs
            file.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        self.assertEqual([cell["outputs"] for cell in code], shown)
        self.assertTrue(all(shown[1:]), "a cell shows nothing")


if __name__ == "__main__":
    unittest.main()
