"""The second owner on real captures: compiled graphs with their manifests, named backward nodes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from nvprobe.attribution import Attribution, attribute
from nvprobe.attribution.model import ModuleMethod, Modules, Phase
from nvprobe.attribution.modules import exact_shares, module_ledger, modules
from nvprobe.readers import load
from nvprobe.trace import (
    NO_PAYLOAD,
    Calls,
    Devices,
    OpKind,
    Ops,
    Processes,
    Ranges,
    RangeSource,
    Source,
    Threads,
    Trace,
)
from nvprobe.trace.sidecar import CaptureRanges, ModuleCalls, Sidecar
from tests.manifests import capture_with_manifest

H200 = Path("nsys") / "h200"


def shares_of(table: Modules, op: int) -> dict[tuple[str, str | None, Phase], float]:
    """Weighted modules and lines of one op in words."""
    names = table.names.to_pylist()
    rows = np.flatnonzero(table.op == op)
    return {
        (
            names[table.module[row]],
            names[table.source[row]] if table.source[row] >= 0 else None,
            Phase(table.phase[row]),
        ): float(table.weight[row])
        for row in rows
    }


def inside_graphs(attribution: Attribution) -> dict[str, list[list[int]]]:
    """Ops of each graph range in launch order, the obvious way: ``graph 0/0 fwd`` -> instances."""
    trace = attribution.trace
    names = trace.texts(trace.ranges.name)
    found: dict[str, list[list[int]]] = {}
    for row, name in enumerate(names):
        if not (name or "").startswith("graph "):
            continue
        low, high = int(trace.ranges.start[row]), int(trace.ranges.end[row])
        ops = [
            (int(trace.calls.start[call]), op)
            for op, call in enumerate(attribution.call.tolist())
            if call >= 0
            and trace.calls.thread[call] == trace.ranges.thread[row]
            and low <= trace.calls.start[call] < high
        ]
        found.setdefault(name, []).append([op for _, op in sorted(ops)])
    return found


def together(lists: Iterable[list[int]]) -> list[int]:
    return list(chain.from_iterable(lists))


def check_sums(attribution: Attribution, table: Modules) -> None:
    """Everything adds up: nanoseconds exactly, weights to 1, methods to the whole."""
    owned = np.unique(table.op)
    assert (np.diff(table.op) >= 0).all()
    assert int(table.gpu_ns.sum()) == int(attribution.duration[owned].sum())
    assert np.allclose(np.bincount(table.op, table.weight)[owned], 1)
    assert (table.gpu_ns >= 0).all()
    assert set(owned) == set(np.flatnonzero(table.method != ModuleMethod.NO_MODULE))
    book = module_ledger(attribution, table)
    assert sum(entry.ops for entry in book.values()) == len(attribution.owner)
    assert sum(entry.gpu_ns for entry in book.values()) == int(attribution.duration.sum())


def test_every_kernel_inside_a_graph_range_has_its_modules_and_lines(corpus, tmp_path):
    trace, graphs = capture_with_manifest(corpus / H200, "compiled_ranges_plain", tmp_path)
    attribution = attribute(trace)
    table = modules(attribution)
    check_sums(attribution, table)
    short = trace.texts(trace.ops.short_name)
    seen = 0
    for name, instances in inside_graphs(attribution).items():
        manifest = graphs[name.removeprefix("graph ").replace(" ", "/")]
        generated = [one for one in manifest["kernels"] if not one["extern"]]
        for ops in instances:
            assert all(table.method[op] == ModuleMethod.MANIFEST for op in ops)
            triton = [op for op in ops if short[op].startswith("triton_")]
            assert [short[op] for op in triton] == [one["name"] for one in generated]
            for op, kernel in zip(triton, generated, strict=True):
                modules_of = {module for module, _, _ in shares_of(table, op)}
                told = {(node["module"] or ["(root)"])[0] for node in kernel["nodes"]}
                assert modules_of
                assert modules_of <= told
            for op in ops:
                assert all(line and ".py:" in line for _, line, _ in shares_of(table, op))
            seen += len(ops)
    assert seen == 596
    assert int((table.method == ModuleMethod.MANIFEST).sum()) == seen


def test_library_kernels_belong_to_the_calls_between_the_anchors(corpus, tmp_path):
    trace, graphs = capture_with_manifest(corpus / H200, "compiled_ranges_plain", tmp_path)
    attribution = attribute(trace)
    table = modules(attribution)
    short = trace.texts(trace.ops.short_name)
    for name, instances in inside_graphs(attribution).items():
        manifest = graphs[name.removeprefix("graph ").replace(" ", "/")]["kernels"]
        allowed: list[set[str]] = [set()]
        for kernel in manifest:
            if not kernel["extern"]:
                allowed.append(set())
            else:
                allowed[-1] |= {(node["module"] or ["(root)"])[0] for node in kernel["nodes"]}
        for ops in instances:
            gap = 0
            for op in ops:
                if short[op].startswith("triton_"):
                    gap += 1
                else:
                    assert {module for module, _, _ in shares_of(table, op)} <= allowed[gap]


def test_matrix_products_of_one_gap_are_told_apart(corpus, tmp_path):
    """26 matrix products stand in the backward graph: each launches kernels of one module only."""
    trace, _ = capture_with_manifest(corpus / H200, "compiled_ranges_plain", tmp_path)
    attribution = attribute(trace)
    table = modules(attribution)
    short = trace.texts(trace.ops.short_name)
    for instances in inside_graphs(attribution).values():
        for ops in instances:
            for op in ops:
                if "gemm" in short[op] or short[op] in ("Kernel2", "splitKreduce_kernel"):
                    assert len(shares_of(table, op)) == 1


def test_backward_graphs_tell_recomputed_forward_work(corpus, tmp_path):
    trace, _ = capture_with_manifest(corpus / H200, "compiled_ranges_plain", tmp_path)
    attribution = attribute(trace)
    table = modules(attribution)
    phases = {
        name: {Phase(one) for one in table.phase[np.isin(table.op, together(instances))]}
        for name, instances in inside_graphs(attribution).items()
    }
    assert phases == {
        "graph 0/0 fwd": {Phase.FORWARD},
        "graph 0/0 bwd": {Phase.BACKWARD, Phase.RECOMPUTE},
    }


def test_one_graph_for_three_blocks_is_said_to_be_indistinguishable(corpus, tmp_path):
    trace, _ = capture_with_manifest(corpus / H200, "compiled_ranges_break", tmp_path)
    attribution = attribute(trace)
    table = modules(attribution)
    check_sums(attribution, table)
    inside = together(map(together, inside_graphs(attribution).values()))
    assert len(inside) == 552
    assert (table.method[inside] == ModuleMethod.INDISTINGUISHABLE).all()
    used = {table.names[int(row)].as_py() for row in np.unique(table.module)}
    assert used == {"?", "?.fc1", "?.fc2", "?.ln1", "?.ln2", "?.o", "?.qkv"}


def with_blocks(trace: Trace, backward_payload: bool) -> Trace:
    """The capture as nvprobe would have made it: a module range around each forward graph.

    Each backward graph range carries the number of its node as payload, and the sidecar's module
    rows tell the numbers of each block's call.
    """
    ranges = trace.ranges
    names = trace.texts(ranges.name)
    forward = [row for row, name in enumerate(names) if name == "graph 1/0 fwd"]
    backward = [row for row, name in enumerate(names) if name == "graph 1/0 bwd"]
    order = np.argsort(ranges.start[forward])
    forward = [forward[i] for i in order]
    backward = sorted(backward, key=lambda row: int(ranges.start[row]))
    strings = trace.strings.to_pylist()
    blocks = [f"blocks.{i}" for i in range(3)]
    base = len(strings)
    category = base + 3
    domain = base + 4
    count = len(forward)
    number = {}
    for step in range(count // 3):
        for i in range(3):
            number[backward[3 * step + 2 - i]] = 100 + 3 * step + i
    payload = np.full(len(ranges) + count, NO_PAYLOAD)
    if backward_payload:
        for row, value in number.items():
            payload[row] = value
    columns = {
        "process": ranges.process[forward],
        "thread": ranges.thread[forward],
        "start": ranges.start[forward] - 1,
        "end": ranges.end[forward] + 1,
        "name": [base + i % 3 for i in range(count)],
        "domain": np.full(count, domain),
        "category": np.full(count, category),
        "source": np.full(count, RangeSource.NVTX),
    }
    both = {
        name: np.concatenate([getattr(ranges, name), values]) for name, values in columns.items()
    }
    calls = ModuleCalls(
        process=ranges.process[forward],
        thread=ranges.thread[forward],
        module=np.asarray([base + i % 3 for i in range(count)]),
        first_sequence=100 + np.arange(count),
        last_sequence=101 + np.arange(count),
        start=ranges.start[forward] - 1,
        end=ranges.end[forward] + 1,
    )
    return dataclasses.replace(
        trace,
        strings=pa.array([*strings, *blocks, "module", "nvprobe"]),
        ranges=Ranges(**both, payload=payload),
        sidecar=dataclasses.replace(trace.sidecar, modules=calls),
    )


@pytest.mark.parametrize("backward_payload", [True, False])
def test_blocks_are_told_apart_by_the_range_around_them(corpus, tmp_path, backward_payload):
    trace, _ = capture_with_manifest(corpus / H200, "compiled_ranges_break", tmp_path)
    attribution = attribute(with_blocks(trace, backward_payload))
    table = modules(attribution)
    check_sums(attribution, table)
    graphs = inside_graphs(attribution)
    names = np.asarray(table.names.to_pylist(), object)
    for position, ops in enumerate(graphs["graph 1/0 fwd"]):
        block = f"blocks.{position % 3}"
        found = set(names[table.module[np.isin(table.op, ops)]])
        assert found == {block, *(f"{block}.{m}" for m in ("ln1", "qkv", "o", "ln2", "fc1", "fc2"))}
    for position, ops in enumerate(graphs["graph 1/0 bwd"]):
        block = f"blocks.{2 - position % 3}" if backward_payload else "?"
        found = set(names[table.module[np.isin(table.op, ops)]])
        assert {name.split(".fc")[0] for name in found if ".fc" in name} == {block}
        expected = ModuleMethod.MANIFEST if backward_payload else ModuleMethod.INDISTINGUISHABLE
        assert (table.method[ops] == expected).all()


def test_named_backward_nodes_lead_to_the_last_forward_operator_with_their_number(corpus):
    """eager_emit has numbers in names and no sidecar: the obvious program gives the same."""
    attribution = attribute(load(corpus / H200 / "eager_emit.sqlite"))
    table = modules(attribution)
    check_sums(attribution, table)
    trace, tree = attribution.trace, attribution.tree
    ranges, paths = trace.ranges, attribution.paths
    forward: dict[int, tuple[int, int]] = {}
    for row in np.flatnonzero((tree.sequence >= 0) & ~attribution.autograd[ranges.thread]):
        number = int(tree.sequence[row])
        forward[number] = max(forward.get(number, (0, 0)), (int(ranges.start[row]), int(row)))
    checked = 0
    for op in np.flatnonzero(table.method == ModuleMethod.SEQUENCE)[::7]:
        call = attribution.call[op]
        thread, time = trace.calls.thread[call], trace.calls.start[call]
        open_ = [
            (int(ranges.start[row]), -int(tree.end[row]), int(row))
            for row in np.flatnonzero(ranges.thread == thread)
            if ranges.start[row] <= time < tree.end[row] and tree.sequence[row] >= 0
        ]
        number = int(tree.sequence[min(open_)[2]])
        text = paths.text(int(tree.path[forward[number][1]]))
        ((module, _, phase),) = shares_of(table, int(op))
        assert phase == Phase.BACKWARD
        assert module == [part for part in text.split("/") if part.startswith("fwd:")][-1]
        checked += 1
    assert checked > 40


def node_trace() -> Trace:
    """A main thread with two module calls, and an autograd thread that runs their nodes."""
    texts = [
        "python", "pt_autograd_0", "cudaLaunchKernel", "kernel",
        "step 1", "backward",
        "AddmmBackward0, seq = 7", "torch::autograd::AccumulateGrad", "ReluBackward0, seq = 9",
        "blocks.0", "blocks.0.fc", "module", "nvprobe",
    ]  # fmt: skip
    at = {text: row for row, text in enumerate(texts)}
    rows = [
        (0, 0, 1000, "step 1"),
        (0, 500, 990, "backward"),
        (1, 510, 600, "AddmmBackward0, seq = 7"),
        (1, 610, 650, "torch::autograd::AccumulateGrad"),
        (1, 700, 800, "ReluBackward0, seq = 9"),
        (1, 810, 850, "torch::autograd::AccumulateGrad"),
        (1, 720, 740, "blocks.0.fc"),
    ]
    times = [520, 620, 705, 820, 730, 900]
    count = len(times)
    zeros, minus = np.zeros(count, np.int64), np.full(count, -1)
    calls = Calls(
        process=zeros, thread=np.ones(count), correlation=np.arange(1, count + 1),
        start=times, end=np.asarray(times) + 1, name=np.full(count, at["cudaLaunchKernel"]),
    )  # fmt: skip
    ops = Ops(
        kind=np.full(count, OpKind.KERNEL), process=zeros, device=zeros, context=zeros + 1,
        stream=zeros + 7, correlation=np.arange(1, count + 1), start=np.asarray(times) + 5,
        end=np.asarray(times) + 8, name=np.full(count, at["kernel"]),
        short_name=np.full(count, at["kernel"]), graph_node=zeros, bytes=minus, copy_kind=minus,
        source_memory=minus, target_memory=minus,
    )  # fmt: skip
    module = [row[3] == "blocks.0.fc" for row in rows]
    ranges = Ranges(
        process=[0] * len(rows), thread=[row[0] for row in rows], start=[row[1] for row in rows],
        end=[row[2] for row in rows], name=[at[row[3]] for row in rows],
        domain=np.where(module, at["nvprobe"], -1), category=np.where(module, at["module"], -1),
        source=[RangeSource.NVTX] * len(rows),
    )  # fmt: skip
    sidecar = Sidecar(
        modules=ModuleCalls(
            process=[0, 0], thread=[0, 0], module=[at["blocks.0.fc"], at["blocks.0"]],
            first_sequence=[7, 5], last_sequence=[8, 10], start=[20, 10], end=[30, 40],
        ),
        captures=CaptureRanges.empty(),
    )  # fmt: skip
    return Trace(
        strings=pa.array(texts),
        sources=(Source("nsys-sqlite", "made.sqlite", None, None, {}),),
        processes=Processes(key=[1], pid=[100], name=[0], rank=[-1]),
        threads=Threads(process=[0, 0], tid=[100, 101], name=[0, 1]),
        devices=Devices.empty(),
        calls=calls,
        ops=ops,
        ranges=ranges,
        sidecar=sidecar,
        end_ns=1000,
    )


def test_sidecar_numbers_accumulate_grad_and_recomputation():
    attribution = attribute(node_trace())
    table = modules(attribution)
    check_sums(attribution, table)
    assert [ModuleMethod(one) for one in table.method] == [
        ModuleMethod.SEQUENCE,  # AddmmBackward0, seq 7: the innermost call
        ModuleMethod.PREVIOUS_NODE,  # AccumulateGrad after it
        ModuleMethod.SEQUENCE,  # ReluBackward0, seq 9: only the outer call made it
        ModuleMethod.PREVIOUS_NODE,
        ModuleMethod.RANGE,  # recomputation inside a node, with its own module range
        ModuleMethod.PREVIOUS_NODE,  # the engine itself, after ReluBackward0
    ]
    assert [set(shares_of(table, op)) for op in range(6)] == [
        {("blocks.0.fc", None, Phase.BACKWARD)},
        {("blocks.0.fc", None, Phase.BACKWARD)},
        {("blocks.0", None, Phase.BACKWARD)},
        {("blocks.0", None, Phase.BACKWARD)},
        {("blocks.0.fc", None, Phase.RECOMPUTE)},
        {("blocks.0", None, Phase.BACKWARD)},
    ]


@pytest.mark.parametrize("seed", range(20))
def test_shares_add_up_to_the_nanosecond(seed):
    random = np.random.default_rng(seed)
    op = np.sort(random.integers(0, 40, 200))
    weight = random.random(200) + 1e-9
    total = np.bincount(op, weight, 40)
    parts = exact_shares(op, weight / total[op], duration := random.integers(0, 1000, 40))
    assert (parts >= 0).all()
    assert (np.bincount(op, parts, 40)[np.unique(op)] == duration[np.unique(op)]).all()
    assert np.abs(parts - weight / total[op] * duration[op]).max() <= 1
