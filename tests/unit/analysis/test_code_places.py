"""Which line a path, and a finding, is given from the places of a sidecar."""

from __future__ import annotations

import dataclasses
import io
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec import structs
from rich.console import Console

from nvprobe.analysis import Analysis, analyze
from nvprobe.analysis.code_places import code_places
from nvprobe.attribution import attribute
from nvprobe.report.console.advice import findings
from nvprobe.report.console.view import View
from nvprobe.report.document import to_dict
from nvprobe.trace import CallChains, Marks, Samples, Trace
from nvprobe.trace.sidecar import CaptureRanges, ModuleCalls, Place, Sidecar
from tests.unit.analysis.scenes import BF16_GEMM, FP32_GEMM, Scene, loop

US = 1_000


def place(name: str, source: str, role: str = "called", **more: object) -> Place:
    """A place of a user's range, unless said otherwise."""
    known = {"category": "user", "stack": (), "detail": None, "count": 4, "process": 0}
    return Place(name=name, source=source, role=role, **{**known, **more})  # type: ignore[arg-type]


def traced(scene: Scene, *places: Place, categories: dict[str, str] | None = None) -> Trace:
    """A scene whose ranges are nvprobe's own, of these categories."""
    trace = scene.trace()
    ranges = trace.ranges
    names = trace.texts(ranges.name)
    kinds = [(categories or {}).get(str(name), "user") for name in names]
    more = ["nvprobe", *sorted(set(kinds))]
    first = len(trace.strings)
    return dataclasses.replace(
        trace,
        strings=pa.concat_arrays([trace.strings, pa.array(more)]),
        ranges=dataclasses.replace(
            ranges,
            domain=np.full(len(ranges), first),
            category=[first + more.index(kind, 1) for kind in kinds],
        ),
        sidecar=Sidecar(ModuleCalls.empty(), CaptureRanges.empty(), places=places),
    )


def lines_of(trace: Trace) -> dict[str, list[tuple[str, str]]]:
    """The lines of every path, by its text."""
    attribution = attribute(trace)
    known = code_places(attribution)
    assert known is not None
    texts = attribution.paths.texts()
    return {text: [tuple(one) for one in known.of(row)] for row, text in enumerate(texts)}


def nested(scene: Scene) -> None:
    def model() -> None:
        scene.inside("0", lambda: _ignore(scene.launch(BF16_GEMM, 10 * US)))
        scene.inside("unknown", lambda: _ignore(scene.launch(BF16_GEMM, 10 * US)))

    scene.inside("forward", lambda: scene.inside("Net", model))


def _ignore(_: int) -> None:
    pass


KINDS = {"Net": "module", "0": "module"}


def test_the_innermost_range_that_has_a_place_gives_the_line() -> None:
    found = lines_of(
        traced(
            loop(nested),
            place("forward", "t.py:9", "entered"),
            place("Net", "t.py:10", category="module"),
            place("0", "net.py:3", category="module", detail="Net"),
            categories=KINDS,
        )
    )
    assert found["step"] == []
    assert found["step/forward"] == [("t.py:9", "entered")]
    assert found["step/forward/Net/0"] == [("net.py:3", "called")]
    assert found["step/forward/Net/unknown"] == [("t.py:10", "called")]


@pytest.mark.parametrize(
    ("outer", "inner", "expected"),
    [
        ("fit.py:7", "pytorch_lightning/plugins/precision/precision.py:123", "fit.py:7"),
        ("fit.py:7", "model.py:3", "model.py:3"),
        ("torch/nn/modules/module.py:9", "lightning_fabric/utilities/apply_func.py:104", None),
    ],
)
def test_the_users_line_stands_before_a_librarys(
    outer: str, inner: str, expected: str | None
) -> None:
    scene = loop(nested)
    places = place("forward", outer), place("Net", inner, "entered", category="module")
    found = lines_of(traced(scene, *places, categories=KINDS))["step/forward/Net"]
    assert [source for source, _ in found] == [expected or inner]


