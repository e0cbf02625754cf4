"""Nodes of engine runs that were not named: those of a run that repeats, or none."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvprobe.analysis.path_quantities import path_quantities
from nvprobe.attribution import Attribution, Method, attribute
from nvprobe.attribution.labels import labels
from nvprobe.attribution.modules import modules
from nvprobe.attribution.repeated import moved, with_repeated_nodes
from nvprobe.merging.load import load
from nvprobe.trace import (
    Calls,
    Devices,
    Marks,
    OpKind,
    Ops,
    Processes,
    Ranges,
    RangeSource,
    Source,
    Threads,
    Trace,
)
from tests.conftest import examples
from tests.oracle import Oracle

MAIN, FIRST, SECOND = 0, 1, 2
"""The thread that runs the engine, and two of autograd's."""
OPS = ("gemm", "add")
CALLS = {"alloc": "cudaMalloc", "wait": "cudaStreamSynchronize"}


class Program:
    """A recording in the making: the clock goes on with everything that happens."""

    def __init__(self, gaps) -> None:
        self.gaps = gaps
        self.now = 0
        self.texts: dict[str, int] = {}
        self.ranges: list[tuple] = []
        self.calls: list[tuple] = []
        self.ops: list[tuple] = []
        self.marks: list[tuple] = []

    def text(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts))

    def tick(self) -> int:
        self.now += next(self.gaps)
        return self.now

    def mark(self, text: str) -> None:
        self.marks.append((self.tick(), self.text(text)))

    def open(self, thread: int, name: str, category: str | None, inside) -> None:
        """A range around what ``inside()`` does."""
        start = self.tick()
        inside()
        domain = -1 if category is None else self.text("nvprobe")
        row = (domain, -1 if category is None else self.text(category))
        self.ranges.append((thread, start, self.tick(), self.text(name), *row))

    def call(self, thread: int, name: str, kernel: str | None) -> None:
        start, end = self.tick(), self.tick()
        self.calls.append((thread, len(self.calls) + 1, start, end, self.text(name)))
        if kernel is not None:
            self.ops.append((len(self.calls), end + 1, end + 2, self.text(kernel)))

    def items(self, thread: int, items, named: bool) -> None:
        """What a thread does in a run: nodes, ranges and calls."""
        for name, inner in items:
            if inner is None:
                kernel = name if name in OPS else None
                self.call(thread, CALLS.get(name, "cudaLaunchKernel"), kernel)
            elif name.startswith("graph"):
                self.open(thread, name, "graph", lambda i=inner: self.items(thread, i, named))
            elif named:
                text = f"{name}, seq = {self.now}, op_id = {self.now + 1}"
                self.open(thread, text, None, lambda i=inner: self.items(thread, i, named))
            else:
                self.tick()
                self.items(thread, inner, named)
                self.tick()

    def step(self, run: Run, named: bool) -> None:
        def whole() -> None:
            for module in run.modules:
                self.open(MAIN, module, "module", lambda: self.call(MAIN, "cudaLaunchKernel", "f"))
            self.open(MAIN, "backward", "phase", backward)

        def backward() -> None:
            self.mark(f"nvprobe engine run {run.signature}" + (" named" if run.named else ""))
            for thread, items in zip((FIRST, SECOND), run.threads, strict=False):
                self.items(thread, items, named)
            self.mark("nvprobe engine run ends")

        self.open(MAIN, "step", "step", whole)

    def trace(self) -> Trace:
        def column(rows, at):
            return np.array([row[at] for row in rows], np.int64)

        threads = [self.text(name) for name in ("python3", "pt_autograd_0", "pt_autograd_1")]
        none, zeros = np.full(len(self.ops), -1), np.zeros(len(self.ops))
        return Trace(
            strings=pa.array(list(self.texts), pa.string()),
            sources=(Source("nsys-sqlite", "made", None, None, {}),),
            processes=Processes(key=[1], pid=[10], name=[-1], rank=[-1]),
            threads=Threads(process=[0, 0, 0], tid=[10, 11, 12], name=threads),
            devices=Devices.empty(),
            calls=Calls(
                process=np.zeros(len(self.calls)),
                **{
                    name: column(self.calls, at)
                    for at, name in enumerate(("thread", "correlation", "start", "end", "name"))
                },
            ),
            ops=Ops(
                kind=np.full(len(self.ops), OpKind.KERNEL),
                process=zeros,
                correlation=column(self.ops, 0),
                start=column(self.ops, 1),
                end=column(self.ops, 2),
                name=column(self.ops, 3),
                short_name=column(self.ops, 3),
                graph_node=zeros,
                device=none,
                context=none,
                stream=none,
                bytes=none,
                copy_kind=none,
                source_memory=none,
                target_memory=none,
            ),
            ranges=Ranges(
                process=np.zeros(len(self.ranges)),
                source=np.full(len(self.ranges), RangeSource.NVTX),
                **{
                    name: column(self.ranges, at)
                    for at, name in enumerate(
                        ("thread", "start", "end", "name", "domain", "category")
                    )
                },
            ),
            marks=Marks(
                process=np.zeros(len(self.marks)),
                thread=np.full(len(self.marks), MAIN),
                time=column(self.marks, 0),
                name=column(self.marks, 1),
                domain=np.full(len(self.marks), -1),
                category=np.full(len(self.marks), -1),
            ),
            end_ns=self.now + 10,
        )


