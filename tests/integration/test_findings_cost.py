"""Findings cost little beside the analysis that they rest on."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from nvprobe.analyze import analyze
from nvprobe.attribute import attribute
from nvprobe.load import load
from tests.conftest import SHARED


@pytest.mark.slow
def test_findings_add_less_than_a_third(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grown = tmp_path / "grown.sqlite"
    source = corpus / "nsys" / "h200" / "eager.sqlite"
    command = [sys.executable, str(SHARED / "bench" / "grow_nsys.py"), str(source), str(grown)]
    subprocess.run([*command, "300"], check=True, capture_output=True)
    spent = {"findings": 0.0}
    rules = sys.modules["nvprobe.analyze"]
    for name in ("findings", "bound", "kernel_traits"):
        monkeypatch.setattr(rules, name, _timed(getattr(rules, name), spent))
    for name in ("classify_ops", "launch_fit", "work_items", "memory"):
        room = sys.modules["nvprobe.analyze.findings"]
        monkeypatch.setattr(room, name, _timed(getattr(room, name), spent))
    trace = load(grown)
    begin = time.process_time()
    analyze(attribute(trace))
    whole = time.process_time() - begin
    assert spent["findings"] < 0.3 * (whole - spent["findings"])


def _timed(function, spent):
    def timed(*args, **kwargs):
        begin = time.process_time()
        try:
            return function(*args, **kwargs)
        finally:
            spent["findings"] += time.process_time() - begin

    return timed
