"""A fresh export by the real nsys, as it is before anything is cleaned, with secrets everywhere."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from nvprobe.nsys import Nsys
from nvprobe.sharing.copies import redact
from tests.integration.launch.conftest import Launcher
from tests.unit.sharing.test_copies import (
    IN_ARGUMENT,
    IN_ENVIRONMENT,
    IN_PATH,
    SECRETS,
    analysis,
    clean,
    everything_in,
    numbers,
)

pytestmark = [pytest.mark.nsys, pytest.mark.slow]

PROGRAM = """
    import sys, nvprobe
    for step in nvprobe.steps(range(4)):
        with nvprobe.range(f"load {__file__}"), nvprobe.range("work"):
            print(sys.argv)
"""


def test_a_fresh_export_with_secrets_everywhere(
    launch: Launcher, nsys: Nsys, tmp_path: Path
) -> None:
    folder = tmp_path / IN_PATH
    folder.mkdir()
    script = (launch.folder / launch.script(PROGRAM)).rename(folder / "train.py")
    launch.environ |= {"ONE_PRIVATE_VARIABLE": IN_ENVIRONMENT}
    result = launch(str(script), "--name", IN_ARGUMENT)
    assert result.code == 0, result.err
    if result.run["backend"] != "nsys":
        pytest.skip(f"nsys does not start here: {result.run['notes']}")
    raw, copy = tmp_path / "raw.sqlite", tmp_path / "copy.sqlite"
    words = [str(nsys.path), "export", "--type", "sqlite", "--output", str(raw)]
    subprocess.run([*words, str(result.folder / "report.nsys-rep")], check=True)
    planted = {one for one in SECRETS if one.encode() in raw.read_bytes()}
    assert {IN_ENVIRONMENT, IN_PATH} <= planted, "nsys recorded them; arguments in some versions"
    redact(raw, copy)
    clean(copy)
    assert numbers(analysis(copy)) == numbers(analysis(raw))
    shared = tmp_path / "shared"
    found = redact(result.folder, shared)
    clean(shared)
    assert "report.nsys-rep" in found.left_out
    assert numbers(analysis(shared)) == numbers(analysis(result.folder))
    names = [one["path"] for one in analysis(shared)["ranges"]]
    assert any("load train.py" in name for name in names)
    assert json.loads((shared / "run.json").read_text())["window"] == result.run["window"]
    assert b"/tmp/" not in everything_in(shared)
