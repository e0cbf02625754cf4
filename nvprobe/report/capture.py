"""What was captured: sources, processes, devices, the profiler's own cost, and what is missing."""

from __future__ import annotations

import dataclasses
import re
from typing import Annotated

import numpy as np

from nvprobe.analysis.completeness import not_computed
from nvprobe.analysis.profiler_cost import Records
from nvprobe.analysis.result import Analysis
from nvprobe.report.schema import rows
from nvprobe.trace import Column, Missing, RecordCosts, Trace
from nvprobe.trace.rows import Row, is_, ns, pair


class Process(Row, frozen=True):
    """A process that recorded something."""

    id: Annotated[int, is_("number that other tables use")]
    pid: Annotated[int, is_("operating system process id")]
    name: Annotated[str | None, is_("name of the program")]
    rank: Annotated[int | None, is_("rank in a distributed job")]
    initiating_thread: Annotated[int | None, is_("thread id of the thread that runs the steps")]


class Window(Row, frozen=True):
    """Begin and end of the capture."""

    start_ns: Annotated[int, ns("begin")]
    end_ns: Annotated[int, ns("end")]


class Profiler(Row, frozen=True):
    """What profiling costs a step (docs/cost.md#what-the-profiler-costs)."""

    backend: Annotated[str, is_("who recorded the GPU: `nsys` or `torch`")]
    source: Annotated[str, is_("`measured` or `estimated`")]
    profiled_step_ns: Annotated[int, ns("a step with the profiler, elapsed")]
    unprofiled_step_ns: Annotated[int, ns("a step without it")]
    unprofiled_bounds_ns: Annotated[
        tuple[int, int],
        pair("unprofiled_low_ns", "unprofiled_high_ns", "bounds of a step without it", "ns"),
    ]
    idle_ns: Annotated[int | None, ns("idle time of the profiled step; null over several GPUs")]
    profiler_idle_ns: Annotated[int | None, ns("how much of `idle_ns` the profiler causes")]
    records: Annotated[Records, is_("records of a step by kind")]
    costs: Annotated[RecordCosts, is_("cost of a record by kind")]


class DeviceTotals(Row, frozen=True):
    """A GPU between its first and last op."""

    device: Annotated[int | None, is_("physical number of the GPU")]
    name: Annotated[str | None, is_("model")]
    ops: Annotated[int, is_("GPU ops")]
    busy_ns: Annotated[int, ns("time in which it runs at least one op")]
    idle_ns: Annotated[int, ns("time in which it runs none")]
    window_ns: Annotated[int, ns("from its first op's begin to its last op's end")]


def processes(analysis: Analysis) -> list[Process]:
    """Those that recorded something: nsys lists whatever else ran on the machine, too."""
    trace, initiating = analysis.attribution.trace, analysis.attribution.initiating
    table, tid = trace.processes, trace.threads.tid
    found = _recorded(trace)
    return rows(
        Process,
        id=found.tolist(),
        pid=table.pid[found].tolist(),
        name=[program(name) for name in trace.texts(table.name[found])],
        rank=[rank if rank >= 0 else None for rank in table.rank[found].tolist()],
        initiating_thread=[int(tid[t]) if t >= 0 else None for t in initiating[found].tolist()],
    )


def program(command: str | None) -> str | None:
    """The program of a process or thread that is called by its command line."""
    if command is None or not any(mark in command for mark in "/\\="):
        return command
    return re.split(r"[/\\]", re.split(r"\s", command.strip(), maxsplit=1)[0])[-1] or None


def _recorded(trace: Trace) -> Column:
    """Rows of the processes that any event is of."""
    found = np.zeros(len(trace.processes), bool)
    for field in dataclasses.fields(trace):
        process = getattr(getattr(trace, field.name), "process", None)
        if field.name != "threads" and isinstance(process, np.ndarray):
            found[process[process >= 0]] = True
    return np.flatnonzero(found)


def profiler(analysis: Analysis) -> Profiler | None:
    """A step with and without the profiler; null without steps."""
    cost = analysis.profiler
    if cost is None:
        return None
    return Profiler(
        backend=cost.backend,
        source=cost.source,
        profiled_step_ns=cost.profiled_ns,
        unprofiled_step_ns=cost.unprofiled_ns,
        unprofiled_bounds_ns=cost.bounds_ns,
        idle_ns=cost.idle_ns,
        profiler_idle_ns=cost.profiler_idle_ns,
        records=cost.records,
        costs=cost.costs,
    )


def devices(analysis: Analysis) -> list[DeviceTotals]:
    """The GPUs that ran something."""
    table, known = analysis.devices, analysis.attribution.trace.devices
    inside = [row if 0 <= row < len(known) else None for row in table.device.tolist()]
    names = analysis.attribution.trace.texts(known.name)
    return rows(
        DeviceTotals,
        table,
        device=[None if row is None else int(known.id[row]) for row in inside],
        name=[None if row is None else names[row] for row in inside],
    )


def missing(analysis: Analysis) -> list[Missing]:
    """What is absent from the capture, and what was not computed."""
    return [*analysis.missing, *not_computed(analysis)]
