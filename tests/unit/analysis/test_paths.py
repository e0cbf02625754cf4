"""Every quantity of every path against the slow oracle, on random traces."""

from __future__ import annotations

import numpy as np
from hypothesis import given

from nvprobe.analysis.model import UNKNOWN
from nvprobe.analysis.path_quantities import path_quantities, walk_order
from nvprobe.attribution import attribute
from tests.analysis_oracle import AnalysisOracle
from tests.conftest import examples
from tests.random_traces import traces


def path_tuples(paths) -> list[tuple[str, ...]]:
    names = paths.names.to_pylist()
    out: list[tuple[str, ...]] = []
    for parent, name in zip(paths.parent.tolist(), paths.name.tolist(), strict=True):
        out.append((*(out[parent] if parent >= 0 else ()), names[name]))
    return out


@examples(60)
@given(traces())
def test_quantities_are_the_oracles(trace):
    attribution = attribute(trace)
    table, oracle = path_quantities(attribution), AnalysisOracle(trace)
    by_prefix, replays = oracle.by_prefix(), oracle.replays()
    calls, wall, self_wall = oracle.calls(), oracle.wall(), oracle.self_wall()
    spans = oracle.spans()
    for row, path in enumerate(path_tuples(attribution.paths)):
        ops = by_prefix.get(path, [])
        replayed = replays.get(path, []) if not calls[path] else []
        own = [op for op in ops if oracle.owners[op][0] == path]
        assert table.ops[row] == len(ops)
        assert table.gpu_ns[row] == oracle.gpu(ops)
        assert table.gpu_self_ns[row] == oracle.gpu(own)
        assert table.gpu_busy_ns[row] == oracle.busy(ops)
        assert table.calls[row] == calls[path] + len(replayed)
        assert table.wall_ns[row] == (UNKNOWN if replayed else wall[path])
        assert table.self_wall_ns[row] == (UNKNOWN if replayed else self_wall[path])
        assert table.gpu_span_ns[row] == spans[path] + sum(map(oracle.span, replayed))


@examples(25)
@given(traces())
def test_walk_order_is_depth_first(trace):
    paths = attribute(trace).paths
    texts = path_tuples(paths)
    children: dict[int, list[int]] = {}
    for row, parent in enumerate(paths.parent.tolist()):
        children.setdefault(parent, []).append(row)

    def walk(row: int) -> list[tuple[str, ...]]:
        return [texts[row], *(path for child in children.get(row, []) for path in walk(child))]

    expected = [path for root in children.get(-1, []) for path in walk(root)]
    assert [texts[row] for row in np.argsort(walk_order(paths))] == expected
