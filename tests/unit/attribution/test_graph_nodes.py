"""Whole CUDA graphs and their nodes, of two runs, as one capture."""

from __future__ import annotations

import dataclasses
import json
import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvprobe.attribution import attribute
from nvprobe.merging.graph_nodes import NODES, with_nodes
from nvprobe.merging.load import load
from nvprobe.trace import Geometry, GraphNodes, OpKind, Ops, Trace
from tests.conftest import ROOT
from tests.unit.analysis.scenes import Scene, loop

FIXTURE = ROOT / "tests" / "fixtures" / "launch_h200.tar.xz"


def whole_graphs(trace: Trace, shrink: float = 1.0) -> Trace:
    """The same capture had graphs been traced whole, replays in a share of their time."""
    ops = trace.ops
    inside = ops.graph_node != 0
    rows, firsts = [], []
    for launch in np.unique(ops.correlation[inside]).tolist():
        mine = np.flatnonzero(inside & (ops.correlation == launch))
        length = int(ops.end[mine].max()) - int(ops.start[mine].min())
        firsts.append(int(mine[np.argmin(ops.start[mine])]))
        rows.append((int(ops.start[mine].min()), round(length * shrink)))
    graphs = ops.take(np.array(firsts, np.int64))
    start = np.array([start for start, _ in rows])
    graphs = dataclasses.replace(
        graphs,
        kind=np.full(len(rows), OpKind.GRAPH),
        graph_node=np.zeros(len(rows), np.int64),
        start=start,
        end=start + np.array([length for _, length in rows]),
    )
    rest = ops.take(~inside)
    both = {n: np.concatenate([v, graphs.columns()[n]]) for n, v in rest.columns().items()}
    return dataclasses.replace(
        trace,
        ops=Ops(**both),
        geometry=Geometry.absent(),
        graph_nodes=GraphNodes.absent(),
        missing=(),
    )


def replays(nodes: list[tuple[int, int]], steps: int = 3) -> Trace:
    """Each step replays a graph whose nodes begin and last so long; one kernel beside it."""

    def body(scene: Scene) -> None:
        scene.launch("other", 3_000)
        scene.call("cudaGraphLaunch", 10_000)
        begin = max(scene.now, scene.gpu_free.get(7, 0)) + 1_000
        for number, (offset, length) in enumerate(nodes, 1):
            first = begin + offset
            scene._note(OpKind.KERNEL, f"node {number}", first, first + length, 7, node=number)
        scene.gpu_free[7] = begin + max(offset + length for offset, length in nodes)
        scene.host(200_000)

    return loop(body, steps).trace()


def slow_fit(nodes: list[tuple[int, int]], length: int) -> list[tuple[float, float]]:
    """Where each node lies in a graph of ``length``: instant by instant, by the definition."""
    origin = min(start for start, _ in nodes)
    last = max(start + size for start, size in nodes) - origin
    busy = [any(s - origin <= t < s - origin + n for s, n in nodes) for t in range(last)]
    total = sum(busy)
    scale_busy = min(total, length) / total if total else 1.0
    idle = last - total
    scale_idle = min(max(length - total, 0), idle) / idle if idle else 1.0

    def placed(instant: int) -> float:
        inside = sum(busy[:instant])
        return inside * scale_busy + (instant - inside) * scale_idle

    return [(placed(s - origin), placed(s - origin + n)) for s, n in nodes]


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(1, 30)), min_size=1, max_size=6),
    st.floats(0.1, 1.0),
)
def test_nodes_lie_where_their_graph_was(nodes: list[tuple[int, int]], shrink: float) -> None:
    nodes = sorted(nodes)
    traced = replays(nodes)
    whole = whole_graphs(traced, shrink)
    joined = with_nodes(whole, traced)
    graphs = np.flatnonzero(whole.ops.kind == OpKind.GRAPH)
    inside = joined.ops.take(joined.ops.graph_node != 0)
    for position, graph in enumerate(graphs.tolist()):
        start, end = int(whole.ops.start[graph]), int(whole.ops.end[graph])
        mine = slice(position * len(nodes), (position + 1) * len(nodes))
        expected = slow_fit(nodes, end - start)
        for got, (first, last) in zip(
            zip(inside.start[mine], inside.end[mine], strict=True), expected, strict=True
        ):
            assert abs(got[0] - start - first) <= 0.5 + 1e-6
            assert abs(got[1] - start - last) <= 0.5 + 1e-6


