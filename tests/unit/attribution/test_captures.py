"""CUDA graphs captured before the window: the sidecar's ranges lead their replays to modules.

compile_ro_node has the creation of all its graph nodes but nothing else of the time before the
window; the sidecar that nvprobe would have written is made here from those times.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from nvprobe.attribution import attribute
from nvprobe.attribution.model import Method, ModuleMethod
from nvprobe.attribution.modules import modules
from nvprobe.readers import load
from nvprobe.readers.sidecar import merge_sidecars
from nvprobe.readers.sidecar_kinds import read_sidecar
from nvprobe.trace import Trace

UNIX = 1_700_000_000_000_000_000


@pytest.fixture
def plain(corpus: Path) -> Trace:
    import dataclasses

    trace = load(corpus / "nsys" / "h200" / "compile_ro_node.sqlite")
    return dataclasses.replace(trace, origin_ns=UNIX)


def captured_before(trace: Trace) -> tuple[dict[tuple[int, int], int], list[int]]:
    """Creation time of each graph node's first ancestor, and the threads that created any."""
    nodes = trace.graph_nodes
    time, origin = {}, {}
    rows = zip(
        nodes.thread.tolist(), nodes.node.tolist(), nodes.origin.tolist(), nodes.time.tolist(),
        strict=True,
    )  # fmt: skip
    for thread, node, parent, at in rows:
        time.setdefault(node, (thread, at))
        if parent:
            origin[node] = parent
    first = {}
    for node in time:
        ancestor = node
        while ancestor in origin:
            ancestor = origin[ancestor]
        first[node] = time[ancestor]
    return first, sorted({thread for thread, _ in first.values()})


def sidecar(trace: Trace, first: dict[int, tuple[int, int]], threads: list[int], file: Path):
    """One capture a thread: the model's range, in it six blocks of equal numbers of nodes."""
    lines = [{"kind": "header", "schema": "nvprobe.sidecar/1", "pid": int(trace.processes.pid[0])}]
    lines.append({"kind": "root", "name": "Net"})
    expected = {}
    for number, thread in enumerate(threads, 1):
        times = sorted({at for owner, at in first.values() if owner == thread})
        tid = int(trace.threads.tid[thread])
        cuts = [times[len(times) * i // 6] for i in range(6)] + [times[-1] + 1]
        inner = [[f"blocks.{i}", 1, cuts[i], cuts[i + 1], "module"] for i in range(6)]
        ranges = [["Net", 0, cuts[0], cuts[6], "module"], *inner]
        for row in ranges:
            row[2:4] = [row[2] + UNIX, row[3] + UNIX]
        bounds = {"start_ns": ranges[0][2] - 5, "end_ns": ranges[0][3] + 5}
        lines.append(
            {"kind": "cudagraph", "id": number, "event": "capture", "thread": tid, **bounds}
            | {"ranges": ranges}
        )
        for node, (owner, at) in first.items():
            if owner == thread:
                expected[node] = f"blocks.{int(np.searchsorted(cuts, at, side='right')) - 1}"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return read_sidecar(file), expected


def test_every_replayed_node_reaches_the_module_of_its_capture(plain, tmp_path):
    first, threads = captured_before(plain)
    read, expected = sidecar(plain, first, threads, tmp_path / "sidecar.0.1.jsonl")
    before = attribute(plain)
    after = attribute(merge_sidecars(plain, [read]))
    replayed = np.flatnonzero(plain.ops.graph_node != 0)
    assert len(replayed) == 596
    assert (before.method[replayed] == Method.GRAPH_LAUNCH).all()
    assert (after.method[replayed] == Method.GRAPH_CAPTURE).all()
    others = np.flatnonzero(plain.ops.graph_node == 0)
    assert (after.method[others] == before.method[others]).all()
    text_before, text_after = before.paths.texts(), after.paths.texts()
    table = modules(after)
    names = table.names.to_pylist()
    module = {int(op): names[row] for op, row in zip(table.op, table.module, strict=True)}
    for op in replayed.tolist():
        block = expected[int(plain.ops.graph_node[op])]
        launch = text_before[before.owner[op]]
        assert text_after[after.owner[op]] == f"{launch}/Net/{block}"
        assert module[op] == block
        assert table.method[op] == ModuleMethod.RANGE
    assert {module[op] for op in replayed.tolist()} == {f"blocks.{i}" for i in range(6)}


def test_captures_add_no_ranges_and_no_host_time(plain, tmp_path):
    first, threads = captured_before(plain)
    read, _ = sidecar(plain, first, threads, tmp_path / "sidecar.0.1.jsonl")
    merged = merge_sidecars(plain, [read])
    assert len(merged.ranges) == len(plain.ranges)
    assert (attribute(merged).tree.end == attribute(plain).tree.end).all()
