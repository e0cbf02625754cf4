"""The fast attribution agrees with the slow oracle, op by op and range by range."""

from __future__ import annotations

import numpy as np
from hypothesis import HealthCheck, given

from nvprobe.attribution import Method, attribute, ledger
from nvprobe.trace import Trace
from tests.conftest import examples
from tests.oracle import Oracle
from tests.random_traces import END, traces


def agree(trace: Trace, every_range: bool = True) -> None:
    """Compare everything an attribution says with the oracle."""
    found, oracle = attribute(trace), Oracle(trace)
    texts = found.paths.texts()
    for op in range(len(trace.ops)):
        path, method = oracle.owner(op)
        wanted = None if path is None else "/".join(p.replace("/", "\\/") for p in path)
        got = texts[found.owner[op]] if found.owner[op] >= 0 else None
        assert (got, Method(found.method[op]).name.lower()) == (wanted, method), op
    for row in range(len(trace.ranges) if every_range else 0):
        wanted = "/".join(p.replace("/", "\\/") for p in oracle.own_path(row))
        assert texts[found.tree.path[row]] == wanted, row
    assert {int(t) for t in np.flatnonzero(found.autograd)} == oracle.autograd
    book = ledger(found)
    if not trace.ops.recorded:
        return
    assert book.total.ops == len(trace.ops)
    assert book.total.gpu_ns == sum(
        e - s
        for s, e in zip(trace.ops.start.tolist(), trace.ops.end.tolist(), strict=True)
        if s and e and e >= s
    )


@examples(150, suppress_health_check=list(HealthCheck))
@given(traces())
def test_every_path_open_at_any_instant_is_known_beforehand(trace: Trace) -> None:
    found, oracle = attribute(trace), Oracle(trace)
    texts, before = found.paths.texts(), len(found.open.trie)
    threads = len(trace.threads)
    thread, time = (grid.ravel() for grid in np.mgrid[:threads, : END + 2])
    for one, at, path in zip(thread, time, found.open.at(thread, time).tolist(), strict=True):
        wanted = "/".join(name.replace("/", "\\/") for name in oracle.at(one, at))
        assert (texts[path] if path >= 0 else "") == wanted, (one, at)
    assert len(found.open.trie) == before


@examples(300, suppress_health_check=list(HealthCheck))
@given(traces(crossing=False))
def test_nested_ranges(trace: Trace) -> None:
    agree(trace)


@examples(300, suppress_health_check=list(HealthCheck))
@given(traces(crossing=True))
def test_crossing_ranges(trace: Trace) -> None:
    agree(trace)
