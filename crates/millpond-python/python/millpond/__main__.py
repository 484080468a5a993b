"""The command ``millpond``. ``run`` runs a Python program; all other subcommands are those of the command that is written in Rust."""

import argparse
import os
import runpy
import signal
import sys
from collections.abc import Sequence
from types import TracebackType

from . import torch as plugged
from ._millpond import command
from ._oom import MAX_ENTRIES, catch_oom, say


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command with these arguments, or with those of the process. Returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if arguments and arguments[0] == "run":
        return run(arguments[1:])
    # The command does not return to the interpreter before it is done, so the interpreter could not act on Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return command(list(arguments))


def run(arguments: Sequence[str]) -> int:
    """Runs a Python program, as the interpreter does. If memory runs out on a GPU, the reason is printed."""
    parser = argparse.ArgumentParser(
        prog="millpond run",
        description="Runs a Python program that uses PyTorch. If it runs out of GPU memory, the reason and the remedy are printed, "
        "and a page is written.",
    )
    parser.add_argument("--page", metavar="FILE", default="oom.html", help="the page to write [default: oom.html]")
    parser.add_argument(
        "--max-entries",
        metavar="N",
        type=_count,
        default=MAX_ENTRIES,
        help=f"the number of allocations and frees that PyTorch remembers [default: {MAX_ENTRIES:,}]",
    )
    parser.add_argument("--pools", action="store_true", help="take PyTorch's memory from pools with the settings in MILLPOND_CONF")
    parser.add_argument("-m", dest="is_module", action="store_true", help="PROGRAM is a module")
    parser.add_argument("program", metavar="PROGRAM", help="the file or the module to run")
    parser.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER, help="the arguments of the program")
    given = parser.parse_args(arguments)
    sys.argv = [given.program, *given.arguments]
    answers: list[str] = []
    if given.pools:
        plugged.enable()
    try:
        with catch_oom(given.page, max_entries=given.max_entries, tell=answers.append):
            if given.is_module:
                sys.path[0] = os.getcwd()
                runpy.run_module(given.program, run_name="__main__", alter_sys=True)
            else:
                sys.path[0] = os.path.dirname(os.path.abspath(given.program))
                runpy.run_path(given.program, run_name="__main__")
    except Exception as error:
        frames = _of_program(error.__traceback__)
        sys.excepthook(type(error), error.with_traceback(frames), frames)
        # The answer is printed last, below the traceback.
        for answer in answers:
            say(answer)
        return 1
    return 0


def _count(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError(f"{count} is less than 1")
    return count


def _of_program(frames: TracebackType | None) -> TracebackType | None:
    """Returns the part of a traceback that belongs to the program."""
    own = (__file__, runpy.__file__, "<frozen runpy>")
    inner = frames
    while inner is not None and inner.tb_frame.f_code.co_filename in own:
        inner = inner.tb_next
    return inner or frames


if __name__ == "__main__":
    sys.exit(main())
