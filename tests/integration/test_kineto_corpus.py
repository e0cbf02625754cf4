"""Real torch traces against a plain reader of JSON: every GPU nanosecond, every kind of event."""

from __future__ import annotations

import gzip
import json
import random
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nvprobe.attribution import Method, attribute
from nvprobe.errors import InputError
from nvprobe.readers.kineto import load_kineto
from nvprobe.trace import RangeSource, Trace
from tests.conftest import CORPUS

GPU = {"kernel", "gpu_memcpy", "gpu_memset", "Kernel", "Memcpy", "Memset"}
CALLS = {"cuda_runtime", "cuda_driver", "Runtime"}
FILES = sorted((CORPUS / "kineto").glob("[hp]*/*.json.gz"))
MALFORMED = sorted((CORPUS / "kineto" / "malformed").glob("*"))

pytestmark = [
    pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no corpus at {CORPUS}"),
    pytest.mark.slow,
]


def plain(path: Path) -> tuple[list[dict[str, Any]], int]:
    """All events by the standard library, times as decimals, and the base time."""
    text = gzip.decompress(path.read_bytes()).decode()
    document = json.loads(text, parse_float=Decimal, strict=False)
    if isinstance(document, list):
        return document, 0
    return document["traceEvents"], document.get("baseTimeNanoseconds", 0)


def interval(event: dict[str, Any]) -> tuple[int, int]:
    start = int(event["ts"] * 1000)
    return start, start + int(event["dur"] * 1000)


def absolute(trace: Trace, table: Any) -> list[tuple[int, int]]:
    assert trace.origin_ns is not None
    shift = trace.origin_ns
    return sorted(zip((table.start + shift).tolist(), (table.end + shift).tolist(), strict=True))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_agrees_with_a_plain_reader(path: Path) -> None:
    events, base = plain(path)
    complete = [event for event in events if event.get("ph") == "X"]
    trace = load_kineto(path, python_stacks=True)

    def expected(categories: set[str]) -> list[tuple[int, int]]:
        chosen = [interval(event) for event in complete if event["cat"] in categories]
        return sorted((start + base, end + base) for start, end in chosen)

    assert absolute(trace, trace.ops) == expected(GPU)
    assert absolute(trace, trace.calls) == expected(CALLS)
    assert absolute(trace, trace.syncs) == expected({"cuda_sync"})
    ranges = trace.ranges
    operators = ranges.take(ranges.source == RangeSource.OPERATOR)
    assert absolute(trace, operators) == expected({"cpu_op", "Operator"})
    annotations = ranges.take(ranges.source == RangeSource.ANNOTATION)
    assert absolute(trace, annotations) == expected({"user_annotation"})
    frames = sum(event["cat"] == "python_function" for event in complete)
    modules = int((ranges.source == RangeSource.MODULE).sum())
    assert len(trace.frames) + modules == frames
    assert trace.warnings == ()


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_kernels_keep_their_names_and_launches(path: Path) -> None:
    events, _ = plain(path)
    kernels = [event for event in events if event.get("cat") in ("kernel", "Kernel")]
    trace = load_kineto(path)
    chosen = trace.ops.take(trace.ops.kind == 0)
    said = zip(
        trace.texts(chosen.name), chosen.correlation.tolist(), chosen.stream.tolist(), strict=True
    )
    wanted = ((e["name"], e["args"]["correlation"], e["args"]["stream"]) for e in kernels)
    assert Counter(said) == Counter(wanted)
    assert len(trace.geometry) == sum(bool(event["args"].get("grid")) for event in kernels)


@pytest.mark.parametrize("path", MALFORMED, ids=lambda p: p.name)
def test_malformed_files_are_salvaged_or_refused_in_a_line(path: Path) -> None:
    if path.name in ("empty_events.json", "zero_bytes.json.gz"):
        with pytest.raises(InputError, match=rf"^{path.name}: "):
            load_kineto(path)
        return
    trace = load_kineto(path)
    whole = load_kineto(CORPUS / "kineto/public/event_sync_two_streams.json.gz")
    wanted, got = set(absolute(whole, whole.calls)), set(absolute(trace, trace.calls))
    assert got <= wanted
    assert len(wanted) - len(got) <= (4 if "truncated" in path.name else 1)
    sound = path.name in ("gz_named_json.json", "toplevel_list.json")
    assert bool(trace.warnings) != sound


def test_truncation_anywhere(tmp_path: Path) -> None:
    packed = (CORPUS / "kineto/h200/graph.json.gz").read_bytes()
    text = gzip.decompress(packed)
    whole = load_kineto(CORPUS / "kineto/h200/graph.json.gz")
    wanted = Counter(absolute(whole, whole.ranges))
    choose = random.Random(7)
    for source, name in ((text, "cut.json"), (packed, "cut.json.gz")):
        last = 0
        for at in sorted(choose.sample(range(4000, len(source) - 100), 8)):
            path = tmp_path / name
            path.write_bytes(source[:at])
            trace = load_kineto(path)
            assert not Counter(absolute(trace, trace.ranges)) - wanted
            assert len(trace.ranges) >= last
            assert any("truncated" in warning for warning in trace.warnings)
            last = len(trace.ranges)


def test_replays_are_graph_nodes() -> None:
    trace = load_kineto(CORPUS / "kineto/h200/graph.json.gz")
    nodes = trace.ops.graph_node
    assert int((nodes > 0).sum()) == 132
    assert len(np.unique(nodes[nodes > 0])) == 33  # four replays of one graph


def test_replays_lead_to_the_operators_of_their_capture() -> None:
    attribution = attribute(load_kineto(CORPUS / "kineto/h200/graph.json.gz"))
    trace, paths = attribution.trace, attribution.paths.texts()
    replayed = np.flatnonzero(trace.ops.graph_node > 0)
    owners = [paths[path] for path in attribution.owner[replayed].tolist()]
    assert (attribution.method[replayed] == Method.GRAPH_CAPTURE).all()
    assert sum(path.endswith("aten::linear/aten::addmm") for path in owners) == 4 * 13
    names = trace.texts(trace.ops.short_name[replayed])
    for path, name in zip(owners, names, strict=True):
        if path.endswith("layer_norm/aten::native_layer_norm"):
            assert name == "vectorized_layer_norm_kernel"


def is_named(trace: Trace, name: str) -> Any:
    return trace.ranges.name == trace.strings.to_pylist().index(name)


def test_shapes_and_flows_are_read() -> None:
    trace = load_kineto(CORPUS / "kineto/h200/eager.json.gz")
    rows = np.isin(trace.operators.range, np.flatnonzero(is_named(trace, "aten::_log_softmax")))
    assert set(trace.texts(trace.operators.shapes[rows])) == {"[[2048, 1000], [], []]"}
    assert len(trace.flows) == 360
    assert int((trace.operators.sequence >= 0).sum()) > 700
    assert len(trace.memory) == 1784
    assert (trace.memory.allocated[trace.memory.device >= 0] > 0).all()
