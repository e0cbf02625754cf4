"""Every event of a capture as Arrow tables, each op with its owner: for pandas, DuckDB and SQL.

:data:`TABLES` is the schema, from which ``scripts/docs`` writes docs/tables.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.attribution.model import Attribution, Kind, Method
from nvprobe.trace import NO_NAME, NO_PAYLOAD, OPEN, Column, OpKind, RangeSource, Table

__all__ = ["ABOUT", "TABLES", "Field", "event_tables"]


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """One column: where it comes from and what it says."""

    name: str
    source: str
    form: str
    """``number``; ``known`` (-1 is null); ``id`` (row of the table); ``text``; ``path`` (its text);
    ``end`` (open is null); ``payload``; ``flag``; an enumeration's name; ``>table`` (refers to the
    ``id`` of that table, -1 is null)."""
    about: str


def _fields(text: str) -> tuple[Field, ...]:
    """Fields from lines of name, source, form and description."""
    lines = (line.split(None, 3) for line in text.splitlines() if line.strip())
    return tuple(Field(name, source, form, about) for name, source, form, about in lines)


_WHO = """
process_id  process  >processes  the process
thread_id   thread   >threads    the thread
"""
_WHEN = """
start_ns  start  number  begin, ns since the begin of the capture
end_ns    end    end     end, null where it never ended
"""

_STACKS = """
id      -       id      row
chain   chain   number  what {of} refers to
depth   depth   number  0 for the innermost frame
symbol  symbol  text    {what}
"""

TABLES: Mapping[str, tuple[Field, ...]] = {
    "processes": _fields("""
id    -     id     row
pid   pid   known  operating system process id
name  name  text   name of the program
rank  rank  known  rank in a distributed job
"""),
    "threads": _fields("""
id          -        id          row
process_id  process  >processes  its process
tid         tid      known       operating system thread id
name        name     text        what the thread is called
"""),
    "devices": _fields("""
id                 -                  id     row
device             id                 known  physical number of the GPU
name               name               text   model
sm_count           sm_count           known  streaming multiprocessors
clock_hz           clock_hz           known  clock frequency
memory_bytes       memory_bytes       known  memory
bandwidth_bytes_s  bandwidth_bytes_s  known  memory bandwidth
"""),
    "calls": _fields(f"""
id           -            id      row
{_WHO}
correlation  correlation  known   joins a call to what it started, within its process
{_WHEN}
name         name         text    function, without ABI suffix
stack        callchain    known   chain in call_stacks
"""),
    "ops": _fields(f"""
id           -            id        row
kind         kind         OpKind    kernel, memcpy, memset, or graph (recorded whole)
process_id   process      >processes  the process
device_id    device       >devices  the GPU
context      context      known     CUDA context
stream       stream       known     CUDA stream
correlation  correlation  number    joins the op to its call, within its process
{_WHEN}
duration_ns  duration     number    0 where its times are impossible
name         name         text      demangled kernel name, or what kind of copy
short_name   short_name   text      kernel name without templates and arguments
bytes        bytes        known     bytes copied or set
copy_kind    copy_kind    known     CUPTI memcpy kind: 1 HtoD, 2 DtoH, 8 DtoD, 10 PtoP
graph_node   graph_node   number    CUDA graph node, 0 outside graphs
call_id      call         >calls    the call that started it
path_id      owner        >paths    the path it belongs to
path         owner        path      the same in words
method       method       Method    how the path was found, or why there is none
"""),
    "geometry": _fields("""
id              -               id      row
op_id           op              >ops    the kernel
grid_x          grid_x          known   blocks
grid_y          grid_y          known   blocks
grid_z          grid_z          known   blocks
block_x         block_x         known   threads a block
block_y         block_y         known   threads a block
block_z         block_z         known   threads a block
registers       registers       known   registers a thread
static_shared   static_shared   known   bytes of shared memory a block that the kernel declares
dynamic_shared  dynamic_shared  known   bytes of shared memory a block that the launch adds
"""),
    "range_events": _fields(f"""
id           -         id        row
{_WHO}
{_WHEN}
name         name      text      as recorded
domain       domain    text      NVTX domain, null for the default one
category     category  text      NVTX category
source       source    RangeSource  nvtx, annotation, operator, module or python
payload      payload   payload   integer payload
path_id      path      >paths    its owner path, the range itself last
path         path      path      the same in words
parent_id    parent    >range_events  the range around it on its thread
step         index     known     the number that ended its name
sequence     sequence  known     autograd sequence number
kind         range_kind  Kind    user, step, phase, module, graph, collective, operator, library
"""),
    "spans": _fields(f"""
id             -           id        row
{_WHO}
end_thread_id  end_thread  >threads  the thread that ended it
{_WHEN}
name           name        text      name
domain         domain      text      NVTX domain
category       category    text      NVTX category
"""),
    "marks": _fields(f"""
