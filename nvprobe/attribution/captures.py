"""Ranges that a sidecar noted inside CUDA graph captures: they lie before the profiled window.

They never become ranges of the Trace (their host time is not of the window). They only answer
which path was open when a graph's node was created, where the profile itself cannot.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from nvprobe.attribution.kinds import range_kinds
from nvprobe.attribution.model import Kind
from nvprobe.attribution.names import CleanNames
from nvprobe.attribution.nesting import nest
from nvprobe.attribution.openpaths import OpenPaths, RangeFacts, own_paths
from nvprobe.trace import NO_NAME, Column, Ranges, RangeSource, Trace
from nvprobe.trace.sidecar import CaptureRanges

__all__ = ["captured_ranges", "with_captures"]


def captured_ranges(trace: Trace) -> CaptureRanges:
    """The ranges of all captures that could be brought onto the trace's clock."""
    captures = trace.sidecar.captures
    placed = (captures.end > captures.start) & (captures.start != -1)
    return captures if placed.all() else captures.take(placed)


def with_captures(
    trace: Trace, look_up: OpenPaths, captures: CaptureRanges, text: Column, names: CleanNames
) -> OpenPaths:
    """A look-up that also knows the paths open inside captures; ``text`` is each one's name."""
    if not len(captures):
        return look_up
    code = names.code[text]
    none = np.full(len(captures), NO_NAME)
    ranges = Ranges(
        process=captures.process,
        thread=captures.thread,
        start=captures.start,
        end=captures.end,
        name=captures.name,
        domain=none,
        category=none,
        source=np.full(len(captures), RangeSource.NVTX),
    )
    numbered = names.operator_id[text] >= 0
    kind = range_kinds(trace, ranges, code, names.names, numbered)
    kind[np.isin(captures.category, _rows_of(trace, captures.category, "module"))] = Kind.MODULE
    nesting = nest(captures.thread, captures.start, captures.end, len(trace.threads))
    facts = RangeFacts(code, kind, ranges.domain, numbered).take(nesting.row)
    own, _ = own_paths(look_up.trie, nesting, facts)
    captured = dataclasses.replace(look_up, nesting=nesting, facts=facts, own=own)
    return dataclasses.replace(look_up, captured=captured)


def _rows_of(trace: Trace, column: Column, text: str) -> list[int]:
    """The rows among a column's strings that say ``text``."""
    used = np.unique(column[column >= 0])
    return [int(row) for row, one in zip(used, trace.texts(used), strict=True) if one == text]
