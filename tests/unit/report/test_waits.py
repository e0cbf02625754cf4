"""Waiting as a person and as a program read it, on the shipped capture and on small traces."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given

from nvprobe.analysis import analyze
from nvprobe.analysis.result import Analysis
from nvprobe.attribution import attribute
from nvprobe.report.console.terminal import console_for, print_report
from nvprobe.report.console.view import ALL, View
from nvprobe.report.document import to_dict, to_json
from nvprobe.trace import Trace
from tests.conftest import examples
from tests.random_waits import wait_traces

BREAKDOWNS = ("cause", "path", "line", "stream", "step")


def printed(analysis: Analysis, by: str, width: int = 100) -> str:
    text = io.StringIO()
    print_report(console_for(text, width=width), analysis, View(by=by, show=ALL))
    return text.getvalue()


@examples(60)
@given(wait_traces())
def test_any_trace_is_shown_and_adds_up(trace: Trace) -> None:
    analysis = analyze(attribute(trace))
    for by in BREAKDOWNS:
        printed(analysis, by)
    shown = json.loads(to_json(analysis))
    idle, overlap = shown["idle"], shown["overlap"]
    if not shown["devices"]:
        assert idle["total_ns"] is None
        assert overlap is None
        return
    assert idle["total_ns"] == sum(row["idle_ns"] for row in shown["devices"])
    assert sum(idle["causes"].values()) == idle["total_ns"]
    for breakdown in BREAKDOWNS[1:]:
        assert sum(row["ns"] for row in idle[f"by_{breakdown}"]) == idle["total_ns"]
    assert sum(overlap["classes"].values()) == sum(row["busy_ns"] for row in shown["devices"])
    bubble = sum(row["bubble_ns"] for row in shown["syncs"])
    assert bubble == idle["causes"]["sync"]
    assert sum(row["idle_ns"] for row in shown["host"]) == idle["causes"]["host"]


@pytest.fixture(scope="module")
def demo() -> Analysis:
    from nvprobe.demo import unpacked
    from nvprobe.readers import load

    with unpacked() as path:
        return analyze(attribute(load(path)))


@pytest.mark.parametrize("by", BREAKDOWNS)
def test_the_report_breaks_idle_time_down(demo: Analysis, by: str) -> None:
    text = printed(demo, by)
    assert "Idle: 2.73 ms per step, 11.1 ms of 34.6 ms (32.1%) = host 74.3%" in text
    wanted = {
        "path": "step/backward",
        "line": "(no line known)",
        "stream": "stream 7 of GPU 0",
        "step": "step 4",
    }
    assert by == "cause" or wanted[by] in text.split("Idle: ")[1]
    assert ("lines are known with nvprobe launch --python-samples" in text) == (by == "line")
    assert ("Idle in" in text) == (by in ("path", "step"))


def test_ranges_and_steps_carry_their_waits(demo: Analysis) -> None:
    shown = to_dict(demo)
    ranges = {row["path"]: row for row in shown["ranges"]}
    inside = sum(row["ns"] for row in shown["idle"]["by_path"] if row["path"])
    assert ranges["step"]["idle_ns"] == inside
    assert ranges["step/log"]["sync_ns"] == 39_879
    assert ranges["step"]["exposed_comm_ns"] == 0
    steps = sum(row["idle_ns"] for row in shown["steps"])
    by_step = sum(row["ns"] for row in shown["idle"]["by_step"] if row["index"] is not None)
    assert steps == by_step > 0


def test_many_combinations_are_summed_up(demo: Analysis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nvprobe.report.console.waits._COMBINATIONS", 2)
    [overlap] = [line for line in printed(demo, "cause").splitlines() if "Overlap: " in line]
    assert overlap.strip() == "Overlap: compute 71.2% + copy h2d 28.5% + others 0.2%"
