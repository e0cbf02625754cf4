"""What the command line promises, on the capture that ships with the package."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from nvprobe.cli import COMMANDS, LazyGroup, cli, main
from nvprobe.demo import unpacked

KEYS = (
    *("nvprobe", "verdict", "sources", "processes", "window", "clock", "warnings", "devices"),
    *("ledger", "ranges", "modules", "spans", "kernels", "operators", "steps", "syncs", "idle"),
    *("overlap", "collectives", "memory", "counters", "compiled_graphs", "findings", "missing"),
)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of a command line."""
    with pytest.raises(SystemExit) as exit_:
        main(list(arguments))
    out = capsys.readouterr()
    return int(exit_.value.code or 0), out.out, out.err


def test_help_names_every_command_as_the_command_describes_itself(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert isinstance(cli, LazyGroup)
    for name, (_, summary) in COMMANDS.items():
        assert name in out
        command = cli.get_command(None, name)
        assert command.name == name
        assert command.get_short_help_str(200) == summary


def test_demo_prints_json_with_every_key_of_the_schema(capsys):
    code, out, _ = run(capsys, "demo", "--json")
    document = json.loads(out)
    assert code == 0
    assert document["schema"] == "nvprobe.analysis/2"
    assert set(KEYS) <= set(document)
    assert document["ledger"]["ops"] == 668
    assert document["ledger"]["methods"]["inherited"]["ops"] == 480
    assert document["idle"]["total_ns"] == 11_090_089
    for name in (entry["what"] for entry in document["missing"]):
        assert document.get(name) is None, f"{name} is said to be missing and is there"


def test_json_and_report_name_no_folder_of_this_machine(capsys):
    with unpacked() as path:
        for extra in ([], ["--json"]):
            _, out, _ = run(capsys, "analyze", str(path), *extra)
            assert str(path.parent) not in out


def test_output_is_never_overwritten_silently(capsys, tmp_path):
    target = tmp_path / "report.json"
    code, out, err = run(capsys, "demo", "-o", str(target))
    assert (code, out) == (0, "")
    assert f"Wrote {target}" in err
    assert json.loads(target.read_text())["ledger"]["ops"] == 668
    target.write_text("mine")
    code, _, err = run(capsys, "demo", "-o", str(target))
    assert code == 2
    assert "--force" in err
    assert target.read_text() == "mine"
    assert run(capsys, "demo", "-f", "-q", "-o", str(target)) == (0, "", "")
    assert target.read_text() != "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["analyze"], 2),
        (["analyze", "x.sqlite", "--depth", "0"], 2),
        (["analyze", "x.sqlite", "--filter", "("], 2),
        (["analyze", "no-such-file.sqlite"], 1),
        (["nonsense"], 2),
        (["demo", "--process", "1"], 2),
        (["demo", "-o", "/no/such/folder/x.json"], 1),
    ],
)
def test_errors_are_one_line_and_have_their_code(capsys, arguments, code):
    got, out, err = run(capsys, *arguments)
    assert got == code
    assert out == ""
    assert "Traceback" not in err
    assert err.strip()


def test_a_process_that_is_not_there_is_named_with_those_that_are(capsys):
    with unpacked() as path:
        code, _, err = run(capsys, "analyze", str(path), "--process", "1")
    assert code == 2
    assert "process 1: not in the capture" in err


