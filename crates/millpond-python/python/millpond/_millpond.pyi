from os import PathLike
from pathlib import Path

def command(arguments: list[str]) -> int:
    """Runs the command ``millpond`` with these arguments. Returns the exit code."""

def answers(recording: str | PathLike[str], page: str | PathLike[str]) -> list[tuple[list[str], Path]]:
    """Replays a recording and writes a page about it. Returns for each device the sentences of the answer and the path of the page.

    Raises:
        RuntimeError: The recording cannot be replayed, or the page cannot be written.
    """
