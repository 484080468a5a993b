"""Recordings, and answers to questions about them."""

import html
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ._millpond import Answer, Table
from ._millpond import Recording as _Recording


def read(path: str | os.PathLike[str]) -> "Recording":
    """Reads a recording: a snapshot of PyTorch, a log of RMM, a trace of ``torch.profiler``, Millpond's own formats, and more.

    Raises:
        OSError: The file cannot be read.
        ValueError: The file is not a recording.
    """
    return Recording(path)


class Recording:
    """A program's recorded allocations and frees, in memory.

    During long work other threads run, the progress is shown in a terminal or a notebook, and Ctrl-C interrupts the work.

    Devices and sizes are given as on the command line (``"24GiB"``, ``"h100"``), or in bytes. ``of`` selects a device of the recorded
    process by its number. Without it, the answer is about the device that holds the most.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path).absolute()
        self._recording = _Recording(self._path)
        self._events: Table | None = None

    @property
    def path(self) -> Path:
        """The file. ``report``, ``timeline`` and ``events`` read it again."""
        return self._path

    @property
    def devices(self) -> list[int]:
        """The devices that have a history, by their numbers in the recorded process. -1 is the host."""
        return self._recording.devices

    def verdict(
        self,
        device: str | int | None = None,
        *,
        edits: str | Iterable[str] = (),
        conf: str | None = None,
        torch_conf: str | None = None,
        of: int | None = None,
    ) -> "Verdict":
        """Returns why memory ran out if it did, what the program needs, and which setting lowers that.

        Args:
            device: The memory of the device on which the program is replayed. Without it, nothing runs out.
            edits: Changes of the recorded program, such as ``"recompute=encoder"``.
            conf: Settings of Millpond's policies, as in ``MILLPOND_CONF``.
            torch_conf: Settings of PyTorch's allocator, as in ``PYTORCH_CUDA_ALLOC_CONF``.
            of: The device of the recorded process.

        Raises:
            ValueError: A value is wrong, or the recording cannot be replayed.
        """
        return self.replay(device=device, edits=edits, conf=conf, torch_conf=torch_conf, of=of).verdict

    def replay(
        self,
        policies: str | Iterable[str] = (),
        device: str | int | None = None,
        edits: str | Iterable[str] = (),
        conf: str | None = None,
        *,
        torch_conf: str | None = None,
        fit: bool = False,
        of: int | None = None,
    ) -> "Replay":
        """Replays the program under allocation policies.

        Args:
            policies: Names of policies, or ``"all"``. Without them, the program's own allocator, better settings of it, and the policies
                ``millpond`` and ``planned`` are compared.
            device: The memory of the device. Without it, nothing runs out.
            edits: Changes of the recorded program, such as ``"recompute=encoder"``.
            conf: Settings of Millpond's policies, as in ``MILLPOND_CONF``.
            torch_conf: Settings of PyTorch's allocator, as in ``PYTORCH_CUDA_ALLOC_CONF``.
            fit: Whether to find the smallest device for each policy.
            of: The device of the recorded process.

        Raises:
            ValueError: A value is wrong, or the recording cannot be replayed.
        """
        options = _common(device, edits) + (["--all"] if policies == "all" else _listed("policy", policies))
        options += [f"--{name}={value}" for name, value in (("conf", conf), ("torch-conf", torch_conf)) if value is not None]
        options += ["--fit"] if fit else []
        return Replay(self._recording.replay(self._number(of), options)[0])

    def tune(
        self,
        device: str | int | None = None,
        *,
        edits: str | Iterable[str] = (),
        policies: str | Iterable[str] = (),
        of: int | None = None,
    ) -> "Tuned":
        """Searches the settings of allocators for those that serve the program best.

        Args:
            device: The memory of the device. Without it, nothing runs out.
            edits: Changes of the recorded program, such as ``"recompute=encoder"``.
            policies: The allocators: ``"torch"`` or ``"millpond"``. Without them, the program's own.
            of: The device of the recorded process.

        Raises:
            ValueError: A value is wrong, or the recording cannot be replayed.
        """
        return Tuned(self._recording.tune(of, _common(device, edits) + _listed("policy", policies)))

    def report(self, by: str = "tag", *, at: str | None = None, top: int = 10) -> "Report":
        """Reports which code held memory and when, and recommends changes.

        Args:
            by: The key for adding up bytes: ``"tag"``, ``"site"``, ``"stack"``, ``"pool"``, ``"stream"``, ``"thread"`` or ``"kind"``.
            at: One moment instead of the whole recording: ``"peak"``, ``"end"``, ``"step:3"`` or a time such as ``"1.5s"``.
            top: The number of groups to list.

        Raises:
            OSError: The file can no longer be read.
            ValueError: A value is wrong.
        """
        options = [f"--by={by}", f"--top={top}"]
        if at is not None:
            options.append(f"--at={at}")
        return Report(self._recording.report(options))

    def timeline(self, by: str = "tag", *, top: int = 8) -> "Timeline":
        """Returns the bytes that each group held over time. ``by`` is that of :meth:`report`, and ``top`` limits the groups.

        Raises:
            OSError: The file can no longer be read.
            ValueError: A value is wrong, or the recording has no history.
        """
        columns, groups, picture = self._recording.timeline([f"--by={by}", f"--top={top}"])
        return Timeline(columns, groups, picture)

    def events(self) -> Table:
        """Returns all events as a table, with one event in each row. The table is made once.

        Raises:
            OSError: The file can no longer be read.
            ValueError: The file no longer contains a recording.
        """
        if self._events is None:
            self._events = self._recording.events()
        return self._events

    def _number(self, of: int | None) -> int:
        devices = self.devices
        if of is not None:
            return of
        return devices[0] if len(devices) == 1 else self._recording.heaviest()

    def __repr__(self) -> str:
        return f"millpond.read({os.fspath(self._path)!r})"

    def _repr_html_(self) -> str:
        return self.timeline().picture if self.devices else self.report()._repr_html_()


class _Told:
    """The answer of a command. ``str`` returns the text that the command prints."""

    def __init__(self, answer: Answer) -> None:
        self._text = answer.text.strip("\n")
        self.sentences: list[str] = answer.sentences
        """The answer, one sentence each."""
        self.data: dict[str, Any] = json.loads(answer.json)
        """Everything that the command prints with ``--json``."""

    def __str__(self) -> str:
        return self._text

    def __repr__(self) -> str:
        name = type(self).__name__
        return f"<millpond.{name}: {self.sentences[0]}>" if self.sentences else f"<millpond.{name}>"

    def _repr_html_(self) -> str:
        return f'<pre style="line-height: 1.2">{html.escape(str(self))}</pre>'


class Verdict(_Told):
    """The memory that a program needs, and the recommended change."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self._text = "\n".join(self.sentences)
        own, better = self.data["verdict"]["own"], self.data["verdict"]["better"]
        self.fits: bool = own["result"]["first_failure"] is None
        """Whether the program finishes on the device under its own allocator."""
        self.needs: int | None = own["result"]["smallest_device_bytes"]
        """The bytes of device memory that the program needs under its own allocator. None if it finishes on no device."""
        self.apply: str | None = better["apply"] if better else None
        """The setting to use instead: a line for the shell, or a call. None if nothing needs clearly less memory."""
        self.then_needs: int | None = better["result"]["smallest_device_bytes"] if better else None
        """The bytes of device memory that the program needs with this setting."""


