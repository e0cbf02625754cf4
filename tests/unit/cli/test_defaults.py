"""What settings files and variables may do, and what only the command line may."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvprobe.cli import COMMANDS, cli, main
from nvprobe.cli.defaults import ALLOWED, OWN_VARIABLES, options_of
from nvprobe.readers import cache

MAY_NOT = [
    "output",
    "force",
    "clear",
    "nsys-arg",
    "client-results",
    "memory-snapshot",
    "also-json",
    "also-html",
    "keep-export",
    "before",
    "after",
    "markdown",
]


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project folder to stand in."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def settings(folder: Path, text: str) -> None:
    (folder / "pyproject.toml").write_text(text)


def test_a_settings_file_never_writes_a_file(capsys, project, tmp_path):
    victim = tmp_path / "victim.txt"
    victim.write_text("mine")
    settings(project, f'[tool.nvprobe]\noutput = "{victim}"\nforce = true\n')
    code, out, err = run(capsys, "demo")
    assert (code, out) == (2, "")
    assert "only the command line may set" in err
    assert victim.read_text() == "mine"


def test_a_settings_file_never_clears_the_cache(capsys, project, tmp_path, monkeypatch):
    monkeypatch.setenv("NVPROBE_CACHE", str(tmp_path / "cache"))
    kept = cache.kept("trace", "key", "x", lambda folder: (folder / "rows").write_text("rows"))
    assert kept is not None
    settings(project, "[tool.nvprobe.cache]\nclear = true\n")
    assert run(capsys, "cache")[0] == 2
    assert (kept / "rows").read_text() == "rows"


def test_a_settings_file_never_runs_anything(capsys, project):
    settings(project, "[tool.nvprobe.launch]\nnsys-arg = ['--env-var=LD_PRELOAD=evil.so']\n")
    code, _, err = run(capsys, "launch", "--dry-run", "train.py")
    assert code == 2
    assert "nsys-arg" in err


@pytest.mark.parametrize("flag", MAY_NOT)
def test_no_variable_sets_what_only_the_command_line_may(capsys, project, monkeypatch, flag):
    for command in COMMANDS:
        name = f"NVPROBE_{command}_{flag}".replace("-", "_").upper()
        with monkeypatch.context() as patch:
            patch.setenv(name, str(project / "x"))
            code, _, err = run(capsys, "demo")
        assert code == 2
        assert name in err
    assert list(project.iterdir()) == []


def test_each_option_is_either_allowed_or_acts_on_files_and_programs():
    """A new option must be put on one side by hand."""
    acting = {
        *MAY_NOT,
        "before",
        "after",
        "markdown",
        "folder",
        "hash-names",
        "to",
        "dry-run",
        "in-job",
        "measure",
        "raise-limits",
    }
    acting |= {"remove-sync", "cuda-graph", "speed-up", "overlap", "drop", "finding"}  # a question
    acting |= {"batch", "client", "cluster", "jobs", "rank", "requests", "root", "summaries"}
    acting |= {"trigger", "when"}
    known = {flag for command in cli.all_commands() for flag in options_of(command)}
    assert known <= ALLOWED | acting
    assert not ALLOWED & acting


def test_an_unknown_variable_is_an_error_with_the_nearest_name(capsys, project, monkeypatch):
    monkeypatch.setenv("NVPROBE_ANALYZE_DEPHT", "3")
    code, _, err = run(capsys, "demo")
    assert code == 2
    assert "NVPROBE_ANALYZE_DEPTH" in err


def test_variables_of_a_launch_are_known(capsys, project, monkeypatch):
    for name in OWN_VARIABLES - {"NVPROBE_NSYS", "NVPROBE_CACHE", "NVPROBE_CACHE_SIZE"}:
        monkeypatch.setenv(name, "1")
    assert run(capsys, "demo")[0] == 0


@pytest.mark.parametrize("mark", [".git", "pyproject.toml"])
def test_the_project_ends_at_its_root(capsys, project, tmp_path, monkeypatch, mark):
    settings(tmp_path, "[tool.nvprobe]\ntop = 1\n")
    (project / mark).touch()
    code, _, err = run(capsys, "demo")
    assert code == 0
    assert "settings from" not in err


def test_a_folder_below_the_root_has_its_settings(capsys, project, monkeypatch):
    settings(project, "[tool.nvprobe]\ntop = 1\n")
    (project / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(project / "deep" / "er")
    assert "settings from ../../pyproject.toml: top" in run(capsys, "demo")[2]
    assert "settings from" not in run(capsys, "demo", "--quiet")[2]


def test_nothing_above_the_home_directory_is_read(capsys, project, tmp_path, monkeypatch):
    settings(tmp_path, "[tool.nvprobe]\ntop = 1\n")
    monkeypatch.setenv("HOME", str(project))
    assert "settings from" not in run(capsys, "demo")[2]


def test_a_file_that_others_may_write_is_not_read(capsys, project):
    settings(project, "[tool.nvprobe]\ntop = 1\n")
    (project / "pyproject.toml").chmod(0o666)
    code, _, err = run(capsys, "demo")
    assert code == 0
    assert "pyproject.toml is not read" in err
    assert "settings from" not in err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_a_file_of_another_user_is_not_read(capsys, project):
    settings(project, "[tool.nvprobe]\ntop = 1\n")
    os.chown(project / "pyproject.toml", 12345, -1)
    assert "pyproject.toml is not read" in run(capsys, "demo")[2]


def test_all_has_a_default_of_its_own_beside_show(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.nvprobe.demo]\nall = true\nshow = 'copies'\n")
    with pytest.raises(SystemExit):
        main(["demo"])
    assert "more kernels" in capsys.readouterr().out
