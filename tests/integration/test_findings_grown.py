"""Rules whose pattern no capture at hand shows: grown from real ones, and held against loops.

Each test takes a real capture on which the rule is rightly silent, changes one thing in it, and
looks at every figure of the finding that appears.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from nvprobe.analysis import Analysis, analyze
from nvprobe.analysis.findings.model import Finding
from nvprobe.attribution import attribute
from nvprobe.readers import load
from nvprobe.trace import Column, MemoryEvents, Trace


def found(analysis: Analysis, name: str) -> Finding | None:
    return next((one for one in analysis.findings or () if one.id == name), None)


def of(trace: Trace) -> Analysis:
    return analyze(attribute(trace))


def with_ops(trace: Trace, **columns: Column) -> Trace:
    return dataclasses.replace(trace, ops=dataclasses.replace(trace.ops, **columns))


# Gaps inside the replays of a graph.


def _replays(trace: Trace) -> dict[int, list[int]]:
    """Op rows of each graph launch, by start."""
    out: dict[int, list[int]] = {}
    for row in np.flatnonzero(trace.ops.graph_node != 0).tolist():
        out.setdefault(int(trace.ops.correlation[row]), []).append(row)
    return {key: sorted(rows, key=lambda r: int(trace.ops.start[r])) for key, rows in out.items()}


def _stretched(trace: Trace, gap: int, shrink: int) -> Trace:
    """Nodes ``shrink`` times as short, and ``gap`` ns after each other."""
    start, end = trace.ops.start.copy(), trace.ops.end.copy()
    for rows in _replays(trace).values():
        at = int(start[rows[0]])
        for row in rows:
            length = max(int(end[row] - start[row]) // shrink, 1)
            start[row], end[row] = at, at + length
            at += length + gap
    return with_ops(trace, start=start, end=end)


@pytest.mark.parametrize("capture", ["graph_node.sqlite", "compile_ro_node.sqlite"])
def test_gaps_of_a_real_graph_are_what_the_hardware_needs(capture: str, corpus: Path) -> None:
    """Half a microsecond between nodes, a fiftieth of the replays' time."""
    assert found(of(load(corpus / "nsys" / "h200" / capture)), "graph_gaps") is None


def test_gaps_inside_replays(corpus: Path) -> None:
    trace = _stretched(load(corpus / "nsys" / "h200" / "graph_node.sqlite"), 9_000, shrink=16)
    one = found(of(trace), "graph_gaps")
    assert one is not None
    idle = busy = nodes = 0
    for rows in _replays(trace).values():
        for before, after in zip(rows, rows[1:], strict=False):
            idle += int(trace.ops.start[after] - trace.ops.end[before])
        busy += sum(int(trace.ops.end[r] - trace.ops.start[r]) for r in rows)
        nodes += len(rows)
    assert dict(one.evidence) == {
        "replays": 4, "nodes": 132, "mean_node_ns": busy // nodes, "idle_inside_ns": idle,
        "busy_inside_ns": busy,
    }  # fmt: skip
    assert idle == (132 - 4) * 9_000
    assert one.saves_ns == (0, idle)


def test_gaps_beside_long_nodes_are_not_theirs(corpus: Path) -> None:
    trace = _stretched(load(corpus / "nsys" / "h200" / "graph_node.sqlite"), 9_000, shrink=1)
    assert found(of(trace), "graph_gaps") is None


# One kernel with most of the time that is far from every limit.

ISSUE, DRAM = "SM Issue [Throughput %]", ("DRAM Read Bandwidth", "DRAM Write Bandwidth")


def _one_gemm(trace: Trace) -> tuple[Trace, Column]:
    """The two kernels of most time under one name, and the rows of it."""
    texts = np.array(trace.texts(trace.ops.name))
    names = [n for n in sorted(set(texts)) if "cutlass_80_simt_sgemm_256x128" in n]
    assert len(names) == 2
    rows = np.flatnonzero(np.isin(texts, names))
    name = trace.ops.name.copy()
    name[rows] = name[rows[0]]
    return with_ops(trace, name=name), rows


def _scaled(trace: Trace, metrics: tuple[str, ...], factor: float) -> Trace:
    texts = trace.texts(trace.counters.metric)
    chosen = np.array([bool(t) and t.startswith(metrics) for t in texts])
    value = np.where(chosen, trace.counters.value * factor, trace.counters.value)
    return dataclasses.replace(trace, counters=dataclasses.replace(trace.counters, value=value))


