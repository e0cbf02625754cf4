"""Counters of the caching allocator: which reading belongs to which step, and what it shows."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nvprobe.analysis import Analysis
from nvprobe.analysis.allocator import NEAR_NS, allocator_use
from nvprobe.analysis.model import UNKNOWN, Steps
from nvprobe.attribution import attribute
from nvprobe.report.document import to_json
from nvprobe.trace import Trace
from nvprobe.trace.sidecar import AllocatorSamples, CaptureRanges, ModuleCalls, Sidecar
from tests.conftest import examples
from tests.unit.analysis.scenes import BF16_GEMM, H200, Scene, loop
from tests.unit.analysis.scenes import analysis_of as analysis_of_scene

GB, US = 10**9, 1000
COUNTED = ("retries", "device_allocs", "device_frees", "out_of_memory")


def samples(rows: list[dict[str, int]]) -> AllocatorSamples:
    columns = {f.name: [row.get(f.name, 0) for row in rows]
               for f in dataclasses.fields(AllocatorSamples)}  # fmt: skip
    return AllocatorSamples(**{name: np.array(values) for name, values in columns.items()})


def busy(scene: Scene) -> None:
    for _ in range(6):
        scene.launch(BF16_GEMM, 300 * US)


def with_samples(trace: Trace, table: AllocatorSamples) -> Trace:
    sidecar = Sidecar(ModuleCalls.empty(), CaptureRanges.empty(), allocator=table)
    return dataclasses.replace(trace, sidecar=sidecar)


def _steps(edges: list[tuple[int, int]]) -> Steps:
    zero = {f.name: np.zeros(len(edges), np.int64) for f in dataclasses.fields(Steps)}
    start, end = (np.array([edge[side] for edge in edges], np.int64) for side in (0, 1))
    return Steps(**{**zero, "start": start, "end": end})


READING = st.fixed_dictionaries({
    "time": st.integers(0, 4_000), "ordinal": st.integers(0, 1),
    "allocated": st.integers(0, 99), "peak_allocated": st.integers(0, 99),
    "device_allocs": st.integers(-1, 9), "retries": st.integers(0, 3),
})  # fmt: skip


@examples(50)
@given(
    st.lists(READING, max_size=9, unique_by=lambda row: (row["ordinal"], row["time"])),
    st.lists(st.integers(0, 4_000), max_size=8, unique=True).map(sorted),
)
def test_steps_differ_by_the_readings_at_their_edges(
    rows: list[dict[str, int]], times: list[int]
) -> None:
    edges = list(zip(times[::2], times[1::2], strict=False))
    trace = with_samples(loop(busy).trace(), samples(rows))
    use = allocator_use(attribute(trace), _steps(edges))
    if not rows:
        assert use is None
        return
    assert use is not None
    want = []
    for ordinal in sorted({row["ordinal"] for row in rows}):
        series = [row for row in rows if row["ordinal"] == ordinal]
        for step, (start, end) in enumerate(edges):
            near = min((end - start) // 4, NEAR_NS)
            first, last = (_nearest(series, edge, near) for edge in (start, end))
            if first and last and first["time"] < last["time"]:
                risen = last["peak_allocated"] > first["peak_allocated"]
                want.append((
                    step, last["allocated"] - first["allocated"],
                    last["peak_allocated"] if risen else UNKNOWN,
                    last["device_allocs"] - first["device_allocs"]
                    if min(first["device_allocs"], last["device_allocs"]) >= 0 else UNKNOWN,
                    last["retries"] - first["retries"],
                ))  # fmt: skip
    found = use.steps
    got = zip(found.step.tolist(), found.growth_bytes.tolist(), found.peak_bytes.tolist(),
              found.device_allocs.tolist(), found.retries.tolist(), strict=True)  # fmt: skip
    assert list(got) == want


def _nearest(series: list[dict[str, int]], edge: int, near: int) -> dict[str, int] | None:
    by_distance = sorted(series, key=lambda row: (abs(row["time"] - edge), row["time"]))
    return by_distance[0] if abs(by_distance[0]["time"] - edge) <= near else None


def run(read: Any) -> Analysis:
    """A loop of four steps with a reading after each: ``read(step)`` gives its figures."""
    scene = loop(busy)
    starts = [start for start, _, _ in scene.ranges]
    ends = [end for _, end, _ in scene.ranges]
    readings = [
        {"time": time + 20, "peak_reserved": 40 * GB, "reserved": 40 * GB, **read(step)}
        for step, time in enumerate([starts[0] - 40, *ends])
    ]
    return analysis_of_scene(scene, sidecar=with_samples(scene.trace(), samples(readings)).sidecar)


def test_what_the_report_says() -> None:
    analysis = run(
        lambda n: {
            "reserved": 40 * GB,
            "allocated": (30 + n) * GB,
            "peak_allocated": (35 + n // 4) * GB,
            "device_allocs": 100 + 3 * n,
            "device_frees": 50 + 2 * n,
        }
    )
    memory = json.loads(to_json(analysis))["memory"]
    (device,) = memory["allocator"]["devices"]
    assert device == {
        "process": 0, "device": 0, "readings": 5, "peak_bytes": 36 * GB,
        "peak_reserved_bytes": 40 * GB, "capacity_bytes": H200["memory_bytes"], "steps": 4,
        "growth_bytes": GB, "retries": 0, "device_allocs": 12, "device_frees": 8,
        "out_of_memory": 0,
    }  # fmt: skip
    steps = memory["allocator"]["steps"]
    assert [one["index"] for one in steps] == [0, 1, 2, 3]
    assert [one["allocated_bytes"] for one in steps] == [31 * GB, 32 * GB, 33 * GB, 34 * GB]
    assert [one["peak_bytes"] for one in steps] == [None, None, None, 36 * GB]
    assert {one["device_allocs"] for one in steps} == {3}
    assert memory["allocator"]["source"] == "allocator counters, read between steps"
    assert memory["devices"] is None  # no allocation events: nothing is known of them


def test_memory_that_grows_in_every_step() -> None:
    """Kept tensors; not memory that goes up and down, nor that of the first step alone."""
    free = H200["memory_bytes"]
    leak = run(lambda n: {"allocated": 20 * GB + n * 3_000_000})
    (one,) = leak.findings or ()
    assert one.id == "memory_growth"
    assert dict(one.evidence) == {
        "steps": 4, "growth_bytes": 3_000_000, "allocated_bytes": 20 * GB + 12_000_000,
        "steps_left": (free - 20 * GB - 12_000_000) // 3_000_000,
    }  # fmt: skip
    assert (one.severity, one.saves_ns) == ("info", (0, 0))
    waves = run(lambda n: {"allocated": 20 * GB + (n % 3) * 3_000_000})
    first = run(lambda n: {"allocated": 20 * GB + min(n, 1) * 3_000_000})
    drop = run(lambda n: {"allocated": 20 * GB + n * 512})  # a number a step
    assert [waves.findings, first.findings, drop.findings] == [(), (), ()]


def test_counters_warn_of_a_full_gpu() -> None:
    """By what is reserved, or because the driver has refused memory in the steps."""
    full = int(H200["memory_bytes"] * 0.95)
    near = run(lambda _: {"peak_reserved": full})
    tight = run(lambda n: {"retries": n})
    easy = run(lambda _: {})
    assert [[one.id for one in analysis.findings or ()] for analysis in (near, tight, easy)] == [
        ["memory_near_limit"], ["memory_near_limit"], [],
    ]  # fmt: skip
    assert (near.findings or ())[0].evidence["reserved_bytes"] == full
    assert (tight.findings or ())[0].evidence["retries"] == 4
