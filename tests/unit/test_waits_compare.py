"""The script that holds an analysis against what a GPU program measured of itself."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

SCRIPT = ROOT / "scripts/gpu/waits_compare.py"
MEASURED = {
    "planted_sync": {"bubble_ns": 1_000, "wait_ns": 2_000},
    "planted_copy": {"serial_ns": 500, "beside_ns": 400},
    "planted_loader": {"input_ns": 3_000},
}


def analysis(bubble: int) -> dict:
    def sync(call: str, path: str, bubble: int, wait: int) -> dict:
        return {"call": call, "path": path, "bubble_ns": bubble, "wait_ns": wait}

    return {
        "syncs": [
            sync("cudaStreamSynchronize", "planted_sync", bubble, 2_010),
            sync("cudaDeviceSynchronize", "planted_sync", 70, 700),
            sync("cudaStreamSynchronize", "planted_synchrony", 9_000, 9_000),
        ],
        "idle": {
            "by_path": [
                {"path": "planted_loader/data", "cause": "input", "ns": 2_990},
                {"path": "planted_loader/data", "cause": "host", "ns": 800},
                {"path": None, "cause": "input", "ns": 5},
            ]
        },
        "overlap": {
            "by_path": [
                {"path": "planted_copy/serial", "classes": {"copy_h2d": 505}},
                {"path": "planted_copy/beside", "classes": {"compute+copy_h2d": 395, "compute": 9}},
            ]
        },
    }


@pytest.mark.parametrize(("bubble", "code"), [(1_030, 0), (1_070, 1), (930, 1)])
def test_only_what_is_close_enough_passes(tmp_path: Path, bubble: int, code: int) -> None:
    (tmp_path / "a.json").write_text(json.dumps(analysis(bubble)))
    (tmp_path / "m.json").write_text(json.dumps(MEASURED))
    files = [str(tmp_path / "a.json"), str(tmp_path / "m.json")]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *files], capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert ("OFF" in done.stdout) == bool(code)
    assert "planted_loader.input_ns: 2,990 of 3,000 ns (-0.33%)" in done.stdout
