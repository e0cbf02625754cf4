"""Decode the pieces of a torch trace, repair or count what is broken, and collect the events."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from nvprobe.readers.input_errors import counted
from nvprobe.readers.kineto.collect import Collector
from nvprobe.readers.kineto.events import Event, InexactTimes, TextEvent
from nvprobe.readers.kineto.salvage import salvage
from nvprobe.readers.kineto.stream import EventStream

_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


@dataclass
class Damage:
    """What of a file could not be read as it stands."""

    lost: int = 0
    repaired: int = 0
    documents: int = 0
    cut: bool = False
    """The text ends before the event list does."""
    damaged: bool = False
    """The compressed data are damaged: nothing after the fault can be read."""

    def warnings(self, file: str) -> list[str]:
        """What a user should know, one sentence each."""
        warnings = []
        if self.lost:
            lost = counted(self.lost, "broken event")
            warnings.append(f"{file}: lost {lost} that could not be read")
        if self.repaired:
            warnings.append(
                f"{file}: repaired {counted(self.repaired, 'event')} of invalid JSON "
                "(control characters, UTF-8, backslashes, quotes or NaN)"
            )
        if self.damaged and self.cut:
            warnings.append(f"{file}: the compressed data are corrupt; what follows is lost")
        elif self.damaged:
            warnings.append(
                f"{file}: the compressed data are corrupt (the checksum does not fit): "
                "some events may have been altered; copy the file again"
            )
        elif self.cut:
            warnings.append(
                f"{file}: truncated, the events after the cut are lost "
                "(did the process end while it was writing?)"
            )
        if self.documents:
            warnings.append(
                f"{file}: several writers wrote into this one file; "
                "give each rank a file of its own"
            )
        return warnings


@dataclass
class Reading:
    """What stands around the events, and what went wrong while reading them."""

    head: bytes
    tail: bytes
    damage: Damage
    beginning: bytes
    """The first bytes of the text."""


class _Decoder:
    """The decoder of pieces; it keeps the digits of times once floats cannot hold them."""

    def __init__(self, collector: Collector) -> None:
        self.collector = collector
        self._use(Event)

    def _use(self, event: type[Any]) -> None:
        self.events = msgspec.json.Decoder(list[event])  # type: ignore[valid-type]
        self.raws = msgspec.json.Decoder(list[msgspec.Raw])
        self.event = msgspec.json.Decoder(event, strict=False)
        self.text_times = event is TextEvent

    def collect(self, piece: bytes) -> int:
        """Decode and collect a piece of valid JSON; how many events had unusable fields.

        Strict decoding is a fifth faster; numbers that are written as text need the lenient one.
        """
        text = b"[" + piece + b"]"
        lost = 0
        try:
            events = self.events.decode(text)
        except msgspec.ValidationError:
            events, lost = self._one_by_one(text)
        try:
            self.collector.add(events, text_times=self.text_times)
        except InexactTimes:
            self._use(TextEvent)
            return self.collect(piece)
        return lost

    def _one_by_one(self, text: bytes) -> tuple[list[Any], int]:
        events, lost = [], 0
        for raw in self.raws.decode(text):
            try:
                events.append(self.event.decode(raw))
            except msgspec.ValidationError:
                try:
                    events.append(self.event.decode(_usable(raw)))
                except msgspec.ValidationError:
                    lost += 1
        return events, lost


def _usable(raw: msgspec.Raw) -> bytes:
    """The event without the arguments whose type no one expects."""
    event = msgspec.json.decode(raw)
    if not isinstance(event, dict):
        return b"0"
    arguments = event.get("args")
    kept = arguments.items() if isinstance(arguments, dict) else ()
    event["args"] = {key: value for key, value in kept if type(value) is int}
    return msgspec.json.encode(event)


def read_events(path: Path, collector: Collector) -> Reading:
    """Read all events of a file into ``collector``."""
    stream = EventStream(path)
    decoder = _Decoder(collector)
    damage = Damage()
    unfinished = b""
    with _no_cyclic_gc():
        for piece in stream:
            # The cut between two pieces took the comma between two events.
            whole = unfinished + b"," + piece if unfinished else piece
            try:
                damage.lost += decoder.collect(whole)
                unfinished = b""
            except _UNREADABLE:
                unfinished = _collect_sound(whole, decoder, damage, stream)
    damage.cut = not stream.ended
    damage.damaged = "damaged" in stream.faults
    damage.lost += bool(unfinished)
    return Reading(stream.head, stream.tail, damage, stream.beginning)


def _collect_sound(piece: bytes, decoder: _Decoder, damage: Damage, stream: EventStream) -> bytes:
    """Collect what is sound in a broken piece; the event it ends in the middle of."""
    found = salvage(piece)
    damage.lost += found.lost
    damage.repaired += found.repaired
    damage.documents += found.documents
    damage.lost += _collect_all(found.events, decoder)
    if found.tail is not None:
        stream.ended = True
        stream.tail = found.tail.encode()
    return found.unfinished.encode()


def _collect_all(events: list[bytes], decoder: _Decoder) -> int:
    """Collect events, together or, where that fails, one by one; how many cannot be read."""
    try:
        return decoder.collect(b",".join(events))
    except _UNREADABLE:
        if len(events) < 2:
            return len(events)
    half = len(events) // 2
    return _collect_all(events[:half], decoder) + _collect_all(events[half:], decoder)


@contextmanager
def _no_cyclic_gc() -> Iterator[None]:
    """Events hold no cycles; looking for some among millions of them takes a third of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
