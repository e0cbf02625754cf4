"""Torch traces of one run as one Trace: several processes, or several cycles of a profiler.

Every file keeps a row of its own among the processes, also where two of one process follow each
other: correlation ids, threads and autograd numbers count within one file, and the ledger says
each apart. All times are counted from the earliest file's zero. What no file recorded, between two
cycles, is ``Trace.unrecorded``: no device is idle there, for nobody looked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from nvprobe.readers.kineto.captures import with_earlier_captures
from nvprobe.trace import NO_NAME, NO_ROW, OPEN, Column, Devices, Table, Trace

_TIMES = frozenset({"start", "end", "time", "end_time"})
_NAMES = frozenset(
    ["name", "short_name", "domain", "category", "shapes", "types", "arguments", "metric", "group"]
)
_REFERENCES = {"op": "ops", "range": "ranges"}
_THREADS = frozenset({"thread", "end_thread"})


def joined(traces: Sequence[Trace]) -> Trace:
    """One Trace of traces of one machine that record their time zero; a single one as it is."""
    if len(traces) == 1:
        return traces[0]
    traces = sorted(traces, key=lambda trace: trace.origin_ns or 0)
    return with_earlier_captures(_together(traces))


def _together(traces: Sequence[Trace]) -> Trace:
    """The tables of all traces, one after the other."""
    parts = _Parts(traces)
    tables: dict[str, Any] = {
        spec.name: parts.table(spec.name)
        for spec in dataclasses.fields(Trace)
        if isinstance(getattr(traces[0], spec.name), Table) and spec.name != "devices"
    }
    return dataclasses.replace(
        traces[0],
        **tables,
        strings=parts.strings,
        devices=parts.devices,
        sources=tuple(source for one in traces for source in one.sources),
        warnings=tuple(warning for one in traces for warning in one.warnings),
        missing=tuple(dict.fromkeys(missing for one in traces for missing in one.missing)),
        start_ns=min(parts.windows)[0],
        end_ns=max(end for _, end in parts.windows),
        unrecorded=_holes(parts.windows),
    )


def _holes(windows: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """What lies between the windows and in none of them."""
    holes, reached = [], min(windows)[0]
    for start, end in sorted(windows):
        if start > reached:
            holes.append((reached, start))
        reached = max(reached, end)
    return tuple(holes)


class _Parts:
    """What has to be added to the rows, names and times of each trace."""

    def __init__(self, traces: Sequence[Trace]) -> None:
        self.traces = traces
        self.processes = _before([len(one.processes) for one in traces])
        self.threads = _before([len(one.threads) for one in traces])
        self.strings, self.names = _one_vocabulary(traces)
        self.of = {
            name: _before([len(getattr(one, name)) for one in traces])
            for name in _REFERENCES.values()
        }
        zero = traces[0].origin_ns or 0
        self.shift = [(one.origin_ns or 0) - zero for one in traces]
        pairs = zip(traces, self.shift, strict=True)
        self.windows = [(one.start_ns + shift, one.end_ns + shift) for one, shift in pairs]
        self.devices, self.device_rows = self._devices()

    def table(self, name: str) -> Table:
        """One table of all traces that have it, references and times brought together."""
        places = [n for n, one in enumerate(self.traces) if name in one.recorded]
        if not places:
            absent: Table = getattr(self.traces[0], name)
            return absent
        tables = [getattr(self.traces[n], name) for n in places]
        columns: dict[str, Any] = {}
        for spec in dataclasses.fields(tables[0]):
            values = [getattr(table, spec.name) for table in tables]
            columns[spec.name] = (
                None
                if any(value is None for value in values)
                else np.concatenate(
                    [
                        self._moved(n, spec.name, value)
                        for n, value in zip(places, values, strict=True)
                    ]
                )
            )
        made: Table = type(tables[0])(**columns)
        return made

    def _moved(self, n: int, column: str, values: Column) -> Column:
        """A column of trace ``n`` as the joined tables have it."""
        if column in _TIMES:  # 0 is a time that cannot be: it stays what it is
            return np.where((values == 0) | (values == OPEN), values, values + self.shift[n])
        if column in _NAMES:
            return self.names[n][values]
        if column == "device":
            return np.where(values >= 0, self.device_rows[n][values], values)
        if column == "process":
            return values + self.processes[n]
        if column in _THREADS:
            return np.where(values >= 0, values + self.threads[n], NO_ROW)
        if column in _REFERENCES:
            return values + self.of[_REFERENCES[column]][n]
        return values

    def _devices(self) -> tuple[Devices, list[Column]]:
        """Physical devices, each once, and the row of each trace's own rows among them."""
        together = [
            dataclasses.replace(one.devices, name=self.names[n][one.devices.name])
            for n, one in enumerate(self.traces)
        ]
        columns = {
            spec.name: np.concatenate([getattr(one, spec.name) for one in together])
            for spec in dataclasses.fields(Devices)
        }
        ids, first = np.unique(columns["id"], return_index=True)
        rows = [np.append(np.searchsorted(ids, one.devices.id), NO_ROW) for one in self.traces]
        return Devices(**columns).take(first), rows


def _one_vocabulary(traces: Sequence[Trace]) -> tuple[pa.StringArray, list[Column]]:
    """(all texts, each once; the row of each trace's strings among them, ``NO_NAME`` for -1)."""
    encoded = pa.concat_arrays(
        [one.strings.cast(pa.string()) for one in traces]
    ).dictionary_encode()
    rows = np.asarray(encoded.indices, np.int64)
    bounds = np.cumsum([len(one.strings) for one in traces])[:-1]
    return encoded.dictionary, [np.append(part, NO_NAME) for part in np.split(rows, bounds)]


def _before(lengths: list[int]) -> list[int]:
    return [0, *np.cumsum(lengths[:-1]).tolist()]