id        -         id      row
{_WHO}
time_ns   time      number  when
name      name      text    name
domain    domain    text    NVTX domain
category  category  text    NVTX category
"""),
    "payload_values": _fields(f"""
id         -        id        row
{_WHO}
time_ns    start    number    begin of the event it was attached to
range_id   range    >range_events  that event, null for a span or mark
domain     domain   text      NVTX domain
schema     schema_name  text      payload schema, null where it has no name
field      field    text      field of the schema; inside another schema outer.inner
element    element  number    place among the values of this field in this event, 0 except in arrays
integer    integer  payload   value of an integer; unsigned 64-bit numbers wrap
real       real     real      value of a floating-point number
text       text     text      text, or the name of an enumeration's value
"""),
    "sync_records": _fields(f"""
id           -            id          row
process_id   process      >processes  the process
device_id    device       >devices    the GPU
context      context      known       CUDA context
stream       stream       known       awaited stream, null where the record names none
correlation  correlation  number      joins it to its call, within its process
{_WHEN}
event        event        known       awaited CUDA event
"""),
    "graph_nodes": _fields(f"""
id       -       id      row
{_WHO}
time_ns  time    number  when it was created
node     node    number  node
origin   origin  number  the node it was cloned from, 0 for a first one
"""),
    "memory_events": _fields(f"""
id         -          id        row
{_WHO}
time_ns    time       number    when
device_id  device     >devices  the GPU, null for host memory
address    address    number    address
bytes      bytes      number    negative for a free
allocated  allocated  known     bytes in use afterwards
reserved   reserved   known     bytes the caching allocator holds afterwards
"""),
    "counters": _fields("""
id         -       id        row
device_id  device  >devices  the GPU
time_ns    time    number    when
metric     metric  text      metric with its unit
value      value   real      value
"""),
    "cuda_events": _fields("""
id           -            id          row
process_id   process      >processes  the process
device_id    device       >devices    the GPU
context      context      known       CUDA context
stream       stream       known       CUDA stream
correlation  correlation  number      joins it to its call, within its process
event        event        known       CUDA event
time_ns      time         known       when the GPU reached it
"""),
    "os_calls": _fields(f"""
id       -        id      row
{_WHO}
{_WHEN}
name     name     text    function
nesting  nesting  number  depth among OS calls
stack    stack    known   chain in os_stacks
"""),
    "samples": _fields(f"""
id       -      id      row
{_WHO}
time_ns  time   number  when
cpu      cpu    known   CPU
stack    stack  known   chain in sample_stacks
"""),
    "python_samples": _fields(f"""
id       -      id      row
{_WHO}
time_ns  time   number  when
stack    stack  known   chain in python_stacks
"""),
    "backtraces": _fields(f"""
id       -      id      row
{_WHO}
time_ns  time   number  when the CUDA call began
stack    stack  known   chain in backtrace_stacks
"""),
    "schedule": _fields(f"""
id       -        id      row
{_WHO}
time_ns  time     number  when
cpu      cpu      known   CPU
running  running  flag    1: put on the CPU, 0: taken off
"""),
    "page_faults": _fields(f"""
id          -        id          row
process_id  process  >processes  the process
device_id   device   >devices    the GPU, null for a fault of the CPU
{_WHEN}
address     address  number      page
count       count    number      faults of that page
"""),
    "overheads": _fields(f"""
