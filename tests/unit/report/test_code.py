"""The tables of modules and operators in the terminal report."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from rich.cells import cell_len

from nvprobe.analysis import Analysis, analyze
from nvprobe.attribution import attribute
from nvprobe.demo import unpacked
from nvprobe.readers import load
from nvprobe.report.console.names import cut
from nvprobe.report.console.view import ALL, View
from tests.unit.report.test_console import printed


@pytest.fixture(scope="module")
def demo() -> Analysis:
    with unpacked() as path:
        return analyze(attribute(load(path)))


def section(analysis: Analysis, head: str, width: int = 120, **view: Any) -> list[str]:
    """Lines of a table and of what stands below it, with single spaces."""
    lines = printed(analysis, width, View(show=ALL, **view)).splitlines()
    first = next((n for n, line in enumerate(lines) if line.startswith(head)), None)
    if first is None:
        return []
    return [" ".join(line.split()) for line in lines[first : lines.index("", first)]]


def module(name: str, forward: int, backward: int = 0, recompute: int = 0, *sources: str) -> dict:
    times = {"forward_gpu_ns": forward, "backward_gpu_ns": backward, "recompute_gpu_ns": recompute}
    return {"module": name, **times, "ops": 1, "sources": list(sources)}


def operator(name: str, shapes: str | None, self_cpu: int, self_gpu: int, **more: Any) -> dict:
    own = {"self_cpu_ns": self_cpu, "gpu_self_ns": self_gpu}
    rest = {"calls": 2, "path": f"step/forward/{name}", "source": None}
    return {"name": name, "shapes": shapes, **own, **rest, **more}


def test_modules_of_a_real_capture_add_up_to_what_is_said(demo):
    head, first, *_, last = section(demo, "Module", top=10**6, unfold=True)
    assert head == "Module Forward GPU % Ops"
    assert first.startswith("fwd:blocks.2.fc2 496 µs ")
    known = sum(row["forward_gpu_ns"] for row in demo.modules)
    share = f"{known / demo.ledger.total.gpu_ns:.1%}"
    assert last == f"{share} of GPU time has a module, each op in the innermost one"


def test_each_pass_that_some_module_has_is_a_column(demo):
    total = demo.ledger.total.gpu_ns
    rows = [module("layer", total // 2, 0, total // 4, "a.py:3 (forward)"), module("head", 0, 1000)]
    analysis = replace(demo, modules=rows, module_ledger={"range": {"ops": 1, "gpu_ns": total}})
    head, layer, end, more = section(analysis, "Module")
    assert head == "Module Forward Backward Recomputed GPU % Ops In"
    assert layer.startswith("layer ")
    assert layer.endswith(" · 5.87 ms 75.0% 1 a.py:3 (forward)")
    assert end == "head · 1.00 µs · 0.0% 1"
    assert more == "100.0% of GPU time has a module, each op in the innermost one"
    *_, more, _ = section(analysis, "Module", top=1)
    assert more == "… 1 more module (--top)"


def test_operators_by_what_they_cost_themselves(demo):
    rows = [
        operator("aten::linear", None, 900, 0),
        operator("aten::mm", "[[2, 3], [3, 4], []]", 100, 5_000, source="model.py:7 (forward)"),
        operator("aten::odd", "not json", 100, 10),
        operator("\x1b[31mred", '{"a": 1}', 1, 1),
    ]
    head, *lines = section(replace(demo, operators=rows), "Operator")
    assert head == "Operator Calls Self CPU Self GPU GPU % Mostly in"
    assert lines[0] == "aten::mm [2, 3] [3, 4] 2 100 ns 5.00 µs 0.0% model.py:7 (forward)"
    names = [line.split()[0] for line in lines]
    assert names == ["aten::mm", "aten::odd", r"\x1b[31mred", "aten::linear"]
    assert lines[3] == "aten::linear 2 900 ns · 0.0% step/forward"
    *_, more = section(replace(demo, operators=rows), "Operator", top=3)
    assert more == "… 1 more operator (--top)"


def test_shapes_that_are_nested_without_end_are_left_out(demo):
    rows = [operator("aten::mm", "[" * 100_000, 100, 5_000)]
    _, line = section(replace(demo, operators=rows), "Operator")
    assert line.startswith("aten::mm 2 100 ns ")


@pytest.mark.parametrize("width", [40, 60, 80])
def test_narrow_terminals(demo, width):
    source = "directory/" * 9 + "a.py:1"
    rows = [operator("aten::" + "long" * 30, "[[2, 3]]", 100, 10, source=source)]
    analysis = replace(demo, operators=rows, modules=[module("m" * 99, 1, 1, 1, "s" * 99)])
    assert max(map(cell_len, printed(analysis, width).splitlines())) <= width


def test_none_are_shown_where_there_are_none(demo):
    assert section(replace(demo, modules=[], operators=None), "Module") == []
    assert section(replace(demo, operators=[]), "Operator") == []


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (40, "a/folder/attention.py:148 (forward)"),
        (30, "…er/attention.py:148 (forward)"),
        (28, "…/attention.py:148 (forward)"),
        (27, "…attention.py:148 (forward)"),
        (26, "a/folder/attention.py:148"),
        (20, "…er/attention.py:148"),
        (10, "…on.py:148"),
    ],
)
def test_a_line_keeps_its_file_and_number_as_long_as_it_can(width, shown):
    assert cut("a/folder/attention.py:148 (forward)", width) == shown
