"""From files to a Trace: the only package that knows foreign schemas."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from nvprobe.errors import UsageError
from nvprobe.readers import cache
from nvprobe.readers.input_errors import unusable
from nvprobe.readers.sniff import Format, sniff
from nvprobe.trace import Trace

__all__ = ["Format", "load", "sniff"]

_LARGE = 64 * 2**20
"""Bytes from which the Trace of an input is kept: smaller ones load as fast as they are found."""


def load(*inputs: str | os.PathLike[str]) -> Trace:
    """The Trace of a report or export of nsys or of a torch trace, told apart by content.

    The Trace of a large input is kept and used again while the input is unchanged
    (`nvprobe.readers.cache`). Raises :class:`~nvprobe.errors.InputError` with one line that names
    the file, what is wrong with it and what to do, where the input cannot be used, and
    :class:`~nvprobe.errors.ToolError` where a report needs an nsys that is not there.
    """
    if len(inputs) != 1:
        raise UsageError(f"expected one input, got {len(inputs)}")
    path = Path(inputs[0])
    kind = sniff(path)
    key = None
    with contextlib.suppress(OSError):
        key = cache.fingerprint(path) if _size(path) >= _LARGE else None
    return _remembered(path, kind, key) if key else _load(path, kind)


def _remembered(path: Path, kind: Format, key: str) -> Trace:
    """The kept Trace of an input, else a new one that is kept from now on."""
    import pyarrow as pa

    from nvprobe.readers.columns import can_keep, read_columns, write_columns

    made: list[Trace] = []

    def make(folder: Path) -> None:
        """Read the input and write its columns, if it stayed as it was."""
        made.append(_load(path, kind))
        if can_keep(made[0]) and cache.fingerprint(path) == key:
            write_columns(made[0], folder)

    place = None
    try:
        place = cache.kept("trace", key, path.name, make)
    except OSError:
        if not made:
            raise
    if made:  # kept or not (the disk may be full): it is there
        return made[0]
    if place is not None:
        try:
            return read_columns(place)
        except (OSError, ValueError, LookupError, TypeError, AttributeError, pa.ArrowException):
            shutil.rmtree(place, ignore_errors=True)
    return _load(path, kind)


def _size(path: Path) -> int:
    files = path.iterdir() if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files)


def _load(path: Path, kind: Format) -> Trace:
    if kind is Format.NSYS_SQLITE:
        from nvprobe.readers.nsys.sqlite import load_nsys_sqlite

        return load_nsys_sqlite(path)
    if kind is Format.NSYS_PARQUET:
        from nvprobe.readers.nsys.parquet import load_nsys_parquet

        return load_nsys_parquet(path)
    if kind is Format.NSYS_REPORT:
        from nvprobe.readers.nsys.report import load_nsys_report

        return load_nsys_report(path)
    if kind is Format.TORCH_TRACE:
        from nvprobe.readers.kineto import load_kineto

        return load_kineto(path)
    raise unusable(path, f"is a {kind.value}", "give the report it lies beside as well")
