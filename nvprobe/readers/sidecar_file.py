"""One sidecar as it stands (docs/sidecar.md): its lines by kind, its rows by column.

A line or row that is not as documented is counted, never guessed at: a sidecar is text that anybody
may have written.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from nvprobe import limits
from nvprobe.errors import InputError
from nvprobe.readers.input_errors import base_name, shown, too_much

__all__ = ["SCHEMA", "SidecarFile", "is_whole", "read_sidecar", "whole"]

SCHEMA = "nvprobe.sidecar/1"
_KINDS = ("graph", "graph_break", "recompile", "compile_span", "cudagraph", "sync", "root")
_MODULE = ("thread", "first_seq", "last_seq", "start_ns", "end_ns")
_STEP = ("step", "start_ns", "end_ns")
_READING = ("device", "time_ns", "allocated", "reserved", "peak_allocated", "peak_reserved")
_MOST = 2**61
"""Greater numbers are no times and no counts; sums of those within cannot wrap."""


@dataclasses.dataclass
class SidecarFile:
    """One file as it stands: times in unix ns, threads by their tid."""

    file: str
    header: dict[str, Any]
    lines: dict[str, list[dict[str, Any]]]
    """Lines of the kinds that matter here, by kind."""
    modules: dict[str, list[Any]]
    """Columns of the module rows."""
    warnings: list[str]
    allocator: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    """Readings of the allocator's counters."""
    steps: dict[str, list[Any]] = dataclasses.field(default_factory=lambda: defaultdict(list))
    """Columns of the step rows."""
    strange: int = 0
    """Lines and rows that are not as documented."""


def read_sidecar(path: str | Path) -> SidecarFile:
    """Read one file; a cut last line is dropped and told."""
    path = Path(path)
    found = SidecarFile(base_name(path), {}, defaultdict(list), defaultdict(list), [])
    decoder = msgspec.json.Decoder(dict[str, Any])
    broken = 0
    try:
        with path.open("rb") as file:
            while line := file.readline(limits.record_bytes() + 1):
                if len(line) > limits.record_bytes():
                    raise too_much(path, f"a line of more than {len(line) >> 20:,} MiB")
                try:
                    _take(decoder.decode(line), found)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    broken += bool(line.strip())
    except OSError as error:
        raise InputError(
            f"{shown(path)}: cannot be read: {error.strerror}; check the path"
        ) from None
    if found.header.get("schema") != SCHEMA:
        raise InputError(
            f"{shown(path)}: not a sidecar of nvprobe (no header {SCHEMA}); leave it out"
        )
    if broken:
        found.warnings.append(f"{shown(path)}: {broken} incomplete lines of the sidecar are lost")
    return found


def _take(line: dict[str, Any], found: SidecarFile) -> None:
    kind = line.get("kind")
    if kind == "header" and not found.header:
        found.header = line
    elif kind == "module":
        for row in _rows(line, found, _MODULE, ("module",)):
            for name in ("module", *_MODULE):
                found.modules[name].append(row[name])
    elif kind == "step":
        for row in _rows(line, found, _STEP):
            for name in _STEP:
                found.steps[name].append(row[name])
    elif kind == "allocator":
        found.allocator += _rows(line, found, _READING)
    elif kind == "place":
        found.lines["place"] += _rows(line, found, texts=("name", "role", "source"))
    elif kind == "truncated":
        found.warnings.append(
            f"{found.file}: the sidecar reached its limit; later rows are missing"
        )
    elif kind in _KINDS:
        found.lines[kind].append(line)


def _rows(
    line: dict[str, Any],
    found: SidecarFile,
    numbers: tuple[str, ...] = (),
    texts: tuple[str, ...] = (),
) -> Iterator[dict[str, Any]]:
    """The rows of a line by column; those of another length, or without these, are counted."""
    columns, rows = line.get("columns"), line.get("rows")
    if not isinstance(columns, list) or not isinstance(rows, list):
        found.strange += 1
        return
    names = [str(name) for name in columns]
    for values in rows:
        fits = isinstance(values, list) and len(values) == len(names)
        row = dict(zip(names, values, strict=True)) if fits else {}
        if fits and whole(row, numbers) and all(isinstance(row.get(t), str) for t in texts):
            yield row
        else:
            found.strange += 1


def whole(row: dict[str, Any], names: tuple[str, ...]) -> bool:
    """Whether all of these values are whole numbers."""
    return all(is_whole(row.get(name)) for name in names)


def is_whole(value: Any) -> bool:
    """Whether a value is an integer that can be a time or a count."""
    return isinstance(value, int) and abs(value) < _MOST
