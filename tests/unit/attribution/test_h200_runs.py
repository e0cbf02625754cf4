"""Captures of instrumented programs on an H200, joined with their sidecars.

Made by scripts/gpu/compiled_check.py (torch 2.11, nsys 2025.3): a three-block transformer in
training, eager with gradients accumulated twice, under cudagraph trees that were captured before
the window, and compiled in a loop over blocks with a graph break; and inference in a manual graph.
"""

from __future__ import annotations

import tarfile
from pathlib import Path

import numpy as np
import pytest

from nvprobe.attribution import Attribution, attribute
from nvprobe.attribution.model import Method, ModuleMethod, Modules, Phase
from nvprobe.attribution.modules import modules
from nvprobe.readers import load
from nvprobe.readers.sidecar import merge_sidecars
from nvprobe.readers.sidecar_kinds import read_sidecar

ARCHIVE = Path(__file__).resolve().parents[2] / "fixtures" / "compiled_h200.tar.xz"
LEAVES = {
    f"blocks.{i}.{leaf}" for i in range(3) for leaf in ("ln1", "qkv", "o", "ln2", "fc1", "fc2")
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("h200")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    return folder


def joined(folder: Path, name: str) -> tuple[Attribution, Modules]:
    sidecar = read_sidecar(folder / f"{name}.sidecar.jsonl")
    attribution = attribute(merge_sidecars(load(folder / f"{name}.sqlite"), [sidecar]))
    table = modules(attribution)
    assert int(table.gpu_ns.sum()) == int(attribution.duration[np.unique(table.op)].sum())
    return attribution, table


def backward_ops(attribution: Attribution) -> np.ndarray:
    """Ops whose call an autograd thread made."""
    called = np.flatnonzero(attribution.call >= 0)
    thread = attribution.trace.calls.thread[attribution.call[called]]
    return called[attribution.autograd[thread]]


def module_names(table: Modules, ops: np.ndarray) -> set[str]:
    rows = np.unique(table.module[np.isin(table.op, ops)])
    return set(table.names.take(rows).to_pylist())


def test_all_backward_kernels_of_an_eager_transformer_reach_a_module(folder):
    attribution, table = joined(folder, "eager_backward")
    backward = backward_ops(attribution)
    assert len(backward) == 735
    texts = attribution.paths.texts()
    outside = backward[table.method[backward] == ModuleMethod.NO_MODULE]
    # The loss is computed by the script, in no module: its two nodes are all that is left.
    assert {texts[row].rpartition("/")[2] for row in attribution.owner[outside]} == {
        "PowBackward0",
        "MeanBackward0",
    }
    inside = np.setdiff1d(backward, outside)
    assert set(table.method[inside]) == {ModuleMethod.SEQUENCE, ModuleMethod.PREVIOUS_NODE}
    assert module_names(table, inside) >= LEAVES | {"head", "emb"}
    accumulate = [op for op in inside if "AccumulateGrad" in texts[attribution.owner[op]]]
    assert len(accumulate) > 50
    assert (table.method[accumulate] == ModuleMethod.PREVIOUS_NODE).all()
    assert module_names(table, np.asarray(accumulate)) >= LEAVES
    assert (table.phase[np.isin(table.op, inside)] == Phase.BACKWARD).all()


def test_every_linear_has_the_kernels_of_its_own_backward(folder):
    """Six backward passes: each block's matrix products are as many as the next block's."""
    attribution, table = joined(folder, "eager_backward")
    backward = backward_ops(attribution)
    short = np.asarray(attribution.trace.texts(attribution.trace.ops.short_name), object)
    products = [op for op in backward if "gemm" in short[op] or short[op] == "Kernel2"]
    rows = np.isin(table.op, products)
    names = np.asarray(table.names.to_pylist(), object)[table.module[rows]]
    for leaf in ("qkv", "o", "fc1", "fc2"):
        counts = [int((names == f"blocks.{block}.{leaf}").sum()) for block in range(3)]
        assert counts[0] == counts[1] == counts[2] >= 12, leaf  # two products, six passes


def test_all_nodes_replayed_by_cudagraph_trees_reach_their_modules(folder):
    attribution, table = joined(folder, "reduce_overhead_before_window")
    replayed = np.flatnonzero(attribution.trace.ops.graph_node != 0)
    assert len(replayed) == 426
    assert (table.method[replayed] == ModuleMethod.MANIFEST).all()
    assert module_names(table, replayed) >= LEAVES
    names = table.names.to_pylist()
    sources = {names[row] for row in table.source[np.isin(table.op, replayed)] if row >= 0}
    assert all(".py:" in one and one.endswith(" forward") for one in sources)
    resolved = attribution.method[replayed]
    assert set(resolved) <= {Method.GRAPH_CAPTURE, Method.GRAPH_LAUNCH}


def test_blocks_that_share_a_graph_are_told_apart_forward_and_backward(folder):
    attribution, table = joined(folder, "compiled_break")
    assert not (table.method == ModuleMethod.INDISTINGUISHABLE).any()
    backward = backward_ops(attribution)
    for ops in (backward, np.setdiff1d(np.arange(len(table.method)), backward)):
        compiled = ops[table.method[ops] == ModuleMethod.MANIFEST]
        found = module_names(table, compiled)
        assert found >= LEAVES
        assert {name.split(".")[0] for name in found} <= {"blocks", "head", "emb", "Broken"}
    rows = np.isin(table.op, backward)
    names = np.asarray(table.names.to_pylist(), object)[table.module[rows]]
    counts = [int((names == f"blocks.{block}.fc1").sum()) for block in range(3)]
    assert counts[0] == counts[1] == counts[2] > 0


def test_all_nodes_of_a_manual_graph_captured_before_the_window_reach_their_modules(folder):
    attribution, table = joined(folder, "graph_before_window")
    replayed = np.flatnonzero(attribution.trace.ops.graph_node != 0)
    assert len(replayed) == 105
    assert (attribution.method[replayed] == Method.GRAPH_CAPTURE).all()
    assert (table.method[replayed] == ModuleMethod.RANGE).all()
    names = module_names(table, replayed)
    assert LEAVES | {"emb", "head"} <= names
    assert names <= LEAVES | {"emb", "head", "Net", *(f"blocks.{i}" for i in range(3))}
    # Three replays of one graph: each module has three times the ops of one.
    _, count = np.unique(table.module[np.isin(table.op, replayed)], return_counts=True)
    assert (count % 3 == 0).all()
