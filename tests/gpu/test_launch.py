"""On a GPU: six kinds of program, launched by the one command without an edit.

Needs nsys (``NVPROBE_NSYS`` or on PATH). The same checks run unattended, with figures, in
``scripts/gpu/launch_check.py``.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from nvprobe.errors import ToolError
from nvprobe.nsys import find_nsys
from tests.conftest import ROOT

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

EXPLAINED = {"launched_before_window", "unified_memory", "opaque_graph"}
"""Reasons that say where an unowned op comes from; others would be a hole in the annotation."""


@pytest.fixture(scope="module")
def checks() -> ModuleType:
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    sys.path.insert(0, str(ROOT / "scripts" / "gpu"))
    import launch_check

    return launch_check


@pytest.fixture(scope="module")
def nsys() -> str:
    try:
        return str(find_nsys().path)
    except ToolError as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.parametrize(
    "program", ["eager", "six_syncs", "manual_graph", "workers", "compiled", "reduce_overhead"]
)
def test_every_op_is_attributed_or_explained(
    checks: ModuleType, nsys: str, program: str, tmp_path: Path
) -> None:
    row = checks.check(program, program, checks.WINDOW, nsys, tmp_path)
    assert "error" not in row, row
    assert row["run"]["problem"] is None
    assert row["run"]["exit_code"] == 0
    assert row["ledger"]["ops"] > 0
    assert set(row["ledger"]["unresolved"]) <= EXPLAINED, row["ledger"]
    assert row["steps"] == 4
    assert row["syncs_missed"] == []
    assert row["run"]["overhead"]["slowdown"] > 0
