"""``nvprobe.analyze``: an analysis as DataFrames, files and a notebook cell."""

from __future__ import annotations

import html
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, Union

from nvprobe.analysis import analyze as analyze_attribution
from nvprobe.analysis.result import Analysis
from nvprobe.analysis.selection import Selection, select
from nvprobe.errors import UsageError
from nvprobe.merging.load import load
from nvprobe.trace import Trace

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa

__all__ = ["Results", "analyze"]

T = TypeVar("T", int, str)
Input = Union[Trace, str, "os.PathLike[str]"]


def analyze(
    *inputs: Input,
    index_rules: Sequence[str] = (),
    processes: int | Sequence[int] = (),
    devices: int | Sequence[int] = (),
    threads: int | Sequence[int] = (),
    domains: str | Sequence[str] = (),
    ranges: str | Sequence[str] = (),
    steps: tuple[int, int] | None = None,
    time: tuple[int | None, int | None] | None = None,
) -> Results:
    """Attribute and analyse what :func:`nvprobe.load` returned, or the files themselves.

    The filters are those of the command line (docs/inputs.md), one or several of each: pids,
    physical devices, thread ids, NVTX domains, paths with ``*``; ``(first, one after the last)``
    step, ``(begin, end)`` in ns.
    Raises :class:`~nvprobe.errors.InputError` where an input cannot be used,
    :class:`~nvprobe.errors.UsageError` where a filter names what the capture does not have.
    """
    selection = Selection(
        processes=_several(processes),
        devices=_several(devices),
        threads=_several(threads),
        domains=_several(domains),
        ranges=_several(ranges),
        steps=steps,
        time=time,
    )
    return Results(analyze_attribution(select(_trace(inputs), selection, index_rules)))


def _several(given: T | Sequence[T]) -> tuple[T, ...]:
    """One filter, or several of them."""
    return (given,) if isinstance(given, (int, str)) else tuple(given)


def _trace(inputs: tuple[Input, ...]) -> Trace:
    if len(inputs) == 1 and isinstance(inputs[0], Trace):
        return inputs[0]
    files = [given for given in inputs if not isinstance(given, Trace)]
    if len(files) < len(inputs):
        raise UsageError("analyze takes one Trace, or files: nvprobe.load merges several files")
    return load(*files)


class Results:
    """What an analysis found. Integers are exact and nullable (``Int64``), times are ns."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        """The analysis itself: numpy columns, as docs/ARCHITECTURE.md describes them."""

    @property
    def verdict(self) -> str:
        """The one line to remember."""
        return self.analysis.verdict

    @property
    def document(self) -> dict[str, Any]:
        """The document ``nvprobe.analysis/1``."""
        from nvprobe.report.tables import document

        return document(self.analysis)

    @property
    def ranges(self) -> pd.DataFrame:
        """Owner paths with their quantities, by path."""
        return self.table("paths").set_index("path")

    @property
    def kernels(self) -> pd.DataFrame:
        """Kernels by name."""
        return self.table("kernels")

    @property
    def operators(self) -> pd.DataFrame:
        """Torch operators by name and shapes."""
        return self.table("operators")

    @property
    def modules(self) -> pd.DataFrame:
        """GPU time of modules, forward and backward."""
        return self.table("modules")

    @property
    def steps(self) -> pd.DataFrame:
        """Training steps."""
        return self.table("steps")

    @property
    def syncs(self) -> pd.DataFrame:
        """Synchronising calls by path and source line."""
        return self.table("syncs")

    @property
    def idle(self) -> pd.DataFrame:
        """Idle time of the GPUs by path and cause."""
        return self.table("idle")

    @property
    def findings(self) -> pd.DataFrame:
        """What costs time, and what to try."""
        return self.table("findings")

    @property
    def ledger(self) -> pd.DataFrame:
        """Every op by process and method or reason."""
        return self.table("ledger")

    @property
    def missing(self) -> pd.DataFrame:
        """What the capture cannot tell, why, and how to record it."""
        return self.table("missing")

    def table(self, name: str) -> pd.DataFrame:
        """One table of results by its name in docs/tables.md; without rows where there are none."""
        import pandas as pd

        from nvprobe.report.result_tables import COLUMNS, LISTS, result_tables

        if name != "paths" and name not in LISTS:
            raise UsageError(f"no table {name!r}: there are paths, {', '.join(LISTS)}")
        found = result_tables(self.analysis)
        return _frame(found[name]) if name in found else pd.DataFrame(columns=COLUMNS[name])

    def events(self, name: str) -> pd.DataFrame:
        """One table of events (``ops``, ``calls``, ``range_events``, …) of docs/tables.md."""
        import pandas as pd

        from nvprobe.report.event_tables import TABLES, event_tables

        if name not in TABLES:
            raise UsageError(f"no events {name!r}: there are {', '.join(TABLES)}")
        found = event_tables(self.analysis.attribution)
        columns = [field.name for field in TABLES[name]]
        return _frame(found[name]) if name in found else pd.DataFrame(columns=columns)

    def to_sqlite(self, path: str | os.PathLike[str]) -> None:
        """Write a database that does not exist yet: docs/tables.md tells what is in it."""
        from nvprobe.report.database import write_database

        write_database(self.analysis, _new(path))

    def to_parquet(self, folder: str | os.PathLike[str]) -> None:
        """Write a new folder with a Parquet file a table."""
        from nvprobe.report.files import write_parquet

        place = _new(folder)
        place.mkdir()
        write_parquet(self.analysis, place)

    def to_csv(self, folder: str | os.PathLike[str]) -> None:
        """Write a new folder with a CSV file a table."""
        from nvprobe.report.files import write_csv

        place = _new(folder)
        place.mkdir()
        write_csv(self.analysis, place)

    def to_json(self, path: str | os.PathLike[str] | None = None) -> str:
        """The document ``nvprobe.analysis/1`` as text, also written to ``path`` where given."""
        from nvprobe.report.tables import to_json

        text = to_json(self.analysis)
        if path is not None:
            _new(path).write_text(text + "\n", "utf-8")
        return text

    def __repr__(self) -> str:
        """The verdict."""
        return f"<nvprobe: {self.verdict}>"

    def _repr_html_(self) -> str:
        """The verdict and the paths with most GPU time, for a notebook."""
        columns = ["calls", "wall_ns", "ops", "gpu_ns", "gpu_self_ns"]
        frame = self.ranges
        top = frame[[name for name in columns if name in frame]].nlargest(15, "gpu_ns")
        return f"<p><b>{html.escape(self.verdict)}</b></p>{top.to_html()}"


def _new(path: str | os.PathLike[str]) -> Path:
    place = Path(path)
    if place.exists():
        raise UsageError(f"{place.name} exists already; name another, or remove it first")
    return place


def _frame(table: pa.Table) -> pd.DataFrame:
    import pandas as pd
    import pyarrow as pa

    frame: pd.DataFrame = table.to_pandas(types_mapper={pa.int64(): pd.Int64Dtype()}.get)
    return frame
