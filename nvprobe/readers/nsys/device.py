"""What nsys records of the GPU beside its work: metrics, memory, events, page faults."""

from __future__ import annotations

import numpy as np

from nvprobe.readers.nsys.event_rows import (
    CPU_FAULTS,
    CUDA_EVENTS,
    GPU_FAULTS,
    MEMORY,
    METRICS,
    UNKNOWN,
    Frames,
)
from nvprobe.readers.nsys.metrics import GenericMetrics
from nvprobe.readers.nsys.names import Names
from nvprobe.readers.nsys.processes import Gpus, People, metric_devices
from nvprobe.readers.nsys.strings import StringPool
from nvprobe.readers.nsys.tables import Tables
from nvprobe.trace import (
    NO_DEVICE,
    NO_NAME,
    NO_ROW,
    Calls,
    Column,
    Counters,
    CudaEvents,
    MemoryEvents,
    PageFaults,
    PayloadFields,
)

__all__ = [
    "counters_of",
    "read_counters",
    "read_cuda_events",
    "read_memory",
    "read_page_faults",
    "read_payload_fields",
]

_FREED = 1
"""``memoryOperationType`` of a deallocation."""
_HOST_MEMORY = (0, 1)
"""``memKind`` of pageable and pinned memory."""


def read_counters(frames: Frames, gpus: Gpus, names: Names, tables: Tables) -> Counters:
    """Samples of GPU metrics. A metric is known by its type (which GPU) and number."""
    rows = frames.rows.get(METRICS)
    if rows is None:
        return Counters.absent()
    types, type_codes = frames.encoded(METRICS, "typeId")
    metrics, metric_codes = frames.encoded(METRICS, "metricId")
    listed = tables.read("TARGET_INFO_GPU_METRICS")
    label = np.full((len(types), len(metrics)), NO_NAME, np.int32)
    if listed is not None:
        at = np.searchsorted(types, of_type := listed.ints("typeId", UNKNOWN))
        number = np.searchsorted(metrics, of_metric := listed.ints("metricId", UNKNOWN))
        at, number = np.minimum(at, len(types) - 1), np.minimum(number, len(metrics) - 1)
        used = np.zeros(len(listed), bool)
        if len(rows):
            used = (types[at] == of_type) & (metrics[number] == of_metric)
        label[at[used], number[used]] = names.metrics[used]
    return Counters(
        device=np.searchsorted(gpus.ids, metric_devices(types))[type_codes],
        time=rows.ints("timestamp", 0),
        metric=label[type_codes, metric_codes],
        value=rows.ints("value", 0),
    )


def counters_of(samples: GenericMetrics | None, gpus: Gpus, pool: StringPool) -> Counters:
    """Samples of GPU metrics that the export holds as generic events."""
    if samples is None:
        return Counters.absent()
    return Counters(
        device=np.searchsorted(gpus.ids, metric_devices(samples.type)),
        time=samples.time,
        metric=pool.rows(samples.names)[samples.metric],
        value=samples.value,
    )


def read_cuda_events(frames: Frames, people: People, gpus: Gpus) -> CudaEvents:
    """Records of CUDA events."""
    rows = frames.rows.get(CUDA_EVENTS)
    if rows is None:
        return CudaEvents.absent()
    process = people.process(CUDA_EVENTS)
    time = rows.ints("timestamp", 0)
    return CudaEvents(
        process=process,
        device=gpus.device(CUDA_EVENTS, process),
        context=rows.ints("contextId", -1),
        stream=rows.ints("streamId", -1),
        correlation=rows.ints("correlationId", 0),
        event=rows.ints("eventId", -1),
        event_sync=rows.ints("eventSyncId", -1),
        time=np.where(time == 0, -1, time),
    )


