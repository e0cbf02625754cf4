"""The lines and rows of a sidecar as structs (docs/sidecar.md), and reading one file into them.

A sidecar is text that anybody may have written: a line or row that is not as documented is counted,
never guessed at. Fields and kinds that nothing here reads are ignored.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec

from nvprobe import limits
from nvprobe.errors import InputError
from nvprobe.readers.input_errors import base_name, shown, too_much

SCHEMA = "nvprobe.sidecar/1"

Whole = Annotated[int, msgspec.Meta(ge=-(2**61), le=2**61)]
"""A time or a count; sums of such numbers cannot wrap."""
Stack = tuple[str, ...] | None


class Line(msgspec.Struct, frozen=True, tag_field="kind"):
    """A line of one kind; times in unix ns."""


class Header(Line, frozen=True, tag="header"):
    """Who wrote the file."""

    schema: str
    nvprobe: str | None = None
    pid: Whole | None = None
    rank: Whole | None = None


class Truncated(Line, frozen=True, tag="truncated"):
    """Later rows are missing."""


class Root(Line, frozen=True, tag="root"):
    """A model whose modules were given ranges."""

    name: str


class Sync(Line, frozen=True, tag="sync"):
    """An implicit synchronization."""

    source: str
    stack: Stack = None
    count: Whole = 1
    sampled: bool = False


class Node(msgspec.Struct, frozen=True):
    """An FX node of a kernel."""

    fx: str
    op: str
    module: tuple[str | None, str | None] | None = None
    src: str | None = None
    bwd: bool = False
    from_node: Any = None
    seq_nr: Whole | None = None


class Kernel(msgspec.Struct, frozen=True):
    """A call in the generated code."""

    name: str
    extern: bool = False
    nodes: tuple[Node, ...] | None = None


class Graph(Line, frozen=True, tag="graph"):
    """The kernel manifest of a compiled graph."""

    compile_id: str
    phase: str = ""
    kernels: tuple[Kernel, ...] | None = None


class GraphBreak(Line, frozen=True, tag="graph_break"):
    """Why a graph ended."""

    compile_id: str | None = None
    reason: str | None = None
    source: str | None = None
    function: str | None = None
    stack: Stack = None


class Reason(msgspec.Struct, frozen=True):
    """Why one earlier compilation did not fit."""

    guard: str | None = None


class Recompile(Line, frozen=True, tag="recompile"):
    """A further compilation of a frame."""

    compile_id: str | None = None
    source: str | None = None
    function: str | None = None
    reasons: tuple[Reason, ...] | None = None


class CompileSpan(Line, frozen=True, tag="compile_span"):
    """A compilation by torch's own metrics."""

    start_unix_ns: Whole | None = None
    end_unix_ns: Whole | None = None
    compile_id: str | None = None
    phase: str | None = None
    function: str | None = None
    source: str | None = None
    cache_hits: Whole | None = None
    failed: str | None = None


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


class PlaceRow(msgspec.Struct, frozen=True):
    """A line of the program where something that has a name begins."""

    name: str
    role: str
    source: str
    category: str | None = None
    stack: Stack = None
    detail: str | None = None
    count: Whole = 1


LINES: dict[str, type[Line]] = {
    str(line.__struct_config__.tag): line
    for line in (
        Header, Truncated, Root, Sync, Graph, GraphBreak, Recompile, CompileSpan, Capture,
    )
}  # fmt: skip
"""What a line of each kind is read as."""
ROWS: dict[str, type[msgspec.Struct]] = {
    "module": ModuleRow, "step": StepRow, "allocator": AllocatorRow, "place": PlaceRow,
}  # fmt: skip
"""What a row of each kind is read as."""


class _Kind(msgspec.Struct):
    kind: str = ""


class _Rows(msgspec.Struct):
    columns: list[str]
    rows: list[Any]


_KIND = msgspec.json.Decoder(_Kind)
_TABLE = msgspec.json.Decoder(_Rows)
_DECODERS = {kind: msgspec.json.Decoder(line) for kind, line in LINES.items()}


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
        kind = _KIND.decode(line).kind
        if kind in ROWS:
            self.lines[kind] += self._rows(ROWS[kind], _TABLE.decode(line))
        elif kind in _DECODERS:
            self.lines[kind].append(_DECODERS[kind].decode(line))

    def _rows(self, row: type[msgspec.Struct], table: _Rows) -> Iterator[msgspec.Struct]:
        for values in table.rows:
            try:
                pairs = zip(table.columns, values, strict=True)
                yield msgspec.convert(dict(pairs), row)
            except (msgspec.ValidationError, TypeError, ValueError):
                self.malformed += 1


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
