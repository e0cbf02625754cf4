"""``nvprobe baseline``: runs that are kept, the noise between them, and what does not belong."""

from __future__ import annotations

import json
from pathlib import Path

from tests.unit.cli.test_compare import project, run  # noqa: F401 - a fixture


def test_a_baseline_measures_the_noise(capsys, corpus: Path, project: Path):  # noqa: F811
    before, after, same = (
        corpus / "cases" / f"n31_{name}.sqlite" for name in ("before", "after", "same")
    )
    code, _, err = run(capsys, "baseline", "add", before, same)
    assert code == 0
    assert "Wrote nvprobe-baseline/002.json" in err
    assert "not measured" in run(capsys, "baseline", "list")[1]
    run(capsys, "baseline", "add", before)
    found = json.loads(run(capsys, "baseline", "list", "--json")[1])
    assert [one["file"] for one in found["runs"]] == ["001.json", "002.json", "003.json"]
    assert 0 < found["noise_share"] < 0.01
    words = ("compare", "nvprobe-baseline", after, "--fail-on-regression", "5%", "--json")
    code, out, _ = run(capsys, *words)
    assert code == 3
    assert json.loads(out)["noise"]["measured"]
    assert run(capsys, "compare", "nvprobe-baseline", same, "--fail-on-regression", "5%")[0] == 0


def test_another_gpu_does_not_belong(capsys, corpus: Path, project: Path):  # noqa: F811
    run(capsys, "baseline", "add", corpus / "cases" / "n31_before.sqlite")
    code, _, err = run(capsys, "baseline", "add", corpus / "runs" / "nano")
    assert code == 2
    assert "differs in GPU" in err
    assert sorted(path.name for path in Path("nvprobe-baseline").iterdir()) == ["001.json"]
