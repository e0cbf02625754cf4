"""The operator table against a slow walk over the events of real traces."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest

from nvprobe.analysis.operators import _chains, _is_operator, operator_table
from nvprobe.analysis.shapes import range_shapes
from nvprobe.analysis.waiting.code_lines import op_lines
from nvprobe.attribution import attribute
from nvprobe.attribution.model import Attribution
from nvprobe.readers import load
from nvprobe.trace import NO_ROW, Column, RangeSource
from tests.conftest import CORPUS

pytestmark = pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no corpus at {CORPUS}")


def operators_of_ops(attribution: Attribution) -> Column:
    """int64 row of ``trace.ranges`` per op: the innermost operator around its call, -1."""
    out = np.full(len(attribution.call), NO_ROW, np.int64)
    chosen = np.flatnonzero(_is_operator(attribution))
    if len(chosen):
        row, op, innermost = _chains(attribution, chosen)
        out[op[innermost]] = chosen[row[innermost]]
    return out


TRACES = ("h200/eager", "h200/compile", "public/h100_bert", "public/vllm_graph_replay")


@pytest.mark.parametrize("name", TRACES)
def test_agrees_with_a_slow_walk(name: str) -> None:
    trace = load(CORPUS / "kineto" / f"{name}.json.gz")
    attribution = attribute(trace)
    table = operator_table(attribution, op_lines(attribution), range_shapes(attribution.trace))
    assert table is not None
    assert _slow(trace, attribution) == {
        (row["name"], row["shapes"]): (
            row["calls"],
            row["cpu_ns"],
            row["self_cpu_ns"],
            row["ops"],
            row["gpu_ns"],
            row["gpu_self_ns"],
        )
        for row in table.records()
    }


def _slow(trace, attribution):  # type: ignore[no-untyped-def]
    ranges, shapes = trace.ranges, {}
    for row, text in zip(trace.operators.range, trace.texts(trace.operators.shapes), strict=True):
        shapes[int(row)] = text
    names = trace.texts(ranges.name)
    by_thread = defaultdict(list)
    kinds = attribution.tree.kind
    for row in range(len(ranges)):
        is_operator = ranges.source[row] == RangeSource.OPERATOR or kinds[row] == 6
        if is_operator:
            span = (int(ranges.start[row]), -int(ranges.end[row]), row)
            by_thread[int(ranges.thread[row])].append(span)
    out = defaultdict(lambda: [0, 0, 0, 0, 0, 0])
    above = {}
    for spans in by_thread.values():
        stack: list[int] = []
        for start, _, row in sorted(spans):
            while stack and ranges.end[stack[-1]] <= start:
                stack.pop()
            above[row] = stack[-1] if stack else None
            length = int(ranges.end[row]) - start
            key = (clean(names[row]), shapes.get(row))
            out[key][0] += 1
            out[key][2] += length
            if key not in [(clean(names[at]), shapes.get(at)) for at in stack]:
                out[key][1] += length
            if stack:
                out[clean(names[stack[-1]]), shapes.get(stack[-1])][2] -= length
            if length:
                stack.append(row)
    for op, call in enumerate(attribution.call):
        if call < 0:
            continue
        time, thread = trace.calls.start[call], int(trace.calls.thread[call])
        around = [r for s, e, r in sorted(by_thread[thread]) if s <= time < -e]
        duration = int(attribution.duration[op])
        for key in {(clean(names[row]), shapes.get(row)) for row in around}:
            out[key][3] += 1
            out[key][4] += duration
        if around:
            out[clean(names[around[-1]]), shapes.get(around[-1])][5] += duration
    return {key: tuple(values) for key, values in out.items()}


def clean(name: str) -> str:
    return name


def test_emit_nvtx_gives_the_same_operators() -> None:
    trace = load(CORPUS / "nsys/h200/eager_emit.sqlite")
    attribution = attribute(trace)
    rows = operator_table(
        attribution, op_lines(attribution), range_shapes(attribution.trace)
    ).records()
    addmm = [row for row in rows if row["name"] == "aten::addmm"]
    assert sum(row["calls"] for row in addmm) == 4 * 13
    assert {row["shapes"] for row in addmm} >= {"[[2048], [2048, 512], [512, 2048], [], []]"}
    innermost = operators_of_ops(attribution)
    assert (innermost >= 0).sum() >= 0.95 * len(trace.ops)


def test_a_trace_without_operators_has_no_table(corpus: Path) -> None:
    attribution = attribute(load(corpus / "kineto/public/gpu_only.json.gz"))
    assert (
        operator_table(attribution, op_lines(attribution), range_shapes(attribution.trace)) is None
    )
