"""Whatever is handed in: a report of what there is, or one line that says what to do."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from nvprobe.cli import main, pipeline
from nvprobe.demo import unpacked

HOSTILE = "\x1b[31mred\x1b[0m [bold]markup[/bold] \x07 \u202e <script>"


@pytest.fixture
def capture(tmp_path: Path) -> Iterator[Path]:
    """The shipped capture in a folder of its own, where it may be spoiled."""
    folder = tmp_path / "in"
    folder.mkdir()
    with unpacked() as path:
        copy = folder / "report.sqlite"
        copy.write_bytes(path.read_bytes())
    yield copy
    assert len(list(folder.iterdir())) == 1, "something appeared beside the input"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of ``nvprobe analyze``."""
    with pytest.raises(SystemExit) as exit_:
        main(["analyze", *map(str, arguments)])
    out = capsys.readouterr()
    return int(exit_.value.code or 0), out.out, out.err


def edit(path: Path, *statements: str, values: tuple[object, ...] = ()) -> None:
    """Change a capture."""
    with closing(sqlite3.connect(path)) as database:
        for statement in statements:
            database.execute(statement, values if "?" in statement else ())
        database.commit()


def one_line(code: int, out: str, err: str, name: str) -> None:
    """An error: exit code 1, one line that names the file, no traceback."""
    assert (code, out) == (1, "")
    assert err.count("\n") == 1, err
    assert name in err
    assert err.startswith("nvprobe: ")


@pytest.mark.parametrize(
    "content", [b"", b"just a log\n", b"SQLite format 3\x00" + b"\x00" * 50, b"\x7fELF" * 999]
)
def test_files_of_another_kind(capsys, tmp_path, content):
    path = tmp_path / "report.sqlite"
    path.write_bytes(content)
    one_line(*run(capsys, path), "report.sqlite")


def test_the_database_of_another_program(capsys, tmp_path):
    path = tmp_path / "places.sqlite"
    edit(path, "CREATE TABLE moz_places (id INTEGER, url TEXT)")
    one_line(*run(capsys, path), "places.sqlite")


@pytest.mark.parametrize("share", [0.01, 0.3, 0.6, 0.9])
def test_a_truncated_export(capsys, capture, share):
    whole = capture.read_bytes()
    capture.write_bytes(whole[: int(len(whole) * share)])
    code, out, err = run(capsys, capture, "--json")
    if code:
        one_line(code, out, err, "report.sqlite")
    else:
        assert json.loads(out)["warnings"]


def test_a_folder_and_a_file_that_is_not_there(capsys, tmp_path):
    one_line(*run(capsys, tmp_path / "none.sqlite"), "none.sqlite")
    (tmp_path / "empty").mkdir()
    one_line(*run(capsys, tmp_path / "empty"), "empty")


@pytest.mark.parametrize(
    "name", ["a#b.sqlite", "a?b=c.sqlite", "a%20b.sqlite", "a\nb.sqlite", "a'\".sqlite"]
)
def test_odd_file_names(capsys, tmp_path, name):
    with unpacked() as path:
        (tmp_path / name).write_bytes(path.read_bytes())
    code, out, _ = run(capsys, tmp_path / name, "--json")
    assert code == 0
    assert json.loads(out)["ledger"]["ops"] == 668
    code, out, _ = run(capsys, tmp_path / name)
    assert code == 0
    assert "668 ops" in out
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_name_that_is_no_text_is_told_in_json(capsys, tmp_path):
    path = tmp_path / os.fsdecode(b"\xff.sqlite")
    with unpacked() as source:
        path.write_bytes(source.read_bytes())
    code, out, _ = run(capsys, path, "--json")
    assert code == 0
    assert json.loads(out)["sources"][0]["file"] == "\ufffd.sqlite"


def test_nobody_waits_long_for_a_pipe_that_nothing_writes_to(capsys, tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "PIPE_SECONDS", 0.05)
    os.mkfifo(tmp_path / "pipe.sqlite")
    one_line(*run(capsys, tmp_path / "pipe.sqlite"), "pipe.sqlite")


