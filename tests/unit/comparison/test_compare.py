"""Captures compared: parts that add up, nothing where nothing changed, and what changed where."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec
import pytest

from nvprobe.analysis import analyze
from nvprobe.analysis.selection import Selection, select
from nvprobe.analysis.steady import LeftOut
from nvprobe.comparison import compare
from nvprobe.comparison.budget import Budget, check_budgets, read_budgets
from nvprobe.comparison.gate import gate, regressions
from nvprobe.comparison.markdown import MOST_LINES, markdown
from nvprobe.comparison.model import Comparison, StepComparison, encode
from nvprobe.errors import InputError, UsageError
from nvprobe.merging.load import load
from nvprobe.report.document import Document, decode, document
from nvprobe.report.document import encode as encode_analysis
from nvprobe.report.paths import Outside


@cache
def read(path: Path, steps: tuple[int, int] | None = None) -> Document:
    return document(analyze(select(load(path), Selection(steps=steps))))


@pytest.fixture(scope="module")
def nano(corpus: Path) -> Document:
    return read(corpus / "runs" / "nano")


@pytest.fixture(scope="module")
def compiled(corpus: Path) -> Document:
    return read(corpus / "runs" / "nanoc")


def adds_up(step: StepComparison) -> None:
    for side in ("before_ns", "after_ns", "change_ns"):
        assert sum(getattr(part, side) for part in step.parts) == getattr(step.step, side)


def gate_of(found: Comparison, most: float) -> str:
    return gate(regressions(found, most)).outcome


def test_the_parts_are_the_difference(nano: Document, compiled: Document) -> None:
    found = compare([nano], [compiled])
    (step,) = found.steps
    adds_up(step)
    assert step.steps == (4, 4)
    assert step.step.change_ns == -16_111_655
    spent = {one.name: one for one in step.amounts}
    both = spent["busy"].change_ns + spent["idle"].change_ns
    assert abs(both - step.step.change_ns) <= 2  # each is rounded by itself
    causes = [one.change_ns for one in step.amounts if one.name.startswith("idle: ")]
    assert abs(sum(causes) - spent["idle"].change_ns) <= len(causes)
    assert gate_of(found, 0.05) == "pass"


def test_a_slower_run_fails(nano: Document, compiled: Document) -> None:
    found = compare([compiled], [nano])
    assert found.verdict.startswith("slower: 28.5 ms to 44.6 ms per step (+56.5%)")
    failed = [one.name for one in regressions(found, 0.05) if one.outcome == "fail"]
    assert "GPU time of step/backward" in failed


def test_what_compiling_replaced(nano: Document, compiled: Document) -> None:
    found = compare([nano], [compiled])
    new = {one.after for one in found.steps[0].paths if one.status == "new"}
    assert new == {
        "step/backward/CompiledFunctionBackward",
        r"step/backward/CompiledFunctionBackward/graph 0\/0 bwd",
        r"step/forward/GPT/graph 0\/0 fwd",
    }
    assert [one.status for one in found.graphs] == ["new", "new"]
    assert [(one.id, one.status) for one in found.findings] == [
        ("elementwise_chain", "gone"),
        ("large_softmax_loss", "gone"),
        ("launch_bound", "same"),
    ]
    changed = {one.name for one in found.steps[0].counters if one.changed}
    assert changed == {"launches"}


def test_a_run_with_itself(nano: Document) -> None:
    found = compare([nano], [nano])
    (step,) = found.steps
    assert found.verdict == "no change: 44.6 ms to 44.6 ms per step"
    assert not found.differences
    assert all(part.change_ns == 0 and not part.changed for part in step.parts)
    assert not any(one.changed for one in (*step.amounts, *step.counters, *step.kernels))
    assert {one.status for one in step.paths} == {"same"}
    assert gate_of(found, 0.0) == "pass"


@pytest.mark.parametrize(
    "name", ["runs/nano", "runs/nanoc", "runs/hf", "runs/pl", "runs/ddp/rank0", "pairs/eager_norm"]
)
def test_two_captures_of_one_program_are_inside_the_noise(corpus: Path, name: str) -> None:
    """Two halves of the steps of one run, each as a capture of its own."""
    run = corpus / name
    numbers = [step.index for step in read(run).steps]
    middle, last = numbers[len(numbers) // 2], numbers[-1] + 1
    found = compare([read(run, (numbers[0], middle))], [read(run, (middle, last))])
    for step in found.steps:
        adds_up(step)
        assert not step.step.changed
    assert gate_of(found, 0.05) != "fail"


def test_renamed_ranges_keep_their_time(nano: Document) -> None:
    text = encode_analysis(nano)
    other = decode(text.replace("step/forward", "step/fwd"), "other.json")
    found = compare([nano], [other])
    renamed = [(one.before, one.after) for one in found.steps[0].paths if one.status == "renamed"]
    assert renamed == [("step/forward", "step/fwd")]
    assert all(part.change_ns == 0 for part in found.steps[0].parts)


def test_other_gpus_cannot_be_compared(nano: Document) -> None:
    other = decode(encode_analysis(nano).replace("NVIDIA H200", "NVIDIA A100"), "other.json")
    found = compare([nano], [other])
    assert [(one.what, one.decides) for one in found.differences] == [("GPU", True)]
    assert found.verdict == "times cannot be compared: GPU differs"
    assert gate_of(found, 0.05) == "cannot tell"


def test_only_filters_that_the_user_gave_forbid_comparing(nano: Document) -> None:
    """Steady steps of a whole run are what all steps of a window are compared with."""
    steady = narrowed(nano, LeftOut(start_ns=0, warmup_steps=3, warmup_ns=9, end_ns=0))
    assert not compare([nano], [steady]).differences
    asked = compare([nano], [narrowed(nano, None)])
    assert asked.verdict == "times cannot be compared: filters differ"
    assert asked.differences[0].after == "steps 5:8"


def narrowed(whole: Document, left_out: LeftOut | None) -> Document:
    outside = Outside(ops=1, gpu_ns=1, filters=["steps 5:8"])
    ledger = msgspec.structs.replace(whole.ledger, outside=outside)
    return msgspec.structs.replace(whole, ledger=ledger, left_out=left_out)


def test_one_more_synchronization_fails_without_tolerance(nano: Document) -> None:
    table = nano.step_parts
    assert table is not None
    counts = [msgspec.structs.replace(one, syncs=one.syncs + 1) for one in table.counts]
    parts = msgspec.structs.replace(table, counts=counts)
    found = compare([nano], [msgspec.structs.replace(nano, step_parts=parts)])
    failed = [one.line for one in regressions(found, 0.5) if one.outcome == "fail"]
    assert failed == ["syncs: 0.25 to 1.25 per step"]


def test_a_capture_without_steps_is_compared_as_one(corpus: Path) -> None:
    path = corpus / "kineto" / "public" / "h100_bert.json.gz"
    found = compare([read(path)], [read(path)])
    (step,) = found.steps
    adds_up(step)
    assert step.step.before_ns > 0


def test_budgets(nano: Document) -> None:
    table = {
        "step-time": "19 ms", "syncs": 0, "launches": 860, "graph-breaks": 0,
        "paths": {"step/backward": "20 ms", "step/absent": "1 ms"},
    }  # fmt: skip
    budgets = read_budgets(table, "tool.nvprobe.budget")
    outcomes = {one.name: one.outcome for one in check_budgets([nano], budgets)}
    assert outcomes == {
        "syncs": "fail",
        "launches": "pass",
        "graph breaks": "pass",
        "step time": "cannot tell",  # 19.4 ms without the profiler, by an estimate
        "GPU time of step/backward": "pass",
        "GPU time of step/absent": "cannot tell",
    }
    tight = Budget("step/backward", 9_000_000, True, True)
    (check,) = check_budgets([nano], [tight])
    assert check.outcome == "fail"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"speed": 1}, "which is not a budget"),
        ({"syncs": -1}, "give a whole number"),
        ({"syncs": True}, "give a whole number"),
        ({"step-time": 30}, 'give a time, as in "30 ms"'),
        ({"step-time": "fast"}, 'give a time, as in "30 ms"'),
    ],
)
def test_a_budget_that_is_none(table: dict[str, object], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_budgets(table, "tool.nvprobe.budget")


def test_markdown_is_short_and_escaped(nano: Document, compiled: Document) -> None:
    found = compare([nano], [compiled])
    found = msgspec.structs.replace(found, gate=gate(regressions(found, 0.05)))
    text = markdown(found)
    assert len(text.splitlines()) <= MOST_LINES
    assert "| as profiled | 44.6 ms | 28.5 ms | -16.1 ms (-36.1%) |" in text
    hostile = msgspec.structs.replace(found, verdict="<img src=x> | [a](b)\n# x")
    first = markdown(hostile).splitlines()[0]
    assert "<img" not in first
    assert "[a]" not in first.replace("\\[", "").replace("\\]", "")


def test_json_of_an_analysis_is_read_again(nano: Document) -> None:
    assert decode(encode_analysis(nano), "x") == nano
    older = msgspec.json.decode(encode_analysis(nano))
    del older["step_parts"], older["profiler"]["idle_ns"], older["missing"][0]["how"]
    with pytest.raises(InputError, match=r"x: .* analyze the capture again"):
        decode(msgspec.json.encode(older), "x")
    older["missing"] = []
    assert decode(msgspec.json.encode(older), "x").step_parts is None


def test_the_document_is_what_its_schema_says(nano: Document, compiled: Document) -> None:
    found = compare([nano], [compiled])
    assert msgspec.json.decode(encode(found), type=Comparison) == found
