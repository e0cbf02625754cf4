"""Every real export loads, and holds what plain SQL counts in it."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest

from nvprobe.errors import InputError
from nvprobe.readers import load
from nvprobe.trace import OPEN, OpKind, Trace
from tests.conftest import CORPUS

EXPORTS = sorted((CORPUS / "nsys").glob("*/*.sqlite"))
CASES = [path for path in sorted((CORPUS / "cases").glob("n*.sqlite")) if "n24" not in path.name]

pytestmark = pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no corpus at {CORPUS}")


_OF_STACKS = (
    "domainId IN (SELECT domainId FROM NVTX_EVENTS"
    " WHERE eventType = 75 AND text = 'Python Backtrace on CUDA')"
)
"""Marks that are Python back-traces of calls; the corpus has one process in such a capture."""


@contextlib.contextmanager
def _database(path: Path):
    uri = f"file:{quote(str(path))}?mode=ro&immutable=1"
    with contextlib.closing(sqlite3.connect(uri, uri=True)) as database:
        database.text_factory = lambda raw: raw.decode("utf-8", "replace")
        yield database


def _count(database: sqlite3.Connection, table: str, where: str = "1") -> int | None:
    try:
        return database.execute(f"SELECT count(*) FROM {table} WHERE {where}").fetchone()[0]
    except sqlite3.OperationalError:
        return None


def _length(table) -> int | None:
    return len(table) if table.recorded else None


@pytest.mark.parametrize("path", EXPORTS + CASES, ids=lambda path: path.stem)
def test_tables_hold_what_sql_counts(path: Path) -> None:
    trace = load(path)
    with _database(path) as database:
        for kind, suffix in (
            (OpKind.KERNEL, "KERNEL"),
            (OpKind.MEMCPY, "MEMCPY"),
            (OpKind.MEMSET, "MEMSET"),
            (OpKind.GRAPH, "GRAPH_TRACE"),
        ):
            ours = int(np.count_nonzero(trace.ops.kind == kind))
            assert ours == (_count(database, f"CUPTI_ACTIVITY_KIND_{suffix}") or 0)
        assert _length(trace.calls) == _count(database, "CUPTI_ACTIVITY_KIND_RUNTIME")
        assert _length(trace.syncs) == _count(database, "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION")
        assert _length(trace.ranges) == _count(database, "NVTX_EVENTS", "eventType = 59")
        assert _length(trace.spans) == _count(database, "NVTX_EVENTS", "eventType = 60")
        stacks = _count(database, "NVTX_EVENTS", f"eventType = 34 AND {_OF_STACKS}") or 0
        marks = _count(database, "NVTX_EVENTS", "eventType = 34")
        assert _length(trace.marks) == (None if marks is None else marks - stacks)
        _same_durations(database, trace)
        _same_names(database, trace)


def _same_durations(database: sqlite3.Connection, trace: Trace) -> None:
    if trace.ops.recorded:
        expected = 0
        for suffix in ("KERNEL", "MEMCPY", "MEMSET", "GRAPH_TRACE"):
            with contextlib.suppress(sqlite3.OperationalError):
                sql = f"SELECT coalesce(sum(end - start), 0) FROM CUPTI_ACTIVITY_KIND_{suffix}"
                expected += database.execute(sql).fetchone()[0]
        assert int((trace.ops.end - trace.ops.start).sum()) == expected
    if trace.ranges.recorded:
        closed = trace.ranges.end != OPEN
        length = int((trace.ranges.end[closed] - trace.ranges.start[closed]).sum())
        sql = "SELECT coalesce(sum(end - start), 0) FROM NVTX_EVENTS WHERE eventType = 59"
        assert length == database.execute(sql).fetchone()[0]


def _same_names(database: sqlite3.Connection, trace: Trace) -> None:
    """Names of kernels, calls and ranges, row by row."""
    if trace.ops.recorded:
        rows = trace.ops.kind == OpKind.KERNEL
        sql = (
            "SELECT value FROM CUPTI_ACTIVITY_KIND_KERNEL k "
            "LEFT JOIN StringIds s ON s.id = k.demangledName ORDER BY k.rowid"
        )
        if rows.any():
            expected = [name for (name,) in database.execute(sql)]
            assert trace.texts(trace.ops.name[rows]) == expected
    if trace.ranges.recorded:
        sql = (
            "SELECT coalesce(text, value, '(no name)') FROM NVTX_EVENTS n "
            "LEFT JOIN StringIds s ON s.id = n.textId WHERE eventType = 59 ORDER BY n.rowid"
        )
        assert trace.texts(trace.ranges.name) == [name for (name,) in database.execute(sql)]


@pytest.mark.parametrize("path", EXPORTS + CASES, ids=lambda path: path.stem)
def test_references_stay_inside_their_tables(path: Path) -> None:
    trace = load(path)
    sizes = {
        "process": len(trace.processes),
        "thread": len(trace.threads),
        "end_thread": len(trace.threads),
        "device": len(trace.devices),
        "name": len(trace.strings),
        "domain": len(trace.strings),
        "category": len(trace.strings),
    }
    for table in (trace.calls, trace.ops, trace.ranges, trace.spans, trace.marks, trace.syncs):
        for name, values in table.columns().items():
            if name in sizes and len(values):
                assert values.max() < sizes[name]
                assert values.min() >= (-1 if name in ("domain", "category") else 0)


def test_two_processes_keep_their_correlations_apart(corpus: Path) -> None:
    trace = load(corpus / "cases/n01.sqlite")
    assert trace.processes.pid.tolist() == [4001, 4002]
    pairs = set(zip(trace.ops.process.tolist(), trace.ops.device.tolist(), strict=True))
    assert pairs == {(0, 0), (1, 1)}


def test_calls_lose_their_abi_suffix(corpus: Path) -> None:
    trace = load(corpus / "nsys/h200/eager.sqlite")
    names = {name for name in trace.texts(np.unique(trace.calls.name)) if name}
    assert "cudaLaunchKernel" in names
    assert not [name for name in names if "_v" in name]


def test_an_open_range_lasts_to_the_end_of_the_capture(corpus: Path) -> None:
    trace = load(corpus / "cases/n04.sqlite")
    assert trace.end_ns == 5_000_000
    assert int(np.count_nonzero(trace.ranges.end == OPEN)) == 3
    assert "3 ranges were never closed" in trace.warnings[0]


@pytest.mark.parametrize(
    ("case", "what", "why"),
    [
        ("n03", "nested ranges", "start/end"),
        ("n05", "kernels inside CUDA graphs", "recorded whole"),
        ("n07", "CUDA graph capture", "capture is not in this file"),
        ("n13", "GPU records", "5 launch calls have no GPU record.*driver is newer"),
        ("n14", "NVTX ranges", "2023.2.3"),
        ("n29", "CUDA calls", "no runtime or driver API call"),
    ],
)
def test_what_a_capture_lacks_is_said(corpus: Path, case: str, what: str, why: str) -> None:
    import re

    missing = load(corpus / f"cases/{case}.sqlite").missing
    (entry,) = [entry for entry in missing if what in entry.what]
    assert re.search(why, entry.why)
    assert entry.how


@pytest.mark.parametrize("case", ["empty", "other", "text", "truncated"])
def test_what_is_no_export_gives_one_line(corpus: Path, case: str) -> None:
    with pytest.raises(InputError) as caught:
        load(corpus / f"cases/n24_{case}.sqlite")
    message = str(caught.value)
    assert message.startswith(f"n24_{case}.sqlite: ")
    assert "\n" not in message
    assert str(corpus) not in message
    assert "export the report again" in message


@pytest.mark.parametrize(
    ("path", "what"),
    [
        ("nsys/h200/sync_callchains.sqlite", ["Python stacks"]),
        ("nsys/public/2026.2_two_gpus.sqlite", ["structured NVTX payloads"]),
        ("nsys/public/nvtx_without_cuda.sqlite", []),
    ],
)
def test_of_lost_bytes_it_is_said_whose_they_were(corpus: Path, path: str, what: list[str]) -> None:
    """The schemas of nsys's own stacks are not those of a program."""
    missing = load(corpus / path).missing
    assert [one.what for one in missing if "--include-blobs=true" in one.how] == what
