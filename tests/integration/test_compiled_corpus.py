"""Compiled graphs of real captures: every Triton kernel in its graph and phase, by a slow walk."""

from __future__ import annotations

from collections import Counter

import pytest

from nvprobe.analysis.compiled import compiled_graphs
from nvprobe.attribution import attribute
from nvprobe.readers import load
from tests.conftest import CORPUS

pytestmark = pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no corpus at {CORPUS}")


@pytest.mark.parametrize("name", ["nsys/h200/compile_emit.sqlite", "kineto/h200/compile.json.gz"])
def test_all_triton_kernels_under_their_graph(name: str) -> None:
    attribution = attribute(load(CORPUS / name))
    trace, paths = attribution.trace, attribution.paths.texts()
    wanted: Counter[str] = Counter()
    triton: Counter[str] = Counter()
    for op, path in enumerate(attribution.owner.tolist()):
        if "## Call CompiledFxGraph" not in paths[path]:
            continue
        phase = "bwd" if "CompiledFunctionBackward" in paths[path] else "fwd"
        wanted[phase] += int(trace.ops.end[op] - trace.ops.start[op])
        triton[phase] += "triton" in (trace.text(int(trace.ops.short_name[op])) or "")
    graphs = {graph.phase: graph for graph in compiled_graphs(attribution, None)}
    assert {graph.id for graph in graphs.values()} == {"0/0"}
    assert {phase: graph.gpu_ns for phase, graph in graphs.items()} == wanted
    assert {phase: graph.kernels["triton"]["ops"] for phase, graph in graphs.items()} == triton
    names = trace.texts(trace.ops.short_name)
    assert sum(triton.values()) == sum("triton" in (text or "") for text in names) == 280


def test_both_captures_of_one_program_agree() -> None:
    tables = []
    for name in ("nsys/h200/compile_emit.sqlite", "kineto/h200/compile.json.gz"):
        graphs = compiled_graphs(attribute(load(CORPUS / name)), None)
        tables.append(
            [
                (g.id, g.phase, g.calls, g.ops, *(kernel["ops"] for kernel in g.kernels.values()))
                for g in graphs
            ]
        )
    assert tables[0] == tables[1]


def test_nvprobe_ranges_and_one_graph_for_three_blocks() -> None:
    graphs = compiled_graphs(
        attribute(load(CORPUS / "nsys/h200/compiled_ranges_break.sqlite")), None
    )
    assert [(g.id, g.phase, g.calls) for g in graphs] == [("1/0", "fwd", 12), ("1/0", "bwd", 12)]


def test_reduce_overhead_replays() -> None:
    graphs = compiled_graphs(attribute(load(CORPUS / "nsys/h200/compile_ro_node.sqlite")), None)
    assert [g.cudagraph for g in graphs] == [{"recorded": 0, "replayed": 4}] * 2
