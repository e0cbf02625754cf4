"""GPU metrics as nsys exported them before it had a table for them (2020 to 2022): as JSON.

A sample is a row of ``GENERIC_EVENTS`` whose JSON holds every metric by name; the row's type
belongs to a source of ``GENERIC_EVENT_SOURCES`` that calls itself ``GpuMetrics``. Arrow parses all
of them at once; where it cannot (one row is damaged, or a metric is a number here and a text there)
they are parsed one by one, and what is not JSON is counted.
"""

from __future__ import annotations

import io
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.readers.nsys.export import Export
from nvprobe.readers.nsys.processes import Gpus, metric_devices
from nvprobe.readers.nsys.tables import UNKNOWN, ExportRows, Handle, StringPool, Tables, possible
from nvprobe.readers.nsys.versions import METRICS
from nvprobe.trace import NO_NAME, Column, Counters

_SOURCE = "GpuMetrics"
_NUMBER = r"^\s*[-+]?\d+(\.\d+)?([eE][-+]?\d+)?\s*$"


@dataclass(frozen=True)
class GenericMetrics:
    """Samples, one row per metric and instant."""

    type: Column
    """Type of the event: which GPU was sampled."""
    time: Column
    metric: Column
    """Place of its name in what the handle keeps."""
    value: Column
    names: Handle


def read_generic_metrics(
    exported: ExportRows, tables: Tables, pool: StringPool
) -> GenericMetrics | None:
    """All samples; ``None`` where the export has none in this form, or has its own table."""
    types = None if METRICS in exported.rows else _metric_types(tables)
    rows = tables.read("GENERIC_EVENTS") if types is not None and len(types) else None
    if types is None or rows is None:
        return None
    raw, converted = rows.ints("rawTimestamp", UNKNOWN), rows.ints("timestamp", UNKNOWN)
    time, kind = np.where(converted == UNKNOWN, raw, converted), rows.ints("typeId", UNKNOWN)
    sampled = np.flatnonzero(np.isin(kind, types) & possible(time))
    texts = pc.fill_null(rows.texts("data").take(pa.array(sampled)), "")
    parsed = _parsed(texts, exported.warnings)
    names = [name for name, _, _ in parsed]
    parts = [(row, np.full(len(row), place), value) for place, (_, row, value) in enumerate(parsed)]
    if not parts:
        return None
    row, metric, value = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    order = np.lexsort((metric, row))
    at = sampled[row[order]]
    handle = pool.add(pa.array(names, pa.string()))
    return GenericMetrics(kind[at], time[at], metric[order], value[order], handle)


def _metric_types(tables: Tables) -> Column | None:
    """Types of events whose source says it samples GPU metrics."""
    sources, types = tables.read("GENERIC_EVENT_SOURCES"), tables.read("GENERIC_EVENT_TYPES")
    if sources is None or types is None:
        return None
    about = [_object(text).get("Name") for text in sources.texts("data").to_pylist()]
    names = sources.ints("nameId", UNKNOWN)
    registered = tables.strings(np.unique(names)).take(pa.array(np.unique(names, False, True)[1]))
    named = pc.equal(registered, _SOURCE).fill_null(False).to_numpy(zero_copy_only=False)
    is_ours = np.array([name == _SOURCE for name in about], bool) | named
    ids = sources.ints("sourceId", UNKNOWN)[is_ours]
    kinds: Column = types.ints("typeId", UNKNOWN)[np.isin(types.ints("sourceId", UNKNOWN), ids)]
    return kinds


def _object(text: str | None) -> dict[str, object]:
    try:
        found = msgspec.json.decode(text or "{}")
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _parsed(texts: pa.StringArray, warnings: list[str]) -> list[tuple[str, Column, Column]]:
    """(metric, texts that have it, its value in each)."""
    if not len(texts):
        return []
    try:
        return [_known(name, values) for name, values in _at_once(texts)]
    except pa.ArrowException:
        return _one_by_one(texts.to_pylist(), warnings)


def _known(name: str, values: Column) -> tuple[str, Column, Column]:
    known = np.flatnonzero(~np.isnan(values))
    return name, known, values[known]


def _at_once(texts: pa.StringArray) -> Iterator[tuple[str, Column]]:
    """(metric, value per text) with NaN where a text lacks it."""
    from pyarrow import json

    lines = pc.binary_join(pa.array([texts], pa.list_(pa.string())), "\n")[0].as_buffer()
    table = json.read_json(io.BytesIO(lines))
    if len(table) != len(texts):
        raise pa.ArrowInvalid("a sample is empty, or broken over lines")
    for name in table.column_names:
        values = table.column(name).combine_chunks()
        if pa.types.is_string(values.type):
            fits = pc.match_substring_regex(values, _NUMBER)
            values = pc.cast(pc.utf8_trim_whitespace(pc.if_else(fits, values, None)), pa.float64())
        if pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
            yield name, values.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False)


def _one_by_one(texts: list[str], warnings: list[str]) -> list[tuple[str, Column, Column]]:
    columns: dict[str, tuple[list[int], list[float]]] = defaultdict(lambda: ([], []))
    broken = 0
    for row, text in enumerate(texts):
        found = _object(text)
        broken += not found
        for name, value in found.items():
            number = _number(value)
            if not math.isnan(number):
                rows, numbers = columns[name]
                rows.append(row)
                numbers.append(number)
    if broken:
        warnings.append(f"{broken} samples of GPU metrics are not JSON and are left out")
    return [
        (name, np.array(rows, np.int64), np.array(numbers, np.float64))
        for name, (rows, numbers) in columns.items()
    ]


def _number(value: object) -> float:
    """NaN for what is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return math.nan
    try:
        return float(value)
    except (ValueError, OverflowError):
        return math.nan


def read_counters(export: Export, tables: Tables) -> Counters:
    """Samples of GPU metrics. A metric is known by its type (which GPU) and number."""
    rows = export.rows.get(METRICS)
    if rows is None:
        return Counters.absent()
    types, type_codes = export.events.encoded(METRICS, "typeId")
    metrics, metric_codes = export.events.encoded(METRICS, "metricId")
    listed = tables.read("TARGET_INFO_GPU_METRICS")
    label = np.full((len(types), len(metrics)), NO_NAME, np.int32)
    if listed is not None:
        at = np.searchsorted(types, of_type := listed.ints("typeId", UNKNOWN))
        number = np.searchsorted(metrics, of_metric := listed.ints("metricId", UNKNOWN))
        at, number = np.minimum(at, len(types) - 1), np.minimum(number, len(metrics) - 1)
        used = np.zeros(len(listed), bool)
        if len(rows):
            used = (types[at] == of_type) & (metrics[number] == of_metric)
        label[at[used], number[used]] = export.names.metrics[used]
    return Counters(
        device=np.searchsorted(export.gpus.ids, metric_devices(types))[type_codes],
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
