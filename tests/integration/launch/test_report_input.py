"""A fresh capture by the real nsys: from its ``.nsys-rep`` to tables."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from nvprobe.cli import cli
from nvprobe.cli.settings import Settings
from nvprobe.errors import ToolError
from nvprobe.nsys import Nsys
from nvprobe.readers import cache, load
from tests.integration.launch.conftest import Launcher, ranges_in

pytestmark = [pytest.mark.nsys, pytest.mark.slow]

PROGRAM = """
    import threading, nvprobe
    def work(i):
        with nvprobe.range(f"body{i}"):
            pass
    for i in nvprobe.steps(range(4)):
        work(i)
    thread = threading.Thread(target=work, args=(9,), name="helper")
    thread.start()
    thread.join()
"""


@pytest.fixture
def report(launch: Launcher, nsys: Nsys, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The report of a real run, long enough ago to be kept."""
    monkeypatch.setenv("NVPROBE_CACHE", str(launch.folder / "kept"))
    result = launch(launch.script(PROGRAM))
    assert result.code == 0, result.err
    if result.run["backend"] != "nsys":
        pytest.skip(f"nsys does not start here: {result.run['notes']}")
    report = result.folder / "report.nsys-rep"
    assert report.is_file()
    time.sleep(2.1)
    return report


def test_a_report_is_what_its_export_is(report: Path) -> None:
    trace = load(report)
    source = trace.sources[0]
    assert (source.kind, source.file) == ("nsys-rep", "report.nsys-rep")
    assert source.product_version
    named = trace.texts(trace.ranges.name)
    assert sorted(map(str, named)) == sorted(ranges_in(report.with_suffix(".sqlite")))
    assert {f"body{i}" for i in (0, 1, 2, 3, 9)} <= set(named)
    assert len(set(trace.ranges.thread.tolist())) == 2
    assert bool((trace.ranges.end >= trace.ranges.start).all())
    assert trace.origin_ns is not None
    assert abs(trace.origin_ns / 1e9 - time.time()) < 3600


def test_a_second_command_does_not_export_again(
    report: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = sorted(path.name for path in report.parent.iterdir())
    load(report)
    assert [entry.name for entry in cache.entries()] == ["report.nsys-rep"]

    def find() -> Nsys:
        raise ToolError("gone")

    monkeypatch.setattr("nvprobe.readers.nsys.report.find_nsys", find)
    assert load(report).ranges.recorded
    assert sorted(path.name for path in report.parent.iterdir()) == before


def test_from_a_report_to_tables(report: Path, tmp_path: Path) -> None:
    out = tmp_path / "tables.sqlite"
    run = CliRunner().invoke(
        cli, ["export", str(report), "--to", "sqlite", "-o", str(out)], obj=Settings()
    )
    assert run.exit_code == 0, run.output
    with closing(sqlite3.connect(out)) as database:
        sql = "SELECT path, calls FROM paths WHERE path LIKE '%body0'"
        ((path, calls),) = database.execute(sql).fetchall()
    assert path.endswith("body0")
    assert calls == 1


def test_a_cut_report_gives_one_line(report: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut.nsys-rep"
    cut.write_bytes(report.read_bytes()[:2000])
    with pytest.raises(ToolError) as caught:
        load(cut)
    assert str(caught.value).startswith("cut.nsys-rep: ")
    assert "\n" not in str(caught.value)


def test_the_command_takes_a_report(report: Path) -> None:
    run = CliRunner().invoke(cli, ["analyze", str(report), "--json"], obj=Settings())
    assert run.exit_code == 0, run.output
    document = json.loads(run.stdout)
    assert document["sources"][0]["kind"] == "nsys-rep"
    assert "GPU" in json.dumps(document["missing"])
