"""Tables of a Trace: what was not recorded and what is empty stay apart."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import pytest

from nvprobe.analysis import analyze
from nvprobe.attribution import attribute
from nvprobe.demo import unpacked
from nvprobe.readers import load
from nvprobe.report.document import to_dict
from nvprobe.trace import Calls, Syncs, Trace

REFER_TO = {"ops": ["geometry"], "ranges": ["operators", "payloads"]}
"""Tables whose rows lead to rows of another one: no source has them without it."""
TABLES = [
    spec.name
    for spec in dataclasses.fields(Trace)
    if getattr(spec.default_factory, "__name__", "") == "absent"
]


@functools.cache
def _demo() -> Trace:
    with unpacked() as path:
        return load(path)


def test_recorded_names_the_tables_that_the_source_has() -> None:
    trace = _demo()
    assert {"calls", "ops", "ranges", "processes"} <= trace.recorded
    assert "schedule" not in trace.recorded
    assert len(trace.schedule) == 0
    empty = dataclasses.replace(trace, schedule=type(trace.schedule).empty())
    assert "schedule" in empty.recorded


def test_what_was_not_recorded_stays_so() -> None:
    absent = Syncs.absent()
    assert not absent.take(np.empty(0, np.int64)).recorded
    assert not absent.with_columns(start=np.empty(0, np.int64)).recorded
    assert Syncs.empty().take(np.empty(0, np.int64)).recorded


@pytest.mark.parametrize("name", TABLES)
def test_every_table_may_be_absent(name: str) -> None:
    trace = _demo()
    names = {name, *REFER_TO.get(name, ())}
    changes = {one: getattr(trace, one).absent() for one in names}
    assert to_dict(analyze(attribute(dataclasses.replace(trace, **changes))))


def test_what_needs_absent_calls_is_null_and_never_empty() -> None:
    trace = _demo()
    absent, empty = (
        to_dict(analyze(attribute(dataclasses.replace(trace, calls=calls))))
        for calls in (Calls.absent(), Calls.empty())
    )
    assert absent["syncs"] is None
    assert empty["syncs"] == []


def test_every_column_says_what_it_holds() -> None:
    trace = _demo()
    tables = [*(getattr(trace, name) for name in TABLES), trace.processes, trace.threads]
    tables += [trace.sidecar.modules, trace.sidecar.captures, trace.sidecar.allocator]
    known = {"strings", *(spec.name for spec in dataclasses.fields(trace))}
    for one in (one for table in tables for one in getattr(table, "column_schemas", tuple)()):
        assert one.about, one.name
        assert one.refers is None or one.refers in known, one.name
        assert one.unit in ("", "ns", "bytes", "bytes/s", "Hz"), one.name
