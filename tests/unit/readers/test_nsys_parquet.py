"""A columnar export is the same Trace as the SQLite of the same report."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nvprobe.analysis import analyze
from nvprobe.attribution import attribute
from nvprobe.errors import InputError
from nvprobe.readers import Format, load, sniff
from nvprobe.report.document import to_json
from tests.unit.readers.same import differences


@pytest.fixture
def folder(corpus: Path) -> Path:
    return corpus / "nsys/h200/gpu_metrics_pqtdir"


def to_sqlite(folder: Path, path: Path) -> Path:
    """The SQLite export of the report that a columnar folder was exported from."""
    database = sqlite3.connect(path)
    for file in sorted(folder.glob("*.parquet")):
        table = pq.read_table(file)
        kinds = [
            f'"{name}" {"TEXT" if pa.types.is_large_string(kind) else "INTEGER"}'
            for name, kind in zip(table.schema.names, table.schema.types, strict=True)
        ]
        database.execute(f'CREATE TABLE "{file.stem}" ({", ".join(kinds)})')
        marks = ", ".join("?" * len(kinds))
        rows = (
            tuple(v - 2**64 if isinstance(v, int) and v >= 2**63 else v for v in row.values())
            for row in table.to_pylist()
        )
        database.executemany(f'INSERT INTO "{file.stem}" VALUES ({marks})', rows)
    database.commit()
    database.close()
    return path


def test_parquet_and_sqlite_are_the_same_trace(folder: Path, tmp_path: Path) -> None:
    assert sniff(folder) is Format.NSYS_PARQUET
    columnar, plain = load(folder), load(to_sqlite(folder, tmp_path / "same.sqlite"))
    assert differences(columnar, plain) == []
    assert len(columnar.ops) == 413 + 32 + 51
    assert columnar.sources[0].product_version == plain.sources[0].product_version


def test_parquet_and_sqlite_give_the_same_document(folder: Path, tmp_path: Path) -> None:
    documents = []
    for path in (folder, to_sqlite(folder, tmp_path / "same.sqlite")):
        document = json.loads(to_json(analyze(attribute(load(path)))))
        del document["sources"]
        documents.append(document)
    assert documents[0] == documents[1]
    assert documents[0]["ledger"]["ops"] == 496


@pytest.mark.parametrize("stream", [False, True])
def test_arrow_folders_are_read_too(folder: Path, tmp_path: Path, stream: bool) -> None:
    arrow = tmp_path / "report_arwdir"
    arrow.mkdir()
    for file in folder.glob("*.parquet"):
        table = pq.read_table(file)
        new = pa.ipc.new_stream if stream else pa.ipc.new_file
        with new(str(arrow / f"{file.stem}.arrow"), table.schema) as writer:
            writer.write_table(table)
    assert differences(load(arrow), load(folder)) == []


def test_metrics_have_names_devices_and_times(folder: Path) -> None:
    counters = load(folder).counters
    trace = load(folder)
    assert len(counters) == 12_540
    assert set(counters.device.tolist()) == {0}
    names = trace.texts(np.unique(counters.metric))
    assert len(names) == 22
    assert "SMs Active [Throughput %]" in names
    at = counters.metric == counters.metric[3]
    assert np.abs(np.diff(counters.time[at]) - 50_000).max() < 100


def test_a_damaged_table_is_named(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "broken_pqtdir"
    shutil.copytree(folder, copy)
    kernels = copy / "CUPTI_ACTIVITY_KIND_KERNEL.parquet"
    kernels.chmod(0o644)
    kernels.write_bytes(kernels.read_bytes()[:500])
    with pytest.raises(InputError, match=r"broken_pqtdir: its CUPTI_ACTIVITY_KIND_KERNEL\.parquet"):
        load(copy)


def test_reading_leaves_the_folder_alone(folder: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy_pqtdir"
    shutil.copytree(folder, copy)
    before = {file.name: file.read_bytes() for file in copy.iterdir()}
    load(copy)
    assert {file.name: file.read_bytes() for file in copy.iterdir()} == before
