"""NVTX of an nsys export: ranges, spans, marks, and the domains and categories they are in."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from nvprobe.readers.nsys.export import Export
from nvprobe.readers.nsys.names import Names
from nvprobe.readers.nsys.payloads import DecodedPayloads
from nvprobe.readers.nsys.processes import ProcessIndex
from nvprobe.readers.nsys.python_stacks import PYTHON_DOMAINS
from nvprobe.readers.nsys.tables import UNKNOWN, Rows, distinct, possible
from nvprobe.readers.nsys.versions import Event
from nvprobe.trace import (
    NO_NAME,
    NO_PAYLOAD,
    NO_ROW,
    OPEN,
    Column,
    Marks,
    Payloads,
    Ranges,
    RangeSource,
    Spans,
)

_EVENTS = "NVTX_EVENTS"
_GIL = "GIL Trace"
_PAYLOADS = ("int64Value", "uint64Value", "int32Value", "uint32Value")


@dataclass(frozen=True)
class Annotations:
    """What was annotated; nothing where the export has no NVTX table."""

    ranges: Ranges = field(default_factory=Ranges.absent)
    spans: Spans = field(default_factory=Spans.absent)
    marks: Marks = field(default_factory=Marks.absent)
    payloads: Payloads = field(default_factory=Payloads.absent)
    domains: Column | None = None
    """String rows of the domains that were created."""
    thread_names: tuple[Column, Column] | None = None
    """Thread rows and the string rows of the names the program gave them."""


def read_annotations(
    export: Export, strings: pa.StringArray, decoded: DecodedPayloads | None
) -> Annotations:
    """Ranges (push/pop), spans, marks, values of payloads, created domains and named threads.

    Who holds the GIL (``--trace=python-gil``) is recorded as push/pop ranges, but begins and ends
    anywhere in what the program annotates: those are spans.
    """
    rows = export.rows.get(_EVENTS)
    if rows is None:
        return Annotations()
    events = _Events(rows, export.index, export.names)
    kind = rows.ints("eventType", -1)
    created = np.flatnonzero(kind == Event.DOMAIN_CREATE)
    named = np.flatnonzero((kind == Event.THREAD_NAME) & (events.name != NO_NAME))
    pushed = _among(kind, Event.PUSH_POP, Event.TEXT_PUSH_POP)
    spans = _among(kind, Event.START_END, Event.TEXT_START_END)
    made = events.name[created[events.name[created] != NO_NAME]]
    text = [strings[row].as_py() for row in made.tolist()]
    lock = np.array([one == _GIL for one in text], bool)
    if lock.any():
        held = np.isin(events.domain[pushed], made[lock])
        spans, pushed = np.concatenate((spans, pushed[held])), pushed[~held]
    return Annotations(
        ranges=events.ranges(pushed),
        payloads=Payloads.absent() if decoded is None else events.payloads(decoded, pushed),
        spans=events.spans(spans),
        marks=events.marks(_among(kind, Event.MARK, Event.TEXT_MARK)),
        domains=made[[one not in (_GIL, *PYTHON_DOMAINS) for one in text]],
        thread_names=(events.thread[named], events.name[named]),
    )


def _among(kind: Column, *events: Event) -> Column:
    """Rows of the given events."""
    found = np.zeros(len(kind), bool)
    for event in events:
        found |= kind == event
    return np.flatnonzero(found)


class _Events:
    """The columns that all NVTX events share, as rows of the Trace's tables."""

    def __init__(self, rows: Rows, index: ProcessIndex, names: Names) -> None:
        self.rows = rows
        self.index = index
        self.thread = index.thread(_EVENTS)
        self.process = index.thread_process[self.thread]
        self.start = rows.ints("start", 0)
        end = rows.ints("end", OPEN)
        self.end = np.where(possible(end), end, OPEN)
        self.name = names.annotations()
        self.label = np.where(self.name == NO_NAME, np.int32(names.unnamed), self.name)
        kind = rows.ints("eventType", -1)
        domain_id = rows.ints("domainId", 0)
        self.domain = _defined(
            [self.process, domain_id], self.name, np.flatnonzero(kind == Event.DOMAIN_CREATE)
        )
        self.category = _defined(
            [self.process, domain_id, rows.ints("category", UNKNOWN)],
            self.name,
            _among(kind, Event.CATEGORY, Event.TEXT_CATEGORY),
        )

    def ranges(self, rows: Column) -> Ranges:
        """Push/pop ranges; payloads where any range carries one."""
        payload = self._payload()
        return Ranges(
            **self._shared(rows),
            start=self.start[rows],
            end=self.end[rows],
            source=np.full(len(rows), RangeSource.NVTX, np.int8),
            payload=None if payload is None else payload[rows],
        )

    def spans(self, rows: Column) -> Spans:
        """Start/end ranges; one that ended nowhere ends on its own thread."""
        end_thread = self.index.thread(_EVENTS, "endGlobalTid")[rows]
        return Spans(
            **self._shared(rows),
            end_thread=np.where(end_thread < 0, self.thread[rows], end_thread),
            start=self.start[rows],
            end=self.end[rows],
        )

    def marks(self, rows: Column) -> Marks:
        """Instantaneous marks."""
        return Marks(**self._shared(rows), time=self.start[rows])

    def _shared(self, rows: Column) -> dict[str, Column]:
        """The columns that ranges, spans and marks have in common."""
        return {
            "process": self.process[rows],
            "thread": self.thread[rows],
            "name": self.label[rows],
            "domain": self.domain[rows],
            "category": self.category[rows],
        }

    def payloads(self, decoded: DecodedPayloads, ranges: Column) -> Payloads:
        """Values of structured payloads; ``ranges`` are the rows that became ranges."""
        rows = decoded.event
        schema, field, text = decoded.names()
        place = np.searchsorted(ranges, rows)
        found = place < len(ranges)
        found[found] = ranges[place[found]] == rows[found]
        return Payloads(
            process=self.process[rows],
            thread=self.thread[rows],
            start=self.start[rows],
            end=np.maximum(self.end[rows], self.start[rows]),
            range=np.where(found, place, NO_ROW),
            domain=self.domain[rows],
            schema_name=schema,
            field=field,
            element=decoded.element,
            integer=decoded.integer,
            real=decoded.real,
            text=text,
        )

    def _payload(self) -> Column | None:
        """The integer payload, of whatever width it was given in."""
        payload = np.full(len(self.rows), NO_PAYLOAD, np.int64)
        found = False
        for column in _PAYLOADS:
            known = self.rows.known(column)
            if known.any():
                found = True
                known &= payload == NO_PAYLOAD
                payload[known] = self.rows.ints(column, NO_PAYLOAD)[known]
        return payload if found else None


def _defined(keys: list[Column], name: Column, definitions: Column) -> Column:
    """int32 string row of what each row's ``keys`` were defined as, ``NO_NAME`` where nothing.

    ``definitions`` are the rows that define a name; of several, the last. A domain or category
    is known by (process, domain id[, category id]): ids are reused between processes.
    """
    out = np.full(len(name), NO_NAME, np.int32)
    if not len(definitions):
        return out
    combined = np.zeros(len(name), np.int64)
    for key in keys:
        values, codes = distinct(np.asarray(key, np.int64))
        _, combined = distinct(combined * len(values) + codes)
        combined = combined.astype(np.int64)
    lookup = np.full(int(combined.max()) + 1, NO_NAME, np.int32)
    lookup[combined[definitions]] = name[definitions]
    return lookup[combined]
