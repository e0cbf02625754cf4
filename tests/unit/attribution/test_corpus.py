"""Real captures of every nsys: the oracle agrees op by op, and known figures hold."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvprobe.attribution import Attribution, Method, attribute, ledger
from nvprobe.readers import load
from tests.conftest import CORPUS, mostly_slow
from tests.unit.attribution.test_oracle import agree

FILES = sorted((CORPUS / "nsys").glob("*/*.sqlite"))


def attributed(corpus: Path, name: str) -> Attribution:
    return attribute(load(corpus / "nsys" / f"{name}.sqlite"))


def counts(found: Attribution) -> dict[str, int]:
    return {m.name.lower(): entry.ops for m, entry in ledger(found).by_method.items()}


@pytest.mark.parametrize(
    "path",
    mostly_slow(FILES, "eager", "graph_node", "threaded_server", "named_domain"),
    ids=lambda path: path.stem,
)
def test_every_op_as_the_oracle_says(path: Path) -> None:
    trace = load(path)
    agree(trace, every_range=len(trace.ranges) < 6000)


def test_eager_inherits_what_the_autograd_thread_launched(corpus: Path) -> None:
    found = attributed(corpus, "h200/eager")
    assert counts(found) == {"launch": 188, "inherited": 480}
    texts = found.paths.texts()
    inherited = found.owner[found.method == Method.INHERITED]
    assert {texts[path] for path in inherited} == {"step/backward"}
    kernels = (found.method == Method.INHERITED) & (found.trace.ops.kind == 0)
    assert kernels.sum() == 428


def test_replayed_nodes_reach_the_ranges_of_their_capture(corpus: Path) -> None:
    found = attributed(corpus, "h200/graph_node")
    assert counts(found) == {"launch": 38, "graph_capture": 132, "no_range_open": 1}
    texts = found.paths.texts()
    captured = {texts[path] for path in found.owner[found.method == Method.GRAPH_CAPTURE]}
    assert all(path.startswith("replay/fwd:M/") for path in captured)
    assert "replay/fwd:M/fwd:blocks.2/fwd:blocks.2.fc2" in captured


def test_graphs_recorded_whole(corpus: Path) -> None:
    found = attributed(corpus, "h200/graph_graph")
    whole = found.trace.ops.kind == 3
    assert [Method(m) for m in found.method[whole]] == [Method.GRAPH_LAUNCH] * 4


def test_captures_before_the_window_keep_the_launch_path(corpus: Path) -> None:
    assert counts(attributed(corpus, "h200/compile_ro_node"))["graph_launch"] == 596


def test_a_prefetching_thread_inherits_nothing(corpus: Path) -> None:
    found = attributed(corpus, "h200/prefetch_thread")
    assert counts(found)["no_range_open"] == 12
    [(thread, entry)] = ledger(found).threads_without_range.items()
    assert entry.ops == 12
    assert thread != found.initiating[0]


def test_each_request_under_its_own_thread(corpus: Path) -> None:
    found = attributed(corpus, "h200/threaded_server")
    assert counts(found) == {"launch": 306}
    threads = found.trace.calls.thread[found.call]
    assert len(set(threads.tolist())) == 3


def test_no_process_has_more_than_it_ran(corpus: Path) -> None:
    found = attributed(corpus, "public/2026.2_two_gpus")
    assert counts(found)["launched_before_window"] == 16
    ops = found.trace.ops
    for process, entry, _ in ledger(found).by_process:
        mine = ops.process == process
        assert entry.gpu_ns == int((ops.end - ops.start)[mine].sum())


def test_several_calls_with_one_correlation_id(corpus: Path) -> None:
    found = attributed(corpus, "public/2022.2_mpi_saxpy_all_tables")
    assert int((found.trace.ops.kind == 0).sum()) == 5
