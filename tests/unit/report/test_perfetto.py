"""The file for Perfetto: every slice once, none across another of its track, flows that bind."""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from nvprobe.analysis import analyze
from nvprobe.analysis.result import Analysis
from nvprobe.attribution import attribute
from nvprobe.report.perfetto import write_perfetto
from nvprobe.report.timeline import timeline
from nvprobe.trace import Trace
from tests.conftest import examples
from tests.random_waits import wait_traces


def written(analysis: Analysis, folder: Path) -> list[dict[str, Any]]:
    path = folder / "trace.json.gz"
    write_perfetto(analysis, path)
    with gzip.open(path, "rt") as text:
        events = json.load(text, parse_float=Decimal)["traceEvents"]
    assert all(event["ph"] in "XMsfC" for event in events)
    return events


def ns(event: dict[str, Any]) -> tuple[int, int]:
    start = int(event["ts"] * 1000)
    assert start == event["ts"] * 1000
    return start, start + int(event.get("dur", 0) * 1000)


def check(events: list[dict[str, Any]], analysis: Analysis) -> None:
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append((*ns(event), event["cat"]))
    for slices in tracks.values():
        around: list[int] = []
        for start, end, kind in sorted(slices, key=lambda one: (one[0], -one[1])):
            while around and around[-1] <= start:
                around.pop()
            assert not around or (kind == "range" and end <= around[-1])
            around.append(end)
    slices = timeline(analysis).slices
    first = int(slices.start.min()) if len(slices) else 0
    wanted = Counter(
        zip((slices.start - first).tolist(), (slices.end - first).tolist(), strict=True)
    )
    assert Counter(ns(event) for event in events if event["ph"] == "X") == wanted
    check_flows(events, tracks)


def check_flows(events: list[dict[str, Any]], tracks: dict[Any, list[Any]]) -> None:
    ends = {ph: {e["id"]: e for e in events if e["ph"] == ph} for ph in "sf"}
    assert ends["s"].keys() == ends["f"].keys()
    for number, begin in ends["s"].items():
        for event, kind in ((begin, "cuda call"), (ends["f"][number], "gpu")):
            place = event["pid"], event["tid"]
            time, _ = ns(event)
            assert any(a <= time <= b and cat == kind for a, b, cat in tracks[place])


@examples(40)
@given(wait_traces(crossing=True))
def test_any_trace(tmp_path_factory: pytest.TempPathFactory, trace: Trace) -> None:
    analysis = analyze(attribute(trace))
    check(written(analysis, tmp_path_factory.mktemp("perfetto")), analysis)


def test_the_demo(tmp_path: Path) -> None:
    from nvprobe.demo import unpacked
    from nvprobe.readers import load

    with unpacked() as path:
        analysis = analyze(attribute(load(path)))
    events = written(analysis, tmp_path)
    check(events, analysis)
    assert sum(event["ph"] == "s" for event in events) == len(analysis.attribution.trace.ops)
    names = {
        event["args"]["name"] for event in events if event["ph"] == "M" and "name" in event["args"]
    }
    assert {"GPU 0 NVIDIA H200", "idle by cause", "stream 7"} <= names
    assert any(event.get("args", {}).get("path", "").startswith("step/forward") for event in events)
