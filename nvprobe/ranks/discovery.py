"""Which captures lie in the folders that were given, and what their names and folders say.

A *source* is what one process (or one report with several) left: a run folder, an export or report
of nsys with the sidecars beside it, or the torch traces of one rank. Nothing of it is read here but
``run.json`` and ``job.json``.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvprobe import limits
from nvprobe.errors import InputError
from nvprobe.readers.input_errors import shown
from nvprobe.readers.sniff import trace_files

_EXPORTS = (".sqlite",)
_REPORTS = (".nsys-rep", ".qdrep")
_NAMED = re.compile(r"(?:^|[^a-z])(?:rank|worker|tp|pp|dp|ep)[._-]?(\d{1,6})(?!\d)", re.I)
_LAUNCHED = re.compile(r"^trace\.(\d{1,6})\.\d+\.json")


@dataclass(frozen=True, slots=True)
class Source:
    """The files of one capture, and what is known of it before it is read."""

    name: str
    """As messages call it: the path below what was given."""
    files: tuple[str, ...]
    """What the reader takes: a run folder, or files of one run."""
    rank: int | None = None
    said_by: str = "nothing"
    world_size: int | None = None
    job: str | None = None
    """What tells jobs apart without reading: the mark of a launched job, else the folder."""


def discover(given: Sequence[str | os.PathLike[str]]) -> list[Source]:
    """Every source in files and folders, in the order of their paths, each once.

    Raises InputError where there is none.
    """
    found: dict[tuple[str, ...], Source] = {}
    for path in map(Path, given):
        if not path.exists():
            raise InputError(f"{shown(path)}: there is no such file or folder; check the name")
        for source in _sources(path):
            found.setdefault(source.files, source)
    if not found:
        names = ", ".join(shown(path) for path in given)
        raise InputError(
            f"{names}: no run folder, report of nsys or torch trace in it; give the folder that "
            "the ranks of a job wrote into"
        )
    return list(found.values())


def _sources(path: Path) -> Iterator[Source]:
    if not path.is_dir():
        yield _of_files([path], path.parent)
    elif (path / "run.json").is_file():
        yield _run_folder(path)
    elif path.name.endswith("_pqtdir"):
        yield _of_files([path], path.parent)
    else:
        yield from _in_folder(path)


def _in_folder(folder: Path) -> Iterator[Source]:
    """What lies in a folder of captures, then in the folders below it."""
    entries = sorted(folder.iterdir(), key=lambda entry: _natural(entry.name))
    stems = set()
    for entry in entries:
        export = entry.name.endswith("_pqtdir") or entry.suffix in _EXPORTS
        if export or (entry.suffix in _REPORTS and entry.stem not in stems):
            stems.add(entry.name.removesuffix("_pqtdir") if entry.is_dir() else entry.stem)
            yield _of_files([entry], folder)
    traces: dict[object, list[Path]] = {}
    for file in trace_files(folder):
        rank = _rank_in_name(file.name)
        traces.setdefault(file.name if rank is None else rank, []).append(file)
    for files in _cycles(traces):
        yield _of_files(files, folder)
    for entry in entries:
        if entry.is_dir() and not entry.is_symlink() and not entry.name.endswith("_pqtdir"):
            yield from _sources(entry)


def _cycles(traces: dict[object, list[Path]]) -> Iterator[list[Path]]:
    """Traces of one rank in one folder: cycles of its profiler where launch wrote them, else each.

    Two files of one rank that no launch put there may be of two runs: each stays by itself, and is
    reported as a duplicate.
    """
    for files in traces.values():
        if all(_LAUNCHED.match(file.name) for file in files):
            yield files
        else:
            yield from ([file] for file in files)


def _run_folder(folder: Path) -> Source:
    run = _json(folder / "run.json")
    rank, size = _integer(run.get("rank")), _integer(run.get("world_size"))
    mark = _json(folder.parent / "job.json").get("job")
    started = run.get("started_utc") if rank is None else None
    return Source(
        name=_short(folder),
        files=(os.fspath(folder.absolute()),),
        rank=rank,
        said_by="nothing" if rank is None else "run.json",
        world_size=size,
        job=f"job {mark}" if mark else f"{folder.parent.absolute()} {started or ''}",
    )


def _of_files(files: list[Path], folder: Path) -> Source:
    """Files that no launch described: the name may say the rank."""
    rank = _rank_in_name(files[0].name)
    beside = [] if len(files) > 1 else sorted(folder.glob(f"{files[0].stem}*sidecar*.jsonl"))
    return Source(
        name=_short(files[0]),
        files=tuple(os.fspath(file.absolute()) for file in [*files, *beside]),
        rank=rank,
        said_by="nothing" if rank is None else "the file name",
        job=os.fspath(folder.absolute()),
    )


def _rank_in_name(name: str) -> int | None:
    match = _LAUNCHED.match(name) or _NAMED.search(name)
    return int(match[1]) if match else None


def _natural(name: str) -> list[tuple[int, str]]:
    """A key that puts rank 10 after rank 9."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def _short(path: Path) -> str:
    """The name of a file or folder with that of the folder it lies in."""
    resolved = path.resolve()
    return f"{resolved.parent.name}/{resolved.name}"


def _json(path: Path) -> dict[str, Any]:
    """What a small file of ours says; nothing where it is absent or damaged."""
    try:
        with path.open("rb") as file:
            found = json.loads(file.read(limits.record_bytes()))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _integer(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
