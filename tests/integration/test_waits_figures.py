"""What is known of certain captures: figures that a reader of the trace can check by hand."""

from __future__ import annotations

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from nvprobe.analysis import analyze
from nvprobe.analysis.result import Analysis
from nvprobe.attribution import attribute
from nvprobe.readers import load
from nvprobe.readers.kineto import load_kineto
from nvprobe.report.document import to_dict
from tests.conftest import CORPUS

pytestmark = pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no corpus at {CORPUS}")


@cache
def analyzed(name: str) -> Analysis:
    return analyze(attribute(load(CORPUS / name)))


def shown(name: str) -> dict:
    return to_dict(analyzed(name))


def test_six_lines_synchronize() -> None:
    syncs = shown("nsys/h200/gpu_metrics_pqtdir")["syncs"]
    lines = {row["source"] for row in syncs if row["source"]}
    assert lines == {f"train.py:{line}" for line in range(21, 27)}
    # Whatever has no line is the explicit synchronization of the program, which warns of nothing.
    assert {row["call"] for row in syncs if not row["source"]} == {"cudaDeviceSynchronize"}
    per_line = Counter()
    for row in syncs:
        if row["call"] == "cudaStreamSynchronize":
            per_line[row["source"]] += row["count"]
    # The window holds five whole steps, and the last two lines of the step before.
    assert {line: per_line[line] for line in sorted(lines)} == {
        "train.py:21": 5,
        "train.py:22": 5,
        "train.py:23": 5,
        "train.py:24": 5,
        "train.py:25": 6,
        "train.py:26": 6,
    }


def test_six_call_sites_by_their_operators() -> None:
    syncs = shown("nsys/h200/sync_callchains.sqlite")["syncs"]
    stream = [row for row in syncs if row["call"] == "cudaStreamSynchronize"]
    assert {row["operator"] for row in stream} == {
        "item",
        "nonzero",
        "getitem",
        "cpu",
        "tolist",
        "is_nonzero",
    }
    assert {row["count"] for row in stream} == {20}
    assert {row["path"] for row in stream} == {"step"}
    # A pageable copy that waited belongs to the operator of the wait after it.
    copies = [row for row in syncs if row["call"] == "cudaMemcpyAsync"]
    assert {(row["operator"], row["count"]) for row in copies} == {("cpu", 20), ("tolist", 20)}


def test_most_idle_is_the_host_not_the_sync() -> None:
    idle = shown("nsys/public/2024.6_llama3.sqlite")["idle"]
    assert idle["causes"]["host"] > 0.94 * idle["total_ns"]
    assert idle["causes"]["sync"] < 0.01 * idle["total_ns"]


def test_eager_copies_that_return_at_once_do_not_block() -> None:
    analysis = analyzed("nsys/h200/eager.sqlite")
    trace = analysis.attribution.trace
    copies = (trace.ops.copy_kind == 1) & (trace.ops.source_memory == 1)
    assert int(copies.sum()) >= 4
    waited = set(analysis.waits.syncs.calls.call.tolist())
    for row in copies.nonzero()[0].tolist():
        call = int(analysis.attribution.call[row])
        assert (call in waited) == (trace.calls.end[call] >= trace.ops.end[row])
    assert not any(row["call"] == "cudaMemcpyAsync" for row in to_dict(analysis)["syncs"])


def test_what_the_copies_of_the_side_stream_overlap_with() -> None:
    eager = shown("nsys/h200/eager.sqlite")["overlap"]
    assert eager["never_together"] == [{"device": 0, "processes": [0, 0], "streams": [7, 13]}]
    assert eager["pairs"] == []
    assert not any("+" in name for name in eager["classes"])
    prefetch = shown("nsys/h200/prefetch_thread.sqlite")["overlap"]
    assert prefetch["never_together"] == []
    [together] = prefetch["pairs"]
    assert together["streams"] == [7, 13]
    side = next(row for row in prefetch["streams"] if row["stream"] == 13)
    assert side["busy_ns"] == side["alone_ns"] + together["ns"]
    # Beside compute, and for a while beside a copy of the main stream: that is one class alone.
    assert 0 < prefetch["classes"]["compute+copy_h2d"] < together["ns"]
    assert prefetch["path_pairs"] == [
        {"device": 0, "first": None, "second": "step/forward", "ns": together["ns"]}
    ]


def test_stacks_name_the_users_function() -> None:
    trace = load_kineto(CORPUS / "kineto/h200/eager.json.gz", python_stacks=True)
    analysis = analyze(attribute(trace))
    syncs = to_dict(analysis)["syncs"]
    items = [row for row in syncs if row["operator"] == "item"]
    assert [row["source"] for row in items] == ["w2.py:50 (step)"]
    idle = to_dict(analysis)["idle"]
    assert sum(row["ns"] for row in idle["by_line"]) == idle["total_ns"]
    named = sum(row["ns"] for row in idle["by_line"] if row["line"])
    assert named > 0.5 * idle["total_ns"]


@pytest.mark.parametrize("file", sorted(CORPUS.glob("nsys/*/*.sqlite")), ids=lambda f: f.name)
def test_every_breakdown_adds_up(file: Path) -> None:
    idle = shown(str(file.relative_to(CORPUS)))["idle"]
    if idle["total_ns"] is None:
        assert idle["causes"] is None
        return
    assert sum(idle["causes"].values()) == idle["total_ns"]
    for breakdown in ("by_path", "by_device", "by_step", "by_stream", "by_line"):
        assert sum(row["ns"] for row in idle[breakdown]) == idle["total_ns"], breakdown
    assert sum(idle["unknown"].values()) == idle["causes"]["unknown"]


def test_a_wait_is_for_the_gpu_of_its_context() -> None:
    """The records of the second process say device 0, though it runs on GPU 1 alone."""
    [site] = shown("nsys/public/2026.2_two_gpus.sqlite")["syncs"]
    awaited = site["device"], site["stream"], site["awaited_op"]
    assert awaited == (1, 15, "Memcpy HtoD")
    assert (site["count"], site["busy_ns"]) == (30, 288_657_038)
