"""Slices on tracks: idle time adds up by cause, lanes are free of overlap, calls are found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from nvprobe.analysis import analyze
from nvprobe.analysis.result import Analysis
from nvprobe.analysis.waiting.gaps import by
from nvprobe.analysis.waiting.host_causes import Cause
from nvprobe.attribution import attribute
from nvprobe.report.timeline import Timeline, TrackKind, timeline
from nvprobe.trace import Trace
from tests.conftest import examples
from tests.random_waits import wait_traces


def kinds(found: Timeline) -> np.ndarray:
    return np.array([track.kind for track in found.tracks], np.int8)[found.slices.track]


@examples(40)
@given(wait_traces(crossing=True))
def test_idle_stretches_are_the_gaps_and_add_up_by_cause(trace: Trace) -> None:
    waits = analyze(attribute(trace)).waits
    assert waits is not None
    found = waits.idle_stretches()
    length = found.end - found.start
    assert (length > 0).all()
    assert length.sum() == waits.gaps.length.sum()
    causes = dict(zip(*(column.tolist() for column in by(waits.idle, "cause")), strict=True))
    for cause in Cause:
        assert int(length[found.cause == cause].sum()) == causes.get(int(cause), 0)


@examples(40)
@given(wait_traces(crossing=True))
def test_no_two_slices_of_a_lane_overlap_and_none_is_lost(trace: Trace) -> None:
    analysis = analyze(attribute(trace))
    found = timeline(analysis)
    slices, kind = found.slices, kinds(found)
    same = (np.diff(slices.track) == 0) & (np.diff(slices.lane) == 0)
    assert (slices.start[1:][same] >= slices.end[:-1][same]).all()
    for wanted, rows in (
        (TrackKind.CALLS, np.arange(len(trace.calls))),
        (TrackKind.STREAM, np.flatnonzero(analysis.attribution.valid)),
        (TrackKind.RANGES, np.flatnonzero(~analysis.attribution.tree.folded)),
    ):
        assert sorted(slices.row[kind == wanted].tolist()) == rows.tolist()


@examples(25)
@given(wait_traces())
def test_an_op_leads_to_its_call_also_in_a_part(trace: Trace) -> None:
    analysis = analyze(attribute(trace))
    found = timeline(analysis)
    part = found.take(np.flatnonzero(np.arange(len(found.slices)) % 3 != 1))
    for some in (found, part):
        kind, slices = kinds(some), some.slices
        for op in np.flatnonzero(kind == TrackKind.STREAM).tolist():
            call = int(some.call[op])
            if call >= 0:
                assert kind[call] == TrackKind.CALLS
                assert slices.row[call] == analysis.attribution.call[slices.row[op]]
            elif some is found:
                assert analysis.attribution.call[slices.row[op]] < 0


@pytest.fixture(scope="module")
def demo() -> Analysis:
    from nvprobe.demo import unpacked
    from nvprobe.readers import load

    with unpacked() as path:
        return analyze(attribute(load(path)))


def test_host_threads_stand_above_devices_and_the_initiating_one_first(demo: Analysis) -> None:
    tracks = timeline(demo).tracks
    assert [track.kind for track in tracks[:2]] == [TrackKind.RANGES, TrackKind.CALLS]
    thread = int(demo.attribution.initiating[tracks[0].process])
    assert tracks[0].number == int(demo.attribution.trace.threads.tid[thread])
    assert tracks[-1].kind == TrackKind.STREAM
    assert [track.kind for track in tracks].count(TrackKind.IDLE) == 1