@dataclasses.dataclass(frozen=True)
class Run:
    """A run of the engine: what precedes it, and what each autograd thread does in it."""

    threads: tuple
    modules: tuple = ("Net", "fc1")
    signature: int = 0
    named: bool = False

    def key(self) -> tuple:
        """All that a capture shows of it, names of nodes apart."""
        seen = tuple((at, shown(self.threads[at])) for at in self.calling())
        return self.signature, self.modules, seen

    def nodes(self) -> tuple:
        """The same with the nodes."""
        return tuple(structure(self.threads[at]) for at in self.calling())

    def calling(self) -> list[int]:
        """Which threads call anything in it."""
        return [at for at, items in enumerate(self.threads) if shown(items)]

    def ops(self) -> list[int]:
        """How many the forward pass launches, and each thread."""
        return [len(self.modules), *map(launches, self.threads)]


def shown(items) -> tuple:
    """What is compared of a thread; nothing of one that makes no call."""
    found = events(items)
    return tuple(found) if any(one[0] not in "<>" for one in found) else ()


def events(items) -> list[str]:
    """The compared calls and the ranges that are written in any case."""
    out: list[str] = []
    for name, inner in items:
        if inner is None:
            out += [name] * (name != "alloc")
        elif name.startswith("graph"):
            out += [f"<{name}", *events(inner), ">"]
        else:
            out += events(inner)
    return out


def structure(items) -> tuple:
    """The ranges and calls of a thread, without the calls that are not compared."""
    return tuple(
        (name, None if inner is None else structure(inner))
        for name, inner in items
        if name != "alloc"
    )


def launches(items) -> int:
    """The ops of a thread."""
    return sum(launches(inner) if inner is not None else name in OPS for name, inner in items)


def captured(runs, gaps, *, all_named: bool = False) -> Trace:
    """A capture of steps with these runs."""
    program = Program(gaps)
    for run in runs:
        program.step(run, named=all_named or run.named)
    return program.trace()


def owners_of(trace: Trace):
    """(owner's text, method) of each op."""
    found = attribute(trace)
    texts = found.paths.texts()
    owner = [texts[path] if path >= 0 else "" for path in found.owner.tolist()]
    return list(zip(owner, [Method(one) for one in found.method], strict=True))


LEAF = st.sampled_from(["gemm", "add", "wait", "alloc"]).map(lambda name: (name, None))
INNER = st.lists(
    st.one_of(LEAF, st.tuples(st.sampled_from(["graph 0/0 bwd"]), st.lists(LEAF, max_size=2))),
    max_size=3,
)
ITEMS = st.lists(
    st.one_of(
        LEAF,
        st.tuples(st.sampled_from(["AddmmBackward0", "ReluBackward0"]), INNER),
    ),
    max_size=3,
).map(tuple)
RUNS = st.lists(
    st.builds(
        Run,
        threads=st.tuples(ITEMS, ITEMS) | st.tuples(ITEMS),
        modules=st.sampled_from([("Net",), ("Net", "fc1")]),
        signature=st.integers(0, 1),
    ),
    min_size=1,
    max_size=3,
)


