"""CUDA graphs captured in one torch trace and replayed in a later one of the same process."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from nvprobe.attribution import Method, attribute
from nvprobe.merging.load import load
from nvprobe.trace import Trace

BASE = 1_790_857_026_000_000_000
Event = dict[str, Any]


def _event(cat: str, name: str, ts: float, dur: float, **args: Any) -> Event:
    where = {"pid": 0, "tid": args["stream"]} if "stream" in args else {"pid": 7, "tid": 7}
    return {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "args": args, **where}


def _capture(
    at: float, *, copies: bool = False, blocks: tuple[str, ...] = ("a", "b")
) -> list[Event]:
    """A capture of one launch in each of these ranges; no work comes of them."""
    correlation = int(at)
    events = [
        _event("user_annotation", "capture", at, 200),
        _event("cuda_runtime", "cudaStreamBeginCapture", at + 1, 1, correlation=correlation),
    ]
    for place, name in enumerate(blocks, 1):
        call = "cudaMemcpyAsync" if copies else "cudaLaunchKernel"
        events += [
            _event("user_annotation", name, at + 10 * place, 8),
            _event("cuda_runtime", call, at + 10 * place + 2, 2, correlation=correlation + place),
        ]
    end = _event("cuda_runtime", "cudaStreamEndCapture", at + 190, 2, correlation=correlation + 9)
    return [*events, end]


def _replay(at: float, streams: tuple[int, ...] = (7, 7)) -> list[Event]:
    """A launch of a graph of two kernels."""
    events = [
        _event("user_annotation", "replay", at, 100),
        _event("cuda_runtime", "cudaGraphLaunch", at + 5, 10, correlation=int(at)),
    ]
    for place, stream in enumerate(streams):
        args = {"stream": stream, "device": 0, "context": 1, "correlation": int(at)}
        events.append(_event("kernel", f"k{place}", at + 20 + 10 * place, 5, **args))
    return events


def _write(path: Path, *parts: list[Event]) -> Path:
    events = [event for part in parts for event in part]
    path.write_text(json.dumps({"baseTimeNanoseconds": BASE, "traceEvents": events}))
    return path


def _owners(trace: Trace) -> list[tuple[str, str]]:
    found = attribute(trace)
    paths = found.paths.texts()
    return [
        (paths[owner] if owner >= 0 else "", Method(method).name.lower())
        for owner, method in zip(found.owner.tolist(), found.method.tolist(), strict=True)
    ]


def _whats(trace: Trace) -> list[str]:
    return [one.what for one in trace.missing]


def test_a_replay_is_led_to_the_earlier_trace(tmp_path: Path) -> None:
    first = _write(tmp_path / "a.json", _capture(1000))
    second = _write(tmp_path / "b.json", _replay(5_000_000), _replay(5_001_000, (7, 7)))
    trace = load(first, second)
    expected = [("replay/a", "graph_capture"), ("replay/b", "graph_capture")]
    assert _owners(trace) == expected * 2
    assert "CUDA graph capture" not in _whats(trace)
    assert "4 operations of CUDA graphs were led to a capture in an earlier" in trace.warnings[-1]
    alone = load(second)
    assert _owners(alone) == [("replay", "graph_launch")] * 4
    (missing,) = (one for one in alone.missing if one.what == "CUDA graph capture")
    assert missing.why.startswith("4 operations were replayed")
    assert "give the trace of the same process that has the capture" in missing.how


@pytest.mark.parametrize(
    "earlier",
    [
        [_capture(1000), _capture(2000)],  # two fit: which of them is not told
        [_capture(1000, copies=True)],
        [_capture(1000, blocks=("a", "b", "c"))],
        [],
    ],
)
def test_what_is_not_certain_stays_with_the_launch(
    tmp_path: Path, earlier: list[list[Event]]
) -> None:
    other = _event("user_annotation", "other", 100, 10)
    first = _write(tmp_path / "a.json", [other], *earlier)
    trace = load(first, _write(tmp_path / "b.json", _replay(5_000_000)))
    assert _owners(trace) == [("replay", "graph_launch")] * 2
    assert "CUDA graph capture" in _whats(trace)


def test_a_replay_on_two_streams_has_no_order(tmp_path: Path) -> None:
    first = _write(tmp_path / "a.json", _capture(1000))
    trace = load(first, _write(tmp_path / "b.json", _replay(5_000_000, (7, 8))))
    assert {method for _, method in _owners(trace)} == {"graph_launch"}


def test_each_file_keeps_its_own_capture(tmp_path: Path) -> None:
    """A replay behind its own capture stays there, though an earlier file has one like it."""
    first = _write(tmp_path / "a.json", _capture(1000))
    second = _write(tmp_path / "b.json", _capture(5_000_000, blocks=("c", "d")), _replay(5_001_000))
    assert [path for path, _ in _owners(load(first, second))] == ["replay/c", "replay/d"]
    third = _write(tmp_path / "c.json", _replay(9_000_000))
    owners = _owners(load(first, second, third))
    assert owners[2:] == [("replay", "graph_launch")] * 2


def test_nodes_that_cupti_numbers_are_no_others(tmp_path: Path) -> None:
    """Ids of captures never meet those that the trace itself tells."""
    told = _replay(2000)
    for place, event in enumerate(told[2:]):
        event["args"] |= {"graph id": 1, "graph node id": place, "correlation": 99}
    told[1]["args"]["correlation"] = 99
    strange = _event("kernel", "k3", 2050, 5, stream=7, device=0, context=1, correlation=99)
    strange["args"] |= {"graph id": 1, "graph node id": 2}
    trace = load(_write(tmp_path / "a.json", _capture(1000), _replay(1500), told, [strange]))
    by_path = [path for path, _ in _owners(trace)]
    assert by_path == ["replay/a", "replay/b", "replay", "replay", "replay"]


def test_a_real_capture_parted_from_its_replays(corpus: Path, tmp_path: Path) -> None:
    """The owners are those of the whole trace."""
    source = corpus / "kineto/h200/graph.json.gz"
    document = json.loads(gzip.decompress(source.read_bytes()))
    events = document["traceEvents"]
    timed = [event for event in events if event.get("ph") == "X"]
    end = next(e["ts"] + e["dur"] for e in timed if e["name"].startswith("cudaStreamEndCapture"))
    others = [e for e in events if e.get("ph") != "X" and "Window" not in str(e.get("name"))]
    before = {id(event) for event in timed if event["ts"] + event["dur"] <= end}
    late = [event for event in timed if id(event) not in before and event["ts"] >= end]
    for name, part in (("a", [e for e in timed if id(e) in before]), ("b", late)):
        (tmp_path / f"{name}.json").write_text(
            json.dumps({**document, "traceEvents": others + part})
        )
    whole = load(source)
    parted = load(tmp_path / "a.json", tmp_path / "b.json")
    captured = [owner for owner in _owners(whole) if owner[1] == "graph_capture"]
    assert len(captured) == 132
    found = [owner for owner in _owners(parted) if owner[1] == "graph_capture"]
    assert [path.split("/")[-1] for path, _ in found] == [p.split("/")[-1] for p, _ in captured]