def test_settings_come_from_pyproject_and_environment(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text("[tool.nvprobe]\ndepth = 1\n")
    assert "forward" not in run(capsys, "demo", "--show", "ranges")[1]
    (tmp_path / "pyproject.toml").write_text("[tool.nvprobe.demo]\nshow = 'steps,copies'\n")
    _, sections, _ = run(capsys, "demo")
    assert ("more kernels" in sections, "Memset" in sections) == (False, True)
    monkeypatch.setenv("NVPROBE_DEMO_SHOW", "kernels")
    assert "more kernels" in run(capsys, "demo")[1]
    monkeypatch.delenv("NVPROBE_DEMO_SHOW")
    monkeypatch.setenv("NVPROBE_DEMO_ALL", "1")
    assert "more kernels" in run(capsys, "demo")[1]
    (tmp_path / "pyproject.toml").write_text("[tool.nvprobe.nonsense]\n")
    code, _, err = run(capsys, "demo")
    assert code == 2
    assert "nonsense" in err


@pytest.mark.parametrize(
    ("table", "variable", "typed"),
    [
        (
            'hide = ["operator", "module"]',
            "operator module",
            ["--hide", "operator", "--hide", "module"],
        ),
        pytest.param('hide = "module"', "module", ["--hide", "module"], marks=pytest.mark.slow),
        pytest.param('kind = "phase"', "phase", ["--kind", "phase"], marks=pytest.mark.slow),
        pytest.param('filter = "fc2"', "fc2", ["--filter", "fc2"], marks=pytest.mark.slow),
        ("process = 445", "445", ["--process", "445"]),
        pytest.param(
            'range = "step/forward"',
            "step/forward",
            ["--range", "step/forward"],
            marks=pytest.mark.slow,
        ),
        ('steps = "5:6"', "5:6", ["--steps", "5:6"]),
        ('domain = ["CCCL"]', "CCCL", ["--domain", "CCCL"]),
    ],
)
def test_every_option_can_be_set_by_its_name(capsys, tmp_path, monkeypatch, table, variable, typed):
    monkeypatch.chdir(tmp_path)
    plain, expected = run(capsys, "demo"), run(capsys, "demo", *typed)
    assert expected != plain
    for section in ("tool.nvprobe", "tool.nvprobe.demo"):
        (tmp_path / "pyproject.toml").write_text(f"[{section}]\n{table}\n")
        code, out, err = run(capsys, "demo")
        assert (code, out) == expected[:2]
        assert f"nvprobe: settings from pyproject.toml: {table.split()[0]}\n" in err
    (tmp_path / "pyproject.toml").unlink()
    monkeypatch.setenv(f"NVPROBE_DEMO_{table.split()[0].upper()}", variable)
    assert run(capsys, "demo") == expected


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("[tool.nvprobe]\ndepht = 2\n", "depht"),
        ("[tool.nvprobe.analyze]\nbackend = 'nsys'\n", "backend"),
        ("[tool.nvprobe.demo]\nindex = 'x'\n", "index"),
    ],
)
def test_a_slip_in_the_settings_is_told(capsys, tmp_path, monkeypatch, text, wrong):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(text)
    code, _, err = run(capsys, "demo")
    assert code == 2
    assert wrong in err
    assert "pyproject.toml" in err
    (tmp_path / "pyproject.toml").write_text("[tool.nvprobe]\nbackend = 'nsys'\n")
    assert run(capsys, "demo")[0] == 0, "an option of another command may be shared"


@pytest.mark.parametrize("words", [["demo", "--json"], ["demo", "--top=9"], ["demo", "-h"], ["-h"]])
def test_a_reader_that_leaves_early_is_no_error(words):
    """As ``head`` does; here it is gone before anything is printed, whatever else runs."""
    reads, writes = os.pipe()
    os.close(reads)
    done = subprocess.run(
        [sys.executable, "-m", "nvprobe", *words],
        stdout=writes,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writes)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_read_only_folder_is_told_by_the_name_that_was_asked_for(capsys, tmp_path, monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(Path, "write_text", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    code, _, err = run(capsys, "demo", "-o", str(tmp_path / "x.txt"))
    assert code == 1
    assert err == (
        f"nvprobe: cannot write {tmp_path / 'x.txt'}: Read-only file system; "
        "choose another output\n"
    )


def test_a_terminal_of_an_old_locale_gets_a_report():
    def demo(*options: str) -> bytes:
        return subprocess.run(
            [sys.executable, "-m", "nvprobe", "demo", *options],
            env={**os.environ, "PYTHONIOENCODING": "ascii"},
            capture_output=True,
            check=True,
        ).stdout

    report = demo("--top=3")
    assert report.startswith(b"h200_eager.sqlite ? nsys")
    assert "\u2192" not in report.decode("ascii")
    assert json.loads(demo("--json").decode())["ledger"]["ops"] == 668


def test_nothing_appears_beside_the_input(capsys):
    with unpacked() as path:
        before = path.read_bytes()
        path.chmod(0o444)
        run(capsys, "analyze", str(path))
        assert path.read_bytes() == before
        assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_reports_hold_no_folder_and_no_command_line(capsys, corpus):
    """Without having to ask: names of ranges lose their folders, processes their arguments."""
    case = corpus / "cases" / "n25.sqlite"
    private = json.loads((corpus / "cases" / "n25.expect.json").read_text())["bytes_absent"]
    for extra in ([], ["--json"]):
        code, out, _ = run(capsys, "analyze", str(case), *extra)
        assert code == 0
        assert [text for text in private if text in out.replace("\\/", "/")] == []
        assert "load train.py" in out
