"""What must hold of the terminal report at any width, and what its options choose."""

from __future__ import annotations

import io
import re

import pytest
from rich.cells import cell_len

from nvprobe.analysis import Analysis, analyze
from nvprobe.attribution import Kind, attribute
from nvprobe.demo import unpacked
from nvprobe.readers import load
from nvprobe.report.console import SORTS, TreeView, console_for, print_report
from nvprobe.report.console.view import visible_tree


@pytest.fixture(scope="module")
def demo() -> Analysis:
    with unpacked() as path:
        return analyze(attribute(load(path)))


def printed(analysis: Analysis, width: int, view: TreeView | None = None) -> str:
    file = io.StringIO()
    print_report(console_for(file, width=width), analysis, view or TreeView())
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal(demo, width):
    assert max(map(cell_len, printed(demo, width).splitlines())) <= width


def test_a_pipe_has_no_colours(demo, monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert "\x1b" not in printed(demo, 100)


def lines(analysis: Analysis, **view) -> list[tuple[str, int]]:
    """(path, depth) of each line of the tree."""
    nodes, _ = visible_tree(analysis, TreeView(**view))
    return [(analysis.attribution.paths.text(node.path), node.depth) for node in nodes]


def test_options_choose_lines(demo):
    assert [path for path, _ in lines(demo, depth=1)] == ["step"]
    assert {path.count("/") for path, _ in lines(demo, depth=2)} == {0, 1}
    only = lines(demo, pattern=re.compile(r"head$"))
    assert [path.split("/")[-1] for path, _ in only] == ["step", "forward", "fwd:M", "fwd:head"]
    assert [depth for _, depth in only] == [0, 1, 2, 3]
    without = lines(demo, hidden=frozenset({Kind.PHASE}))
    assert not any(path == "step/forward" for path, _ in without)
    assert ("step/forward/fwd:M", 1) in without


def test_rows_keep_the_greatest_and_say_how_many_more(demo):
    nodes, more = visible_tree(demo, TreeView(rows=3))
    everything, none = visible_tree(demo, TreeView(rows=10**6))
    assert (len(nodes), none) == (3, 0)
    assert len(nodes) + more == len(everything)


@pytest.mark.parametrize("sort", [*SORTS, "order"])
def test_children_are_sorted_among_themselves(demo, sort):
    nodes, _ = visible_tree(demo, TreeView(sort=sort, rows=10**6))
    column = None if sort == "order" else getattr(demo.ranges, SORTS[sort])
    siblings: dict[int, list[int]] = {}
    for node in nodes:
        siblings.setdefault(int(demo.attribution.paths.parent[node.path]), []).append(node.path)
    for rows in siblings.values():
        if column is not None:
            values = [int(column[row]) for row in rows]
            assert values == sorted(values, reverse=True)
        else:
            assert rows == sorted(rows)
