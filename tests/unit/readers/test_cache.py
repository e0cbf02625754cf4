"""Kept work: used while the input is unchanged, never stale, bounded, and never in the way."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from nvprobe.cache_folder import cache_folder
from nvprobe.cli import cli
from nvprobe.cli.settings import Settings
from nvprobe.errors import InputError, ToolError, UsageError
from nvprobe.nsys import Nsys
from nvprobe.readers import cache, load
from nvprobe.readers.columns import read_columns, write_columns
from nvprobe.readers.nsys import report as nsys_report
from nvprobe.readers.nsys.report import load_nsys_report, written_by
from tests.conftest import CORPUS, mostly_slow
from tests.unit.readers.exports import kernel, launch, pushed, strings, write
from tests.unit.readers.same import differences

PLAIN = {
    "StringIds": strings("cudaLaunchKernel_v7000", "void gemm<float>(int)", "registered"),
    "NVTX_EVENTS": [pushed("step", 100, 900)],
    "CUPTI_ACTIVITY_KIND_RUNTIME": [launch(1, 200, 210)],
    "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(1, 300, 400)],
}


def _age(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the last change of the input lie far enough back."""
    later = time.time() + 60
    monkeypatch.setattr(cache.time, "time", lambda: later)


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An export that counts as large, last changed a while ago."""
    monkeypatch.setattr("nvprobe.readers._LARGE", 0)
    path = write(tmp_path / "large.sqlite", PLAIN)
    _age(path, monkeypatch)
    return path


def _without_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "nvprobe.readers.nsys.sqlite.load_nsys_sqlite", lambda _: pytest.fail("read again")
    )


def test_a_second_load_reads_the_columns(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load(large)
    _without_loader(monkeypatch)
    second = load(large)
    assert differences(first, second, ignore=()) == []


@pytest.mark.parametrize(
    "path",
    [*sorted((CORPUS / "nsys").glob("*/*.sqlite")), CORPUS / "nsys/h200/gpu_metrics_pqtdir"],
    ids=lambda path: path.stem,
)
def test_columns_bring_back_the_trace(path: Path, tmp_path: Path) -> None:
    if not path.exists():
        pytest.skip("no corpus")
    trace = load(path)
    write_columns(trace, tmp_path)
    assert differences(trace, read_columns(tmp_path), ignore=()) == []


def _same_size_edit(path: Path) -> None:
    database = sqlite3.connect(path)
    database.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET end = 350")
    database.commit()
    database.close()


def test_a_changed_input_is_read_again(large: Path) -> None:
    load(large)
    size = large.stat().st_size
    _same_size_edit(large)
    assert large.stat().st_size == size
    trace = load(large)
    assert trace.ops.end.tolist() == [350]


def test_setting_the_time_back_does_not_deceive(large: Path) -> None:
    load(large)
    before = large.stat()
    _same_size_edit(large)
    os.utime(large, ns=(before.st_atime_ns, before.st_mtime_ns))
    trace = load(large)
    assert trace.ops.end.tolist() == [350]


def test_another_file_of_that_name_is_read_again(large: Path, tmp_path: Path) -> None:
    load(large)
    rows = {"CUPTI_ACTIVITY_KIND_KERNEL": [kernel(1, 300, 390)]}
    write(tmp_path / "other.sqlite", PLAIN | rows).replace(large)
    trace = load(large)
    assert trace.ops.end.tolist() == [390]


def test_an_input_changed_just_now_is_not_kept(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("nvprobe.readers._LARGE", 0)
    load(write(tmp_path / "x.sqlite", PLAIN))
    assert cache.entries() == []


def test_other_loaders_do_not_share_entries(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = cache.fingerprint(large)
    monkeypatch.setattr(cache, "_makers", lambda: b"another nvprobe")
    assert cache.fingerprint(large) != key


def test_a_damaged_entry_is_made_again(large: Path) -> None:
    load(large)
    (entry,) = cache.entries()
    (entry.path / "ops.arrow").write_bytes(b"nonsense")
    trace = load(large)
    assert trace.ops.end.tolist() == [400]
    assert cache.entries() == []


def test_what_was_not_used_longest_goes_first(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [shutil.copy(large, tmp_path / f"{name}.sqlite") for name in "abc"]
    for age, path in zip((300, 200, 100), paths, strict=True):
        load(path)
        newest = max(cache.entries(), key=lambda entry: entry.used)
        os.utime(newest.path, (newest.used - age, newest.used - age))
    each = cache.entries()[0].bytes
    load(paths[0])  # used again: now the newest
    monkeypatch.setenv("NVPROBE_CACHE_SIZE", str(int(each * 3.5)))
    load(large)
    assert cache.entries()[0].name == "c.sqlite"
    assert {entry.name for entry in cache.entries()} == {"a.sqlite", "c.sqlite", "large.sqlite"}


def test_switched_off_or_unwritable_it_is_not_in_the_way(
    large: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for value in ("off", str(large / "below a file")):
        monkeypatch.setenv("NVPROBE_CACHE", value)
        assert len(load(large).processes) == 1
        assert cache.entries() == []


def test_a_bad_input_leaves_nothing_behind(tmp_path: Path, monkeypatch, cache_folder: Path) -> None:
    monkeypatch.setattr("nvprobe.readers._LARGE", 0)
    path = tmp_path / "bad.sqlite"
    path.write_bytes(b"SQLite format 3\x00" + b"\xff" * 100)
    _age(path, monkeypatch)
    with pytest.raises(InputError, match=r"bad\.sqlite"):
        load(path)
    assert list(cache_folder.rglob("*.arrow")) == []
    assert cache.entries() == []


def test_a_full_disk_is_not_in_the_way(large: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("nvprobe.readers.columns.write_columns", write)
    assert len(load(large).processes) == 1
    assert cache.entries() == []


def test_sizes_are_read_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, size in (("500M", 500 * 2**20), ("1.5G", 3 * 2**29), ("42", 42), ("2GB", 2**31)):
        monkeypatch.setenv("NVPROBE_CACHE_SIZE", text)
        assert cache.limit_bytes() == size
    for text in ("plenty", "-5", "nan", "1e999"):
        monkeypatch.setenv("NVPROBE_CACHE_SIZE", text)
        with pytest.raises(UsageError, match=f"NVPROBE_CACHE_SIZE='{text}'"):
            cache.limit_bytes()


def test_folders_of_the_user_are_no_entries(large: Path, cache_folder: Path) -> None:
    """NVPROBE_CACHE may name any folder: what is not ours is never counted, never removed."""
    album = cache_folder / "export/photos"
    album.mkdir(parents=True)
    (album / "one.jpg").write_bytes(b"x" * 100)
    load(large)
    assert [entry.name for entry in cache.entries()] == ["large.sqlite"]
    cache.clear()
    assert cache.entries() == []
    assert (album / "one.jpg").exists()


def test_the_command_shows_and_clears(large: Path) -> None:
    load(large)
    run = CliRunner()
    shown = run.invoke(cli, ["cache"], obj=Settings())
    assert "large.sqlite" in shown.stdout
    assert "in 1 entry, in" in shown.stdout
    assert '"name": "large.sqlite"' in run.invoke(cli, ["cache", "--json"], obj=Settings()).stdout
    assert run.invoke(cli, ["cache", "--clear"], obj=Settings()).exit_code == 0
    assert cache.entries() == []


# --- reports ---------------------------------------------------------------------------------


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A report, and an nsys that exports it."""
    path = tmp_path / "run.nsys-rep"
    path.write_bytes(b"NVIDIA Tegra Profiler Report 1.\n" + b"\x00" * 9000 + b"2025.3.2.0-abc:")
    database = write(tmp_path / "made.sqlite", PLAIN)
    exports: list[Path] = []

    def export(nsys: Nsys, report: Path, output: Path) -> Path:
        exports.append(report)
        return Path(shutil.copy(database, output))

    monkeypatch.setattr("nvprobe.readers.nsys.report.export", export)
    monkeypatch.setattr("nvprobe.readers.nsys.report.find_nsys", lambda: _nsys((2025, 3, 2)))
    monkeypatch.setattr(path.__class__, "exports", exports, raising=False)
    return path


