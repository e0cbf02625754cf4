"""``nvprobe.analyze``: an analysis as DataFrames, files and a notebook cell."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow as pa

from nvprobe.analysis import analyze as analyze_attribution
from nvprobe.analysis.result import Analysis
from nvprobe.analysis.selection import Selection, select
from nvprobe.errors import UsageError
from nvprobe.merging.load import load
from nvprobe.report.cells import visible
from nvprobe.report.document import Document, document, encode, plain
from nvprobe.report.event_tables import TABLES as EVENTS
from nvprobe.report.event_tables import event_table
from nvprobe.report.result_tables import RESULTS, result_tables
from nvprobe.report.schema import NAMED
from nvprobe.trace import Trace

if TYPE_CHECKING:
    import pandas as pd

    from nvprobe.report.notebook import Page

Input: TypeAlias = "Trace | str | os.PathLike[str]"


def analyze(
    *inputs: Input,
    index_rules: str | Sequence[str] = (),
    step_names: str | Sequence[str] = (),
    processes: int | Sequence[int] = (),
    devices: int | Sequence[int] = (),
    threads: int | Sequence[int] = (),
    domains: str | Sequence[str] = (),
    ranges: str | Sequence[str] = (),
    steps: tuple[int, int] | None = None,
    time: tuple[int | None, int | None] | None = None,
    everything: bool = False,
) -> Results:
    """Attribute and analyze what :func:`nvprobe.load` returned, or the files themselves.

    The filters are those of the command line (docs/inputs.md), one or several of each: pids,
    physical devices, thread ids, NVTX domains, paths with ``*``; ``(first, one after the last)``
    step, ``(begin, end)`` in ns. ``index_rules`` are regular expressions that take a number off
    range names (groups ``name`` and ``index``), ``step_names`` those of names that are steps
    (docs/inference.md). Of a whole run its steady steps count, unless ``everything`` is asked for.
    Raises :class:`~nvprobe.errors.InputError` where an input cannot be used,
    :class:`~nvprobe.errors.UsageError` where a filter names what the capture does not have.
    """
    selection = Selection(
        processes=_numbers("processes", processes),
        devices=_numbers("devices", devices),
        threads=_numbers("threads", threads),
        domains=_texts("domains", domains),
        ranges=_texts("ranges", ranges),
        steps=None if steps is None else _window("steps", steps),
        time=None if time is None else _window("time", time),
        step_names=_texts("step_names", step_names),
        everything=everything,
    )
    rules = _texts("index_rules", index_rules)
    return Results(analyze_attribution(select(_trace(inputs), selection, rules)))


def _numbers(name: str, given: int | Sequence[int]) -> tuple[int, ...]:
    """One number, or several; NumPy's count as well."""
    try:
        listed = tuple(given) if isinstance(given, Iterable) else (given,)
        return tuple(index(number) for number in listed)
    except TypeError as error:
        raise UsageError(f"{name}={given!r}: a whole number is needed, or several") from error


def _texts(name: str, given: str | Sequence[str]) -> tuple[str, ...]:
    """One text, or several."""
    listed = (given,) if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
    if not all(isinstance(text, str) for text in listed):
        raise UsageError(f"{name}={given!r}: a text is needed, or several")
    return listed


def _window(name: str, given: tuple[Any, Any]) -> tuple[Any, Any]:
    """Two numbers; those of a time may be left open."""
    needed = "two whole numbers, the first one and the one after the last"
    try:
        first, last = (None if one is None else index(one) for one in given)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name}={given!r}: give {needed}") from error
    if first is None or last is None:
        if name == "steps":
            raise UsageError(f"{name}={given!r}: give {needed}")
    elif last <= first:
        raise UsageError(f"{name}={given!r}: nothing lies between {first} and {last}")
    return first, last


def _trace(inputs: tuple[Input, ...]) -> Trace:
    if len(inputs) == 1 and isinstance(inputs[0], Trace):
        return inputs[0]
    files = [given for given in inputs if not isinstance(given, Trace)]
    if len(files) < len(inputs):
        raise UsageError("analyze takes one Trace, or files: nvprobe.load merges several files")
    return load(*files)


class _Frame:
    """A table of results as an attribute."""

    def __init__(self, table: str) -> None:
        self.table = table
        self.__doc__ = f"Table ``{table}``: {RESULTS[table].about}"

    def __get__(self, results: Results | None, owner: type) -> pd.DataFrame:
        if results is None:
            return self  # type: ignore[return-value]  # the descriptor itself, for help()
        if self.table != "findings":
            return results.table(self.table)
        from nvprobe.report.frames import FindingsFrame

        return FindingsFrame(results.table(self.table))