def test_the_programs_call_of_a_package_stands_for_the_packages_line() -> None:
    """Worked out by hand: Lightning opens both, and only one has the program's frame."""
    scene = Scene()
    for name in ("optimizer", "data"):
        scene.inside(name, lambda: scene.launch(BF16_GEMM, 10 * US) and None)
    fit = ("pytorch_lightning/precision.py:123", "train.py:17")
    loop_of = ("acme_loops/loader.py:7", "train.py:17")
    trace = traced(
        scene,
        place("optimizer", fit[0], stack=fit),
        place("data", loop_of[0], "loop", stack=loop_of),
    )
    assert lines_of(trace) == {
        "optimizer": [("train.py:17", "called")],
        "data": [("train.py:17", "called")],
    }


def test_a_name_means_the_range_of_its_kind() -> None:
    phase = place("forward", "phase.py:1", category="phase")
    module = place("forward", "module.py:1", category="module")
    own = place("forward", "own.py:1", "entered")
    found = lines_of(traced(loop(nested), phase, module, own))
    assert found["step/forward"] == [("own.py:1", "entered")]
    found = lines_of(traced(loop(nested), phase, module, categories={"forward": "phase"}))
    assert found["step/forward"] == [("phase.py:1", "called")]


def test_ranges_of_others_are_not_ours() -> None:
    trace = traced(loop(nested), place("forward", "t.py:9", "entered"))
    elsewhere = dataclasses.replace(trace.ranges, domain=np.full(len(trace.ranges), -1))
    assert lines_of(dataclasses.replace(trace, ranges=elsewhere))["step/forward"] == []


class CountedDict(dict[Any, Any]):
    """Counts how often it was gone through."""

    times = 0

    def items(self) -> Any:
        """As ever."""
        self.times += 1
        return super().items()


def test_a_torch_trace_asks_by_name_alone_and_goes_through_all_places_once() -> None:
    """It may have a hundred thousand paths, and a sidecar thousands of places."""
    trace = traced(loop(nested), place("forward", "t.py:9", "entered"), place("0", "net.py:3"))
    plain = dataclasses.replace(trace.ranges, domain=np.full(len(trace.ranges), -1))
    attribution = attribute(dataclasses.replace(trace, ranges=plain))
    known = code_places(attribution)
    assert known is not None
    known = dataclasses.replace(known, ours=frozenset({-1}))
    counted = vars(known)["_ranges"] = CountedDict(known._ranges)
    texts = attribution.paths.texts()
    found = {text: [line.source for line in known.own(row)] for row, text in enumerate(texts)}
    assert found["step/forward"] == ["t.py:9"]
    assert found["step/forward/Net/0"] == ["net.py:3"]
    assert counted.times == 1


def test_several_places_come_by_count_and_the_seldom_is_left_out() -> None:
    found = lines_of(
        traced(
            loop(nested),
            place("forward", "seldom.py:1", "entered", count=1),
            place("forward", "often.py:1", "entered", count=64, process=0),
            place("forward", "most.py:1", "entered", count=60, process=0),
            place("forward", "most.py:1", "entered", count=60, process=1),
        )
    )
    assert found["step/forward"] == [("most.py:1", "entered"), ("often.py:1", "entered")]


def test_modules_of_the_same_name_are_told_apart_by_their_root() -> None:
    places = [
        place("0", "other.py:1", category="module", detail="Other", count=99),
        place("0", "net.py:1", category="module", detail="Net"),
    ]
    found = lines_of(traced(loop(nested), *places, categories=KINDS))
    assert found["step/forward/Net/0"] == [("net.py:1", "called")]


def test_numbers_of_names_are_off_as_in_paths() -> None:
    def body(scene: Scene) -> None:
        def kernel() -> None:
            scene.launch(BF16_GEMM, US)

        for micro in range(2):
            scene.inside(f"microbatch {micro}", kernel)

    places = [place(f"microbatch {i}", "t.py:5", "entered") for i in range(2)]
    assert lines_of(traced(loop(body), *places))["step/microbatch"] == [("t.py:5", "entered")]


def nearest_lines(trace: Trace) -> dict[str, tuple[str, str] | None]:
    """The nearest line of every path, by its text."""
    attribution = attribute(trace)
    known = code_places(attribution)
    assert known is not None
    lines = [known.nearest(row) for row in range(len(attribution.paths.parent))]
    return {
        text: line and tuple(line)
        for text, line in zip(attribution.paths.texts(), lines, strict=True)
    }


