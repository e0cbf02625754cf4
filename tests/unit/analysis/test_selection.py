"""Filters against the obvious: what is kept is what the whole attribution says lies inside."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvprobe.analysis import analyze
from nvprobe.analysis.completeness import lost_launches
from nvprobe.analysis.selection import Selection, select
from nvprobe.attribution import attribute
from nvprobe.attribution.ledger import ledger
from nvprobe.attribution.model import Attribution
from nvprobe.errors import UsageError
from nvprobe.readers import load
from nvprobe.trace import NO_ROW, Trace
from tests.conftest import CORPUS, examples, mostly_slow
from tests.random_waits import wait_traces


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


def _kept(part: Attribution) -> np.ndarray:
    """bool per range: it lies inside."""
    assert part.unfiltered is not None
    return part.unfiltered.ranges


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
    if part.trace.calls.recorded and part.trace.ops.recorded:
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
    assert int(_kept(part).sum()) == int(whole.ranges.calls[at])
    wild = _check(eager, Selection(ranges=("*/fwd:blocks.?",)))
    assert all("fwd:blocks." in path for path, _, _ in _owners(wild))


def test_threads_keep_what_they_called_for(eager: Trace) -> None:
    counts = np.bincount(eager.calls.thread, minlength=len(eager.threads))
    busiest = np.argsort(counts)[-2:]
    total = 0
    for row in busiest.tolist():
        part = _check(eager, Selection(threads=(int(eager.threads.tid[row]),)))
        total += len(part.owner)
    assert total == 668


def test_time_cuts_ranges_and_keeps_calls_inside(eager: Trace) -> None:
    low, high = 20_000_000, 30_000_000
    part = _check(eager, Selection(time=(low, high)))
    whole = attribute(eager)
    start = eager.calls.start[whole.call]
    assert len(part.owner) == int(np.count_nonzero((start >= low) & (start < high)))
    assert part.trace.ranges.start[_kept(part)].min() >= low
    assert part.tree.end[_kept(part)].max() <= high
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
    assert len(part.trace.ranges) == 80
    assert len(part.trace.ops) == len(trace.ops)
    default = select(trace, Selection(domains=("",)))
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
        (Selection(processes=(1,)), "process 1: not in the capture, which has"),
        (Selection(devices=(7,)), "device 7"),
        (Selection(threads=(7,)), "thread 7"),
        (Selection(domains=("x",)), "domain 'x'"),
        (
            Selection(ranges=("nowhere",)),
            "range 'nowhere': not a path of the capture, which has 'step",
        ),
        (Selection(steps=(90, 91)), "steps 90:91: the capture has steps 4 to 7"),
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


@given(cuts=st.lists(st.integers(5_000_000, 50_000_000), min_size=1, max_size=5, unique=True))
@examples(15)
def test_windows_partition_the_ops(cuts: list[int]) -> None:
    """Whatever the cuts, every op lies in one window, and with it its time and its owner."""
    if not CORPUS.is_dir():
        pytest.skip("no corpus")
    trace = _loaded(str(CORPUS / "nsys/h200/eager.sqlite"))
    bounds = [None, *sorted(cuts), None]
    parts = [
        select(trace, Selection(time=window)) for window in zip(bounds, bounds[1:], strict=False)
    ]
    whole = attribute(trace)
    assert sum(len(part.owner) for part in parts) == len(whole.owner)
    assert sorted(owner for part in parts for owner in _owners(part)) == sorted(_owners(whole))
    for part in parts:
        assert bool((part.trace.ranges.start <= part.tree.end).all())


@functools.cache
def _loaded(path: str) -> Trace:
    return load(path)


@pytest.mark.parametrize(
    "path",
    mostly_slow(sorted((CORPUS / "nsys/h200").glob("*.sqlite")), "eager", "graph_node"),
    ids=lambda path: path.stem,
)
def test_every_capture_can_be_filtered_and_written(path, tmp_path: Path) -> None:
    """Each filter on each capture: analyzed whole, and the tables refer to rows there are."""
    import sqlite3

    from nvprobe.report.database import write_database
    from nvprobe.report.document import to_json

    trace = load(path)
    whole = analyze(attribute(trace))
    steps = whole.steps.index
    filters = [Selection(time=(15_000_000, 40_000_000)), Selection(ranges=("*backward*",))]
    filters += [Selection(steps=(int(steps.max()), int(steps.max()) + 1))] if len(steps) else []
    texts = whole.attribution.paths.texts()
    for number, selection in enumerate(filters):
        if selection.ranges and not any("backward" in text for text in texts):
            continue
        part = analyze(_check(trace, selection))
        assert to_json(part)
        write_database(part, tmp_path / f"{number}.sqlite")
        with sqlite3.connect(tmp_path / f"{number}.sqlite") as database:
            assert database.execute("PRAGMA foreign_key_check").fetchall() == []
        database.close()


def test_a_backward_filter_keeps_the_modules(corpus: Path) -> None:
    """The forward ranges that name them lie outside."""
    trace = load(corpus / "nsys/h200/eager_emit.sqlite")
    whole = {row["module"]: row["backward_gpu_ns"] for row in analyze(attribute(trace)).modules}
    part = analyze(select(trace, Selection(ranges=("step/backward",))))
    found = {row["module"]: row["backward_gpu_ns"] for row in part.modules}
    named = {module: gpu for module, gpu in whole.items() if gpu}
    assert named
    assert {module: gpu for module, gpu in found.items() if gpu} == named


def test_brackets_in_a_path_mean_themselves(tmp_path: Path) -> None:
    from tests.unit.readers.exports import kernel, launch, pushed, strings, write

    names = ["blocks[0]", "blocks0", "blocks[1]", "a+b", "two\nlines"]
    path = write(
        tmp_path / "x.sqlite",
        {
            "StringIds": strings("cudaLaunchKernel", "k"),
            "NVTX_EVENTS": [pushed(n, 100 * i + 1, 100 * i + 90) for i, n in enumerate(names)],
            "CUPTI_ACTIVITY_KIND_RUNTIME": [
                launch(i + 1, 100 * i + 10, 100 * i + 20) for i in range(len(names))
            ],
            "CUPTI_ACTIVITY_KIND_KERNEL": [
                kernel(i + 1, 100 * i + 30, 100 * i + 40) for i in range(len(names))
            ],
        },
    )
    trace = load(path)
    for wanted, kept in [
        ("blocks[0]", {"blocks[0]"}),
        ("blocks[[]0]", None),
        ("blocks[?]", {"blocks[0]", "blocks[1]"}),
        ("blocks*", {"blocks[0]", "blocks[1]", "blocks0"}),
        ("a+b", {"a+b"}),
        ("two*lines", {"two\nlines"}),
    ]:
        if kept is None:
            with pytest.raises(UsageError, match="not a path of the capture"):
                select(trace, Selection(ranges=(wanted,)))
        else:
            part = select(trace, Selection(ranges=(wanted,)))
            assert {owner for owner, *_ in _owners(part)} == kept


@pytest.mark.parametrize("name", ["eager", "prefetch_thread", "threaded_server", "graph_node"])
def test_threads_part_the_idle_time(corpus: Path, name: str) -> None:
    """A GPU that works for others is not idle: each gap is of the thread whose op ended it."""
    trace = load(corpus / f"nsys/h200/{name}.sqlite")
    whole = analyze(attribute(trace))
    assert whole.waits is not None
    ended = whole.waits.gaps.thread
    idle = busy = 0
    for row in range(len(trace.threads)):
        part = analyze(select(trace, Selection(threads=(int(trace.threads.tid[row]),))))
        assert part.waits is not None
        own = int(whole.waits.gaps.length[ended == row].sum())
        assert int(part.waits.idle.ns.sum()) == int(part.devices.idle_ns.sum()) == own
        assert (part.devices.busy_ns + part.devices.idle_ns == part.devices.window_ns).all()
        idle, busy = idle + own, busy + int(part.devices.busy_ns.sum())
    assert idle == int(whole.devices.idle_ns[0]) - int(whole.waits.gaps.length[ended < 0].sum())
    assert busy >= int(whole.devices.busy_ns[0])


def test_a_path_is_idle_where_its_own_ops_are_waited_for(eager: Trace) -> None:
    """The GPU is not idle for ``step/forward`` while it works for ``step/backward``."""
    whole = analyze(attribute(eager))
    part = analyze(select(eager, Selection(ranges=("step/forward",))))
    assert whole.waits is not None
    gaps, texts = whole.waits.gaps, [*whole.attribution.paths.texts(), ""]
    own = [texts[path].startswith("step/forward") for path in whole.attribution.owner[gaps.op]]
    assert part.devices.idle_ns.tolist() == [int(gaps.length[own].sum())]
    assert part.devices.idle_ns[0] < part.devices.busy_ns[0] < part.devices.window_ns[0]


def test_what_lies_outside_hides_communication(corpus: Path) -> None:
    trace = load(corpus / "kineto/public/nccl.json.gz")
    whole = analyze(attribute(trace))
    assert whole.waits is not None
    table = whole.waits.collectives
    path = whole.attribution.paths.text(int(table.path[np.argmax(table.gpu_ns - table.exposed_ns)]))
    part = analyze(select(trace, Selection(ranges=(path,))))
    assert part.waits is not None
    mine = [whole.attribution.paths.text(int(row)) == path for row in table.path]
    assert int(table.exposed_ns[mine].sum()) < int(table.gpu_ns[mine].sum())
    assert int(part.waits.collectives.exposed_ns.sum()) == int(table.exposed_ns[mine].sum())
    assert part.waits.exposed_comm_ns == int(table.exposed_ns[mine].sum())


def test_calls_for_another_device_are_no_lost_launches(corpus: Path) -> None:
    trace = load(corpus / "nsys/public/2026.2_two_gpus.sqlite")
    whole = analyze(attribute(trace))
    assert whole.waits is not None
    lost = waited = wait_ns = 0
    for row in range(2):
        part = analyze(select(trace, Selection(devices=(int(trace.devices.id[row]),))))
        assert part.waits is not None
        assert part.devices.idle_ns.tolist() == [int(whole.devices.idle_ns[row])]
        assert not part.verdict.startswith("unclear")
        lost += len(lost_launches(part.attribution))
        waited += int(part.waits.syncs.sites.count.sum())
        wait_ns += int(part.waits.syncs.sites.wait_ns.sum())
    assert lost == len(lost_launches(attribute(trace))) == 3
    assert waited == int(whole.waits.syncs.sites.count.sum())
    assert wait_ns == int(whole.waits.syncs.sites.wait_ns.sum())


@given(wait_traces())
@examples(25)
def test_threads_part_the_idle_time_of_any_trace(trace: Trace) -> None:
    whole = analyze(attribute(trace))
    assert whole.waits is not None
    gaps = whole.waits.gaps
    tids = trace.threads.tid.tolist()
    idle = sum(
        int(analyze(select(trace, Selection(threads=(tid,)))).devices.idle_ns.sum())
        for tid in sorted(set(tids))
    )
    assert idle == int(gaps.length[gaps.thread >= 0].sum())
