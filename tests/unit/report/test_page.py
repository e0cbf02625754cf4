"""The HTML file: sealed by its policy, whole without scripts being trusted, small, honest."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import zlib
from typing import Any

import numpy as np
import pytest

from nvprobe.analysis import analyze
from nvprobe.analysis.result import Analysis
from nvprobe.attribution import attribute
from nvprobe.report.document import to_dict
from nvprobe.report.page import render
from nvprobe.report.page.assemble import SCRIPTS, assemble
from nvprobe.report.page.columns import EXACT, pack
from nvprobe.report.page.content import content
from nvprobe.report.page.events import chosen_windows
from nvprobe.report.timeline import timeline
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def demo() -> Analysis:
    from nvprobe.demo import unpacked
    from nvprobe.readers import load

    with unpacked() as path:
        return analyze(attribute(load(path)))


def held(page: str, name: str) -> str:
    """The text of one script element."""
    return re.findall(rf'<script type="[^"]+" id="{name}">(.*?)</script>', page, re.S)[0]


def columns_of(page: str) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """What the page says of its events, and their columns."""
    about = json.loads(held(page, "about"))["timeline"]
    data = zlib.decompress(base64.b64decode(held(page, "columns")), -15)
    return about, {
        name: np.frombuffer(data, f"<{one['type']}", one["size"], one["at"])
        for name, one in about["columns"].items()
    }


def test_the_policy_names_the_hashes_of_script_and_style(demo: Analysis) -> None:
    page = render(demo)
    policy = re.findall(r'Content-Security-Policy" content="([^"]+)"', page)[0]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert "http" not in policy
    for tag, source in (("script", "script-src"), ("style", "style-src")):
        (text,) = re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.S)
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{source} 'sha256-{digest}'" in policy
    assert len(page) < 3_000_000


def test_nothing_of_the_page_is_markup_made_of_text() -> None:
    folder = ROOT / "nvprobe" / "report" / "page"
    assert {path.name for path in folder.glob("*.js")} == set(SCRIPTS)
    for path in folder.glob("*.js"):
        found = re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|Function\(|fetch\(|XMLHttp|import\(|WebSocket",
            path.read_text(),
        )
        assert not found, path.name


HOSTILE = [
    "</script><script>alert(1)</script>", "<!--<script>", '"><img src=x onerror=alert(1)>',
    "&lt;b&gt;", "'\"`${1}", "\u2028\u2029\x00\x1b[31m\u202egnp.exe", "<!--document-->", "\ud800",
]  # fmt: skip


def test_no_name_ends_the_element_that_holds_it() -> None:
    page = assemble(HOSTILE[0], {"names": HOSTILE}, {"names": HOSTILE}, "")
    assert page.lower().count("<script") == page.lower().count("</script>") == 4
    assert json.loads(held(page, "document"))["names"][:-1] == HOSTILE[:-1]


def test_the_document_in_the_page_is_that_of_the_analysis(demo: Analysis) -> None:
    assert json.loads(held(render(demo), "document")) == to_dict(demo)


def test_the_events_are_those_of_the_trace_to_the_nanosecond(demo: Analysis) -> None:
    about, columns = columns_of(render(demo))
    first = [row[2] for row in about["rows"]]
    row = np.searchsorted(first, np.arange(len(columns["start"])), "right") - 1
    total = np.cumsum(columns["start"].astype(np.int64))
    start = total - total[first][row] + columns["start"][first].astype(np.int64)[row]
    found = timeline(demo).slices
    assert (start + int(about["origin_ns"]) == found.start).all()
    assert (columns["length"] == found.end - found.start).all()
    ranges, ops = to_dict(demo)["ranges"], demo.attribution.trace.ops
    texts, kernels = demo.attribution.paths.texts(), to_dict(demo)["kernels"]
    for slice_ in np.flatnonzero(columns["kernel"].astype(np.int64) >= 0)[::37].tolist():
        op, number = int(found.row[slice_]), int(columns["kernel"][slice_])
        if number < len(kernels):
            assert kernels[number]["name"] == demo.attribution.trace.text(int(ops.name[op]))
        owner = int(demo.attribution.owner[op])
        path = ranges[columns["path"][slice_]]["path"] if columns["path"][slice_] >= 0 else None
        assert path == (texts[owner] if owner >= 0 else None)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (np.array([0, 255]), "u1"), (np.array([-1, 3]), "i1"), (np.array([65_536]), "u4"),
        (np.array([-1, 40_000]), "i4"), (np.array([2**32]), "f8"), (np.array([0.5]), "f8"),
        (np.array([EXACT - 1]), "f8"), (np.empty(0, np.int64), "u1"),
    ],
)  # fmt: skip
def test_columns_take_the_smallest_type_that_holds_them(values: np.ndarray, kind: str) -> None:
    packed = pack({"a": np.array([1]), "x": values})
    data = zlib.decompress(base64.b64decode(packed.text), -15)
    place = packed.columns["x"]
    assert (place["type"], place["at"], place["size"]) == (kind, 8, len(values))
    assert (np.frombuffer(data, f"<{kind}", len(values), 8) == values).all()


def test_a_number_that_javascript_would_round_is_refused() -> None:
    with pytest.raises(OverflowError):
        pack({"x": np.array([EXACT])})


def test_a_long_document_is_cut_to_its_greatest_rows_and_says_so() -> None:
    rows = [{"path": f"p{n}", "gpu_ns": n % 3000} for n in range(6000)]
    shown = content({"ranges": rows, "text": "x" * 5000, "big": 2**60})
    assert len(shown.document["ranges"]) == 2000
    assert min(row["gpu_ns"] for row in shown.document["ranges"]) == 2000
    assert [rows[row] for row in shown.rows["ranges"]] == shown.document["ranges"]
    assert shown.sizes == {"ranges": 6000}
    assert shown.document["big"] == str(2**60)
    assert len(shown.document["text"]) < 2010
    assert any("2,000 of 6,000" in text for text in shown.left_out)


def test_windows_hold_whole_steps_and_no_more_events_than_asked_for(demo: Analysis) -> None:
    slices = timeline(demo).slices
    assert chosen_windows(demo, slices, len(slices)) == [
        (int(slices.start.min()), int(slices.end.max()) + 1)
    ]
    begins = demo.steps.start.tolist()
    for most in (50, 900, 2000):
        windows = chosen_windows(demo, slices, most)
        count = sum(int(((slices.start >= a) & (slices.start < b)).sum()) for a, b in windows)
        assert 0 < count <= most
        assert all(low in begins for low, _ in windows)
    assert "not in the page" not in render(demo)
    assert "Timeline: " in render(demo, most_events=900)
