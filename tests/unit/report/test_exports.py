"""Tables out: complete, keyed, documented, and the same numbers everywhere."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sqlite3
from pathlib import Path

import msgspec
import pandas as pd
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from nvprobe.analysis import Analysis, analyze
from nvprobe.attribution import attribute
from nvprobe.cli import cli
from nvprobe.cli.settings import Settings
from nvprobe.errors import InputError, UsageError
from nvprobe.readers import load
from nvprobe.report.database import write_database
from nvprobe.report.document import Document, document, encode
from nvprobe.report.event_tables import TABLES, event_tables
from nvprobe.report.result_tables import RESULTS, result_tables
from nvprobe.report.schema import fields, flat
from tests.conftest import CORPUS

EXPORTS = sorted((CORPUS / "nsys").glob("*/*.sqlite"))


@pytest.fixture(scope="module")
def eager(corpus: Path) -> Analysis:
    return analyze(attribute(load(corpus / "nsys/h200/eager.sqlite")))


@pytest.fixture(scope="module")
def database(eager: Analysis, tmp_path_factory: pytest.TempPathFactory):
    path = tmp_path_factory.mktemp("database") / "eager.sqlite"
    write_database(eager, path)
    connection = sqlite3.connect(path)
    yield connection
    connection.close()


def test_every_op_has_its_owner(eager: Analysis) -> None:
    ops = event_tables(eager.attribution)["ops"].to_pandas()
    assert len(ops) == 668
    by_method = ops.groupby("method", observed=True).duration_ns.agg(["size", "sum"])
    for method, entry in eager.ledger.by_method.items():
        assert tuple(by_method.loc[method.name.lower()]) == (entry.ops, entry.gpu_ns)
    backward = ops[ops.path == "step/backward"]
    paths = result_tables(eager)["paths"].to_pandas().set_index("path")
    assert int(backward.duration_ns.sum()) == int(paths.gpu_self_ns["step/backward"])


def test_the_database_says_the_same(eager: Analysis, database: sqlite3.Connection) -> None:
    sql = (
        "SELECT p.path, count(*), sum(o.duration_ns) FROM ops o JOIN paths p ON p.id = o.path_id "
        "GROUP BY p.path ORDER BY p.path"
    )
    ops = event_tables(eager.attribution)["ops"].to_pandas()
    ops = ops.astype({"path": str})
    grouped = ops.groupby("path").duration_ns.agg(["size", "sum"]).reset_index()
    assert database.execute(sql).fetchall() == [
        (path, int(size), int(total)) for path, size, total in grouped.itertuples(index=False)
    ]
    assert database.execute("PRAGMA foreign_key_check").fetchall() == []
    assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_keys_indexes_and_search(database: sqlite3.Connection) -> None:
    keys = {(row[3], row[2]) for row in database.execute("PRAGMA foreign_key_list(ops)")}
    assert keys >= {("path_id", "paths"), ("call_id", "calls"), ("name_id", "names"),
                    ("device_id", "devices"), ("process_id", "processes")}  # fmt: skip
    assert [row[1] for row in database.execute("PRAGMA table_info(ops)") if row[5]] == ["id"]
    assert len(database.execute("PRAGMA index_list(ops)").fetchall()) == 3
    found = database.execute(
        "SELECT name FROM names WHERE id IN (SELECT rowid FROM names_fts WHERE names_fts MATCH ?)",
        ("gemm*",),
    ).fetchall()
    assert any("gemm" in name for (name,) in found)
    hits = database.execute("SELECT count(*) FROM paths_fts WHERE paths_fts MATCH 'backward'")
    assert hits.fetchone()[0] > 0


def test_every_column_is_described(database: sqlite3.Connection) -> None:
    about = {(t, c) for t, c, _ in database.execute('SELECT "table", "column", about FROM about')}
    tables = {
        name
        for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        if "_fts" not in name and not name.startswith("sqlite_") and name != "about"
    }
    assert {table for table, _ in about} == tables
    for table in tables & TABLES.keys():
        for _, column, *_ in database.execute(f"PRAGMA table_info([{table}])"):
            assert (table, column) in about


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, ["export", *arguments], obj=Settings())


@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_folders_hold_every_table(corpus: Path, tmp_path: Path, kind: str, eager) -> None:
    out = tmp_path / "tables"
    result = _run(str(corpus / "nsys/h200/eager.sqlite"), "--to", kind, "-o", str(out))
    assert result.exit_code == 0, result.output
    found = {name: table for name, table in result_tables(eager).items() if len(table)}
    if kind == "csv":
        parts = [flat(name, table) for name, table in found.items()]
        found = {name: table for part in parts for name, table in part.items()}
        assert "findings_evidence" in found
    expected = {*event_tables(eager.attribution), *found}
    assert {file.stem for file in out.iterdir()} == expected
    assert {file.suffix for file in out.iterdir()} == {f".{kind}"}
    read = pd.read_csv if kind == "csv" else pd.read_parquet
    ops = read(out / f"ops.{kind}")
    assert int(ops.duration_ns.sum()) == eager.ledger.total.gpu_ns
    assert ops.end_ns.max() == event_tables(eager.attribution)["ops"].to_pandas().end_ns.max()


def test_json_is_the_analysis_document(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.json"
    assert _run(str(corpus / "cases/n01.sqlite"), "--to", "json", "-o", str(out)).exit_code == 0
    assert json.loads(out.read_text())["schema"] == "nvprobe.analysis/2"


def test_filters_choose_what_is_written(corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "tables"
    path = str(corpus / "nsys/h200/eager.sqlite")
    _run(path, "--to", "parquet", "-o", str(out), "--range", "step/optimizer")
    ops = pq.read_table(out / "ops.parquet").to_pandas()
    assert set(ops.path) == {"step/optimizer"}


def test_nothing_is_replaced_silently(corpus: Path, tmp_path: Path) -> None:
    path, out = str(corpus / "cases/n01.sqlite"), tmp_path / "kept"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    for arguments in ((), ("--force",)):
        assert _run(path, "--to", "parquet", "-o", str(out), *arguments).exit_code != 0
        assert (out / "thesis.tex").read_text() == "years of work"
    target = tmp_path / "out.sqlite"
    assert _run(path, "--to", "sqlite", "-o", str(target)).exit_code == 0
    assert _run(path, "--to", "sqlite", "-o", str(target)).exit_code != 0
    assert _run(path, "--to", "sqlite", "-o", str(target), "-f").exit_code == 0
    assert sorted(file.name for file in tmp_path.iterdir()) == ["kept", "out.sqlite"]


@pytest.mark.parametrize("path", EXPORTS, ids=lambda path: path.stem)
def test_every_capture_can_be_written(path: Path, tmp_path: Path) -> None:
    analysis = analyze(attribute(load(path)))
    for name, table in result_tables(analysis).items():
        columns = [(field.name, field.type) for field in fields(RESULTS[name].row)]
        assert [(field.name, field.type) for field in table.schema] == columns
    found = document(analysis)
    assert msgspec.json.decode(encode(found), type=Document) == found  # every field as declared
    write_database(analysis, tmp_path / "out.sqlite")
    with sqlite3.connect(tmp_path / "out.sqlite") as connection:
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []
        ops = analysis.attribution.trace.ops
        if ops.recorded:
            sql = "SELECT count(*), coalesce(sum(duration_ns), 0) FROM ops"
            assert connection.execute(sql).fetchone() == (
                len(ops), int(analysis.attribution.duration.sum()),
            )  # fmt: skip
    connection.close()


def test_hostile_names_are_only_text(tmp_path: Path) -> None:
    from tests.unit.readers.exports import kernel, launch, pushed, strings, write

    wild = ["'; DROP TABLE ops; --", 'say "x"', "a\nb", "=1+1", "[x]", "\x1b[2J", "ü"]
    rows = [pushed(text, 100 * i + 1, 100 * i + 90) for i, text in enumerate(wild)]
    source = write(
        tmp_path / "x.sqlite",
        {
            "StringIds": strings("cudaLaunchKernel", "k"),
            "NVTX_EVENTS": rows,
            "CUPTI_ACTIVITY_KIND_RUNTIME": [launch(1, 10, 20)],
            "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(1, 30, 40)],
        },
    )
    analysis = analyze(attribute(load(source)))
    write_database(analysis, tmp_path / "out.sqlite")
    with sqlite3.connect(tmp_path / "out.sqlite") as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM names")}
        assert set(wild) <= names
    connection.close()


def test_two_findings_of_one_kind_are_two_rows(tmp_path: Path) -> None:
    from tests.unit.analysis.scenes import BF16_GEMM, Scene, analysis_of, loop

    def body(scene: Scene) -> None:
        for name in ("metric", "guard"):
            for _ in range(3):
                scene.launch(BF16_GEMM, 100_000)
                scene.inside(name, scene.item)
                scene.host(10_000)

    analysis = analysis_of(loop(body))
    write_database(analysis, tmp_path / "out.sqlite")
    with sqlite3.connect(tmp_path / "out.sqlite") as connection:
        rows = connection.execute("SELECT id FROM findings").fetchall()
    connection.close()
    assert rows == [("implicit_sync",), ("implicit_sync",)]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A small capture in a folder of its own."""
    from tests.unit.readers.exports import kernel, launch, pushed, strings, write

    folder = tmp_path / "in"
    folder.mkdir()
    return write(
        folder / "x.sqlite",
        {
            "StringIds": strings("cudaLaunchKernel", "k"),
            "NVTX_EVENTS": [pushed("step", 1, 90)],
            "CUPTI_ACTIVITY_KIND_RUNTIME": [launch(1, 10, 20)],
            "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(1, 30, 40)],
        },
    )


