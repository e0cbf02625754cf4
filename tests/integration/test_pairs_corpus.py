"""Programs with a measured fix: the cause comes first, and the saving lies within its bounds.

The rules were developed with these programs, so this test keeps what was reached; it judges nothing
(docs/accuracy.md).
"""

from __future__ import annotations

import json
from collections import defaultdict

import pytest

from nvprobe.analysis import Analysis, analyze
from nvprobe.attribution import attribute
from nvprobe.merging.load import load
from tests.conftest import CORPUS

PAIRS = CORPUS / "pairs"
CAUSES = {
    "masked_loss": ("mask_select", "masked_loss.py:9"),
    "loop_optimizer": ("launch_loop", "loop_optimizer.py:7"),
    "conv_layout": ("layout_conversion", "conv_layout.py:11"),
    "loader": ("input_wait", "loader.py:5"),
    "clip_item": ("implicit_sync", "clip_item.py:7"),
    "eager_norm": ("elementwise_chain", "eager_norm.py:15"),
    "double": ("fp64_gemm", None),
    "small_copies": ("small_copies", "small_copies.py:6"),
    "host_metrics": ("implicit_sync", "host_metrics.py:6"),
}
"""The finding that names what was planted, and its line where the capture has one."""


@pytest.fixture(scope="module")
def saved() -> dict[str, float]:
    """What the fix of each saves of a step, in percent."""
    times: dict[str, dict[bool, float]] = defaultdict(dict)
    for line in (PAIRS / "truth.jsonl").read_text().splitlines():
        row = json.loads(line)
        times[row["name"].removesuffix(".py")][row["fixed"]] = row["ms"]
    return {name: 100 * (1 - both[True] / both[False]) for name, both in times.items()}


def analyzed(name: str) -> Analysis:
    return analyze(attribute(load(PAIRS / name)))


@pytest.mark.parametrize("name", CAUSES)
def test_the_cause_comes_first_and_saves_what_it_said(name: str, saved: dict[str, float]) -> None:
    first = (analyzed(name).findings or ())[0]
    cause, line = CAUSES[name]
    assert first.id == cause
    assert first.step_saving is not None
    assert first.step_saving.low <= saved[name] <= first.step_saving.high
    assert line is None or first.sources[0] == line


def test_nothing_is_said_of_a_good_program() -> None:
    assert [one.id for one in analyzed("good").findings or () if one.severity != "info"] == []
