"""``nvprobe compare`` and ``analyze --budget``: sides, exit codes, outputs, budgets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nvprobe.cli import main


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


@pytest.fixture
def cases(corpus: Path) -> Path:
    return corpus / "cases"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder to stand in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_exit_codes(capsys, cases, project):
    before, after, same = (cases / f"n31_{name}.sqlite" for name in ("before", "after", "same"))
    assert run(capsys, "compare", before, after)[0] == 0
    code, out, _ = run(capsys, "compare", before, after, "--fail-on-regression", "5%")
    assert code == 3
    (line,) = [line for line in out.splitlines() if line.startswith("fail: ")]
    assert "step/attn" in line
    assert "+30.0%" in line
    assert run(capsys, "compare", before, same, "--fail-on-regression", "0.05")[0] == 0
    other = cases / "n24_other.sqlite"
    assert run(capsys, "compare", before, other, "--fail-on-regression", "5%")[0] == 1


def test_a_gate_that_cannot_tell(capsys, corpus, project):
    runs = corpus / "runs"
    words = ("compare", runs / "nano", runs / "ddp" / "rank0", "--fail-on-regression", "1%")
    assert run(capsys, *words)[0] in (3, 4)
    without_steps = corpus / "kineto" / "public" / "h100_bert.json.gz"
    words = ("compare", without_steps, runs / "nano", "--fail-on-regression", "5%")
    code, out, _ = run(capsys, *words)
    assert code == 4
    assert "cannot tell" in out


def test_several_runs_a_side(capsys, cases, project):
    before, same = cases / "n31_before.sqlite", cases / "n31_same.sqlite"
    words = ("compare", "--before", before, same, "--after", same, before, "--json")
    code, out, _ = run(capsys, *words)
    assert code == 0
    found = json.loads(out)
    assert [len(found[side]) for side in ("before", "after")] == [2, 2]
    assert found["noise"]["measured"]
    assert found["noise"]["runs"] == 4
    for words in (("compare", before), ("compare", before, same, "--after", same)):
        code, _, err = run(capsys, *words)
        assert code == 2
        assert "--before A1 A2 --after B1 B2" in err


def test_analyses_and_folders_of_them_are_runs(capsys, cases, project):
    folder = project / "kept"
    folder.mkdir()
    for name in ("before", "same"):
        target = folder / f"{name}.json"
        run(capsys, "analyze", cases / f"n31_{name}.sqlite", "--json", "-o", target)
    code, out, _ = run(capsys, "compare", folder, cases / "n31_same.sqlite", "--json")
    assert code == 0
    assert len(json.loads(out)["before"]) == 2


def test_outputs(capsys, cases, project):
    before, after = cases / "n31_before.sqlite", cases / "n31_after.sqlite"
    words = ("compare", before, after, "-o", "out.json", "--markdown", "out.md")
    code, out, err = run(capsys, *words)
    assert (code, out) == (0, "")
    assert "Wrote out.json" in err
    assert json.loads(Path("out.json").read_text())["schema"] == "nvprobe.compare/1"
    assert len(Path("out.md").read_text().splitlines()) <= 25
    assert run(capsys, *words)[0] == 2
    assert run(capsys, "compare", "out.json", after, "-o", "out.json", "-f")[0] == 2


BUDGET = """
[tool.nvprobe.budget]
syncs = 0
[tool.nvprobe.budget.paths]
"step/attn" = "230 us"
"""


def test_budgets_of_a_project(capsys, cases, project):
    (project / "pyproject.toml").write_text(BUDGET)
    before, after = cases / "n31_before.sqlite", cases / "n31_after.sqlite"
    assert run(capsys, "analyze", before, "--budget")[0] == 0
    code, _, err = run(capsys, "analyze", after, "--budget", "-q")
    assert code == 3
    assert err == (
        "nvprobe: fail: GPU time of step/attn: 260 µs per step (259 µs to 261 µs), "
        "the budget is 230 µs (noise floor 7.80 µs)\n"
    )
    assert run(capsys, "analyze", after)[0] == 0
    assert run(capsys, "compare", before, after)[0] == 3
    assert run(capsys, "compare", after, before)[0] == 0


def test_a_project_without_budgets(capsys, cases, project):
    code, _, err = run(capsys, "analyze", cases / "n31_before.sqlite", "--budget")
    assert code == 2
    assert "pyproject.toml has no [tool.nvprobe.budget]" in err


def test_a_budget_is_no_option(capsys, cases, project):
    (project / "pyproject.toml").write_text('[tool.nvprobe.budget]\noutput = "x"\n')
    code, _, err = run(capsys, "compare", cases / "n31_before.sqlite", cases / "n31_after.sqlite")
    assert code == 2
    assert "'output', which is not a budget" in err
