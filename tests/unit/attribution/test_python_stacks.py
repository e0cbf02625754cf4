"""Python frames of a torch trace: read by default where they are small, and when asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nvprobe.merging import load as together
from tests.unit.cli.test_commands import run
from tests.unit.test_kineto import document, event


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """One kernel, called from one line."""
    file = tmp_path / "trace.json"
    file.write_text(
        document(
            event("cpu_op", "aten::mm", "1001.000", "20.000"),
            event("python_function", "train.py(12): forward", "1000.000", "30.000"),
            event("cuda_runtime", "cudaLaunchKernel", "1002.000", "3.000", correlation=4),
            event("kernel", "gemm", "1010.000", "5.000", device=0, stream=7, correlation=4),
        )
    )
    return file


@pytest.mark.parametrize(
    ("limit", "options", "read"),
    [
        (1 << 30, [], True),
        (10, [], False),
        (10, ["--python-stacks"], True),
        (1 << 30, ["--no-python-stacks"], False),
    ],
)
def test_frames_are_read_by_size_or_by_choice(
    trace: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    limit: int,
    options: list[str],
    read: bool,
) -> None:
    monkeypatch.setattr(together, "_LARGE_BYTES", limit)
    code, out, errors = run(capsys, "analyze", str(trace), "--json", *options)
    assert code == 0, errors
    document = json.loads(out)
    (operator,) = document["operators"]
    missing = {one["what"]: one for one in document["missing"]}
    assert ("train.py:12" in json.dumps(operator)) is read
    assert ("source lines" in missing) is not read
    if not read:
        assert "--python-stacks" in missing["source lines"]["how"]
