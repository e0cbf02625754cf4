"""An analysis as a folder of Parquet or CSV files, one per table."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from nvprobe.analysis.result import Analysis
from nvprobe.report.cells import for_spreadsheet
from nvprobe.report.event_tables import TABLES, event_tables
from nvprobe.report.result_tables import RESULTS, result_tables
from nvprobe.report.schema import arrow, flat


def table_names() -> set[str]:
    """Every table there can be, in any format."""
    empty = (flat(name, arrow(table.row, ())) for name, table in RESULTS.items())
    return {*TABLES, *(name for some in empty for name in some)}


def write_parquet(analysis: Analysis, folder: Path) -> None:
    """Write ``<table>.parquet`` for every table into ``folder``."""
    import pyarrow.parquet as pq

    for name, table in _tables(analysis).items():
        place = folder / f"{name}.parquet"
        with place.open("wb") as file:  # pyarrow itself does not open a name that is not text
            pq.write_table(table, file, compression="zstd")


def write_csv(analysis: Analysis, folder: Path) -> None:
    """Write ``<table>.csv`` for every table into ``folder``; null is empty, texts are quoted.

    Lists become tables of their own (``schema.flat``). A text that a spreadsheet would take for a
    formula begins with ``'``, and control characters are escapes; Parquet and SQLite keep texts as
    they are.
    """
    from pyarrow import csv

    tables = (flat(name, table) for name, table in _tables(analysis).items())
    for name, table in (one for some in tables for one in some.items()):
        plain = [_cells(column) for column in table.columns]
        with (folder / f"{name}.csv").open("wb") as file:
            csv.write_csv(pa.table(plain, names=table.column_names), file)


def _cells(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column as CSV takes it; of a dictionary each text is looked at once."""
    chunks = []
    for chunk in column.chunks:
        if pa.types.is_dictionary(chunk.type):
            texts = for_spreadsheet(chunk.dictionary)
            chunks.append(pa.DictionaryArray.from_arrays(chunk.indices, texts).dictionary_decode())
        else:
            chunks.append(for_spreadsheet(chunk) if pa.types.is_string(chunk.type) else chunk)
    return pa.chunked_array(chunks) if chunks else column


def _tables(analysis: Analysis) -> dict[str, pa.Table]:
    results = {name: table for name, table in result_tables(analysis).items() if len(table)}
    return {**results, **event_tables(analysis.attribution)}
