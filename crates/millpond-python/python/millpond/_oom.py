"""Records a program, and explains why it ran out of memory."""

import contextlib
import html
import importlib
import os
import pickle
import shutil
import sys
import tempfile
import textwrap
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from . import torch as plugged
from ._millpond import Recording, refusals
from ._notebook import display
from ._pools import PoolRecording, refuse_others
from ._scope import Scope

#: The number of allocations and frees that PyTorch remembers.
MAX_ENTRIES = 1_000_000

#: The attribute of an error that was explained.
_EXPLAINED = "_millpond_explained"

#: When this process began to use the package, in seconds since 1970.
_STARTED = time.time()


def say(text: str) -> None:
    """Prints a text to standard error."""
    # If standard error is closed, there is no other place for the message.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(text, file=sys.stderr, flush=True)


class catch_oom(Scope):
    """Explains why a program ran out of memory: ``with catch_oom("run.html"):`` around the program, or ``@catch_oom("run.html")``.

    On entry, PyTorch begins to record allocations, with the stacks of the Python code. If an out-of-memory error leaves the block, the
    recording is written next to the page (``run.pickle``), the answer is printed to standard error, the page is written, and the error
    propagates. Errors that the program handles itself are not explained. A failure to write or to explain is printed and never replaces the
    error.

    In a program without PyTorch or without a CUDA device, the same is done for this package's pools. Their recording is ``run.mpr``. This
    also applies if PyTorch allocates from the pools (``millpond.torch.enable()``). In other programs, only errors of PyTorch are explained.

    In a program of several ranks (``WORLD_SIZE``), each rank writes files of its own (``run-rank3.html``), and the first rank that fails
    prints the answer.

    Args:
        page: The page to write. Its folder must exist. An older page of this package and the recording next to it are replaced.
        max_entries: The number of allocations and frees that PyTorch remembers. If the program has more, the oldest are lost.
        tell: A function that is called with the answer as text. Without it, the answer is printed to standard error.
    """

    def __init__(
        self,
        page: str | os.PathLike[str] = "oom.html",
        *,
        max_entries: int = MAX_ENTRIES,
        tell: Callable[[str], object] = say,
    ) -> None:
        if max_entries < 1:
            raise ValueError(f"max_entries must be at least 1, not {max_entries}")
        # The program may change its folder.
        self._named = Path(page).absolute()
        if not Path(page).name or self._named.suffix in (".mpr", ".pickle"):
            raise ValueError(f"{os.fspath(page)!r} is not a valid name of a page: use a name such as run.html")
        self._max_entries = max_entries
        self._tell = tell
        self._open: list[_History | _PoolHistory | None] = []

    def _again(self) -> Self:
        return type(self)(self._named, max_entries=self._max_entries, tell=self._tell)

    def __enter__(self) -> Self:
        torch = _torch()
        by_pools = torch is None or plugged.is_enabled()
        history = _PoolHistory.begin(_of_rank(self._named)) if by_pools else _History.begin(torch, self._max_entries)
        self._open.append(history)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        history = self._open.pop()
        # In the child of a fork nothing is explained, because the block belongs to the parent.
        if history is None or history.process != os.getpid():
            return
        try:
            found = history.find(error)
            if found is not None:
                # A block around this one must not explain the same error.
                found.__dict__[_EXPLAINED] = True
                self._explain(history)
        except Exception as other:
            say(f"millpond: out of memory, but the reason is unknown: {other}")
        finally:
            try:
                history.end()
            except Exception as other:
                say(f"millpond: {other}")

    def _explain(self, history: "_History | _PoolHistory") -> None:
        page = _of_rank(self._named)
        file = page.with_suffix(history.SUFFIX)
        is_written = False
        try:
            history.write(file)
            is_written = True
            recording = Recording(file)
            try:
                explained = recording.replay(None, ["--quiet", f"--html={page}"])
            except ValueError:
                # If the first request failed, there is nothing to replay, and there is no page.
                explained = [recording.report(["--quiet"])]
                page.unlink(missing_ok=True)
        except Exception as error:
            where = f"; the recording is in {file}" if is_written else ""
            self._tell(f"millpond: out of memory, but the reason is unknown: {error}{where}")
            return
        if not _is_first():
            return
        width = shutil.get_terminal_size().columns
        lines = ["", "millpond: out of memory"]
        for answer in explained:
            lines += [_wrapped(sentence, width) for sentence in answer.sentences]
            if answer.page is not None:
                lines.append(f"  page: {answer.page}")
        lines.append(f"  more: python -m millpond report {file}")
        self._tell("\n".join(lines))
        for answer in explained:
            with contextlib.suppress(Exception):
                if answer.page is not None:
                    _show(answer.page)


