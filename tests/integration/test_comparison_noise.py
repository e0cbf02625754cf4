"""Simulated runs: nothing is found where nothing changed, and what changed is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvprobe.analysis import analyze
from nvprobe.attribution import attribute
from nvprobe.merging.load import load
from nvprobe.report.document import Document, document
from tests.simulated_runs import outcomes, template_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def template(corpus: Path) -> Document:
    capture = corpus / "cases" / "n31_before.sqlite"
    return template_of(document(analyze(attribute(load(capture)))))


@pytest.mark.parametrize("runs", [(1, 1), (3, 3)])
def test_without_a_change_at_most_one_in_twenty_fails(
    template: Document, runs: tuple[int, int]
) -> None:
    """Even with a limit of 0%, which leaves the bounds and the noise floor alone."""
    found = outcomes(template, pairs=200, steps=20, runs=runs, most=0.0, seed=1)
    assert found.failed <= 0.05
    usual = outcomes(template, pairs=50, steps=50, runs=runs, most=0.05, seed=2)
    assert usual.cannot_tell <= 0.05


@pytest.mark.parametrize("path", ["step", "step/forward/attn"])
@pytest.mark.parametrize("runs", [(1, 1), (5, 1)])
def test_what_is_slower_by_5_per_cent_over_the_floor_is_found(
    template: Document, path: str, runs: tuple[int, int]
) -> None:
    found = outcomes(
        template, pairs=40, steps=50, runs=runs, most=0.0, over_floor=0.05, path=path, seed=3
    )
    assert found.failed >= 0.95