@pytest.fixture(scope="module")
def sampled(corpus: Path) -> tuple[Trace, Column]:
    return _one_gemm(load(corpus / "nsys" / "h200" / "gpu_metrics_pqtdir"))


def test_a_kernel_that_issues_all_the_time_is_not_bound_by_latency(
    sampled: tuple[Trace, Column],
) -> None:
    """The FP32 GEMMs as they are: 77% of what can be issued, whatever the tensor cores do."""
    assert found(of(sampled[0]), "kernel_latency_bound") is None


def test_a_kernel_near_no_peak(sampled: tuple[Trace, Column]) -> None:
    trace, rows = sampled
    trace = _scaled(trace, (ISSUE,), 0.3)
    one = found(of(trace), "kernel_latency_bound")
    assert one is not None
    spent = sum(int(trace.ops.end[r] - trace.ops.start[r]) for r in rows)
    share = spent / int((trace.ops.end - trace.ops.start).sum())
    assert one.title.startswith(f"One kernel takes {share:.0%} of GPU time and is latency-bound")
    issue = _average(trace, ISSUE, rows)
    assert one.evidence["gpu_ns"] == spent
    assert str(one.evidence["kernel"]).startswith("cutlass_80_simt_sgemm_256x128_8x4")
    assert one.evidence["sm_issue"] == pytest.approx(issue, abs=0.06)
    assert one.saves_ns[0] == 0
    assert one.saves_ns[1] > 0


def test_a_kernel_near_the_peak_of_memory(sampled: tuple[Trace, Column]) -> None:
    trace = _scaled(_scaled(sampled[0], (ISSUE,), 0.3), DRAM, 10)
    assert found(of(trace), "kernel_latency_bound") is None


def _average(trace: Trace, metric: str, rows: Column) -> float:
    """A metric over the time of some ops, sample by sample."""
    mine = [i for i, name in enumerate(trace.texts(trace.counters.metric)) if name == metric]
    time, value = trace.counters.time[mine], trace.counters.value[mine]
    total = length = 0.0
    for row in rows:
        low, high = int(trace.ops.start[row]), int(trace.ops.end[row])
        shared = np.maximum(np.minimum(high, time[1:]) - np.maximum(low, time[:-1]), 0)
        total += float((shared * value[1:]).sum())
        length += float(shared.sum())
    return total / length


# Memory near the limit.


def test_memory_of_a_real_capture_is_far_from_its_limit(corpus: Path) -> None:
    analysis = of(load(corpus / "nsys" / "h200" / "eager_emit.sqlite"))
    assert found(analysis, "memory_near_limit") is None
    # All of it was there when the window began: nsys lists it at time 0.
    use = analysis.memory
    assert (use.from_zero, use.of_driver) == (True, True)
    assert use.devices.peak_bytes.tolist() == [657_120_865]
    assert use.devices.growth_bytes.tolist() == use.devices.events.tolist() == [0]
    assert set(use.steps.peak_bytes.tolist()) == {657_120_865}
    assert not len(use.paths)


def test_memory_near_the_limit_of_a_smaller_gpu(corpus: Path) -> None:
    """The same allocations of the driver on a GPU that they nearly fill."""
    trace = load(corpus / "nsys" / "h200" / "eager_emit.sqlite")
    peak = _peak(trace.memory)
    for capacity, expected in ((int(peak / 0.91), True), (int(peak / 0.89), False)):
        devices = dataclasses.replace(trace.devices, memory_bytes=np.array([capacity]))
        one = found(of(dataclasses.replace(trace, devices=devices)), "memory_near_limit")
        assert (one is not None) is expected
        if one is None:
            continue
        assert one.title.startswith("91% of the GPU's memory is taken from the driver")
        assert dict(one.evidence) == {
            "peak_bytes": None, "reserved_bytes": peak, "capacity_bytes": capacity,
            "retries": None,
        }  # fmt: skip
        assert (one.saves_ns, one.severity) == ((0, 0), "info")


