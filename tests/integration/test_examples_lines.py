"""The first finding of each example names its line, with the places that the program itself tells.

The captures of the H200 are older than places. A place is a fact of the host: the examples are run
here, instrumented, and their places stand beside the captures as if written with them. What a CPU
does not have (streams, the device) gets stand-ins, see pretend_gpu.py; the lines are the examples'.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from nvprobe.analysis import analyze
from nvprobe.analysis.findings.model import Finding
from nvprobe.attribution import attribute
from nvprobe.merging.load import load
from tests.conftest import ROOT
from tests.integration.test_examples_captures import ARCHIVE, PLANTED

pytest.importorskip("torch")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not ARCHIVE.is_file(), reason="no captures of the examples"),
]

ONLY_THE_BLOCK = {"10_unfused_attention": 'with phase("attention")'}
"""No range and no module begins at the planted line: the block around it is what is known."""

Row = dict[str, Any]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    """The places of all examples, run one after the other in one process."""
    folder = tmp_path_factory.mktemp("places")
    kept = {key: value for key, value in os.environ.items() if "RANK" not in key}
    done = subprocess.run(
        [
            sys.executable, str(ROOT / "tests" / "integration" / "pretend_gpu.py"),
            *(f"examples/{example}.py" for example in PLANTED),
        ],
        cwd=ROOT,
        env={
            **kept, "PYTHONPATH": str(ROOT), "NVPROBE_SIDECAR": str(folder),
            "CUDA_VISIBLE_DEVICES": "",
        },
        capture_output=True,
        text=True,
        timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (file,) = folder.glob("sidecar.*.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [
        dict(zip(line["columns"], row, strict=True))
        for line in lines if line["kind"] == "place" for row in line["rows"]
    ]  # fmt: skip


def first_finding(example: str, places: list[Row], folder: Path) -> Finding:
    """Of the capture, with the places of the same program run here."""
    with tarfile.open(ARCHIVE) as archive:
        for kind in ("sqlite", "sidecar.jsonl"):
            archive.extract(f"{example}.{kind}", folder, filter="data")
    mine = [row for row in places if example in row["source"]]
    assert mine
    line = {"kind": "place", "columns": list(mine[0]), "rows": [list(row.values()) for row in mine]}
    sidecar = folder / f"{example}.sidecar.jsonl"
    with sidecar.open("a") as file:
        file.write(json.dumps(line) + "\n")
    found = analyze(attribute(load(folder / f"{example}.sqlite", sidecar))).findings
    assert found
    return found[0]


@pytest.mark.parametrize("example", PLANTED)
def test_the_first_finding_names_its_line(example: str, places: list[Row], tmp_path: Path) -> None:
    finding = first_finding(example, places, tmp_path)
    assert finding.id == PLANTED[example]
    text = (ROOT / "examples" / f"{example}.py").read_text().splitlines()
    wanted = ONLY_THE_BLOCK.get(example, "# planted")
    line = next(number for number, one in enumerate(text, 1) if wanted in one)
    assert f"examples/{example}.py:{line}" in finding.sources
    assert len(finding.roles) == len(finding.sources)


def test_a_line_is_never_called_the_cause_where_only_the_range_around_is_known(
    places: list[Row], tmp_path: Path
) -> None:
    finding = first_finding("10_unfused_attention", places, tmp_path)
    assert finding.roles == ("entered",)
