"""Idle causes and synchronizing calls agree with the slow oracle, nanosecond by nanosecond."""

from __future__ import annotations

from collections import Counter
from unittest.mock import patch

import numpy as np
from hypothesis import HealthCheck, given

from nvprobe.analysis.steps import steps
from nvprobe.analysis.waiting import host_time, idle
from nvprobe.analysis.waiting.host_causes import Cause
from nvprobe.analysis.waiting.waits import waits
from nvprobe.attribution import attribute
from nvprobe.trace import Trace
from tests.conftest import examples
from tests.oracle_waits import WaitOracle
from tests.overlap_agreement import overlaps_agree
from tests.random_waits import wait_traces


def agree(trace: Trace) -> None:
    """Compare every wait and every charge of a trace with the oracle."""
    attribution = attribute(trace)
    found_steps = steps(attribution, np.empty(0, np.int64))
    found = waits(attribution, found_steps)
    rows = zip(found_steps.process, found_steps.start, found_steps.end, strict=True)
    oracle = WaitOracle(trace, [tuple(map(int, row)) for row in rows])
    wanted = [
        (w["row"], w["end"] - w["start"], w["busy"], w["device"], w["stream"], oracle.awaited_op(w))
        for w in oracle.waits
    ]
    s = found.syncs.calls
    columns = (s.call, s.wait_ns, s.busy_ns, s.device, s.stream, s.op)
    assert list(zip(*(c.tolist() for c in columns), strict=True)) == wanted
    charges, bubbles, total = Counter(), Counter(), 0
    for gap in oracle.gaps():
        own, bubble = oracle.charge(gap)
        total += gap["end"] - gap["start"]
        bubbles.update(bubble)
        for (step, (path, line), cause), ns in own.items():
            text = "/".join(name.replace("/", "\\/") for name in path)
            charges[gap["device"], step, text, line, cause] += ns
    texts = attribution.paths.texts()
    i = found.idle
    got = Counter()
    labels = [*found.line_labels, None]
    columns = (i.device, i.step, i.path, i.line, i.cause, i.ns)
    for device, step, path, line, cause, ns in zip(*(c.tolist() for c in columns), strict=True):
        text = texts[path] if path >= 0 else ""
        got[device, step, text, labels[line], Cause(cause).label] += ns
    assert got == charges
    assert (
        Counter(dict(zip(s.call.tolist(), found.syncs.bubble_ns.tolist(), strict=True))) == bubbles
    )
    assert found.gaps.length.sum() == i.ns.sum() == total
    overlaps_agree(attribution, found_steps, found)
    wanted_ns, wanted_launches = oracle.host()
    h = found.host
    got_ns, got_launches = Counter(), Counter()
    for path, launches, ns in zip(
        h.path.tolist(), h.launches.tolist(), h.host_ns.tolist(), strict=False
    ):
        got_ns[tuple(texts[path].split("/")) if path >= 0 else ()] += ns
        got_launches[tuple(texts[path].split("/")) if path >= 0 else ()] += launches
    assert +got_ns == wanted_ns
    assert +got_launches == wanted_launches
    assert h.idle_ns.sum() == i.ns[i.cause == Cause.HOST].sum()


@examples(100, suppress_health_check=list(HealthCheck))
@given(wait_traces(crossing=False))
def test_nested_ranges(trace: Trace) -> None:
    agree(trace)


@examples(60, suppress_health_check=list(HealthCheck))
@given(wait_traces(crossing=True))
def test_crossing_ranges(trace: Trace) -> None:
    agree(trace)


@examples(60, suppress_health_check=list(HealthCheck))
@given(wait_traces(crossing=False))
def test_a_few_pieces_at_a_time(trace: Trace) -> None:
    with patch.object(idle, "_BATCH", 3), patch.object(host_time, "_BATCH", 3):
        agree(trace)