@pytest.mark.parametrize("kind", ["sqlite", "json", "csv", "parquet"])
def test_a_folder_that_is_not_there_is_said(source: Path, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "none/out"
    result = _run(str(source), "--to", kind, "-o", str(target))
    assert isinstance(result.exception, InputError)
    assert f"cannot write {target}: " in str(result.exception)


def test_a_result_never_takes_the_place_of_an_input(source: Path, tmp_path: Path) -> None:
    before = source.read_bytes()
    other = tmp_path / "link.sqlite"
    other.hardlink_to(source)
    for target in (source, other):
        result = _run(str(source), "--to", "sqlite", "-o", str(target), "--force")
        assert isinstance(result.exception, UsageError)
        result = CliRunner().invoke(
            cli, ["analyze", str(source), "--json", "-o", str(target), "-f"], obj=Settings()
        )
        assert isinstance(result.exception, UsageError)
    assert source.read_bytes() == before


def test_a_columnar_input_is_no_place_for_tables(corpus: Path, tmp_path: Path) -> None:
    folder = tmp_path / "x_pqtdir"
    shutil.copytree(corpus / "nsys/h200/gpu_metrics_pqtdir", folder)
    before = sorted(folder.iterdir())
    result = _run(str(folder), "--to", "parquet", "-o", str(folder), "--force")
    assert isinstance(result.exception, UsageError)
    assert sorted(folder.iterdir()) == before


def test_the_next_command_can_be_read_and_pasted(source: Path, tmp_path: Path) -> None:
    for name, expected in [
        ("out", """duckdb -c "FROM '{}/out/paths.parquet'\""""),
        ("it's", """duckdb -c "FROM '{}/it''s/paths.parquet'\""""),
    ]:
        lines = _run(str(source), "--to", "parquet", "-o", str(tmp_path / name)).stderr.splitlines()
        assert lines[1] == "next: " + expected.format(tmp_path)


@pytest.mark.parametrize("kind", ["sqlite", "json", "csv", "parquet"])
@pytest.mark.parametrize("name", [b"\xff\xfe.sqlite", b"\x1b[31mred\n.sqlite", b"a b#?%20.sqlite"])
def test_any_name_of_a_file_can_be_written(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: bytes, kind: str
) -> None:
    odd = source.rename(source.with_name(os.fsdecode(name)))
    monkeypatch.chdir(tmp_path)
    result = _run(str(odd), "--to", kind)
    assert result.exit_code == 0, result.output
    stem = odd.name.removesuffix(".sqlite")
    made = tmp_path / (f"{stem}.tables" if kind in ("csv", "parquet") else f"{stem}.tables.{kind}")
    assert made.exists()
    assert "\x1b" not in result.stderr
    assert result.stderr.count("\n") == 2
    command = shlex.split(result.stderr.splitlines()[1].removeprefix("next: "))
    if name.isascii() and b"\x1b" not in name:
        assert any(str(made.relative_to(tmp_path)) in word for word in command)


@pytest.mark.parametrize(
    ("path", "table", "stacks"),
    [
        ("nsys/public/invalid_utf8.sqlite", "os_calls", "os_stacks"),
        ("nsys/public/invalid_utf8.sqlite", "samples", "sample_stacks"),
        ("nsys/h200/sync_callchains.sqlite", "calls", "call_stacks"),
    ],
)
def test_every_stack_leads_to_its_frames(
    corpus: Path, tmp_path: Path, path: str, table: str, stacks: str
) -> None:
    write_database(analyze(attribute(load(corpus / path))), tmp_path / "out.sqlite")
    with sqlite3.connect(tmp_path / "out.sqlite") as connection:
        used, found = connection.execute(
            f"SELECT count(stack), sum(stack IN (SELECT chain FROM {stacks})) "
            f"FROM {table} WHERE stack > 0"
        ).fetchone()
    connection.close()
    assert used == found > 0


def test_every_kernel_has_its_launch_geometry(corpus: Path, database) -> None:
    raw = sqlite3.connect(corpus / "nsys/h200/eager.sqlite")
    sql = "SELECT sum(gridX * blockX * registersPerThread) FROM CUPTI_ACTIVITY_KIND_KERNEL"
    expected = raw.execute(sql).fetchone()
    raw.close()
    assert (
        database.execute(
            "SELECT sum(grid_x * block_x * registers) FROM geometry JOIN ops ON ops.id = op_id "
            "WHERE ops.kind = 'kernel'"
        ).fetchone()
        == expected
    )


def test_graph_nodes_without_any_call(tmp_path: Path) -> None:
    """An export without the runtime table: nothing says when a capture began."""
    from nvprobe.attribution import Method
    from tests.unit.readers.exports import THREAD, kernel, pushed, strings, write

    path = write(
        tmp_path / "x.sqlite",
        {
            "StringIds": strings("k"),
            "NVTX_EVENTS": [pushed("capture", 1, 90)],
            "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(1, 300, 400, graphNodeId=7)],
            "CUDA_GRAPH_EVENTS": [
                {"start": 50, "end": 50, "globalTid": THREAD, "graphNodeId": 7},
            ],
        },
    )
    attribution = attribute(load(path))
    assert [Method(method).name for method in attribution.method] == ["NO_LAUNCH_RECORD"]
    write_database(analyze(attribution), tmp_path / "out.sqlite")
