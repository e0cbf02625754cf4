"""An analysis as a folder of Parquet or CSV files, one a table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from nvprobe.analysis.result import Analysis
from nvprobe.report.event_tables import TABLES, event_tables
from nvprobe.report.result_tables import RESULTS, result_tables
from nvprobe.report.schema import arrow, flat

__all__ = ["table_names", "write_csv", "write_parquet"]


def table_names() -> set[str]:
    """Every table there can be, in any format."""
    empty = (flat(name, arrow(table.row, ())) for name, table in RESULTS.items())
    return {*TABLES, *(name for some in empty for name in some)}


def write_parquet(analysis: Analysis, folder: Path) -> None:
    """Write ``<table>.parquet`` for every table into ``folder``."""
    import pyarrow.parquet as pq

    for name, table in _tables(analysis).items():
        place = folder / f"{name}.parquet"
        with place.open("wb") as file:  # pyarrow itself opens no name that is no text
            pq.write_table(table, file, compression="zstd")


def write_csv(analysis: Analysis, folder: Path) -> None:
    """Write ``<table>.csv`` for every table into ``folder``; null is empty, texts are quoted.

    Lists become tables of their own (``schema.flat``).
    """
    from pyarrow import csv

    tables = (flat(name, table) for name, table in _tables(analysis).items())
    for name, table in (one for some in tables for one in some.items()):
        plain = [
            pa.chunked_array([chunk.dictionary_decode() for chunk in column.chunks])
            if pa.types.is_dictionary(column.type)
            else column
            for column in table.columns
        ]
        with (folder / f"{name}.csv").open("wb") as file:
            csv.write_csv(pa.table(plain, names=table.column_names), file)


def _tables(analysis: Analysis) -> dict[str, pa.Table]:
    results = {name: table for name, table in result_tables(analysis).items() if len(table)}
    return {**results, **event_tables(analysis.attribution)}