class _History:
    """PyTorch's recording, from the entry of a block to its end."""

    SUFFIX = ".pickle"
    #: The recordings that have begun and not ended. PyTorch's observers cannot be removed, so one observer serves all recordings.
    _running: ClassVar[list["_History"]] = []
    _is_observed: ClassVar[bool] = False
    #: Whether PyTorch records because one of these recordings has begun. The last of them then stops PyTorch's recording.
    _owns: ClassVar[bool] = False

    def __init__(self, torch: Any) -> None:
        self.process = os.getpid()
        self._torch = torch
        self._seen: Any = None

    @classmethod
    def begin(cls, torch: Any, max_entries: int) -> "_History | None":
        """Begins a recording. Returns None, with a warning, if PyTorch refuses, as it does under ``backend:cudaMallocAsync``."""
        history = cls(torch)
        if not cls._running and not _is_recorded(torch):
            try:
                torch.cuda.memory._record_memory_history(max_entries=max_entries, stacks="python")
            except RuntimeError as error:
                warnings.warn(f"catch_oom records nothing: {error}", stacklevel=3)
                return None
            cls._owns = True
        if not cls._is_observed:
            attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
            if attach is not None:
                attach(cls._observe)
                cls._is_observed = True
        cls._running.append(history)
        return history

    @classmethod
    def _observe(cls, *_: int) -> None:
        """Takes the snapshot at the moment of the failure, when all memory is still held."""
        if cls._running:
            newest = cls._running[-1]
            # The allocator calls this function, which must not raise. Without this snapshot, one is taken at the end of the block.
            with contextlib.suppress(Exception):
                newest._seen = newest._torch.cuda.memory._snapshot()

    def find(self, error: BaseException | None) -> BaseException | None:
        """Returns the error that says that memory ran out: this one, or one that it was raised from."""
        return _find(error, _oom_error(self._torch))

    def write(self, file: Path) -> None:
        """Writes the state of the allocator when memory ran out, with the history."""
        _write(file, self._seen or self._torch.cuda.memory._snapshot())

    def end(self) -> None:
        cls = type(self)
        cls._running.remove(self)
        if cls._owns and not cls._running:
            cls._owns = False
            self._torch.cuda.memory._record_memory_history(enabled=None)


class _PoolHistory:
    """The recording of this package's pools, from the entry of a block to its end."""

    SUFFIX = ".mpr"

    def __init__(self) -> None:
        self.process = os.getpid()
        self._refusals = refusals()

    @classmethod
    def begin(cls, page: Path) -> "_PoolHistory | None":
        """Begins a recording. Returns None, with a warning, if that is not possible."""
        try:
            PoolRecording.begin(page)
        except OSError as error:
            warnings.warn(f"catch_oom records nothing: {error}", stacklevel=3)
            return None
        return cls()

    def find(self, error: BaseException | None) -> BaseException | None:
        """Returns the error that says that memory of a pool ran out: this one, or one that it was raised from."""
        kinds: tuple[type[BaseException], ...] = (MemoryError,)
        if plugged.is_enabled():
            kinds += (_oom_error(_torch()),)
        return _find(error, kinds) if refusals() > self._refusals else None

    def write(self, file: Path) -> None:
        """Completes the recording in this file."""
        PoolRecording.keep(file)

    def end(self) -> None:
        PoolRecording.end()


def _torch() -> Any:
    """Returns PyTorch if it is installed and finds a CUDA device. Otherwise the memory is that of this package's pools."""
    try:
        torch: Any = importlib.import_module("torch")
    except (ImportError, OSError):
        return None
    if not torch.cuda.is_available():
        warnings.warn("catch_oom records this package's pools only: PyTorch finds no CUDA device", stacklevel=3)
        return None
    return torch


def _oom_error(torch: Any) -> type[BaseException]:
    """Returns the class of PyTorch's error. Older versions have it in another module."""
    found: type[BaseException] = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError
    return found


def _find(error: BaseException | None, known: type[BaseException] | tuple[type[BaseException], ...]) -> BaseException | None:
    """Returns the first error of these types that was not explained: this one, one of its group, or one that it was raised from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        if isinstance(error, known):
            return None if _EXPLAINED in error.__dict__ else error
        if isinstance(error, BaseExceptionGroup):
            found = (_find(one, known) for one in error.exceptions)
            if (first := next(filter(None, found), None)) is not None:
                return first
        seen.add(id(error))
        # A program that ends, or that hides the error, has handled it.
        is_handled = error.__suppress_context__ or not isinstance(error, Exception)
        error = error.__cause__ or (None if is_handled else error.__context__)
    return None


def _is_recorded(torch: Any) -> bool:
    """Returns whether the program records its allocations itself. Older versions of PyTorch do not report that."""
    asked = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    # PyTorch crashes if it is asked before it has an allocator.
    return asked is not None and torch.cuda.is_initialized() and bool(asked())


def _is_alone() -> bool:
    """Returns whether this process is the only rank of its job."""
    return os.environ.get("WORLD_SIZE", "1") == "1"


def _of_rank(page: Path) -> Path:
    """Returns the page of this rank."""
    if _is_alone():
        return page
    rank = "".join(c for c in os.environ.get("RANK", "0") if c.isalnum())
    return page.with_stem(f"{page.stem}-rank{rank}")


def _is_first() -> bool:
    """Returns whether no other rank of this job and machine has printed an answer."""
    if _is_alone():
        return True
    job = [str(os.getppid())] + [os.environ.get(name, "") for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT")]
    name = "".join(c if c.isalnum() else "-" for c in "-".join(job))
    mark = Path(tempfile.gettempdir(), f"millpond-{os.getuid()}-{name}")
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        # An older mark is that of an earlier job of the same parent.
        if mark.stat().st_mtime >= _STARTED:
            return False
        mark.touch()
    except OSError:
        pass
    return True


def _write(file: Path, snapshot: Any) -> None:
    """Writes a snapshot completely or not at all."""
    refuse_others(file, b"segments", b"device_traces")
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as out:
            pickle.dump(snapshot, out)
        os.replace(part, file)
    finally:
        part.unlink(missing_ok=True)


def _show(page: Path) -> None:
    """Shows a page in the cell if the program runs in a notebook."""
    notebook = display()
    if notebook is None:
        return
    # The page is part of the cell, because a notebook's server may not serve its folder.
    text = html.escape(page.read_text(encoding="utf-8"))
    notebook.display(notebook.HTML(f'<iframe srcdoc="{text}" style="width: 100%; height: 40em; border: 0"></iframe>'))


def _wrapped(sentence: str, width: int) -> str:
    return textwrap.fill(
        sentence,
        width,
        initial_indent="→ ",
        subsequent_indent="  ",
        break_long_words=False,
        break_on_hyphens=False,
    )