def test_nothing_changes_where_the_graph_took_as_long() -> None:
    traced = replays([(0, 100), (150, 50), (160, 80)])
    joined = with_nodes(whole_graphs(traced), traced)
    ours = joined.ops.take(joined.ops.graph_node != 0)
    theirs = traced.ops.take(traced.ops.graph_node != 0)
    assert ours.start.tolist() == theirs.start.tolist()
    assert ours.end.tolist() == theirs.end.tolist()
    assert joined.texts(ours.name) == traced.texts(theirs.name)
    assert len(joined.geometry) == len(theirs), "that of the whole capture was taken away"
    assert set(joined.geometry.op.tolist()) == set(
        np.flatnonzero(joined.ops.graph_node != 0).tolist()
    )


def test_runs_that_launched_different_numbers_are_not_paired() -> None:
    nodes = [(0, 100), (150, 50)]
    whole = whole_graphs(replays(nodes, steps=3))
    joined = with_nodes(whole, replays(nodes, steps=4))
    assert joined.ops is whole.ops
    assert "CUDA graphs stay whole" in joined.warnings[-1]


def test_a_capture_without_graphs_stays_as_it_is() -> None:
    traced = replays([(0, 100)])
    assert with_nodes(traced, traced) is traced


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on an H200 whose compiled graphs are CUDA graphs, traced by node."""
    folder = tmp_path_factory.mktemp("run")
    with tarfile.open(FIXTURE) as archive:
        for name in ("reduce_overhead.sqlite", "reduce_overhead.sidecar.jsonl"):
            archive.extract(name, folder, filter="data")
    (folder / "reduce_overhead.sqlite").rename(folder / "report.sqlite")
    (folder / "reduce_overhead.sidecar.jsonl").rename(folder / "sidecar.0.1.jsonl")
    (folder / "run.json").write_text(json.dumps({"schema": "nvprobe.run/1"}))
    return folder


def owned(trace: Trace) -> Counter[tuple[str, str | None]]:
    """Ops by owner and kernel."""
    attribution = attribute(trace)
    paths = [attribution.paths.text(path) if path >= 0 else "" for path in attribution.owner]
    return Counter(zip(paths, trace.texts(trace.ops.name), strict=True))


def test_owners_are_those_of_the_capture_by_node(compiled: Path) -> None:
    traced = load(compiled)
    assert owned(with_nodes(whole_graphs(traced, 0.7), traced)) == owned(traced)


def test_two_runs_of_a_program_that_captures_its_graph_in_the_window(corpus: Path) -> None:
    """Whole and by node on an H200: no sidecar tells the ranges, the second run's file does."""
    folder = corpus / "nsys" / "h200"
    whole, nodes = load(folder / "graph_graph.sqlite"), load(folder / "graph_node.sqlite")
    joined = with_nodes(whole, nodes)
    assert owned(joined) == owned(nodes)
    graph = whole.ops.kind == OpKind.GRAPH
    inside = joined.ops.graph_node != 0
    for launch in np.unique(whole.ops.correlation[graph]):
        one = graph & (whole.ops.correlation == launch)
        mine = inside & (joined.ops.correlation == launch)
        assert np.count_nonzero(mine) == 33
        assert joined.ops.start[mine].min() == whole.ops.start[one][0]
        assert joined.ops.end[mine].max() <= whole.ops.end[one][0]


def test_a_run_folder_with_the_nodes_of_another_run_is_read_as_one(
    compiled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nodes = compiled / NODES
    nodes.mkdir(exist_ok=True)
    for name in ("report.sqlite", "sidecar.0.1.jsonl", "run.json"):
        (nodes / name).write_bytes((compiled / name).read_bytes())
    asked: list[tuple[Trace, Trace]] = []
    monkeypatch.setattr(
        "nvprobe.merging.load.with_nodes",
        lambda whole, other: asked.append((whole, other)) or whole,
    )
    load(compiled)
    (pair,) = asked
    assert all(len(trace.ops or ()) == 640 for trace in pair)