def test_the_programs_own_line_is_nearer_than_a_librarys() -> None:
    found = nearest_lines(
        traced(
            loop(nested),
            place("Net", "net.py:10", category="module"),
            place("0", "torchvision/models/resnet.py:3", category="module", detail="Net"),
            place("forward", "transformers/trainer.py:9"),
            categories=KINDS,
        )
    )
    assert found["step"] is None
    assert found["step/forward"] == ("transformers/trainer.py:9", "called")
    assert found["step/forward/Net"] == ("net.py:10", "called")
    assert found["step/forward/Net/0"] == ("net.py:10", "called")


def test_a_range_of_several_lines_has_that_of_the_range_around_it() -> None:
    places = [place("0", f"net.py:{i}", category="module", detail="Net") for i in (3, 4)]
    around = place("forward", "t.py:9", "entered")
    found = nearest_lines(traced(loop(nested), around, *places, categories=KINDS))
    assert found["step/forward/Net/0"] == ("t.py:9", "entered")
    assert nearest_lines(traced(loop(nested), *places, categories=KINDS))["step/forward"] is None


@pytest.mark.parametrize(
    ("iterated", "line"), [("t.py:7", ("t.py:7", "loop")), ("torch/x.py:7", None)]
)
def test_a_step_lies_in_the_programs_loop_over_its_batches(
    iterated: str, line: tuple[str, str] | None
) -> None:
    def body(scene: Scene) -> None:
        scene.inside("data", lambda: scene.host(US))
        scene.launch(BF16_GEMM, US)

    kinds = {"data": "phase", **{f"step {index}": "step" for index in range(9)}}
    data = place("data", iterated, "loop", category="phase")
    assert nearest_lines(traced(loop(body), data, categories=kinds))["step"] == line


def test_idle_time_by_line_adds_up_and_says_what_a_line_is() -> None:
    where = place("forward", "t.py:9", "entered")
    analysis = analyze(attribute(traced(loop(nested), where)))
    idle = to_dict(analysis)["idle"]
    assert sum(row["ns"] for row in idle["by_line"]) == idle["total_ns"]
    of_forward = [row for row in idle["by_path"] if (row["path"] or "").startswith("step/forward")]
    entered = [row for row in idle["by_line"] if row["line"]]
    assert {(row["line"], row["role"]) for row in entered} == {("t.py:9", "entered")}
    assert sum(row["ns"] for row in entered) == sum(row["ns"] for row in of_forward) > 0
    assert {row["role"] for row in idle["by_line"] if row["line"] is None} <= {None}


@pytest.mark.parametrize("call", ["cudaDeviceSynchronize", "cudaStreamSynchronize"])
def test_a_wait_without_a_line_has_a_place(call: str) -> None:
    def body(scene: Scene) -> None:
        def wait() -> None:
            scene.launch(BF16_GEMM, 50 * US)
            scene.call(call, 60 * US)

        scene.inside("forward", wait)

    trace = traced(loop(body), place("forward", "t.py:9", "entered"))
    (site,) = to_dict(analyze(attribute(trace)))["syncs"]
    assert (site["source"], site["place"], site["place_role"]) == (None, "t.py:9", "entered")


def test_no_sidecar_no_places() -> None:
    assert code_places(attribute(loop(nested).trace())) is None
    row = to_dict(analyze(attribute(loop(nested).trace())))["ranges"][0]
    assert row["lines"] is None


def analysis_of(scene: Scene, *places: Place) -> Analysis:
    return analyze(attribute(traced(scene, *places)))


def shown(analysis: Analysis) -> str:
    out = io.StringIO()
    listing = findings(analysis, View(), 300)
    Console(file=out, width=300, force_terminal=False).print(listing)
    return out.getvalue()


def slow_loader(scene: Scene) -> None:
    scene.inside("data", lambda: scene.host(5_000 * US))
    scene.launch(BF16_GEMM, 300 * US)


