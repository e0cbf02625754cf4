"""Filters against the obvious: what is kept is what the whole attribution says lies inside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nvprobe.analyze import analyze
from nvprobe.analyze.selection import Selection, select
from nvprobe.attribute import attribute
from nvprobe.attribute.ledger import ledger
from nvprobe.attribute.model import Attribution
from nvprobe.errors import UsageError
from nvprobe.load import load
from nvprobe.trace import NO_ROW, Trace


@pytest.fixture(scope="module")
def eager(corpus: Path) -> Trace:
    return load(corpus / "nsys/h200/eager.sqlite")


def _owners(attribution: Attribution) -> list[tuple[str, int, int]]:
    """(path, method, duration) of each op."""
    texts = [*attribution.paths.texts(), ""]
    return [
        (texts[owner], method, duration)
        for owner, method, duration in zip(
            attribution.owner.tolist(),
            attribution.method.tolist(),
            attribution.duration.tolist(),
            strict=True,
        )
    ]


def _check(trace: Trace, selection: Selection) -> Attribution:
    """Invariants of any selection."""
    whole, part = attribute(trace), select(trace, selection)
    assert part.outside is not None
    assert len(part.owner) + part.outside.ops == len(whole.owner)
    assert int(part.duration.sum()) + part.outside.gpu_ns == int(whole.duration.sum())
    everything = _owners(whole)
    for owner in set(_owners(part)):
        assert owner in everything
    assert ledger(part).total.ops == len(part.owner)
    if part.trace.calls is not None and part.trace.ops is not None:
        called = part.call[part.call != NO_ROW]
        assert called.max(initial=-1) < len(part.trace.calls)
        assert (
            part.trace.calls.correlation[called] == part.trace.ops.correlation[part.call != NO_ROW]
        ).all()
    analysis = analyze(part)
    assert analysis.ledger.total.ops == len(part.owner)
    return part


def test_steps_are_what_the_step_table_says(eager: Trace) -> None:
    table = analyze(attribute(eager)).steps
    for first, last in ((4, 5), (5, 7), (4, 8)):
        part = _check(eager, Selection(steps=(first, last)))
        wanted = (table.index >= first) & (table.index < last)
        assert len(part.owner) == int(table.ops[wanted].sum())
        assert int(part.duration.sum()) == int(table.gpu_ns[wanted].sum())
        left = analyze(part).steps
        assert left.index.tolist() == table.index[wanted].tolist()
        assert left.wall_ns.tolist() == table.wall_ns[wanted].tolist()


def test_a_path_keeps_what_belongs_to_it(eager: Trace) -> None:
    whole = analyze(attribute(eager))
    at = whole.attribution.paths.texts().index("step/backward")
    part = _check(eager, Selection(ranges=("step/backward",)))
    assert len(part.owner) == int(whole.ranges.ops[at])
    assert {path.startswith("step/backward") for path, _, _ in _owners(part)} == {True}
    assert part.trace.ranges is not None
    assert len(part.trace.ranges) == int(whole.ranges.calls[at])
    wild = _check(eager, Selection(ranges=("*/fwd:blocks.?",)))
    assert all("fwd:blocks." in path for path, _, _ in _owners(wild))


def test_threads_keep_what_they_called_for(eager: Trace) -> None:
    assert eager.calls is not None
    counts = np.bincount(eager.calls.thread, minlength=len(eager.threads))
    busiest = np.argsort(counts)[-2:]
    total = 0
    for row in busiest.tolist():
        part = _check(eager, Selection(threads=(int(eager.threads.tid[row]),)))
        total += len(part.owner)
    assert total == 668


def test_time_cuts_ranges_and_keeps_calls_inside(eager: Trace) -> None:
    assert eager.calls is not None
    low, high = 20_000_000, 30_000_000
    part = _check(eager, Selection(time=(low, high)))
    whole = attribute(eager)
    start = eager.calls.start[whole.call]
    assert len(part.owner) == int(np.count_nonzero((start >= low) & (start < high)))
    assert part.trace.ranges is not None
    assert part.trace.ranges.start.min() >= low
    assert part.tree.end.max() <= high
    assert (part.trace.start_ns, part.trace.end_ns) == (low, high)


def test_processes_and_devices_of_two(corpus: Path) -> None:
    trace = load(corpus / "cases/n01.sqlite")
    for pid, device, gpu in ((4001, 0, 1_000_000), (4002, 1, 100_000)):
        for selection in (Selection(processes=(pid,)), Selection(devices=(device,))):
            part = _check(trace, selection)
            assert int(part.duration.sum()) == gpu
    both = _check(trace, Selection(processes=(4001,), devices=(1,)))
    assert len(both.owner) == 0


def test_domains_are_attributed_alone(corpus: Path) -> None:
    trace = load(corpus / "nsys/h200/named_domain.sqlite")
    part = select(trace, Selection(domains=("nvprobe",)))
    assert part.trace.ranges is not None
    assert len(part.trace.ranges) == 80
    assert part.trace.ops is not None
    assert trace.ops is not None
    assert len(part.trace.ops) == len(trace.ops)
    default = select(trace, Selection(domains=("",)))
    assert default.trace.ranges is not None
    assert len(default.trace.ranges) == 500


def test_graph_kernels_keep_their_capture(corpus: Path) -> None:
    trace = load(corpus / "nsys/h200/graph_node.sqlite")
    table = analyze(attribute(trace)).steps
    last = int(table.index.max())
    part = _check(trace, Selection(steps=(last, last + 1)))
    assert any("replay/fwd:M/" in path for path, _, _ in _owners(part))


@pytest.mark.parametrize(
    ("selection", "message"),
    [
        (Selection(processes=(1,)), "--process 1: not in the capture, which has"),
        (Selection(devices=(7,)), "--device 7"),
        (Selection(threads=(7,)), "--thread 7"),
        (Selection(domains=("x",)), "--domain 'x'"),
        (Selection(ranges=("nowhere",)), "--range 'nowhere'"),
        (Selection(steps=(90, 91)), "--steps 90:91: the capture has steps 4 to 7"),
    ],
)
def test_what_is_not_there_is_said(eager: Trace, selection: Selection, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        select(eager, selection)
    assert message in str(caught.value)


def test_no_filter_is_no_filter(eager: Trace) -> None:
    assert select(eager, Selection()).outside is None


@pytest.mark.parametrize("path", ["n03", "n13", "n14", "n29"])
def test_captures_without_something_can_be_filtered(corpus: Path, path: str) -> None:
    _check(load(corpus / f"cases/{path}.sqlite"), Selection(time=(0, 1_500_000)))
