"""Summaries as Parquet: one small file per capture, found by the capture's content.

The key is a hash of every byte of the capture and of the code that summarizes it. So a file is
never stale, a second command (or one that continues where another was killed) reads what is there,
and two workers that summarize the same capture write the same file. Files are written beside their
place and moved into it.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from nvprobe.cache_folder import cache_folder, make_own
from nvprobe.ranks.discovery import Source
from nvprobe.ranks.summary import (
    Collectives,
    Groups,
    Identity,
    Kernels,
    Spent,
    Steps,
    Summary,
)
from nvprobe.trace import Table
from nvprobe.version import __version__

_TABLES: dict[str, type[Table]] = {
    "steps": Steps,
    "spent": Spent,
    "collectives": Collectives,
    "groups": Groups,
    "kernels": Kernels,
}
_BLOCK = 1 << 20
_PACKED = 14
"""How much longer the text of a compressed trace is."""
_MAKERS = ("readers", "trace", "merging", "attribution", "analysis", "ranks")
"""Packages that have a say in what a summary holds."""


def default_folder() -> Path | None:
    """Where summaries are kept unless a folder is given; None where the cache is off."""
    root = cache_folder()
    if root is None or not make_own(root) or not make_own(root / "ranks"):
        return None
    return root / "ranks"


def key_of(source: Source) -> str:
    """Hash of a source: its identity, all of its content, and the code that reads it."""
    digest = hashlib.blake2b(_makers(), digest_size=20)
    about = dataclasses.replace(source, files=())
    digest.update(msgspec.json.encode(dataclasses.asdict(about)))
    for file in _all_files(source.files):
        digest.update(f"{file.name}\0{file.stat().st_size}\0".encode())
        with file.open("rb") as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
    return digest.hexdigest()


def content_bytes(source: Source) -> int:
    """Bytes of a source's text and tables; compressed ones counted as what they unpack to."""
    files = _all_files(source.files)
    return sum(one.stat().st_size * (_PACKED if one.suffix == ".gz" else 1) for one in files)


def _all_files(files: Sequence[str]) -> Iterator[Path]:
    for given in map(Path, files):
        inside = sorted(given.rglob("*")) if given.is_dir() else [given]
        yield from (file for file in inside if file.is_file())


@functools.cache
def _makers() -> bytes:
    """A digest of the version and the source of everything that makes a summary."""
    digest = hashlib.blake2b(__version__.encode(), digest_size=20)
    root = Path(__file__).parent.parent
    for package in _MAKERS:
        for file in sorted((root / package).rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.digest()


def write(folder: Path, key: str, ranks: Sequence[Summary]) -> Path:
    """Put the summaries of a source into their place."""
    folder.mkdir(parents=True, exist_ok=True)
    handle, partial = tempfile.mkstemp(prefix=f".{key[:8]}-", dir=folder)
    os.close(handle)
    try:
        pq.write_table(_table(ranks), partial, compression="zstd")
        return Path(partial).replace(folder / f"{key}.parquet")
    finally:
        Path(partial).unlink(missing_ok=True)


def read(path: Path) -> list[Summary]:
    """The summaries of a source; OSError or ArrowException where the file is absent or damaged."""
    table = pq.read_table(path, use_threads=False)
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    return [_summary(columns, row) for row in range(len(table))]


def _table(ranks: Sequence[Summary]) -> pa.Table:
    """One row per rank; its tables are lists of structs."""
    columns: dict[str, Any] = {
        "identity": [msgspec.json.encode(dataclasses.asdict(one.identity)) for one in ranks],
        "utc": [one.utc for one in ranks],
        "gpu": [one.gpu for one in ranks],
    }
    for name in ("texts", "compiled", "notes"):
        columns[name] = pa.array([list(getattr(one, name)) for one in ranks], pa.list_(pa.string()))
    for name in _TABLES:
        columns[name] = _lists([getattr(one, name) for one in ranks])
    return pa.table(columns)


def _lists(tables: Sequence[Table]) -> pa.ListArray:
    offsets = np.cumsum([0, *map(len, tables)])
    names = list(tables[0].columns())
    values = [np.concatenate([table.columns()[name] for table in tables]) for name in names]
    structs = pa.StructArray.from_arrays([pa.array(one) for one in values], names=names)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), structs)


def _summary(columns: dict[str, Any], row: int) -> Summary:
    tables: dict[str, Any] = {
        name: tuple(columns[name][row].as_py()) for name in ("texts", "compiled", "notes")
    }
    for name, kind in _TABLES.items():
        structs = columns[name][row].values
        tables[name] = kind(
            **{
                column.name: structs.field(column.name).to_numpy(zero_copy_only=False)
                for column in kind.column_schemas()
            }
        )
    return Summary(
        identity=Identity(**msgspec.json.decode(columns["identity"][row].as_py())),
        utc=columns["utc"][row].as_py(),
        gpu=columns["gpu"][row].as_py(),
        **tables,
    )
