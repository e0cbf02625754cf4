"""The same program under nsys with emit_nvtx and under torch.profiler did the same work."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nvprobe.analysis.kernels.classes import classify_ops
from nvprobe.analysis.kernels.flops import FORMULAS
from nvprobe.analysis.kernels.work import WorkItems, path_work, work_items
from nvprobe.analysis.shapes import range_shapes
from nvprobe.attribution import attribute
from nvprobe.attribution.model import Attribution
from nvprobe.readers import load

SOURCES = ("kineto/h200/eager.json.gz", "nsys/h200/eager_emit.sqlite")


def _items(path: Path) -> tuple[Attribution, WorkItems]:
    attribution = attribute(load(path))
    items = work_items(
        attribution, classify_ops(attribution.trace), range_shapes(attribution.trace)
    )
    assert items is not None
    return attribution, items


UNSEEN = 256 * 255 // 2
"""Pairs of 256 positions that causal attention leaves out."""
CALLS, HEADS, WIDTH = 12, 8 * 8, 64


def test_both_sources_count_the_same_flops(corpus: Path) -> None:
    """But for the half of causal attention: emit_nvtx does not tell that it is causal."""
    sums = []
    for source in SOURCES:
        attribution, items = _items(corpus / source)
        table = path_work(attribution, items)
        texts = attribution.paths.texts()
        by_path = dict(zip((texts[p] for p in table.path), table.flops.tolist(), strict=True))
        sums.append({p: by_path[p] for p in ("step", "step/forward", "step/backward")})
    product = 2 * CALLS * HEADS * UNSEEN * WIDTH
    unseen = {"step": 7, "step/forward": 2, "step/backward": 5}
    assert sums[0] == {path: sums[1][path] - n * product for path, n in unseen.items()}


@pytest.mark.parametrize("source", SOURCES)
def test_an_items_ops_are_those_called_inside_it(source: str, corpus: Path) -> None:
    attribution, items = _items(corpus / source)
    trace = attribution.trace
    names = attribution.paths.texts()
    ranges, calls = trace.ranges, trace.calls
    works = [r for r in range(len(ranges))
             if names[attribution.tree.path[r]].rsplit("/", 1)[-1] in FORMULAS]  # fmt: skip
    expected: dict[int, int] = {}
    for op in np.flatnonzero(attribution.call >= 0):
        call = attribution.call[op]
        inside = [r for r in works if ranges.thread[r] == calls.thread[call]
                  and ranges.start[r] <= calls.start[call] < attribution.tree.end[r]]  # fmt: skip
        if inside:
            at = max(inside, key=lambda r: (ranges.start[r], r))
            expected[at] = expected.get(at, 0) + int(attribution.duration[op])
    found = dict(zip(items.range.tolist(), items.gpu_ns.tolist(), strict=True))
    with_work = {r: ns for r, ns in expected.items() if r in found}
    assert found == with_work
    assert len(found) == 264


def test_no_shapes_no_work(corpus: Path) -> None:
    attribution = attribute(load(corpus / "nsys" / "h200" / "eager.sqlite"))
    assert (
        work_items(attribution, classify_ops(attribution.trace), range_shapes(attribution.trace))
        is None
    )
