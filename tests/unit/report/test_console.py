"""What must hold of the terminal report at any width, and what its options choose."""

from __future__ import annotations

import io
import re

import pytest
from rich.cells import cell_len

from nvprobe.analysis import Analysis, analyze
from nvprobe.attribution import Kind, attribute
from nvprobe.cli.view import SECTIONS as OFFERED
from nvprobe.demo import unpacked
from nvprobe.readers import load
from nvprobe.report.console.folding import fold
from nvprobe.report.console.sections import SECTIONS
from nvprobe.report.console.terminal import console_for, print_report
from nvprobe.report.console.view import ALL, SORTS, View, visible_tree


@pytest.fixture(scope="module")
def demo() -> Analysis:
    with unpacked() as path:
        return analyze(attribute(load(path)))


def printed(analysis: Analysis, width: int, view: View | None = None) -> str:
    file = io.StringIO()
    print_report(console_for(file, width=width), analysis, view or View(show=ALL))
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal(demo, width):
    assert max(map(cell_len, printed(demo, width).splitlines())) <= width


def test_a_pipe_has_no_colours(demo, monkeypatch):
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    assert "\x1b" not in printed(demo, 100)


def test_sections_are_known_by_one_list():
    assert tuple(SECTIONS) == ALL == OFFERED


def test_the_first_screen_is_one_screen(demo):
    assert len(printed(demo, 100, View()).splitlines()) <= 45


def test_one_section_stands_below_the_verdict(demo):
    text = printed(demo, 100, View(show=("copies",)))
    assert [part.split()[0] for part in text.split("\n\n")] == [
        "h200_eager.sqlite", "mostly", "Copy",
    ]  # fmt: skip


def test_top_is_of_every_table(demo):
    one = View(show=ALL, top=1, by="path")
    for part in printed(demo, 160, one).split("\n\n"):
        head = part.split()[0]
        if head in ("Range", "Waits", "Host", "Module", "Kernel", "Operator", "Copy", "Step"):
            assert "more" in part.splitlines()[2], part


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("width", [40, 80])
def test_what_is_sorted_by_is_shown(demo, sort, width):
    heads = {"gpu": "GPU", "self": "Self GPU", "self-wall": "Self wall"}
    text = printed(demo, width, View(show=("ranges",), sort=sort))
    head = next(line for line in text.splitlines() if line.startswith("Range"))
    assert heads.get(sort, sort.capitalize()) in head


def test_no_color_is_no_code_at_all(demo, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert "\x1b" in printed(demo, 100)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in printed(demo, 100)


def test_a_pipe_has_120_columns(demo, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    assert console_for(io.StringIO()).width == 120


def lines(analysis: Analysis, **view) -> list[tuple[str, int]]:
    """(path, depth) of each line of the tree."""
    nodes, _ = visible_tree(analysis, View(**view), fold(analysis, unfold=True))
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
    folds = fold(demo)
    nodes, more = visible_tree(demo, View(top=3), folds)
    everything, none = visible_tree(demo, View(top=10**6), folds)
    assert (len(nodes), none) == (3, 0)
    assert len(nodes) + more == len(everything)


@pytest.mark.parametrize("sort", [*SORTS, "order"])
def test_children_are_sorted_among_themselves(demo, sort):
    nodes, _ = visible_tree(demo, View(sort=sort, top=10**6), fold(demo, unfold=True))
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
