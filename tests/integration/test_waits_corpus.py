"""Waits on every real capture: they add up, and agree with the oracle gap by gap."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from nvprobe.analysis.completeness import lost_launches
from nvprobe.analysis.steps import steps
from nvprobe.analysis.timelines import device_busy, device_order, streams
from nvprobe.analysis.waiting.blocking import synchronizing_calls
from nvprobe.analysis.waiting.gaps import device_gaps, device_use
from nvprobe.analysis.waiting.host_causes import Cause, host_causes
from nvprobe.analysis.waiting.idle import idle_time
from nvprobe.analysis.waiting.waits import Waits, waits
from nvprobe.attribution import Attribution, attribute
from nvprobe.readers import load
from nvprobe.trace.cuda_calls import call_roles
from tests.conftest import CORPUS
from tests.oracle_waits import WaitOracle
from tests.overlap_agreement import overlaps_agree

pytestmark = pytest.mark.slow

FILES = [
    *sorted(CORPUS.glob("nsys/*/*.sqlite")),
    *sorted(CORPUS.glob("kineto/h200/*.gz")),
    *sorted(CORPUS.glob("kineto/public/*.gz")),
]
GAPS = 40
"""So many gaps of each file are charged by the oracle, which takes its time."""

every_file = pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)


def found(file: Path) -> tuple[Attribution, Waits]:
    attribution = attribute(load(file))
    return attribution, waits(attribution, steps(attribution, lost_launches(attribution)))


@every_file
def test_everything_adds_up(file: Path) -> None:
    attribution, wait = found(file)
    use = device_use(attribution)
    by_device = dict.fromkeys(use.device.tolist(), 0)
    for device, ns in zip(wait.idle.device.tolist(), wait.idle.ns.tolist(), strict=True):
        by_device[device] += ns
    assert by_device == dict(zip(use.device.tolist(), use.idle_ns.tolist(), strict=True))
    assert (wait.idle.ns > 0).all()
    sync = int(wait.idle.ns[wait.idle.cause == Cause.SYNC].sum())
    assert int(wait.syncs.bubble_ns.sum()) == int(wait.syncs.sites.bubble_ns.sum()) == sync
    assert int(wait.syncs.sites.count.sum()) == len(wait.syncs.calls)
    combinations = wait.overlap.devices
    for device, busy in zip(use.device.tolist(), use.busy_ns.tolist(), strict=True):
        assert int(combinations.ns[combinations.group == device + 1].sum()) == busy
    assert (wait.syncs.calls.busy_ns <= wait.syncs.calls.wait_ns).all()


@every_file
def test_gaps_agree_with_the_oracle(file: Path) -> None:
    attribution = attribute(load(file))
    trace = attribution.trace
    found_steps = steps(attribution, lost_launches(attribution))
    lanes, roles = streams(attribution), call_roles(trace)
    order = device_order(attribution)
    busy = device_busy(order, len(trace.devices))
    calls = synchronizing_calls(attribution, roles, busy, lanes)
    work = host_causes(attribution, roles, (calls.thread, calls.start, calls.end))
    gaps = device_gaps(attribution, order)
    rows = zip(found_steps.process, found_steps.start, found_steps.end, strict=True)
    oracle = WaitOracle(trace, [tuple(map(int, row)) for row in rows])
    wanted_gaps = oracle.gaps()
    assert [(g["start"], g["end"], g["op"]["row"]) for g in wanted_gaps] == list(
        zip(gaps.start.tolist(), gaps.end.tolist(), gaps.op.tolist(), strict=True)
    )
    assert calls.call.tolist() == [w["row"] for w in oracle.waits]
    assert calls.busy_ns.tolist() == [w["busy"] for w in oracle.waits]
    sample = np.unique(np.linspace(0, len(gaps) - 1, GAPS).astype(int)) if len(gaps) else []
    for row in sample:
        idle, bubble = idle_time(
            attribution, gaps.take(np.array([row])), found_steps, lanes, calls, work
        )
        charges, bubbles = oracle.charge(wanted_gaps[row])
        texts = attribution.paths.texts()
        wanted = Counter()
        for (step, (path, _), cause), ns in charges.items():
            wanted[step, "/".join(name.replace("/", "\\/") for name in path), cause] += ns
        columns = (idle.step, idle.path, idle.cause, idle.ns)
        got = Counter()
        for step, path, cause, ns in zip(*(c.tolist() for c in columns), strict=True):
            got[step, texts[path] if path >= 0 else "", Cause(cause).label] += ns
        assert got == wanted, row
        here = {c: n for c, n in zip(calls.call.tolist(), bubble.tolist(), strict=True) if n}
        assert here == bubbles, row


@every_file
def test_overlap_agrees_with_the_oracle(file: Path) -> None:
    attribution = attribute(load(file))
    found_steps = steps(attribution, lost_launches(attribution))
    overlaps_agree(attribution, found_steps, waits(attribution, found_steps))