@examples(60)
@given(RUNS, st.data())
def test_a_run_has_the_nodes_of_the_run_that_it_repeats_or_none(templates, data):
    drawn = data.draw(st.lists(st.tuples(st.sampled_from(templates), st.booleans()), max_size=6))
    runs = [dataclasses.replace(run, named=named) for run, named in drawn]
    gaps = itertools.cycle(data.draw(st.lists(st.integers(1, 9), min_size=5, max_size=40)))
    truth = by_thread(runs, captured(runs, gaps, all_named=True))
    bare_trace = captured(runs, gaps)
    bare = by_thread(runs, bare_trace)
    trace = with_repeated_nodes(bare_trace)
    _agrees_with_oracle(trace)
    nodes = [run for run in runs if run.named and any(map(has_nodes, run.threads))]
    for run, found, there in zip(runs, by_thread(runs, trace), bare, strict=True):
        models = [one for one in nodes if one.key() == run.key()]
        repeats = not run.named and len({one.nodes() for one in models}) == 1 and run.calling()
        for at, (got, alone) in enumerate(zip(found, there, strict=True)):
            if repeats and at - 1 in run.calling():
                model = truth[next(i for i, one in enumerate(runs) if one is models[0])][at]
                wanted = [(path, method_of(path)) for path, _ in model]
            else:
                wanted = alone
            assert got == wanted


def method_of(path: str) -> Method:
    """Of an op on a repeated run's thread, by its path."""
    if "Backward0" in path:
        return Method.REPEATED
    return Method.LAUNCH if "graph" in path else Method.INHERITED


def by_thread(runs, trace: Trace) -> list[list[list]]:
    """(owner's text, method) of the ops of each run, of its forward pass and of each thread."""
    left = iter(owners_of(trace))
    return [[list(itertools.islice(left, count)) for count in run.ops()] for run in runs]


def has_nodes(items) -> bool:
    """Whether a thread runs any."""
    return any(inner is not None and not name.startswith("graph") for name, inner in items)


def _agrees_with_oracle(trace: Trace) -> None:
    oracle = Oracle(trace)
    found = attribute(trace)
    texts = found.paths.texts()
    for op in range(len(trace.ops)):
        path, method = oracle.owner(op)
        got = texts[found.owner[op]] if found.owner[op] >= 0 else None
        assert got == (None if path is None else "/".join(one.replace("/", "\\/") for one in path))
        assert Method(found.method[op]).name.lower() == method


NODES = (("AddmmBackward0", (("gemm", None),)), ("ReluBackward0", (("add", None),)))
NAMED, UNNAMED = Run((NODES,), named=True), Run((NODES,))


def repeated(*runs: Run) -> int:
    """How many ops have the nodes of another run."""
    trace = with_repeated_nodes(captured(runs, itertools.cycle([2, 5, 3])))
    return sum(method is Method.REPEATED for _, method in owners_of(trace))


@pytest.mark.parametrize(
    ("run", "ops"),
    [
        (UNNAMED, 2),
        (dataclasses.replace(UNNAMED, modules=("Net", "fc2")), 0),  # a layer was dropped
        (dataclasses.replace(UNNAMED, signature=1), 0),
        (Run((NODES[:1],)), 0),
        (Run(((*NODES, ("gemm", None)),)), 0),
        (Run(((*NODES, ("alloc", None)),)), 2),
    ],
)
def test_only_an_equal_run_is_evidence(run, ops):
    assert repeated(NAMED, run) == repeated(run, NAMED) == ops


def test_named_runs_that_differ_in_their_nodes_alone_prove_nothing():
    other = (("AddmmBackward0", (("gemm", None), ("add", None))),)
    assert repeated(NAMED, dataclasses.replace(NAMED, threads=(other,)), UNNAMED) == 0


def test_runs_without_equal_are_counted_in_a_warning():
    trace = with_repeated_nodes(captured([NAMED, Run((NODES[:1],))], itertools.cycle([3])))
    assert trace.warnings[-1].startswith("1 of 2 runs of the autograd engine launched what no run")


def test_runs_of_two_threads_at_once_are_left_alone():
    trace = captured([NAMED, UNNAMED], itertools.cycle([2, 3]))
    begins, ends = trace.marks.time[::2], trace.marks.time[1::2]
    another = trace.marks.with_columns(  # as long as both, on a thread of its own
        thread=np.full(4, SECOND),
        time=np.array([begins[0] - 1, ends[-1], ends[-1] + 1, ends[-1] + 2]),
    )
    both = Marks.joined([trace.marks.columns(), another.columns()])
    assert with_repeated_nodes(dataclasses.replace(trace, marks=both)).ranges is trace.ranges


