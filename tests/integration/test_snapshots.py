"""Pinned pictures of the demo's report: a change of looks is seen, and accepted on purpose."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvprobe.analysis import analyze
from nvprobe.attribution import attribute
from nvprobe.demo import unpacked
from nvprobe.readers import load
from nvprobe.report.console import View
from tests.unit.report.test_console import printed

SNAPSHOTS = Path(__file__).with_name("snapshots")


@pytest.mark.parametrize("width", [80, 160])
def test_the_demo_looks_as_it_did(width):
    """Set NVPROBE_WRITE_SNAPSHOTS=1 to accept a new look, then read the difference."""
    with unpacked() as path:
        analysis = analyze(attribute(load(path)))
    picture = SNAPSHOTS / f"demo_{width}.txt"
    text = printed(analysis, width, View())
    if os.environ.get("NVPROBE_WRITE_SNAPSHOTS"):
        picture.write_text(text, encoding="utf-8")
    assert text == picture.read_text(encoding="utf-8")
