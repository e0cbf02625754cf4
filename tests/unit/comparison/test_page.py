"""The page of a comparison: figures of the document, colors of the changes, texts as texts."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest
from click.testing import CliRunner

from nvprobe.cli import cli
from nvprobe.cli.settings import Settings
from nvprobe.comparison.icicle import WIDTH, color, icicles
from nvprobe.comparison.model import (
    Amount,
    Check,
    Comparison,
    Counter,
    Difference,
    FindingChange,
    Gate,
    GraphChange,
    Noise,
    Part,
    PathChange,
    RunFacts,
    StepComparison,
    Time,
)
from nvprobe.comparison.page import MOST_ROWS, page
from nvprobe.version import __version__


def time(before: int, after: int, *, changed: bool = True) -> Time:
    more = after - before
    return Time(before, after, more, (more - 10_000, more + 10_000), 0, changed)


def same(path: str, before: int, after: int, *, changed: bool = True) -> PathChange:
    return PathChange(path, path, "same", time(before, after, changed=changed), None)


STEP = StepComparison(
    path="step", unit="step", phase=None, batch=None, steps=(4, 5),
    step=time(1_000_000, 1_300_000), unprofiled=None, unprofiled_source=None,
    amounts=[Amount(200_000, 100_000, -100_000, None, 0, True, "idle: host")],
    counters=[Counter("launches", True, 10, 12.5, True)],
    parts=[Part(600_000, 1_000_000, 400_000, None, 0, True, "step/attn", "gpu"),
           Part(400_000, 300_000, -100_000, None, 0, False, "step", "host")],
    paths=[same("step", 800_000, 1_200_000), same("step/attn", 600_000, 1_000_000),
           same("step/mlp", 150_000, 148_000), same("step/head", 40_000, 41_000, changed=False),
           PathChange(None, "step/extra", "new", None, 11_000),
           PathChange("step/old", None, "gone", None, 10_000),
           PathChange("step/a", "step/b", "renamed", None, None)],
    kernels=[Amount(700_000, 900_000, 200_000, None, 0, True, "compute: gemm")],
)  # fmt: skip
FOUND = Comparison(
    schema="nvprobe.compare/1", nvprobe=__version__, verdict="slower: 1.00 ms to 1.30 ms a step",
    before=[RunFacts(["a.sqlite"], 6, "launch-bound")], after=[RunFacts(["b.sqlite"], 7, "busy")],
    differences=[Difference("GPU", "H100", "H200", True), Difference("torch", "2.12", None, False)],
    noise=Noise(False, 0, 0.03), steps=[STEP], unmatched=["eval"], counters=[],
    graphs=[GraphChange("0/0", "fwd", "new", (None, 5000), (None, 3.0), (None, 7000), (None, "a"))],
    findings=[FindingChange("x", "gone", "step", "A sync in each step", None)],
    gate=Gate("fail", [Check("step time", "+5%", "fail", "step time: 30% longer")]),
)  # fmt: skip


def rows_of(text: str, title: str) -> list[list[str]]:
    """Cells of the table below a heading."""
    table = text.partition(f"<h2>{title}</h2>")[2].partition("<tbody>")[2].partition("</tbody>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", table, re.S)
    return [re.findall(r"<td[^>]*>(.*?)</td>", row, re.S) for row in rows]


def test_the_figures_are_those_of_the_document() -> None:
    text = page(FOUND)
    assert "<h1>slower: 1.00 ms to 1.30 ms a step</h1>" in text
    assert "times cannot be compared: GPU: H100 before, H200 after" in text
    assert "only one side has these steps: eval" in text
    times = rows_of(text, "A step: times")
    assert times[0] == [
        "as profiled",
        "1.00 ms",
        "1.30 ms",
        "+300 µs",
        "+30.0%",
        "+290 µs to +310 µs",
    ]
    assert times[1] == ["idle: host", "200 µs", "100 µs", "-100 µs", "-50.0%", "–"]
    assert rows_of(text, "A step: counts") == [["launches", "per step", "10", "12.50", "+2.50"]]
    assert ["step/extra", "new", "–", "11.0 µs", "–", "–", "–"] in rows_of(text, "A step: paths")
    assert ["step/old", "gone", "10.0 µs", "–", "–", "–", "–"] in rows_of(text, "A step: paths")
    assert rows_of(text, "A step: kernels")[0][:4] == [
        "compute: gemm",
        "700 µs",
        "900 µs",
        "+200 µs",
    ]
    assert rows_of(text, "Compiled graphs")[0][:4] == ["0/0 fwd", "new", "–", "5.00 µs"]
    assert rows_of(text, "Findings") == [["gone", "A sync in each step", "–"]]
    assert rows_of(text, "Gate: fail") == [["fail", "step time: 30% longer", "+5%"]]
    assert rows_of(text, "Not the same")[1] == ["torch", "2.12", "–"]
    assert 'title="1,300,000 ns"' in text


def test_each_bar_of_the_parts_starts_where_the_one_above_ends() -> None:
    rows = rows_of(page(FOUND), "A step: the difference in parts")
    up, down = (ElementTree.fromstring(row[-1]) for row in rows[:2])
    assert (up.get("class"), down.get("class")) == ("fall r3", "fall b2")
    (first,), (second,) = up, down
    ends = [float(one.get("x", 0)) + float(one.get("width", 0)) for one in (first, second)]
    assert ends[0] == pytest.approx(ends[1])
    assert float(first.get("width", 0)) == pytest.approx(
        4 * float(second.get("width", 0)), rel=0.01
    )
    assert rows[2][4] == "+300 µs"


def boxes(drawing: str) -> dict[str, tuple[str, float, float, str]]:
    """Class, left edge, width and text of each box by its path."""
    return {
        (box.findtext("title") or "").partition(":")[0]:
            (box.get("class", ""), float(box.get("x", 0)), float(box.get("width", 0)),
             box.findtext("text") or "")
        for box in ElementTree.fromstring(drawing)
    }  # fmt: skip


def test_the_icicles_have_one_scale_and_the_colors_of_the_changes() -> None:
    drawn = icicles(STEP)
    assert drawn is not None
    before, after = map(boxes, drawn)
    assert after["step"][2] == WIDTH
    assert before["step"][2] == pytest.approx(WIDTH * 800 / 1200, abs=0.01)
    assert before["step/attn"][0] == after["step/attn"][0] == "r3"
    assert after["step/attn"][3] == "attn  +66.7%"
    assert before["step/mlp"][0] == "b1"
    assert before["step/head"][0] == "n"
    assert (before["step/old"][0], after["step/extra"][0]) == ("b1 alone", "r1 alone")
    assert "step/extra" not in before
    assert not {"step/a", "step/b"} & {*before, *after}
    for side in (before, after):
        assert sum(one[2] for name, one in side.items() if "/" in name) <= side["step"][2] + 0.1


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [(100, 104, "r1"), (100, 105, "r2"), (100, 125, "r3"), (100, 96, "b1"), (100, 90, "b2"),
     (100, 0, "b3"), (0, 5, "r3"), (7, 7, "n")],
)  # fmt: skip
def test_colors(before: int, after: int, kind: str) -> None:
    assert color(time(before, after)) == kind
    assert color(time(before, after, changed=False)) == "n"


def test_paths_of_ops_at_once_stay_below_their_parent() -> None:
    paths = [same("step", 100, 100), same("step/a", 80, 80), same("step/b", 80, 80)]
    drawn = icicles(msgspec.structs.replace(STEP, paths=paths))
    assert drawn is not None
    found = boxes(drawn[0])
    assert found["step/a"][2] == pytest.approx(WIDTH / 2)
    assert found["step/b"][1] == pytest.approx(WIDTH / 2)


def test_nothing_can_run_or_be_fetched_and_texts_are_no_markup() -> None:
    bad = "</style></title><script>alert(1)</script><img src=https://example.org/x>'\"\x1b[31m"
    step = msgspec.structs.replace(
        STEP, path=bad, unit=bad, phase=bad, kernels=[Amount(1, 2, 1, None, 0, True, bad)],
        parts=[Part(1, 2, 1, None, 0, True, bad, bad)], paths=[same(bad, 5, 7)],
        counters=[Counter(bad, True, 1, 2, True)],
    )  # fmt: skip
    text = page(msgspec.structs.replace(
        FOUND, verdict=bad, steps=[step], unmatched=[bad],
        differences=[Difference(bad, bad, bad, True)], before=[RunFacts([bad], 1, bad)],
        graphs=[GraphChange(bad, bad, bad, (1, 2), (1, 2), (1, 2), (bad, bad))],
        findings=[FindingChange(bad, "same", bad, bad, bad)],
        gate=Gate("fail", [Check(bad, bad, "fail", bad)]),
    ))  # fmt: skip
    assert not re.search(r"<(script|img|link|iframe|a)\b|\son\w+=|\sstyle=|\x1b", text)
    assert text.count("<title>") == text.count("</title>")
    assert text.count("</style>") == 1
    assert "&lt;script&gt;alert(1)" in text
    style = text.partition("<style>")[2].partition("</style>")[0]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'" in text
    assert "url(" not in style


def test_without_bounds_it_says_why_nothing_has_a_color() -> None:
    alone = msgspec.structs.replace(STEP.step, bounds_ns=None)
    step = msgspec.structs.replace(STEP, step=alone, steps=(1, 1), counters=[])
    text = page(msgspec.structs.replace(FOUND, steps=[step]))
    assert "No bounds are known from so few steps, so no change has a color." in text
    assert "No bounds are known" not in page(FOUND)
    assert "1 step compared" in text
    assert "A step: counts" not in text  # nothing was counted


def test_a_box_shows_the_name_as_it_is() -> None:
    new = PathChange(None, r"step/graph 0\/0 fwd", "new", None, 500_000)
    drawn = icicles(msgspec.structs.replace(STEP, paths=[*STEP.paths, new]))
    assert drawn is not None
    assert boxes(drawn[1])[r"step/graph 0\/0 fwd"][3] == "graph 0/0 fwd  only after"


def test_a_table_shows_paths_as_people_read_them() -> None:
    new = PathChange(None, r"step/graph 0\/0 fwd", "new", None, 500_000)
    text = page(msgspec.structs.replace(FOUND, steps=[msgspec.structs.replace(STEP, paths=[new])]))
    assert rows_of(text, "A step: paths")[0][0] == "step/graph 0:0 fwd"


def test_long_lists_are_cut_and_say_so() -> None:
    paths = [same(f"step/{number}", 10, 20) for number in range(MOST_ROWS + 7)]
    text = page(msgspec.structs.replace(FOUND, steps=[msgspec.structs.replace(STEP, paths=paths)]))
    assert len(rows_of(text, "A step: paths")) == MOST_ROWS
    assert "7 more in the JSON" in text


def test_the_name_of_the_file_asks_for_the_page(corpus: Path, tmp_path: Path) -> None:
    run, target = str(corpus / "runs" / "nano"), tmp_path / "diff.html"
    done = CliRunner().invoke(cli, ["compare", run, run, "-o", str(target)], obj=Settings())
    assert done.exit_code == 0
    assert target.read_text("utf-8").startswith("<!DOCTYPE html>")
    assert "<h1>no change: " in target.read_text("utf-8")
