"""A profile and a torch trace together: one clock with bounds, or the sequence of kernels."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import nvprobe
from nvprobe.analysis import analyze
from nvprobe.analysis.waiting.code_lines import op_lines
from nvprobe.attribution import attribute, ledger
from nvprobe.errors import InputError, UsageError
from nvprobe.merging.clock import clock_offset
from nvprobe.merging.load import load
from nvprobe.merging.sequence import match_kernels
from nvprobe.readers import load as load_one
from nvprobe.report.console.overview import title
from nvprobe.trace import RangeSource, Trace
from tests.conftest import CORPUS
from tests.integration.test_operators_corpus import operators_of_ops

pytestmark = pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no corpus at {CORPUS}")

NSYS = CORPUS / "nsys/h200"
KINETO = CORPUS / "kineto/h200"


def test_one_clock_is_bounded_within_five_microseconds() -> None:
    profile = load_one(NSYS / "eager_kcpu.sqlite")
    torch = load_one(KINETO / "eager_kcpu.json.gz")
    offset = clock_offset(profile, torch)
    assert offset is not None
    assert -5000 <= offset.low <= offset.high <= 5000
    # The program wrote a mark and, right after it, a record_function of the same name.
    mark = int(profile.marks.time[0])
    name = profile.texts(profile.marks.name)[0]
    twin = torch.texts(torch.ranges.name).index(name)
    start = torch.ranges.start[twin] + torch.origin_ns - profile.origin_ns + offset.middle
    assert mark < start < mark + 200_000


@pytest.mark.parametrize("error_ns", [127_000, -18_000, 900_000])
def test_a_wrong_origin_is_found_out(error_ns: int) -> None:
    profile = load_one(NSYS / "eager_kcpu.sqlite")
    torch = load_one(KINETO / "eager_kcpu.json.gz")
    right = clock_offset(profile, torch)
    moved = dataclasses.replace(torch, origin_ns=torch.origin_ns + error_ns)
    offset = clock_offset(profile, moved)
    assert offset is not None
    assert right is not None
    assert offset.middle + error_ns == pytest.approx(right.middle, abs=1)


def test_names_of_marks_are_not_needed() -> None:
    profile = load_one(NSYS / "eager_kcpu.sqlite")
    torch = load_one(KINETO / "eager_kcpu.json.gz")
    nameless = torch.ranges.take(torch.ranges.source != RangeSource.ANNOTATION)
    offset = clock_offset(profile, dataclasses.replace(torch, ranges=nameless))
    assert offset is not None
    assert offset.pairs == 0
    assert -5000 <= offset.low <= offset.high <= 5000


def test_other_processes_share_no_clock() -> None:
    profile = load_one(NSYS / "eager.sqlite")
    assert clock_offset(profile, load_one(KINETO / "eager_kcpu.json.gz")) is None


def test_one_process_under_both() -> None:
    trace = nvprobe.load(NSYS / "eager_kcpu.sqlite", KINETO / "eager_kcpu.json.gz")
    assert trace.clock.kind == "shared"
    attribution = attribute(trace)
    book = ledger(attribution)
    assert book.total.gpu_ns == ledger(attribute(load_one(NSYS / "eager_kcpu.sqlite"))).total.gpu_ns
    carried = (operators_of_ops(attribution) >= 0) & (op_lines(attribution).line >= 0)
    assert attribution.duration[carried].sum() >= 0.99 * book.total.gpu_ns
    assert not attribution.open.nesting.crossing.any()
    paths = attribution.paths.texts()
    used = {paths[path] for path in np.unique(attribution.owner)}
    assert "step/forward/fwd:M/fwd:blocks.1/fwd:blocks.1.fc2/aten::linear/aten::addmm" in used
    assert not any("/forward/forward" in path or "fwd:M/M_0" in path for path in used)


@pytest.mark.parametrize(
    ("profile", "torch", "line"),
    [
        (
            "eager_kcpu",
            "eager_kcpu",
            r"one clock: torch's times are known to within -\S+ to \S+ µs",
        ),
        ("eager", "eager", r"two runs, joined by the order of their kernels: 100% of nsys's"),
    ],
)
def test_the_report_says_how_they_were_joined(
    profile: str, torch: str, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = load(NSYS / f"{profile}.sqlite", KINETO / f"{torch}.json.gz")
    print(title(analyze(attribute(trace))).plain)
    assert re.search(line, capsys.readouterr().out)


def test_two_runs_of_one_program() -> None:
    trace = load(NSYS / "eager.sqlite", KINETO / "eager.json.gz")
    assert trace.clock.kind == "sequence"
    assert trace.clock.matched_share >= 0.98
    attribution = attribute(trace)
    assert (operators_of_ops(attribution) >= 0).mean() >= 0.98
    # Whatever was laid over it, the program's own paths stay what they were.
    alone = attribute(load_one(NSYS / "eager.sqlite"))
    before = [path.split("/aten")[0] for path in _op_paths(alone)]
    after = [
        path.split("/aten")[0].split("/autograd::")[0].split("/Optim")[0]
        for path in _op_paths(attribution)
    ]
    assert before == after


def _op_paths(attribution) -> list[str]:  # type: ignore[no-untyped-def]
    texts = attribution.paths.texts()
    return [texts[path] for path in attribution.owner.tolist()]


def test_operators_reach_into_a_captured_graph() -> None:
    trace = load(NSYS / "graph_node.sqlite", KINETO / "graph.json.gz")
    paths = set(_op_paths(attribute(trace)))
    layers = [f"replay/fwd:M/fwd:blocks.{n}/fwd:blocks.{n}.fc1" for n in range(3)]
    assert {f"{layer}/aten::linear/aten::addmm" for layer in layers} <= paths


@pytest.mark.parametrize(
    ("profile", "torch"),
    [
        ("eager_emit", "eager"),
        ("compile_emit", "compile"),
        ("compiled_ranges_plain", "compile"),
        ("graph_node", "graph"),
    ],
)
def test_runs_of_the_corpus_match(profile: str, torch: str) -> None:
    first = attribute(load_one(NSYS / f"{profile}.sqlite"))
    second = attribute(load_one(KINETO / f"{torch}.json.gz"))
    match = match_kernels(first, second)
    assert match.share >= 0.98
    names = [
        t.trace.texts(t.trace.ops.short_name[rows])
        for t, rows in ((first, match.first), (second, match.second))
    ]
    assert names[0] == names[1]
    assert len(np.unique(match.second)) == len(match.second)


def test_different_programs_are_refused(corpus: Path) -> None:
    with pytest.raises(InputError, match=r"eager\.sqlite and compile\.json\.gz: not two captures"):
        load(NSYS / "eager.sqlite", KINETO / "compile.json.gz")
    with pytest.raises(InputError, match=r"not of one process, and the torch trace has no kernels"):
        load(NSYS / "eager.sqlite", KINETO / "eager_kcpu.json.gz")
    with pytest.raises(UsageError, match="several captures at once"):
        load(NSYS / "eager.sqlite", NSYS / "graph_node.sqlite")


@pytest.mark.parametrize(
    ("profile", "torch"), [("eager_emit", "eager"), ("compile_emit", "compile")]
)
def test_operators_of_both_count_once(profile: str, torch: str) -> None:
    alone = _operator_calls(load_one(KINETO / f"{torch}.json.gz"))
    both = load(NSYS / f"{profile}.sqlite", KINETO / f"{torch}.json.gz")
    together = _operator_calls(both)
    marks = {name for name in together if name.startswith("sync ")}  # each run's own
    assert {name: calls for name, calls in together.items() if name not in marks} == alone
    graphs = analyze(attribute(both)).compiled_graphs
    assert all(graph["calls"] == 4 for graph in graphs)
    assert bool(graphs) == (torch == "compile")


def _operator_calls(trace: Trace) -> dict[str, int]:
    calls: Counter[str] = Counter()
    for row in analyze(attribute(trace)).operators or []:
        assert row["self_cpu_ns"] >= 0
        calls[row["name"]] += row["calls"]
    return dict(calls)
