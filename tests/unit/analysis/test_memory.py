"""Memory by device, step and path, event by event against a plain walk."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nvprobe.analysis.memory import memory
from nvprobe.analysis.model import Steps
from nvprobe.attribution import attribute
from nvprobe.trace import Devices, MemoryEvents, Trace
from tests.conftest import examples
from tests.random_traces import END, traces

CAPACITY = [1000, 2000]


def _devices() -> Devices:
    unknown = {f.name: np.full(2, -1) for f in dataclasses.fields(Devices)}
    return Devices(**{**unknown, "id": np.arange(2), "memory_bytes": np.array(CAPACITY)})


def _steps(rows: list[tuple[int, int, int]]) -> Steps:
    zero = {f.name: np.zeros(len(rows), np.int64) for f in dataclasses.fields(Steps)}
    process, start, end = (np.array([row[i] for row in rows], np.int64) for i in range(3))
    return Steps(**{**zero, "process": process, "start": start, "end": np.maximum(start, end)})


def _with_events(trace: Trace, rows: list[tuple[int, int, int, int]], base: int | None) -> Trace:
    """Events (thread, time, device, bytes); ``base``: the bytes in use before, where told."""
    threads = len(trace.threads)
    thread = np.array([row[0] % threads for row in rows])
    process = trace.threads.process[thread] if rows else thread
    allocated, level = [], {}
    for at in sorted(range(len(rows)), key=lambda i: rows[i][1]):
        key = (process[at], rows[at][2])
        level[key] = level.get(key, base or 0) + rows[at][3]
        allocated.append((at, level[key] if base is not None else -1))
    events = MemoryEvents(
        process=process, thread=thread, time=np.array([row[1] for row in rows]),
        device=np.array([row[2] for row in rows]), address=np.zeros(len(rows)),
        bytes=np.array([row[3] for row in rows]), reserved=np.full(len(rows), -1),
        allocated=np.array([value for _, value in sorted(allocated)]),
    )  # fmt: skip
    return dataclasses.replace(trace, memory=events, devices=_devices())


EVENT = st.tuples(
    st.integers(0, 3), st.integers(0, END - 1), st.integers(-1, 1),
    st.integers(-9, 9).filter(bool),
)  # fmt: skip
STEP = st.tuples(st.integers(0, 1), st.integers(0, END), st.integers(0, END))


@examples(120)
@given(
    traces(), st.lists(EVENT, max_size=12), st.lists(STEP, max_size=4), st.sampled_from([None, 100])
)
def test_memory_is_what_a_walk_over_the_events_gives(
    trace: Trace, rows: list[tuple[int, int, int, int]], step_rows: Any, base: int | None
) -> None:
    trace = _with_events(trace, rows, base)
    steps = _steps([(p % len(trace.processes), s, e) for p, s, e in step_rows])
    attribution = attribute(trace)
    found = memory(attribution, steps)
    events = trace.memory
    assert events is not None
    on_device = sorted(np.flatnonzero(events.device >= 0), key=lambda i: events.time[i])
    if not on_device:
        assert found is None
        return
    assert found is not None
    begun = [row for row in on_device if base is None and events.time[row] == 0]
    assert found.from_zero is (base is not None or bool(begun))
    assert found.of_driver is (base is None)
    levels: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for row in on_device:
        key = (int(events.process[row]), int(events.device[row]))
        series = levels.setdefault(key, [(-1, base or 0, -1)])
        level = series[-1][1] + int(events.bytes[row])
        if row in begun:
            series[0] = (-1, level, -1)
        else:
            series.append((int(events.time[row]), level, int(row)))
    assert list(zip(found.devices.process, found.devices.device, strict=True)) == sorted(levels)
    for i, key in enumerate(sorted(levels)):
        series = levels[key]
        assert found.devices.peak_bytes[i] == max(level for _, level, _ in series)
        assert found.devices.events[i] == len(series) - 1
        assert found.devices.growth_bytes[i] == series[-1][1] - series[0][1]
        assert found.devices.capacity_bytes[i] == CAPACITY[key[1]]
    _check_steps(found.steps, steps, levels)
    _check_paths(attribution, found.paths, levels, events)


def _check_steps(found: Any, steps: Steps, levels: Any) -> None:
    got = {(int(s), int(d)): (int(p), int(g)) for s, d, p, g in zip(
        found.step, found.device, found.peak_bytes, found.growth_bytes, strict=True)}  # fmt: skip
    want = {}
    for (process, device), series in levels.items():
        for step in np.flatnonzero(steps.process == process):
            before = [level for time, level, _ in series if time < steps.start[step]]
            inside = [level for time, level, _ in series
                      if steps.start[step] <= time < steps.end[step]]  # fmt: skip
            at_end = [level for time, level, _ in series if time < steps.end[step]]
            last = at_end[-1] if steps.end[step] > steps.start[step] else before[-1]
            want[(int(step), device)] = (max([before[-1], *inside]), last - before[-1])
    assert got == want


def _check_paths(attribution: Any, found: Any, levels: Any, events: MemoryEvents) -> None:
    path = attribution.open.at(events.thread, events.time)
    texts = attribution.paths.texts()
    want: dict[str, list[int]] = {}
    for series in levels.values():
        for _, level, row in series[1:]:
            at = int(path[row])
            while at >= 0:
                sums = want.setdefault(texts[at], [0, 0, 0, -(1 << 62)])
                size = int(events.bytes[row])
                sums[0] += size > 0
                sums[1] += max(size, 0)
                sums[2] += size
                sums[3] = max(sums[3], level)
                at = int(attribution.paths.parent[at])
    got = {texts[p]: [int(v) for v in rest] for p, *rest in zip(
        found.path, found.allocations, found.allocated_bytes, found.growth_bytes,
        found.peak_bytes, strict=True)}  # fmt: skip
    assert got == want
