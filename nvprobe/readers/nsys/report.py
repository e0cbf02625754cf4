"""Reports of nsys (``.nsys-rep``): exported by the nsys of this machine, once.

The export is kept in the cache, not beside the report, and used again while the report stays as
it is (:mod:`nvprobe.readers.cache`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from nvprobe.errors import ToolError, UsageError
from nvprobe.nsys import Nsys, export, find_nsys
from nvprobe.readers import cache
from nvprobe.readers.input_errors import base_name, shown, unusable
from nvprobe.readers.nsys.sqlite import load_nsys_sqlite
from nvprobe.trace import Trace

_EXPORT = "export.sqlite"
_TAIL = 1 << 20
_FULL = re.compile("disk is full|no space left", re.IGNORECASE)
_WRITER = re.compile(rb"(20\d\d(?:\.\d+){2,3})(?:-[0-9a-f]+)?")


def load_nsys_report(path: str | os.PathLike[str]) -> Trace:
    """The Trace of a report.

    Raises :class:`~nvprobe.errors.ToolError` where there is no nsys to export it, or only one
    that is older than the one that wrote it.
    """
    path = Path(path)
    with exported(path) as database:
        trace = load_nsys_sqlite(database)
    source = msgspec.structs.replace(trace.sources[0], kind="nsys-rep", file=base_name(path))
    return dataclasses.replace(trace, sources=(source,))


@contextlib.contextmanager
def exported(report: Path) -> Iterator[Path]:
    """The SQLite export of ``report``: a kept one, else made now."""
    place = _kept(report)
    if place:
        yield place / _EXPORT
        return
    with tempfile.TemporaryDirectory(prefix="nvprobe-") as folder:
        _export(report, Path(folder))
        yield Path(folder, _EXPORT)


def _kept(report: Path) -> Path | None:
    """The folder of the kept export, made if need be; ``None`` where it cannot be kept."""
    key = cache.fingerprint(report)
    if key is None:
        return None
    try:
        return cache.kept("export", key, report.name, lambda at: _export(report, at))
    except ToolError as error:
        if _FULL.search(str(error)) is None:
            raise
        return None


def keep_export(report: Path) -> Path:
    """Put the SQLite export of ``report`` beside it, where none is yet; returns its path.

    Raises :class:`~nvprobe.errors.UsageError` where a file of that name is there already.
    """
    target = report.with_suffix(".sqlite")
    if target.exists():
        raise UsageError(f"{shown(target)} exists already; analyze it, or move it away")
    with exported(report) as database:
        try:
            with database.open("rb") as source, target.open("xb") as sink:
                target.chmod(0o600)
                shutil.copyfileobj(source, sink)
        except OSError as error:
            remedy = "the folder of the report must be writable"
            raise unusable(target, f"cannot be written ({error.strerror})", remedy) from error
    return target


def _export(report: Path, folder: Path) -> None:
    try:
        nsys = find_nsys()
    except ToolError as error:
        raise ToolError(
            f"{shown(report)}: only nsys itself can read a report. {error}; or export it where "
            "nsys is: nsys export --type sqlite REPORT.nsys-rep, and give the .sqlite"
        ) from error
    try:
        export(nsys, report.resolve(), folder / _EXPORT)
    except ToolError as error:
        raise ToolError(f"{shown(report)}: {_reason(report, nsys, error)}") from error


def _reason(report: Path, nsys: Nsys, error: ToolError) -> str:
    """Why the export failed: a report of a newer nsys cannot be read by an older one."""
    writer = written_by(report)
    if writer is not None and writer[:3] > nsys.version[:3]:
        newer = ".".join(map(str, writer))
        return (
            f"was written by nsys {newer}, newer than the nsys {nsys.version_text} found here; "
            f"install nsys {newer} or newer (NVPROBE_NSYS names another), or export it where it "
            "was recorded: nsys export --type sqlite"
        )
    if _FULL.search(str(error)):
        return f"{error}; free space where temporary files go (TMPDIR names another place)"
    return f"{error}; is the report complete? Copy it again, or record it again"


def written_by(report: Path) -> tuple[int, ...] | None:
    """Version of the nsys that wrote a report, from its end; ``None`` where it is not there."""
    with report.open("rb") as file:
        file.seek(max(report.stat().st_size - _TAIL, 0))
        found = [m[1].decode() for m in _WRITER.finditer(file.read(_TAIL))]
    versions = [tuple(map(int, text.split("."))) for text in found]
    return max(versions, default=None)
