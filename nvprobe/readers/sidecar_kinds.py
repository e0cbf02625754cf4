"""The lines and rows of a sidecar as structs (docs/sidecar.md), and reading one file into them.

A sidecar is text that anybody may have written: a line or row that is not as documented is counted,
never guessed at. Fields and kinds that nothing here reads are ignored.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from nvprobe import limits
from nvprobe.errors import InputError
from nvprobe.readers.input_errors import base_name, shown, too_much
from nvprobe.trace.sidecar import (
    CompileSpan,
    GraphBreak,
    GraphManifest,
    Line,
    ModuleObject,
    Place,
    Recompile,
    SyncSource,
    Whole,
)

SCHEMA = "nvprobe.sidecar/1"


class Header(Line, frozen=True, tag="header"):
    """Who wrote the file."""

    schema: str
    nvprobe: str | None = None
    pid: Whole | None = None
    rank: Whole | None = None


class Torch(Line, frozen=True, tag="torch"):
    """The versions that the program runs with."""

    version: str
    cuda: str | None = None
    driver: str | None = None

    @property
    def facts(self) -> dict[str, str]:
        """What is known, by the names of reports."""
        named = {"torch": self.version, "CUDA of torch": self.cuda, "NVIDIA driver": self.driver}
        return {name: value for name, value in named.items() if value}


class ClockReading(Line, frozen=True, tag="clock"):
    """Clocks of the machine at one instant."""

    mark_ns: tuple[Whole, Whole] | None = None
    """Unix ns before and after a mark."""
    perf_ns: Whole | None = None
    """ns of the monotonic clock, right after it."""


class Truncated(Line, frozen=True, tag="truncated"):
    """Later rows are missing."""


class Root(Line, frozen=True, tag="root"):
    """A model whose modules were given ranges."""

    name: str


class CaptureRange(msgspec.Struct, frozen=True, array_like=True):
    """A range that was opened on the capturing thread."""

    name: str
    depth: Whole
    start_ns: Whole
    end_ns: Whole | None
    category: str | None = None


class Capture(Line, frozen=True, tag="cudagraph"):
    """A capture of a CUDA graph."""

    event: str
    id: Whole = 0
    thread: Whole = 0
    end_ns: Whole | None = None
    ranges: tuple[CaptureRange, ...] = ()


class ModuleRow(msgspec.Struct, frozen=True):
    """A call of a module's forward."""

    module: str
    thread: Whole
    first_seq: Whole
    last_seq: Whole
    start_ns: Whole
    end_ns: Whole


class StepRow(msgspec.Struct, frozen=True):
    """A step of the program."""

    step: Whole
    start_ns: Whole
    end_ns: Whole
    source: str | None = None


class AllocatorRow(msgspec.Struct, frozen=True):
    """A reading of the counters of torch's allocator."""

    device: Whole
    time_ns: Whole
    allocated: Whole
    reserved: Whole
    peak_allocated: Whole
    peak_reserved: Whole
    retries: Whole | None = None
    device_allocs: Whole | None = None
    device_frees: Whole | None = None
    out_of_memory: Whole | None = None


LINES: dict[str, type[Line]] = {
    str(line.__struct_config__.tag): line
    for line in (
        Header, Torch, Truncated, Root, SyncSource, GraphManifest, GraphBreak, Recompile,
        CompileSpan, Capture, ClockReading,
    )
}  # fmt: skip
"""What a line of each kind is read as."""
ROWS: dict[str, type[msgspec.Struct]] = {
    "module": ModuleRow, "step": StepRow, "allocator": AllocatorRow, "place": Place,
    "object": ModuleObject,
}  # fmt: skip
"""What a row of each kind is read as."""


_DECODER = msgspec.json.Decoder(dict[str, Any])


@dataclasses.dataclass
class SidecarFile:
    """One file as it stands: times in unix ns, threads by their tid."""

    file: str
    header: Header | None = None
    lines: dict[str, list[Any]] = dataclasses.field(default_factory=lambda: defaultdict(list))
    """Lines and rows by kind: of :data:`LINES` and :data:`ROWS`."""
    warnings: list[str] = dataclasses.field(default_factory=list)
    malformed: int = 0
    """Lines and rows that are not as documented."""

    def take(self, line: bytes) -> None:
        """Add one line; raises the errors of msgspec."""
        fields = _DECODER.decode(line)
        kind = msgspec.convert(fields.get("kind", ""), str)
        if kind in ROWS:
            columns, rows = msgspec.convert(
                (fields.get("columns"), fields.get("rows")), tuple[list[str], list[Any]]
            )
            self.lines[kind] += self._rows(ROWS[kind], columns, rows)
        elif kind in LINES:
            self.lines[kind].append(msgspec.convert(_known(fields.items()), LINES[kind]))

    def _rows(
        self, row: type[msgspec.Struct], columns: list[str], rows: list[Any]
    ) -> Iterator[msgspec.Struct]:
        for values in rows:
            try:
                yield msgspec.convert(_known(zip(columns, values, strict=True)), row)
            except (msgspec.ValidationError, TypeError, ValueError):
                self.malformed += 1


def _known(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Fields with a value: null is the same as absent."""
    return {name: value for name, value in pairs if value is not None}


def read_sidecar(path: str | Path) -> SidecarFile:
    """Read one file; a cut last line is dropped and reported."""
    path = Path(path)
    found = SidecarFile(base_name(path))
    broken = 0
    try:
        with path.open("rb") as file:
            while line := file.readline(limits.record_bytes() + 1):
                if len(line) > limits.record_bytes():
                    raise too_much(path, f"a line of more than {len(line) >> 20:,} MiB")
                try:
                    found.take(line)
                except msgspec.ValidationError:
                    found.malformed += 1
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    broken += bool(line.strip())
    except OSError as error:
        raise InputError(
            f"{shown(path)}: cannot be read: {error.strerror}; check the path"
        ) from None
    found.header = next(iter(found.lines["header"]), None)
    if found.header is None or found.header.schema != SCHEMA:
        raise InputError(
            f"{shown(path)}: not a sidecar of nvprobe (no header {SCHEMA}); leave it out"
        )
    if broken:
        found.warnings.append(f"{shown(path)}: {broken} incomplete lines of the sidecar are lost")
    if found.lines["truncated"]:
        found.warnings.append(
            f"{found.file}: the sidecar reached its limit; later rows are missing"
        )
    return found