def _nsys(version: tuple[int, ...]) -> Nsys:
    return Nsys(Path("nsys"), version, ".".join(map(str, version)))


def test_a_report_is_exported_once(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _age(report, monkeypatch)
    first, second = load(report), load(report)
    assert len(report.exports) == 1  # type: ignore[attr-defined]
    assert first.sources == second.sources
    assert (first.sources[0].kind, first.sources[0].file) == ("nsys-rep", "run.nsys-rep")
    assert sorted(path.name for path in report.parent.iterdir()) == ["made.sqlite", "run.nsys-rep"]
    report.write_bytes(report.read_bytes() + b" ")
    load(report)
    assert len(report.exports) == 2  # type: ignore[attr-defined]


def test_the_export_is_put_beside_the_report_if_asked(report: Path) -> None:
    run = CliRunner()
    arguments = ["analyze", str(report), "--json"]
    assert run.invoke(cli, arguments, obj=Settings()).exit_code == 0
    assert not report.with_suffix(".sqlite").exists()
    assert run.invoke(cli, [*arguments, "--keep-export"], obj=Settings()).exit_code == 0
    beside = load(report.with_suffix(".sqlite"))
    assert differences(beside, load(report)) == []
    again = run.invoke(cli, [*arguments, "--keep-export"], obj=Settings())
    assert again.exit_code != 0
    assert isinstance(again.exception, UsageError)
    other = run.invoke(
        cli, ["analyze", str(report.with_suffix(".sqlite")), "--keep-export"], obj=Settings()
    )
    assert isinstance(other.exception, UsageError)


def test_a_report_without_a_suffix_is_known_by_content(report: Path) -> None:
    assert len(load(report.rename(report.with_name("copied"))).processes) == 1


def test_an_empty_report_is_to_be_had_again(report: Path) -> None:
    report.write_bytes(b"")
    with pytest.raises(
        InputError, match=r"is empty \(0 bytes\); copy it again, or record it again"
    ):
        load(report)


def test_a_full_cache_is_not_in_the_way_of_an_export(report: Path, monkeypatch) -> None:
    """Then the export is made where temporary files go."""
    made = nsys_report.export

    def export(nsys: Nsys, path: Path, output: Path) -> Path:
        if cache_folder() in output.parents:
            raise ToolError("nsys export wrote no export.sqlite: database or disk is full")
        return made(nsys, path, output)

    monkeypatch.setattr(nsys_report, "export", export)
    _age(report, monkeypatch)
    assert len(load(report).processes) == 1
    assert cache.entries() == []


def test_a_name_that_is_no_text_is_kept_and_shown(large: Path) -> None:
    odd = large.rename(large.with_name(os.fsdecode(b"\xff.sqlite")))
    load(odd)
    shown = CliRunner().invoke(cli, ["cache", "--json"], obj=Settings()).stdout
    assert json.loads(shown)["entries"][0]["name"] == "\ufffd.sqlite"


def test_without_nsys_one_line_says_how_to_get_one(report: Path, monkeypatch) -> None:
    def find() -> Nsys:
        raise ToolError("nsys was not found: install Nsight Systems")

    monkeypatch.setattr("nvprobe.readers.nsys.report.find_nsys", find)
    with pytest.raises(ToolError, match=r"run\.nsys-rep: .*install.*nsys export --type sqlite"):
        load(report)


def test_a_report_of_a_newer_nsys_is_said(report: Path, monkeypatch) -> None:
    def export(*_: object) -> Path:
        raise ToolError("nsys export failed with code 1: Cannot read from stream.")

    monkeypatch.setattr("nvprobe.readers.nsys.report.export", export)
    with pytest.raises(ToolError, match="is the report complete"):
        load_nsys_report(report)
    monkeypatch.setattr("nvprobe.readers.nsys.report.find_nsys", lambda: _nsys((2022, 4, 2)))
    assert written_by(report) == (2025, 3, 2, 0)
    with pytest.raises(ToolError, match=r"written by nsys 2025\.3\.2\.0, newer than the nsys 2022"):
        load_nsys_report(report)


@pytest.mark.parametrize(
    "path",
    mostly_slow(sorted((CORPUS / "nsys/h200").glob("*.sqlite")), "eager", "graph_node"),
    ids=lambda path: path.stem,
)
def test_a_kept_trace_gives_the_same_document(path: Path, tmp_path: Path) -> None:
    """Its arrays are read-only: no analysis may write into a Trace."""
    from nvprobe.analysis import analyze
    from nvprobe.attribution import attribute
    from nvprobe.report.document import to_json

    trace = load(path)
    write_columns(trace, tmp_path)
    assert to_json(analyze(attribute(read_columns(tmp_path)))) == to_json(analyze(attribute(trace)))


def _entry_of(tmp_path: Path) -> tuple[Path, Callable[[], Path | None], list[int]]:
    """A kept entry, how to ask for it, and how often it was made."""
    made: list[int] = []

    def ask() -> Path | None:
        def make(folder: Path) -> None:
            made.append(1)
            (folder / "data").write_text("mine")

        return cache.kept("trace", "a" * 40, "x.json", make)

    place = ask()
    assert place is not None
    return place, ask, made


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NVPROBE_CACHE", str(tmp_path / "kept"))
    return tmp_path


def test_what_is_kept_is_its_owners_alone(private: Path) -> None:
    before = os.umask(0)
    try:
        place, _, _ = _entry_of(private)
    finally:
        os.umask(before)
    for path in (private / "kept", place.parent, place):
        assert path.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in place.iterdir()} == {0o600}


@pytest.mark.parametrize("which", [".", "data", "name"])
def test_an_entry_that_others_could_write_is_made_anew(private: Path, which: str) -> None:
    place, ask, made = _entry_of(private)
    (place / which).chmod(0o777)
    assert ask() == place
    assert len(made) == 2
    assert ask() == place
    assert len(made) == 2


def test_an_entry_that_is_a_link_is_not_followed(private: Path) -> None:
    place, ask, made = _entry_of(private)
    place.rename(private / "elsewhere")
    place.symlink_to(private / "elsewhere")
    ask()
    assert len(made) == 2
    place, ask, made = _entry_of(private / "x")
    (place / "data").unlink(missing_ok=True)
    (place / "data").symlink_to("/etc/passwd")
    ask()
    assert not (place / "data").is_symlink()


def test_a_folder_that_others_can_write_is_not_used(private: Path) -> None:
    (private / "kept").mkdir()
    (private / "kept").chmod(0o777)
    assert cache.kept("trace", "a" * 40, "x", lambda folder: None) is None
    assert cache.entries() == []


def test_another_users_folder_is_not_used(private: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _entry_of(private)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert cache.kept("trace", "a" * 40, "x", lambda folder: None) is None
    assert cache.entries() == []
