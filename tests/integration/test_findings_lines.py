"""Python stacks of a torch trace give findings their lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvprobe.analysis import Analysis, analyze
from nvprobe.attribution import attribute
from nvprobe.readers.kineto import load_kineto


@pytest.fixture(scope="module")
def with_stacks(corpus: Path) -> Analysis:
    trace = load_kineto(corpus / "kineto" / "h200" / "eager.json.gz", python_stacks=True)
    return analyze(attribute(trace))


def test_findings_name_lines_of_the_program(with_stacks: Analysis) -> None:
    found = {one.id: one for one in with_stacks.findings or ()}
    assert found["fp32_gemm"].sources
    for one in found.values():
        for line in one.sources:
            assert "torch/" not in line
            assert line.split(" ")[0].rpartition(":")[2].isdigit()


def test_without_stacks_nothing_is_guessed(corpus: Path) -> None:
    trace = load_kineto(corpus / "kineto" / "h200" / "eager.json.gz")
    found = analyze(attribute(trace)).findings or ()
    assert len(found) >= 2
    assert {one.sources for one in found} == {()}
