"""Torch traces of one run as one Trace: several processes, or several cycles of a profiler.

Every file keeps a row of its own among the processes, also where two of one process follow each
other: correlation ids, threads and autograd numbers count within one file, and the ledger says
each apart. All times are counted from the earliest file's zero. What no file recorded, between two
cycles, is ``Trace.unrecorded``: no device is idle there, for nobody looked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from nvprobe.readers.kineto.captures import with_earlier_captures
from nvprobe.trace import NO_NAME, NO_ROW, OPEN, Column, Devices, Table, Trace

_REFERRED = ("processes", "threads", "ops", "ranges")
"""Tables whose rows follow one another; texts and devices are each there once."""


def joined(traces: Sequence[Trace]) -> Trace:
    """One Trace of traces of one machine that record their time zero; a single one as it is."""
    if len(traces) == 1:
        return traces[0]
    traces = sorted(traces, key=lambda trace: trace.origin_ns or 0)
    return with_earlier_captures(_together(traces))


def _together(traces: Sequence[Trace]) -> Trace:
    """The tables of all traces, one after the other."""
    zero = traces[0].origin_ns or 0
    shifts = [(one.origin_ns or 0) - zero for one in traces]
    pairs = zip(traces, shifts, strict=True)
    windows = [(one.start_ns + shift, one.end_ns + shift) for one, shift in pairs]
    strings, names = _one_vocabulary(traces)
    devices, device_rows = _devices(traces, names)
    places = {
        "strings": names,
        "devices": device_rows,
        **{name: _places([len(getattr(one, name)) for one in traces]) for name in _REFERRED},
    }
    moves = [
        ({name: rows[n] for name, rows in places.items()}, _later(shift))
        for n, shift in enumerate(shifts)
    ]
    tables: dict[str, Any] = {
        spec.name: _end_to_end(traces, spec.name, moves)
        for spec in dataclasses.fields(Trace)
        if isinstance(getattr(traces[0], spec.name), Table)
    }
    return dataclasses.replace(
        traces[0],
        **tables | {"devices": devices},
        strings=strings,
        sources=tuple(source for one in traces for source in one.sources),
        warnings=tuple(warning for one in traces for warning in one.warnings),
        missing=tuple(dict.fromkeys(missing for one in traces for missing in one.missing)),
        start_ns=min(windows)[0],
        end_ns=max(end for _, end in windows),
        unrecorded=_holes(windows),
    )


def _end_to_end(traces: Sequence[Trace], name: str, moves: list[Any]) -> Table:
    """One table of all traces that have it, references and times brought together."""
    pairs = zip(traces, moves, strict=True)
    tables = [getattr(one, name).moved(*move) for one, move in pairs if name in one.recorded]
    kind: type[Table] = type(getattr(traces[0], name))
    return kind.joined([table.columns() for table in tables])


def _later(shift: int) -> Callable[[str, Column], Column]:
    """Instants of one trace in the joined one; 0 is a time that cannot be: it stays what it is."""

    def moved(_: str, times: Column) -> Column:
        return np.where((times == 0) | (times == OPEN), times, times + shift)

    return moved


def _holes(windows: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """What lies between the windows and in none of them."""
    holes, reached = [], min(windows)[0]
    for start, end in sorted(windows):
        if start > reached:
            holes.append((reached, start))
        reached = max(reached, end)
    return tuple(holes)


def _devices(traces: Sequence[Trace], names: list[Column]) -> tuple[Devices, list[Column]]:
    """Physical devices, each once, and the row of each trace's own rows among them."""
    together = Devices.joined(
        [
            one.devices.columns() | {"name": texts[one.devices.name]}
            for one, texts in zip(traces, names, strict=True)
        ]
    )
    ids, first = np.unique(together.id, return_index=True)
    rows = [np.append(np.searchsorted(ids, one.devices.id), NO_ROW) for one in traces]
    return together.take(first), rows


def _one_vocabulary(traces: Sequence[Trace]) -> tuple[pa.StringArray, list[Column]]:
    """(all texts, each once; the row of each trace's strings among them, ``NO_NAME`` for -1)."""
    encoded = pa.concat_arrays(
        [one.strings.cast(pa.string()) for one in traces]
    ).dictionary_encode()
    rows = np.asarray(encoded.indices, np.int64)
    bounds = np.cumsum([len(one.strings) for one in traces])[:-1]
    return encoded.dictionary, [np.append(part, NO_NAME) for part in np.split(rows, bounds)]


def _places(lengths: list[int]) -> list[Column]:
    """The rows of each of some tables once they stand one after the other, -1 behind them."""
    ends = np.cumsum(lengths)
    pairs = zip(lengths, ends, strict=True)
    return [np.append(np.arange(end - length, end), NO_ROW) for length, end in pairs]