id    -     id    row
{_WHO}
{_WHEN}
name  name  text  what the profiler did
"""),
    "call_stacks": _fields(_STACKS.format(of="calls.stack", what="function")),
    "os_stacks": _fields(_STACKS.format(of="os_calls.stack", what="function")),
    "sample_stacks": _fields(_STACKS.format(of="samples.stack", what="function")),
    "python_stacks": _fields(
        _STACKS.format(of="python_samples.stack", what="file, line and function")
    ),
    "backtrace_stacks": _fields(
        _STACKS.format(of="backtraces.stack", what="file, line and function")
    ),
}
"""Columns of each table of events. A table that the capture lacks is left out."""

ABOUT: Mapping[str, str] = {
    "processes": "Processes.",
    "threads": "Threads.",
    "devices": "Physical GPUs.",
    "calls": "CUDA runtime and driver calls.",
    "ops": "GPU operations, each with its owner. "
    "Methods and reasons are those of the ledger; they partition the rows.",
    "geometry": "Launch geometry of kernels.",
    "range_events": "Instances of ranges: NVTX push/pop, "
    "and operators and annotations of torch traces.",
    "spans": "Start/end ranges: they may cross threads and overlap.",
    "marks": "NVTX marks.",
    "payload_values": "Values of structured NVTX payloads, one row a value: messages of NCCL, "
    "layers of TensorRT, and what programs attach themselves. "
    "Only in [exports with payloads](inputs.md#payloads).",
    "sync_records": "What synchronising calls waited for.",
    "graph_nodes": "Creations of CUDA graph nodes.",
    "memory_events": "Allocations and frees.",
    "counters": "Samples of GPU metrics.",
    "cuda_events": "Records of CUDA events.",
    "os_calls": "Calls of operating system libraries.",
    "samples": "Periodic samples of threads.",
    "python_samples": "Samples of Python threads.",
    "backtraces": "Python stacks of CUDA calls.",
    "schedule": "Context switches.",
    "page_faults": "Page faults of unified memory.",
    "overheads": "Time that the profiler itself took.",
    "call_stacks": "Native call stacks of CUDA calls.",
    "os_stacks": "Native call stacks of OS calls.",
    "sample_stacks": "Native call stacks of samples.",
    "python_stacks": "Python stacks of samples, innermost frame first.",
    "backtrace_stacks": "Python stacks of CUDA calls, innermost frame first.",
}
"""What a row of each of them is."""

_OF_TRACE = {
    "range_events": "ranges",
    "payload_values": "payloads",
    "sync_records": "syncs",
    "memory_events": "memory",
    "call_stacks": "callchains",
}
_ENUMS = {"OpKind": OpKind, "Method": Method, "RangeSource": RangeSource, "Kind": Kind}


def event_tables(attribution: Attribution) -> dict[str, pa.Table]:
    """All tables that the capture has. Texts are dictionary-encoded, references are int64."""
    trace = attribution.trace
    maker = _Maker(attribution)
    out = {}
    for name in TABLES:
        table = getattr(trace, _OF_TRACE.get(name, name))
        if table.recorded:
            out[name] = maker.table(name, table)
    return out


class _Maker:
    """Turns columns of a Trace into Arrow arrays."""

    def __init__(self, attribution: Attribution) -> None:
        self.attribution = attribution
        self.strings = attribution.trace.strings
        self.paths = pa.array(attribution.paths.texts(), pa.string())

    def table(self, name: str, table: Table) -> pa.Table:
        """One table of events."""
        columns = {**table.columns(), **self._found(name)}
        row = np.arange(len(table))
        if name == "range_events" and self.attribution.unfiltered is not None:
            row = np.flatnonzero(self.attribution.unfiltered.ranges)
            columns = {column: values[row] for column, values in columns.items()}
        arrays = {}
        for field in TABLES[name]:
            if field.form == "id":
                arrays[field.name] = pa.array(row)
            elif field.source in columns:
                arrays[field.name] = self._array(field, columns[field.source])
        return pa.table(arrays)

    def _found(self, name: str) -> dict[str, Column]:
        """What attribution knows of each row."""
        made, tree = self.attribution, self.attribution.tree
        if name == "ops":
            found = ("duration", "call", "owner", "method")
            return {column: getattr(made, column) for column in found}
        if name == "range_events":
            of_tree = ("path", "parent", "index", "sequence", "end")
            return {"range_kind": tree.kind} | {c: getattr(tree, c) for c in of_tree}
        return {}

    def _array(self, field: Field, values: Column) -> pa.Array:
        if field.form in ("text", "path"):
            return _texts(self.strings if field.form == "text" else self.paths, values)
        if field.form in _ENUMS:
            return _words(_ENUMS[field.form], values)
        if field.form == "real":
            return pa.array(values, pa.float64(), mask=np.isnan(values))
        if field.form == "flag":
            return pa.array(values.astype(np.int64))
        absent = {"number": None, "end": OPEN, "payload": NO_PAYLOAD}.get(field.form, -1)
        numbers = values.astype(np.int64, copy=False)
        return pa.array(numbers) if absent is None else pa.array(numbers, mask=numbers == absent)


def _texts(strings: pa.Array, rows: Column) -> pa.Array:
    """Texts as a dictionary of those in use, null for -1."""
    used, code = np.unique(rows, return_inverse=True)
    known = used != NO_NAME
    values = strings.take(pa.array(used[known])).cast(pa.string())
    place: Column = code.astype(np.int32) - int(np.count_nonzero(~known))
    encoded = pc.dictionary_encode(values)  # equal texts may stand in several rows
    if len(encoded):
        place = np.asarray(encoded.indices, np.int32)[place]
    return pa.DictionaryArray.from_arrays(pa.array(place, mask=rows == NO_NAME), encoded.dictionary)


def _words(enum: Any, values: Column) -> pa.Array:
    """The names of an enumeration's values, in lower case."""
    members = list(enum)
    code = np.searchsorted([int(member) for member in members], values)
    words = pa.array([member.name.lower() for member in members])
    return pa.DictionaryArray.from_arrays(pa.array(code.astype(np.int32)), words)