def test_a_capture_without_marks_stays_as_it_is():
    trace = captured([NAMED, UNNAMED], itertools.cycle([2]))
    trace = dataclasses.replace(trace, marks=Marks.absent())
    assert with_repeated_nodes(trace) is trace


@given(
    st.lists(st.tuples(st.integers(0, 10**12), st.integers(0, 10**12)), min_size=2, max_size=8),
    st.lists(st.floats(0, 1), max_size=12),
)
def test_instants_keep_their_order_and_their_side_of_each_anchor(anchors, shares):
    source, target = (np.sort(np.array(column, np.int64)) for column in zip(*anchors, strict=True))
    low, high = int(source[0]), int(source[-1])
    time = np.sort(np.array([low + round((high - low) * one) for one in shares], np.int64))
    found = moved(time, source, target)
    assert (np.diff(found) >= 0).all()
    for one, at in zip(time.tolist(), found.tolist(), strict=True):
        for ours, theirs in zip(source.tolist(), target.tolist(), strict=True):
            assert at <= theirs or one > ours
            assert at >= theirs or one <= ours


CAPTURES = ["runs/nanoc", "runs/ddp/rank0", "pairs/clip_item", "nsys/h200/backward_scopes.sqlite"]


@pytest.mark.parametrize("name", CAPTURES)
def test_real_captures_lose_nothing_without_the_nodes_of_most_runs(corpus, name):
    whole = load(corpus / name)
    thin, deleted = thinned(whole)
    assert deleted > 100
    trace = with_repeated_nodes(thin)
    truth, found = attribute(whole), attribute(trace)
    assert [path for path, _ in owners_of(whole)] == [path for path, _ in owners_of(trace)]
    assert (found.method == Method.REPEATED).sum() > 100
    assert totals(truth) == totals(found)
    assert module_shares(truth) == module_shares(found)


def thinned(trace: Trace, named: int = 2) -> tuple[Trace, int]:
    """A capture as if only its first engine runs had been named, and how many nodes that left out.

    The runs are the ranges ``backward``.
    """
    ranges = trace.ranges
    texts = trace.strings.take(pa.array(ranges.name, mask=ranges.name < 0)).fill_null("")
    node = (ranges.domain < 0) & (labels(texts.cast(pa.string())).operator_id >= 0)
    rows = np.flatnonzero(np.array(texts.to_pylist()) == "backward")
    rows = rows[np.argsort(ranges.start[rows])]
    begun = np.searchsorted(ranges.start[rows], ranges.start, side="right") - 1
    inside = (begun >= 0) & (ranges.start < ranges.end[rows[begun]])
    kept = ~(node & inside & (begun >= named))
    added = ["nvprobe engine run 0", "nvprobe engine run 0 named", "nvprobe engine run ends"]
    first = len(trace.strings)
    begins = np.where(np.arange(len(rows)) < named, first + 1, first)
    marks = Marks(
        process=np.tile(ranges.process[rows], 2),
        thread=np.tile(ranges.thread[rows], 2),
        time=np.concatenate((ranges.start[rows], ranges.end[rows])),
        name=np.concatenate((begins, np.full(len(rows), first + 2))),
        domain=np.full(2 * len(rows), -1),
        category=np.full(2 * len(rows), -1),
    )
    strings = pa.concat_arrays([trace.strings, pa.array(added, trace.strings.type)])
    thin = dataclasses.replace(trace, strings=strings, ranges=ranges.take(kept), marks=marks)
    return thin, int((~kept).sum())


def totals(found: Attribution) -> dict[str, tuple]:
    """Calls and GPU quantities of each path."""
    by = path_quantities(found)
    columns = (by.calls, by.ops, by.gpu_ns, by.gpu_self_ns, by.gpu_busy_ns, by.gpu_span_ns)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return dict(zip(found.paths.texts(), rows, strict=True))


def module_shares(found: Attribution) -> set[tuple]:
    """(op, module, source, phase, ns) of each share."""
    table = modules(found)
    names = [*table.names.to_pylist(), None]
    columns = (table.op, table.module, table.source, table.phase, table.gpu_ns)
    return {
        (op, names[module], names[source], phase, ns)
        for op, module, source, phase, ns in zip(
            *(column.tolist() for column in columns),
            strict=True,
        )
    }