def read_memory(frames: Frames, people: People, gpus: Gpus, calls: Calls) -> MemoryEvents:
    """Allocations and frees of the driver (``--cuda-memory-usage``)."""
    rows = frames.rows.get(MEMORY)
    if rows is None:
        return MemoryEvents.absent()
    process = people.process(MEMORY)
    unknown = np.full(len(rows), -1, np.int64)
    freed = rows.ints("memoryOperationType", 0) == _FREED
    size = rows.ints("bytes", 0)
    on_host = np.isin(rows.ints("memKind", -1), _HOST_MEMORY)
    return MemoryEvents(
        process=process,
        thread=_calling_thread(process, rows.ints("correlationId", 0), calls),
        time=rows.ints("start", 0),
        device=np.where(on_host, NO_DEVICE, gpus.device(MEMORY, process)),
        address=rows.ints("address", 0),
        bytes=np.where(freed, -size, size),
        allocated=unknown,
        reserved=unknown,
    )


def _calling_thread(process: Column, correlation: Column, calls: Calls) -> Column:
    """Thread row of the call of each (process, correlation), ``NO_ROW`` where there is none."""
    if not len(calls) or not len(process):
        return np.full(len(process), NO_ROW, np.int32)
    some = np.flatnonzero(np.isin(calls.correlation, correlation))
    order = some[np.lexsort((calls.correlation[some], calls.process[some]))]
    known = _pairs(calls.process[order], calls.correlation[order])
    wanted = _pairs(process, correlation)
    place = np.minimum(np.searchsorted(known, wanted), max(len(known) - 1, 0))
    if not len(known):
        return np.full(len(process), NO_ROW, np.int32)
    return np.where(known[place] == wanted, calls.thread[order[place]], NO_ROW)


def _pairs(process: Column, correlation: Column) -> Column:
    """Process and correlation as one sortable value each."""
    pairs = np.empty(len(process), [("process", np.int32), ("correlation", np.int64)])
    pairs["process"], pairs["correlation"] = process, correlation
    return pairs


def read_page_faults(frames: Frames, people: People, gpus: Gpus) -> PageFaults:
    """Page faults of unified memory on either side."""
    parts = []
    for table, rows in frames.get(CPU_FAULTS, GPU_FAULTS):
        process = people.process(table)
        on_gpu = table == GPU_FAULTS
        start = rows.ints("start", 0)
        parts.append(
            {
                "process": process,
                "device": gpus.device(table, process)
                if on_gpu
                else np.full(len(rows), NO_DEVICE, np.int32),
                "start": start,
                "end": rows.ints("end", 0) if on_gpu else start,
                "address": rows.ints("address", 0),
                "count": rows.ints("numberOfPageFaults", 1),
            }
        )
    if not parts:
        return PageFaults.absent()
    return PageFaults(**{name: np.concatenate([p[name] for p in parts]) for name in parts[0]})


def read_payload_fields(tables: Tables, names: Names) -> PayloadFields:
    """Fields of the payload schemas that programs registered."""
    rows, schemas = tables.read("NVTX_PAYLOAD_SCHEMA_ENTRIES"), tables.read("NVTX_PAYLOAD_SCHEMAS")
    if rows is None:
        return PayloadFields.absent()
    titles: dict[tuple[int, int], int] = {}
    if schemas is not None:
        keys = zip(
            schemas.ints("domainId", 0).tolist(), schemas.ints("schemaId", 0).tolist(), strict=True
        )
        titles = dict(zip(keys, names.payload_schemas.tolist(), strict=True))
    domain, schema = rows.ints("domainId", 0), rows.ints("schemaId", 0)
    title = [titles.get(key, NO_NAME) for key in zip(domain.tolist(), schema.tolist(), strict=True)]
    return PayloadFields(
        domain=domain,
        schema=schema,
        schema_name=np.array(title, np.int32),
        index=rows.ints("idx", 0),
        name=names.payload_fields,
        type=rows.ints("type", -1),
        offset=rows.ints("offset", 0),
    )