def _peak(events: MemoryEvents) -> int:
    """Most bytes on the device, event by event (those at 0 were there before)."""
    assert events is not None
    level = most = 0
    for row in np.argsort(events.time, kind="stable").tolist():
        if events.device[row] < 0:
            continue
        level += int(events.bytes[row])
        most = max(most, level)
    return most


# Products far below the peak.


def test_products_of_a_real_capture_reach_their_peak(corpus: Path) -> None:
    """bfloat16 on an H100: 58% of the data sheet's peak at the greatest clock."""
    analysis = of(load(corpus / "kineto" / "public" / "h100_qwen_stacks.json.gz"))
    assert found(analysis, "gemm_efficiency") is None


def test_an_idle_gpu_gains_nothing_from_faster_products(corpus: Path) -> None:
    """A small batch: 4% of the peak, but the GPU works for 8% of the time only."""
    analysis = of(load(corpus / "kineto" / "public" / "h100_bert.json.gz"))
    assert analysis.work is not None
    assert found(analysis, "gemm_efficiency") is None


def test_slow_products(corpus: Path) -> None:
    """Every kernel of the qwen capture three times as slow: a fifth of the peak."""
    trace = load(corpus / "kineto" / "public" / "h100_qwen_stacks.json.gz")
    first = int(trace.ops.start.min())
    start = first + (trace.ops.start - first) * 3
    slow = with_ops(trace, start=start, end=start + (trace.ops.end - trace.ops.start) * 3)
    one = found(of(dataclasses.replace(slow, end_ns=int(slow.end_ns * 3))), "gemm_efficiency")
    assert one is not None
    peak = 132 * 4096 * 1.98e9
    ideal, spent, most, products = _products(slow, peak)
    assert one.evidence["products"] == products
    assert one.evidence["gpu_ns"] == spent
    assert one.evidence["mfu"] == pytest.approx(ideal / spent, abs=1e-4)
    assert one.saves_ns[1] == pytest.approx(most, rel=1e-6)
    assert one.evidence["same_in_every_step"] is None  # one step was recorded
    assert "pad or bucket" in one.advice[1]


def _products(trace: Trace, peak: float) -> tuple[float, int, float, int]:
    """(ideal ns, GPU ns, ns above 70% of the roofline, count) of bfloat16 products, one by one."""
    import json

    calls = {int(c): row for row, c in enumerate(trace.calls.correlation)}
    launched = [
        (int(trace.calls.thread[call]), int(trace.calls.start[call]), int(end - start))
        for correlation, start, end in zip(
            trace.ops.correlation.tolist(), trace.ops.start, trace.ops.end, strict=True
        )
        if (call := calls.get(correlation)) is not None
    ]
    names = trace.texts(trace.ranges.name[trace.operators.range])
    ideal = above = 0.0
    spent = products = 0
    for place, row in enumerate(trace.operators.range.tolist()):
        shapes = json.loads(trace.text(int(trace.operators.shapes[place])) or "[]")
        types = json.loads(trace.text(int(trace.operators.types[place])) or "[]")
        pair = {"aten::mm": (0, 1), "aten::addmm": (1, 2)}.get(names[place] or "")
        attends = names[place] == "aten::_scaled_dot_product_flash_attention"
        if pair is None and not attends:
            continue
        begin, end = int(trace.ranges.start[row]), int(trace.ranges.end[row])
        thread = int(trace.ranges.thread[row])
        ns = sum(length for of, at, length in launched if of == thread and begin <= at < end)
        if not ns or "c10::BFloat16" not in types:
            continue
        if attends:
            batch, heads, length, width = shapes[0]
            arguments = json.loads(trace.text(int(trace.operators.arguments[place])) or "[]")
            pairs = length * (length + 1) // 2 if arguments[-3] == "True" else length**2
            flops = 4 * batch * heads * pairs * width
            size = 2 * (sum(int(np.prod(s)) for s in shapes if s) + batch * heads * length * width)
        else:
            a, b = (shapes[at] for at in pair or ())
            flops = 2 * a[0] * a[1] * b[1]
            size = 2 * (sum(int(np.prod(s)) for s in shapes if s) + a[0] * b[1])
        products, spent, ideal = products + 1, spent + ns, ideal + flops / peak * 1e9
        above += max(ns - max(flops / peak, size / 3.35e12) * 1e9 / 0.7, 0)
    return ideal, spent, above, products
