"""What a file is, by its content first and its name second."""

from __future__ import annotations

import os
import re
import zlib
from enum import Enum
from pathlib import Path

from nvprobe.readers.input_errors import EXPORT_AGAIN, unusable

_HEAD = 4096
_TRACE_AGAIN = "export the trace again: prof.export_chrome_trace(...)"
_REPORT_AGAIN = "copy it again, or record it again"
_REPORT_NAMES = (".nsys-rep", ".qdrep")
_SQLITE = b"SQLite format 3\x00"
_GZIP = b"\x1f\x8b"
_REPORT = b"NVIDIA Tegra Profiler Report"
_TRACE_NAME = re.compile(r"^(?!\.).*(?:trace|rank[._-]?\d|worker[._-]?\d).*\.json(?:\.gz)?$")
"""Names that torch, tensorboard, HTA and nvprobe give to traces."""
_JSON_NAME = re.compile(r"^(?!\.).*\.json(?:\.gz)?$")
_RANK_FOLDER = re.compile(r"(?:rank|process)\d+(?:-\d+)?")
"""Names of the folders of a job's ranks, as `nvprobe launch` gives them."""
_BEGINNING = 1 << 16
TRACE_BEGINNING = re.compile(rb'"(?:traceEvents|schemaVersion|deviceProperties|ph)"\s*:')
"""What stands in the first bytes of every torch trace."""
_BOM = b"\xef\xbb\xbf"
_TIMELINE_PAGE = b"<title>GPU Memory Timeline"
"""In the page that ``export_memory_timeline`` writes."""


class Format(Enum):
    """The kinds of input nvprobe reads; the value is ``Source.kind``."""

    NSYS_SQLITE = "nsys-sqlite"
    NSYS_PARQUET = "nsys-parquet"
    NSYS_REPORT = "nsys-rep"
    TORCH_TRACE = "torch-trace"
    SIDECAR = "sidecar"
    RUN_FOLDER = "run-folder"


def sniff(path: str | os.PathLike[str]) -> Format:
    """Return what ``path`` is; raises :class:`~nvprobe.errors.InputError` for anything unknown."""
    path = Path(path)
    try:
        if path.is_dir():
            return _folder(path)
        if path.exists() and not path.is_file():
            raise unusable(path, "is a pipe or a device", "write it to a file first")
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except FileNotFoundError:
        raise unusable(path, "there is no such file", "check the name") from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise unusable(path, f"cannot be opened ({reason})", "check its permissions") from None
    return _file(path, head)


def _file(path: Path, head: bytes) -> Format:
    name = path.name.lower()
    if not head:
        torch, report = name.endswith((".json", ".json.gz")), name.endswith(_REPORT_NAMES)
        again = _TRACE_AGAIN if torch else _REPORT_AGAIN if report else EXPORT_AGAIN
        raise unusable(path, "is empty (0 bytes)", again)
    if head.startswith(_SQLITE):
        return Format.NSYS_SQLITE
    if head.startswith(_GZIP):
        return Format.TORCH_TRACE
    if name.endswith(".qdstrm"):
        raise unusable(
            path, "is a raw capture that was never imported", "import it: QdstrmImporter -i FILE"
        )
    if head.startswith(_REPORT) or name.endswith(_REPORT_NAMES):
        return Format.NSYS_REPORT
    return _text(path, name, head)


def _text(path: Path, name: str, head: bytes) -> Format:
    start = head.removeprefix(_BOM).lstrip()
    if name.endswith(".jsonl") and start.startswith(b"{"):
        return Format.SIDECAR
    if start.startswith((b"{", b"[")):
        return Format.TORCH_TRACE
    if _TIMELINE_PAGE in head:
        raise unusable(
            path, "is a memory timeline (export_memory_timeline), a picture", _TRACE_AGAIN
        )
    if name.endswith(".xplane.pb"):
        raise unusable(
            path, "is a profile of JAX or XProf", "record the program with nsys, give the report"
        )
    what = "is a text file" if b"\x00" not in head else "is of an unknown format"
    if name.endswith((".sqlite", ".db")):
        raise unusable(path, f"{what}, not an SQLite database", EXPORT_AGAIN)
    raise unusable(
        path,
        f"{what}, neither a report of nsys nor a torch trace",
        "give a .nsys-rep, .sqlite, _pqtdir, .json or .json.gz",
    )


def _folder(path: Path) -> Format:
    if (path / "run.json").is_file():
        return Format.RUN_FOLDER
    if any((path / f"StringIds.{kind}").is_file() for kind in ("parquet", "arrow")):
        return Format.NSYS_PARQUET
    runs = sorted(file.parent.name for file in path.glob("*/run.json"))
    if any(_RANK_FOLDER.fullmatch(name) for name in runs):
        raise unusable(
            path,
            f"holds the runs of {len(runs)} ranks",
            f"nvprobe ranks compares them; or give one of them, such as {runs[0]}",
        )
    if runs:
        count = f"{len(runs)} runs" if len(runs) > 1 else "a run"
        raise unusable(path, f"is a folder with {count}", f"give one, such as {path / runs[-1]}")
    if trace_files(path):
        return Format.RUN_FOLDER
    if next(path.iterdir(), None) is None:
        raise unusable(path, "is an empty folder", "give a run folder or an _pqtdir of nsys export")
    raise unusable(
        path,
        "is a folder without run.json, torch traces or tables of nsys",
        "give a run folder, an _pqtdir of nsys export, or one file",
    )


def trace_files(folder: Path) -> list[Path]:
    """The torch traces of a folder; one that is there packed too counts once.

    By names that traces have, else any JSON that begins as one. What is named as a trace and begins
    as something else is none (execution traces lie beside them); what is empty or damaged may be
    one that got lost, and is not passed over.
    """
    files = [file for file in sorted(folder.iterdir()) if _JSON_NAME.search(file.name.lower())]
    files = [file for file in files if file.is_file()]
    named = [file for file in files if _TRACE_NAME.search(file.name.lower())]
    found = [file for file in named if _begins_as_trace(file) is not False] or named
    found = found or [file for file in files if _begins_as_trace(file)]
    packed = {file.name.lower() for file in found}
    return [file for file in found if f"{file.name.lower()}.gz" not in packed]


def _begins_as_trace(path: Path) -> bool | None:
    """Whether a file begins as a trace; None where it is empty or cannot be read."""
    try:
        with path.open("rb") as file:
            head = file.read(_BEGINNING)
        if head.startswith(_GZIP):
            head = zlib.decompressobj(wbits=31).decompress(head, _BEGINNING)
    except (OSError, zlib.error):
        return None
    return TRACE_BEGINNING.search(head) is not None if head.strip(b"\0 \n") else None
