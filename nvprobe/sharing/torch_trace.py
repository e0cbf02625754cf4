"""Torch traces: known keys and the fields of each event, written anew as a compressed file."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from nvprobe.errors import InputError
from nvprobe.readers.input_errors import shown
from nvprobe.readers.kineto.metadata import document
from nvprobe.readers.kineto.salvage import salvage
from nvprobe.readers.kineto.stream import EventStream
from nvprobe.sharing.texts import Scrubber

_KEYS = (
    "schemaVersion", "baseTimeNanoseconds", "displayTimeUnit", "deviceProperties",
    "distributedInfo", "cupti_version", "cuda_runtime_version", "cuda_driver_version",
    "hip_runtime_version", "hip_driver_version", "with_stack", "with_flops", "with_modules",
    "record_shapes", "profile_memory",
)  # fmt: skip
"""What may stand around the events; user's metadata and the name of the trace may not."""
_FIELDS = ("ph", "cat", "name", "pid", "tid", "ts", "dur", "id", "bp", "s", "args")
_PROGRAMS = ("process_name", "thread_name")
_RANGES = ("user_annotation", "gpu_user_annotation", "python_function")
"""Categories of events whose names are the program's own."""


def redact_trace(source: Path, target: Path, scrub: Scrubber) -> list[str]:
    """Write a copy of a torch trace; returns the keys around the events that were left out.

    Raises InputError where no event of it can be read.
    """
    stream = EventStream(source)
    events = target.with_name(f"{target.name}.events")
    written = 0
    with gzip.GzipFile(events, "wb", mtime=0) as file:
        for raw in _events(stream):
            event = _event(raw, scrub)
            if event is not None:
                file.write((b",\n" if written else b"\n") + event)
                written += 1
    if not written:
        raise InputError(f"{shown(source)}: has no event that can be read; nothing was written")
    around = document(stream.head, stream.tail)
    _assemble(target, events, {key: scrub.value(around[key]) for key in _KEYS if key in around})
    return sorted({scrub.text(key) for key in around} - {*_KEYS, "traceEvents"})


def _assemble(target: Path, events: Path, around: dict[str, Any]) -> None:
    """What stands around the events is known last and written first: parts of one gzip file."""
    head = b"".join(
        msgspec.json.encode(key) + b":" + msgspec.json.encode(value) + b",\n"
        for key, value in around.items()
    )
    with target.open("wb") as file, events.open("rb") as middle:
        file.write(gzip.compress(b"{" + head + b'"traceEvents":[', mtime=0))
        shutil.copyfileobj(middle, file)
        file.write(gzip.compress(b"]}\n", mtime=0))
    events.unlink()


def _events(stream: EventStream) -> Iterator[bytes | msgspec.Raw]:
    """The text of every sound event."""
    decoder = msgspec.json.Decoder(list[msgspec.Raw])
    unfinished = b""
    for piece in stream:
        whole = unfinished + b"," + piece if unfinished else piece
        try:
            yield from decoder.decode(b"[" + whole + b"]")
            unfinished = b""
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            found = salvage(whole)
            yield from found.events
            unfinished = found.unfinished.encode()
            if found.tail is not None:
                stream.ended = True
                stream.tail = found.tail.encode()


_NUMBER = msgspec.json.Decoder(dict[str, msgspec.Raw])


def _event(raw: bytes | msgspec.Raw, scrub: Scrubber) -> bytes | None:
    """An event with its numbers as they were written; None for what is none."""
    try:
        bytes(raw).decode()
    except UnicodeDecodeError:
        raw = bytes(raw).decode(errors="replace").encode()
    try:
        fields = _NUMBER.decode(raw)
        if "ph" not in fields:
            return None
        own = {key: fields[key] for key in _FIELDS if key in fields}
        texts = {key: value for key, value in own.items() if bytes(value)[:1] in (b'"', b"{", b"[")}
        decoded = {key: msgspec.json.decode(value) for key, value in texts.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    program = decoded.get("name") in _PROGRAMS and decoded.get("ph") == "M"
    named = decoded.get("cat") in _RANGES
    for key, value in decoded.items():
        own[key] = msgspec.Raw(msgspec.json.encode(_value(key, value, scrub, program, named)))
    return msgspec.json.encode(own)


def _value(key: str, value: Any, scrub: Scrubber, program: bool, named: bool) -> Any:
    if key == "name" and isinstance(value, str):
        return scrub.name(value) if named else scrub.kernel_or_frame(value)
    if key == "args" and program and isinstance(value, dict):
        return {k: scrub.program(v) if isinstance(v, str) else v for k, v in value.items()}
    return scrub.value(value)