class Results:
    """What an analysis found, as DataFrames with the columns of docs/tables.md.

    Integers are exact and nullable (``Int64``), times are ns. Tables are made when first used, and
    kept.
    """

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        """The analysis itself: numpy columns, as docs/ARCHITECTURE.md describes them."""
        self._frames: dict[str, pd.DataFrame] = {}

    @property
    def verdict(self) -> str:
        """The one line to remember."""
        return self.analysis.verdict

    @cached_property
    def document(self) -> Document:
        """The document ``nvprobe.analysis/2`` as structs, with the fields of docs/json.md."""
        return document(self.analysis)

    @property
    def ranges(self) -> pd.DataFrame:
        """Table ``paths``: owner paths with their quantities, by path."""
        return self.table("paths").set_index("path")

    kernels = _Frame("kernels")
    copies = _Frame("copies")
    operators = _Frame("operators")
    modules = _Frame("modules")
    steps = _Frame("steps")
    spans = _Frame("span_totals")
    devices = _Frame("device_totals")
    syncs = _Frame("syncs")
    idle = _Frame("idle")
    idle_by_line = _Frame("idle_by_line")
    overlap = _Frame("overlap")
    collectives = _Frame("collectives")
    host = _Frame("host")
    memory = _Frame("memory_devices")
    allocator = _Frame("allocator_devices")
    counters = _Frame("kernel_counters")
    compiled_graphs = _Frame("compiled_graphs")
    findings = _Frame("findings")
    ledger = _Frame("ledger")
    missing = _Frame("missing")

    def table(self, name: str) -> pd.DataFrame:
        """One table of results by its name in docs/tables.md; without rows where there are none."""
        if name not in RESULTS:
            raise UsageError(f"{name!r} is not a table of results; there are {', '.join(RESULTS)}")
        return self._frame(name, lambda: self._results[name])

    def events(self, name: str) -> pd.DataFrame:
        """One table of events (``ops``, ``calls``, ``range_events``, …) of docs/tables.md."""
        if name not in EVENTS:
            raise UsageError(f"{name!r} is not a table of events; there are {', '.join(EVENTS)}")
        return self._frame(f"events {name}", lambda: event_table(self.analysis.attribution, name))

    @cached_property
    def _results(self) -> dict[str, pa.Table]:
        return result_tables(self.analysis, self.document)

    def _frame(self, key: str, table: Callable[[], pa.Table]) -> pd.DataFrame:
        """The DataFrame of a table, made once; what is done to a result does not change it."""
        if key not in self._frames:
            self._frames[key] = _frame(table())
        return self._frames[key].copy(deep=False)

    def to_dict(self) -> dict[str, Any]:
        """The document ``nvprobe.analysis/2`` as dictionaries and lists."""
        return plain(self.document)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """The document ``nvprobe.analysis/2`` as text, also written to ``path`` where given."""
        text = encode(self.document)
        if path is not None:
            _new(path).write_text(text + "\n", "utf-8")
        return text

    def to_sqlite(self, path: str | os.PathLike[str]) -> None:
        """Write a database that does not exist yet: docs/tables.md describes what is in it."""
        from nvprobe.report.database import write_database

        write_database(self.analysis, _new(path))

    def to_parquet(self, folder: str | os.PathLike[str]) -> None:
        """Write a new folder with a Parquet file per table."""
        from nvprobe.report.files import write_parquet

        write_parquet(self.analysis, _new_folder(folder))

    def to_csv(self, folder: str | os.PathLike[str]) -> None:
        """Write a new folder with a CSV file per table."""
        from nvprobe.report.files import write_csv

        write_csv(self.analysis, _new_folder(folder))

    def __repr__(self) -> str:
        """The verdict, what was read, and the tables that have rows."""
        analysis = self.analysis
        files = ", ".join(source.file for source in analysis.attribution.trace.sources)
        findings = [f"  {one.title}" for one in (analysis.findings or ())[:5]]
        lines = [
            f"<nvprobe results of {files}>",
            self.verdict,
            *(["findings:", *findings] if findings else []),
            "DataFrames: ranges, kernels, steps, syncs, idle, findings, …; .table(name) for others",
        ]
        return visible("\n".join(lines))

    def _repr_html_(self) -> str:
        """The first screen of the report, for a notebook."""
        from nvprobe.report.notebook import screen

        return screen(self.analysis)

    def timeline(self, height: int = 700) -> Page:
        """The report's page with its timeline, ``height`` pixels high, for a notebook's cell."""
        from nvprobe.report.notebook import Page
        from nvprobe.report.page import render

        return Page(render(self.analysis, self.document), height)


def _new(path: str | os.PathLike[str]) -> Path:
    place = Path(path)
    if place.exists():
        raise UsageError(f"{place.name} exists already; name another, or remove it first")
    return place


def _new_folder(path: str | os.PathLike[str]) -> Path:
    place = _new(path)
    place.mkdir()
    return place


def _frame(table: pa.Table) -> pd.DataFrame:
    """A DataFrame; lists stay Python lists, and what was a dictionary is one again."""
    import pandas as pd

    from nvprobe.report.frames import CaptureFrame

    nullable = {pa.int64(): pd.Int64Dtype(), pa.bool_(): pd.BooleanDtype()}
    frame: pd.DataFrame = table.to_pandas(types_mapper=nullable.get)
    for field in table.schema:
        if pa.types.is_list(field.type):
            values = table[field.name].to_pylist()
            if field.type == pa.list_(NAMED):
                values = [_dictionary(entries) for entries in values]
            frame[field.name] = pd.Series(values, dtype=object)
    return CaptureFrame(frame)


def _dictionary(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Values by name, each of the type that it has."""
    return {
        entry.pop("name"): next((value for value in entry.values() if value is not None), None)
        for entry in entries
    }
