"""The table of compiled graphs in the terminal report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from nvprobe.analysis import Analysis, analyze
from nvprobe.attribution import attribute
from nvprobe.merging.load import load
from tests.unit.analysis.test_compiled import BASE, EVENTS, SIDECAR, nested
from tests.unit.report.test_console import printed


def analysis(folder: Path, events: list[Any], *sidecar: dict[str, Any]) -> Analysis:
    document = {"baseTimeNanoseconds": BASE, "traceEvents": events}
    inputs = [folder / "trace.json"]
    inputs[0].write_text(json.dumps(document))
    if sidecar:
        inputs.append(folder / "sidecar.0.7.jsonl")
        inputs[-1].write_text("\n".join(map(json.dumps, sidecar)))
    return analyze(attribute(load(*inputs)))


def section(analysis: Analysis, width: int = 80) -> list[str]:
    """Lines of the table and of what stands below it, with single spaces."""
    lines = printed(analysis, width).splitlines()
    first = next((n for n, line in enumerate(lines) if line.startswith("Compiled graph")), None)
    if first is None:
        return []
    return [" ".join(line.split()) for line in lines[first : lines.index("", first)]]


def test_each_graph_with_what_it_costs(tmp_path: Path) -> None:
    head, forward, after, backward = section(analysis(tmp_path, EVENTS))
    assert head == "Compiled graph Calls Host GPU GPU % Triton Dispatch"
    assert forward == "0/0 fwd 1 20.0 µs 15.0 µs 46.9% 66.7% 20.0 µs"
    assert after == "1/0 fwd 1 20.0 µs 10.0 µs 31.2% 100.0% 20.0 µs"
    assert backward == "0/0 bwd 1 40.0 µs 7.00 µs 21.9% 100.0% 10.0 µs"


def test_why_it_broke_and_was_compiled_again(tmp_path: Path) -> None:
    rows = section(analysis(tmp_path, EVENTS, *SIDECAR))
    assert rows[0].endswith(" Compiling")
    text = " ".join(rows[4:])
    assert "0/0 fwd breaks at net.py:22: print; the GPU waits 70.0 µs for the next graph" in text
    assert "1/0 fwd is a recompilation: x.shape[0] == 8" in text


def test_without_a_gpu_only_the_host(tmp_path: Path) -> None:
    events = [event for event in nested() if event["cat"] not in ("kernel", "cuda_runtime")]
    rows = section(analysis(tmp_path, events))
    assert rows[0] == "Compiled graph Calls Host Dispatch"
    assert rows[-1] == "0/1 fwd breaks at net.py:22 forward"


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_it_fits(tmp_path: Path, width: int) -> None:
    text = printed(analysis(tmp_path, EVENTS, *SIDECAR), width)
    assert max(map(cell_len, text.splitlines())) <= width


def test_no_graphs_no_table(tmp_path: Path) -> None:
    plain = [event for event in EVENTS if event["cat"] in ("kernel", "cuda_runtime")]
    assert section(analysis(tmp_path, plain)) == []