class _Tabular(_Told):
    """An answer with a table, which pandas, polars and DuckDB take without a copy."""

    table: Table
    """The figures, one row for each replay."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self.table.__arrow_c_schema__()


class Replay(_Tabular):
    """The replays of a program, one for each policy."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        self.verdict = Verdict(answer)
        """The memory that the program needs, and the recommended change."""
        self.results: list[dict[str, Any]] = self.data["results"]
        """The figures of each policy."""
        self.table = _table([{**row, "fits": row["first_failure"] is None} for row in self.results])


class Tuned(_Tabular):
    """The settings that were tried."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer)
        families = self.data["families"]
        self.trials: list[dict[str, Any]] = [
            {"allocator": family["family"], "variable": family["variable"], **trial} for family in families for trial in family["trials"]
        ]
        """The figures of each setting, the recommended one of each allocator first."""
        self.table = _table(self.trials)


class Report(_Told):
    """Which code held memory and when."""

    @property
    def findings(self) -> list[dict[str, Any]]:
        """The recommended changes."""
        return list(self.data["findings"])


class Timeline:
    """Bytes over time. Each row of the table is a span of time, and each group a column.

    ``held`` and ``reserved`` are the maxima in the span. The groups are those at the maximum of ``held``, so they add up to it.
    """

    def __init__(self, columns: list[tuple[str, list[int]]], groups: list[str], picture: str) -> None:
        self._columns = columns
        self.groups: list[str] = groups
        """The names of the groups. The one that holds most over the whole time is first."""
        self.picture: str = picture
        """A drawing as SVG, which a notebook shows."""
        self.table: Table = Table(columns)
        """The figures."""

    def plot(self, ax: Any = None) -> Any:
        """Draws the timeline with matplotlib, and returns the axes. Without matplotlib, returns this timeline, which a notebook shows.

        Args:
            ax: The axes of matplotlib to draw on.
        """
        try:
            from matplotlib import pyplot  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            if ax is not None:
                raise
            return self
        if ax is None:
            _, ax = pyplot.subplots()
        others = len(self._columns) - len(self.groups)
        figures = dict(self._columns[:others])
        seconds = [time / 1e9 for time in figures["time_ns"]]
        gib = [[bytes / (1 << 30) for bytes in numbers] for _, numbers in self._columns[others:]]
        ax.stackplot(seconds, *gib, labels=self.groups, step="post")
        if "reserved" in figures:
            ax.step(seconds, [bytes / (1 << 30) for bytes in figures["reserved"]], where="post", color="black", label="reserved")
        ax.set_xlabel("seconds")
        ax.set_ylabel("GiB")
        ax.legend(loc="upper left", fontsize="small")
        return ax

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the drawing as an SVG file."""
        Path(path).write_text(self.picture, encoding="utf-8")

    def __len__(self) -> int:
        return len(self.table)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)

    def __arrow_c_schema__(self) -> object:
        return self.table.__arrow_c_schema__()

    def __repr__(self) -> str:
        return f"<millpond.Timeline: {len(self)} spans, {len(self.groups)} groups>"

    def _repr_svg_(self) -> str:
        return self.picture


def _common(device: str | int | None, edits: str | Iterable[str]) -> list[str]:
    edits = [edits] if isinstance(edits, str) else edits
    return ([] if device is None else [f"--device={device}"]) + [f"--edit={edit}" for edit in edits]


def _listed(option: str, names: str | Iterable[str]) -> list[str]:
    names = [names] if isinstance(names, str) else list(names)
    return [f"--{option}={','.join(names)}"] if names else []


def _table(rows: list[dict[str, Any]]) -> Table:
    """Returns the rows as a table. Omits columns in which no row has a number, a text or a truth value."""
    names = [name for name in (rows[0] if rows else {}) if any(isinstance(row[name], (bool, int, float, str)) for row in rows)]
    return Table([(name, [row[name] for row in rows]) for name in names])
