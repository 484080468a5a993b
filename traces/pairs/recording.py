"""Records every allocation of a PyTorch program on the CPU, from the memory events of PyTorch's profiler.

The profiler reports each call of the CPU allocator, which includes scratch memory of operators that comes from
that allocator. It does not report memory that a library below PyTorch takes with `malloc`.
"""

import gc
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import zstandard
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function

PHASE = "phase "
MODULE = "module "
EVALUATE = "autograd::engine::evaluate_function: "


def phase(name: str) -> record_function:
    """Marks a phase of the program, such as `fwd`."""
    return record_function(PHASE + name)


def name_modules(model: nn.Module) -> None:
    """Marks the forward pass of each module with the path of the module."""
    for path, module in model.named_modules():
        module.forward = _marked(MODULE + (path or type(model).__name__), module.forward)


def _marked(mark: str, forward: Callable[..., Any]) -> Callable[..., Any]:
    def marked(*args: Any, **kwargs: Any) -> Any:
        with record_function(mark):
            return forward(*args, **kwargs)

    return marked


@dataclass
class Row:
    """One allocation or free."""

    time_us: int
    action: str
    id: int
    bytes: int
    tag: str

    def line(self) -> str:
        """Returns the line of the CSV file."""
        return f"{self.time_us},{self.action},{self.id},{self.bytes},0,{self.tag}\n"


def record(program: Callable[[], None]) -> list[Row]:
    """Runs a program and returns its allocations and frees in order.

    The bytes that live after each event are compared with the count that the allocator keeps.
    """
    gc.collect()
    gc.disable()  # A collection at a random moment would move frees.
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        program()
    gc.enable()
    roots = profiler.profiler.kineto_results.experimental_event_tree()
    events = sorted(_flat(roots), key=lambda event: event.start_time_ns)
    modules = _modules_by_sequence(events)
    rows: list[Row] = []
    live: dict[int, Row] = {}
    bytes_live, bytes_before = 0, None
    for event in events:
        if event.name != "[memory]":
            continue
        memory = event.typed[1]
        if bytes_before is None:
            bytes_before = memory.total_allocated - memory.alloc_size
        bytes_live += memory.alloc_size
        if bytes_live != memory.total_allocated - bytes_before:
            raise RuntimeError(f"the profiler lost events before event {len(rows)}")
        time_us = (event.start_time_ns - events[0].start_time_ns) // 1000
        if memory.alloc_size > 0:
            row = Row(time_us, "alloc", len(rows) + 1, memory.alloc_size, _tag(event, modules))
            live[memory.ptr] = row
        else:
            born = live.pop(memory.ptr, None)
            if born is None:  # Allocated before the recording began.
                continue
            row = Row(time_us, "free", born.id, born.bytes, "")
        rows.append(row)
    return rows


def _flat(events: list[Any]) -> Iterator[Any]:
    pending = list(reversed(events))
    while pending:
        event = pending.pop()
        yield event
        pending.extend(reversed(event.children))


def _names(event: Any) -> list[str]:
    """Returns the names of the events around an event, innermost first."""
    names = []
    while (event := event.parent) is not None:
        names.append(event.name)
    return names


def _sequence(event: Any) -> int:
    return getattr(event.typed[1], "sequence_number", -1)


def _module(names: list[str]) -> str:
    return next((name.removeprefix(MODULE) for name in names if name.startswith(MODULE)), "")


def _modules_by_sequence(events: list[Any]) -> dict[int, str]:
    """Returns the module that created each autograd node, by the sequence number of the node.

    The operator that creates a node begins with the number that the node gets. Operators before it that create
    no node begin with the same number, so the last one counts.
    """
    modules = {}
    for event in events:
        if _sequence(event) >= 0 and not event.name.startswith(EVALUATE):
            names = _names(event)
            if not any(name.startswith(EVALUATE) for name in names) or _module(names):
                modules[_sequence(event)] = _module(names)
    return modules


def _tag(event: Any, modules: dict[int, str]) -> str:
    """Returns `phase;module path;operator;operators from the innermost`.

    The operator is the outermost one in the module. In a backward pass the module is the one whose gradient is
    computed, followed by the autograd node. A forward pass inside the backward pass has the phase `rec`.
    """
    phase_name, module, node = "", "", ""
    operators: list[str] = []
    while (event := event.parent) is not None:
        if event.name.startswith(PHASE):
            phase_name = event.name.removeprefix(PHASE)
            break
        if event.name.startswith(MODULE):
            module = module or event.name.removeprefix(MODULE)
        elif event.name.startswith(EVALUATE):
            node = event.name.removeprefix(EVALUATE)
            if module:
                phase_name = "rec"
                break
            module = f"{modules.get(_sequence(event), '')}/{node}"
            operators = [operator for operator in operators if operator != node]
        elif not module and "#" not in event.name:  # `Optimizer.step#Adam.step` is no operator.
            operators.append(event.name.removeprefix("aten::"))
    operator = operators[-1] if operators else ""
    return ";".join([phase_name, module, operator, "<".join(operators)]).replace(",", " ")


def write(rows: list[Row], path: Path, parameters: dict[str, Any]) -> None:
    """Writes the rows as a compressed CSV file."""
    header = {
        "method": "real CPU run, memory events of torch.profiler",
        "params": parameters,
        "torch": torch.__version__,
        "trace": path.name.split(".")[0],
    }
    lines = [f"# {json.dumps(header, sort_keys=True)}\n", "time_us,action,id,bytes,stream,tag\n"]
    lines += [row.line() for row in rows]
    path.write_bytes(zstandard.compress("".join(lines).encode(), 19))


def recorded_peak(path: Path) -> int:
    """Returns the most bytes that live at once in a recording."""
    live, most = 0, 0
    for line in (
        zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read().decode().splitlines()[2:]
    ):
        _, action, _, size, *_ = line.split(",")
        live += int(size) if action == "alloc" else -int(size)
        most = max(most, live)
    return most
