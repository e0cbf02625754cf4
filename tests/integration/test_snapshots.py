"""Pinned first screens of captures of many kinds: changes are seen, and accepted on purpose.

Set NVPROBE_WRITE_SNAPSHOTS=1 to accept a new look, then read the difference.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from rich.cells import cell_len

from nvprobe.analysis import Analysis
from nvprobe.report.console.view import ALL, View
from tests.integration.report_captures import KINDS
from tests.unit.report.test_console import printed

SNAPSHOTS = Path(__file__).with_name("snapshots")
LINES = {80: 60, 160: 45}


@pytest.fixture(scope="module", params=KINDS)
def capture(request, tmp_path_factory) -> tuple[str, Analysis]:
    return request.param, KINDS[request.param](tmp_path_factory.mktemp("capture"))


@pytest.mark.parametrize("width", LINES)
def test_the_first_screen_looks_as_it_did(capture, width):
    name, analysis = capture
    picture = SNAPSHOTS / f"{name}_{width}.txt"
    text = printed(analysis, width, View())
    if os.environ.get("NVPROBE_WRITE_SNAPSHOTS"):
        picture.write_text(text, encoding="utf-8")
    assert text == picture.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= LINES[width]


@pytest.mark.parametrize("width", [40, 80, 100, 200])
@pytest.mark.parametrize("view", [View(), View(show=ALL), View(show=ALL, unfold=True, by="line")])
def test_any_report_fits_any_width(capture, width, view):
    text = printed(capture[1], width, view)
    assert max(map(cell_len, text.splitlines())) <= width
    assert all(char.isprintable() for char in text.replace("\n", ""))
