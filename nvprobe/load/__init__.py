"""From files to a Trace: the only room that knows foreign schemas."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path

from nvprobe.errors import UsageError
from nvprobe.load.faults import unusable
from nvprobe.load.sniff import Format, sniff
from nvprobe.trace import Trace

__all__ = ["Format", "load", "sniff"]


def load(*inputs: str | os.PathLike[str]) -> Trace:
    """The Trace of an export of nsys or a torch trace, told apart by content.

    Raises :class:`~nvprobe.errors.InputError` with one line that names the file, what is wrong
    with it and what to do, where the input cannot be used.
    """
    if len(inputs) != 1:
        raise UsageError(f"expected one input, got {len(inputs)}")
    path = Path(inputs[0])
    return _load(path, sniff(path))


def _load(path: Path, kind: Format) -> Trace:
    if kind is Format.NSYS_SQLITE:
        from nvprobe.load.nsys_sqlite import load_nsys_sqlite

        return load_nsys_sqlite(path)
    if kind is Format.NSYS_PARQUET:
        from nvprobe.load.nsys_parquet import load_nsys_parquet

        return load_nsys_parquet(path)
    if kind is Format.TORCH_TRACE:
        trace: Trace = import_module("nvprobe.load.kineto").load_kineto(path)
        return trace
    raise unusable(path, f"is a {kind.value}, which cannot be read yet", "export it to SQLite")