def test_a_locked_and_read_only_file(capsys, capture):
    capture.chmod(0o444)
    capture.parent.chmod(0o555)
    with closing(sqlite3.connect(capture, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE") if os.access(capture, os.W_OK) else None
        code, out, _ = run(capsys, capture, "--json")
    capture.parent.chmod(0o755)
    assert code == 0
    assert json.loads(out)["ledger"]["ops"] == 668


def test_impossible_times_are_counted_and_stretch_nothing(capsys, capture):
    kernels = "CUPTI_ACTIVITY_KIND_KERNEL"
    edit(
        capture,
        f"UPDATE {kernels} SET start = -9000000000000000000 WHERE rowid = 1",
        f"UPDATE {kernels} SET [end] = 9223372036854775807 WHERE rowid = 2",
        f"UPDATE {kernels} SET [end] = start - 5 WHERE rowid = 3",
        "UPDATE NVTX_EVENTS SET start = -5000000000000000000 WHERE rowid = 9",
    )
    code, out, _ = run(capsys, capture, "--json")
    document = json.loads(out)
    assert code == 0
    assert document["ledger"]["ops"] == 668
    assert document["devices"][0]["window_ns"] < 40_000_000
    assert any("impossible" in warning for warning in document["warnings"])
    assert run(capsys, capture)[0] == 0


def test_hostile_names_reach_neither_terminal_nor_markup(capsys, capture):
    edit(capture, "UPDATE NVTX_EVENTS SET text = ? WHERE text = 'backward'", values=(HOSTILE,))
    edit(capture, "UPDATE StringIds SET value = ? WHERE value LIKE '%gemm%'", values=(HOSTILE,))
    code, out, _ = run(capsys, capture, "--all")
    assert code == 0
    assert "[bold]markup[" in out
    for char in ("\x1b", "\x07", "\u202e"):
        assert char not in out
    code, out, _ = run(capsys, capture, "--json")
    document = json.loads(out)
    assert document["kernels"][0]["name"] == HOSTILE
    assert any(HOSTILE in r["path"].replace("\\/", "/") for r in document["ranges"])


def test_a_name_of_a_megabyte(capsys, capture):
    edit(capture, "UPDATE NVTX_EVENTS SET text = ? WHERE text = 'forward'", values=("x" * 10**6,))
    code, out, _ = run(capsys, capture)
    assert code == 0
    assert max(map(len, out.splitlines())) < 1000


def test_no_nvtx_and_no_cuda(capsys, capture):
    edit(capture, "DROP TABLE NVTX_EVENTS")
    code, out, _ = run(capsys, capture, "--json")
    document = json.loads(out)
    assert (code, document["ranges"]) == (0, [])
    assert document["ledger"]["unresolved"]["no_range_open"]["ops"] == 668
    assert any("NVTX" in entry["what"] for entry in document["missing"])
    for table in ("KERNEL", "MEMCPY", "MEMSET", "RUNTIME", "SYNCHRONIZATION"):
        edit(capture, f"DROP TABLE IF EXISTS CUPTI_ACTIVITY_KIND_{table}")
    code, out, _ = run(capsys, capture)
    assert code == 0
    assert "no GPU records" in out


@pytest.mark.parametrize(
    "statement",
    [
        "DELETE FROM CUPTI_ACTIVITY_KIND_RUNTIME",
        "DELETE FROM CUPTI_ACTIVITY_KIND_KERNEL",
        "DELETE FROM NVTX_EVENTS",
        "DELETE FROM StringIds",
        "ALTER TABLE StringIds DROP COLUMN value",
        "ALTER TABLE CUPTI_ACTIVITY_KIND_RUNTIME DROP COLUMN start",
        "ALTER TABLE CUPTI_ACTIVITY_KIND_KERNEL DROP COLUMN correlationId",
        "UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET deviceId = 'none'",
        "UPDATE NVTX_EVENTS SET globalTid = NULL",
    ],
)
def test_tables_without_rows_or_columns(capsys, capture, statement):
    """There is less to say, and what there is is said."""
    edit(capture, statement)
    code, out, err = run(capsys, capture, "--json")
    assert (code, err) == (0, ""), err
    assert json.loads(out)["schema"] == "nvprobe.analysis/2"