def test_waiting_for_data_names_what_makes_batches_before_the_loop() -> None:
    loop_line = place("data", "t.py:7", "loop", category="phase")
    made = place("data", "data.py:3", "made", category="phase", count=1)
    apart = place("data", "data.py:3", "made_apart", category="phase", count=1)
    kinds = {"data": "phase"}
    trace = traced(loop(slow_loader), loop_line, made, categories=kinds)
    first = (analyze(attribute(trace)).findings or ())[0]
    assert (first.id, first.sources) == ("input_wait", ("data.py:3", "t.py:7"))
    assert first.roles == ("made", "loop")
    assert "made by the function at data.py:3, in the loop at t.py:7" in shown(
        analyze(attribute(trace))
    )
    trace = traced(loop(slow_loader), apart, loop_line, categories=kinds)
    first = (analyze(attribute(trace)).findings or ())[0]
    assert first.sources == ("t.py:7", "data.py:3")


def exposed(scene: Scene) -> None:
    scene.wait_stream(13, 7)
    scene.inside("copy", lambda: _ignore(scene.upload(1000 * US, pageable=False, stream=13)))
    scene.wait_stream(7, 13)
    for _ in range(6):
        scene.launch(BF16_GEMM, 300 * US)


WAIT = {"category": None, "role": "called"}


def test_an_exposed_copy_names_the_wait_of_the_compute_and_who_asks_for_it() -> None:
    wait, block = "torch.cuda.Stream.wait_stream", place("copy", "t.py:40", "entered")
    before = place(wait, "t.py:3", **WAIT, stack=("t.py:3", "t.py:20"), detail="default", count=1)
    after = place(wait, "t.py:3", **WAIT, stack=("t.py:3", "t.py:44"), detail="default", count=4)
    side = place(wait, "t.py:9", **WAIT, stack=("t.py:9",), detail="side", count=64)
    analysis = analysis_of(loop(exposed), before, after, side, block)
    first = (analysis.findings or ())[0]
    assert (first.id, first.sources) == ("exposed_copy", ("t.py:3", "t.py:44"))
    assert first.roles == ("called", "from")
    assert first.evidence["function"] == wait
    assert "wait_stream called at t.py:3, from t.py:44" in shown(analysis)
    assert (analysis_of(loop(exposed), block).findings or ())[0].sources == ("t.py:40",)


def churn(scene: Scene) -> None:
    for _ in range(8):
        scene.call("cudaMalloc", 200 * US)
        scene.launch(BF16_GEMM, 100 * US)
    for _ in range(8):
        scene.call("cudaFree", 100 * US)


def test_the_line_that_empties_the_cache() -> None:
    empty = place("torch.cuda.empty_cache", "t.py:12", **WAIT, stack=("t.py:12",))
    first = (analysis_of(loop(churn), empty).findings or ())[0]
    assert (first.id, first.sources, first.roles) == ("allocator", ("t.py:12",), ("called",))
    once = structs.replace(empty, count=1)
    assert (analysis_of(loop(churn), once).findings or ())[0].sources == ()


def products(scene: Scene) -> None:
    def body() -> None:
        for _ in range(6):
            scene.launch(FP32_GEMM, 300 * US)

    scene.inside("forward", body)


def both_passes(scene: Scene) -> None:
    """Products, half of them in a forward and half in a backward pass."""
    products(scene)
    scene.inside("backward", lambda: [scene.launch(FP32_GEMM, 300 * US) for _ in range(6)] and None)


def test_the_line_of_what_has_no_range_in_common_is_that_of_the_forward_pass() -> None:
    kinds = {"forward": "phase", "backward": "phase"}
    forward, backward = place("forward", "t.py:9"), place("backward", "t.py:10")
    kinds_and_phases = [structs.replace(one, category="phase") for one in (forward, backward)]
    trace = traced(loop(both_passes), *kinds_and_phases, categories=kinds)
    first = (analyze(attribute(trace)).findings or ())[0]
    assert (first.id, first.sources, first.roles) == ("fp32_gemm", ("t.py:9",), ("called",))
    trace = traced(loop(both_passes), kinds_and_phases[1], categories=kinds)
    first = (analyze(attribute(trace)).findings or ())[0]
    assert first.sources == ("t.py:10",), "no other is known"


