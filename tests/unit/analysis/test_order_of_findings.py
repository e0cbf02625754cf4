"""The order of findings: what delays results may go before what saves time."""

from __future__ import annotations

import dataclasses

from nvprobe.analysis.findings import _delays_first
from nvprobe.analysis.findings.model import Finding, StepSaving


def finding(name: str, saves: float, instead_of: int | None = None) -> Finding:
    saving = StepSaving(saves, saves, saves, saves, instead_of, 1000, "default", 0.0)
    return Finding(name, name, -1, (), {}, (0, 100), (), step_saving=saving)


def test_numbers_of_alternatives_move_with_the_findings_that_they_refer_to():
    late = dataclasses.replace(finding("late", 0), step_saving=None, delays_ns=500)
    found = _delays_first([finding("first", 20), finding("other way", 20, 1), late], 1000)
    assert [one.id for one in found] == ["late", "first", "other way"]
    assert [one.step_saving and one.step_saving.instead_of for one in found] == [None, None, 2]
    assert found[1:] == _delays_first([found[1], found[2]], 1000)
