"""Parts of steps: they add up to the time of the GPU, or of the host where there is none."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
from hypothesis import given

from nvprobe.analysis import analyze
from nvprobe.analysis.step_parts import GPU, HOST_TIME, OVERLAP, StepParts
from nvprobe.attribution import attribute
from nvprobe.merging.load import load
from nvprobe.trace import Trace
from tests.random_waits import wait_traces


def parts_of(trace: Trace):
    analysis = analyze(attribute(trace))
    return analysis, analysis.step_parts


def step_by_hand(steps, process: int, time: int) -> int:
    """The step of the process that is open or comes next."""
    rows = [r for r in range(len(steps)) if steps.process[r] == process and time < steps.end[r]]
    return min(rows, key=lambda row: steps.end[row], default=-1)


@given(wait_traces())
def test_gpu_time_and_overlap_by_hand(trace: Trace) -> None:
    analysis, found = parts_of(trace)
    if found is None or found.basis != "gpu":
        return
    at, ops, calls = analysis.attribution, trace.ops, trace.calls
    covered: dict[int, set[tuple[int, int]]] = defaultdict(set)
    spent: dict[int, int] = defaultdict(int)
    for op in np.flatnonzero(at.valid & (at.call >= 0)).tolist():
        step = step_by_hand(analysis.steps, ops.process[op], calls.start[at.call[op]])
        span = range(int(ops.start[op]), int(ops.end[op]))
        covered[step].update((int(ops.device[op]), moment) for moment in span)
        spent[step] += len(span)
    if len(np.unique(ops.device[at.valid])) > 1:
        return  # a mean over GPUs
    for step in range(len(analysis.steps)):
        assert found.ns[found.what == GPU, step].sum() == spent[step]
        overlap = found.ns[found.what == OVERLAP, step].sum()
        assert overlap == len(covered[step]) - spent[step]


@given(wait_traces())
def test_idle_time_is_that_of_the_capture(trace: Trace) -> None:
    analysis, found = parts_of(trace)
    if found is None or found.basis != "gpu" or len(np.unique(trace.ops.device)) > 1:
        return
    idle = analysis.waits.idle
    assert found.ns[found.what < GPU].sum() == idle.ns[idle.next_step >= 0].sum()
    inside = idle.step >= 0
    assert (idle.next_step[inside] == idle.step[inside]).all()


def test_a_capture_is_its_steps(corpus: Path) -> None:
    """All but the idle time behind the last step, which belongs to none."""
    analysis, found = parts_of(load(corpus / "runs" / "nano"))
    idle = analysis.waits.idle
    behind = int(idle.ns[idle.next_step < 0].sum())
    assert found.ns.sum() == analysis.devices.window_ns.sum() - behind
    assert behind < 10_000
    assert found.counts.launches.tolist() == [860] * 6
    assert found.counts.syncs.tolist() == [0, 0, 0, 0, 1, 0]  # loss.item() in every tenth step


def host_parts(found: StepParts) -> set[int]:
    return set(found.what.tolist())


def test_without_a_gpu_it_is_host_time(corpus: Path) -> None:
    analysis, found = parts_of(load(corpus / "kineto" / "public" / "cpu_only.json.gz"))
    assert found.basis == "host"
    assert host_parts(found) == {HOST_TIME}
    assert found.ns.sum(axis=0).tolist() == analysis.steps.wall_ns.tolist()


def test_small_parts_are_counted_with_the_path_above(corpus: Path) -> None:
    _, found = parts_of(load(corpus / "runs" / "nano"))
    small = found.ns.sum(axis=1) < 0.001 * found.ns.sum()
    outermost = found.path < 1
    assert not (small & ~outermost & (found.what == GPU)).any()