def uploads(scene: Scene) -> None:
    for _ in range(40):
        scene.host(20 * US)
        scene.upload(2 * US, pageable=True)
    scene.launch(BF16_GEMM, 300 * US)


@pytest.mark.parametrize(("mark", "known"), [("sync t.py:5", ("t.py:5",)), ("saved", ())])
def test_small_copies_have_the_marked_line_of_their_waits(
    mark: str, known: tuple[str, ...]
) -> None:
    trace = traced(loop(uploads, steps=5))
    ends = trace.calls.end[[name == "cudaMemcpyAsync" for name in trace.texts(trace.calls.name)]]
    zero = np.zeros(len(ends), np.int64)
    marks = Marks(zero, zero, ends + 2_000, zero + len(trace.strings), zero - 1, zero - 1)
    strings = pa.concat_arrays([trace.strings, pa.array([mark])])
    analysis = analyze(attribute(dataclasses.replace(trace, strings=strings, marks=marks)))
    found = next(one for one in analysis.findings or () if one.id == "small_copies")
    assert found.sources == known


def behind(trace: Trace, stack: np.ndarray) -> Samples:
    """A back-trace of each call."""
    calls = trace.calls
    return Samples(calls.process, calls.thread, calls.start, np.zeros(len(calls)), stack)


def test_a_back_trace_is_the_line_and_better_than_a_place() -> None:
    trace = traced(loop(products), place("forward", "t.py:9", "entered"))
    first = (analyze(attribute(trace)).findings or ())[0]
    assert (first.sources, first.roles) == (("t.py:9",), ("entered",))
    names = pa.array(["net.py(31): forward", "torch/nn/linear.py(7): forward"])
    own = len(trace.strings)
    stacked = dataclasses.replace(
        trace,
        strings=pa.concat_arrays([trace.strings, names]),
        backtraces=behind(trace, np.zeros(len(trace.calls), np.int64)),
        backtrace_stacks=CallChains([0, 0], [0, 1], [own + 1, own]),
    )
    analysis = analyze(attribute(stacked))
    first = (analysis.findings or ())[0]
    assert (first.sources, first.roles) == (("net.py:31",), ("line",))
    assert "at net.py:31" in shown(analysis)


def test_calls_that_start_nothing_have_back_traces_too() -> None:
    trace = traced(loop(churn))
    own, kinds = len(trace.strings), trace.texts(trace.calls.name)
    chain = [{"cudaMalloc": 1, "cudaFree": 2}.get(str(name), 0) for name in kinds]
    names = pa.array(["other.py(1): f", "take.py(5): f", "give.py(8): f"])
    stacked = dataclasses.replace(
        trace,
        strings=pa.concat_arrays([trace.strings, names]),
        backtraces=behind(trace, np.array(chain)),
        backtrace_stacks=CallChains([0, 1, 2], [0, 0, 0], [own, own + 1, own + 2]),
    )
    first = (analyze(attribute(stacked)).findings or ())[0]
    assert (first.id, first.sources) == ("allocator", ("take.py:5", "give.py:8"))


def test_places_stand_beside_the_ranges_in_the_json() -> None:
    rows = to_dict(analysis_of(loop(nested), place("forward", "t.py:9", "entered")))["ranges"]
    found = {row["path"]: row["lines"] for row in rows}
    assert found["step/forward"] == [{"source": "t.py:9", "role": "entered"}]
    assert found["step"] == []


@pytest.mark.parametrize("role", ["\x1b[31mred", "new in a later version"])
def test_roles_that_nobody_knows_are_shown_as_near(role: str) -> None:
    text = shown(analysis_of(loop(products), place("forward", "t.py\x1b[0m:9", role)))
    assert "near t.py" in text
    assert "\x1b" not in text


def test_a_line_is_left_out_only_where_the_title_has_that_very_line() -> None:
    analysis = analysis_of(loop(products))
    first = (analysis.findings or ())[0]
    sources = ("net.py:31", "net.py:3", "t.py:31")
    one = dataclasses.replace(
        first, title="Graph breaks at net.py:31, twice", sources=sources, roles=("line",) * 3
    )
    text = shown(dataclasses.replace(analysis, findings=(one,)))
    assert "at net.py:3, at t.py:31" in text
    assert text.count("net.py:31") == 1
