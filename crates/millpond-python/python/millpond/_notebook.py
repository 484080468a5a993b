"""Output in the cell of a notebook."""

import contextlib
import html
import importlib
import sys
from typing import Any


def display() -> Any:
    """Returns IPython's module ``display`` if the program runs in a notebook. Otherwise returns None."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return importlib.import_module("IPython.display") if hasattr(shell, "kernel") else None


class Progress:
    """The progress of long work in the cell. Outside a notebook, nothing is shown. A failure to show it is ignored."""

    def __init__(self) -> None:
        self._handle: Any = None

    def show(self, text: str, share: float | None) -> None:
        """Shows a text and a bar. ``share`` is the part that is done, from 0 to 1, if it is known."""
        done = "" if share is None else f' value="{share:.3f}"'
        self._put({"text/plain": text, "text/html": f"<progress{done}></progress> {html.escape(text)}"})

    def close(self) -> None:
        """Removes the progress from the cell."""
        if self._handle is not None:
            self._put({"text/plain": "", "text/html": ""})

    def _put(self, data: dict[str, str]) -> None:
        with contextlib.suppress(Exception):
            if self._handle is not None:
                self._handle.update(data, raw=True)
            elif (module := display()) is not None:
                self._handle = module.display(data, raw=True, display_id=True)
