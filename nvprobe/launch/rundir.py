"""The run folder: one a run, one below it a rank, and never another run's files overwritten.

A run's folder holds ``report.nsys-rep`` and its export, ``sidecar.<rank>.<pid>.jsonl``, a torch
trace where asked for, ``run.json``, ``analysis.json`` and ``report.html``. ``run.json`` (schema
``nvprobe.run/1``) says what was run and how it ended; nothing in it comes from the environment.
Only its owner can enter the folder and read the files, whatever the umask: a capture holds names,
command lines and, in nsys's own report, the environment of the whole machine.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from nvprobe.errors import UsageError
from nvprobe.launch.redaction import redacted_words
from nvprobe.placement import Placement

PARENT = "nvprobe-runs"
"""Where runs go that were given no folder, below the working directory."""
GRAPH_NODES = "graph_nodes"
"""Below the folder of a run with whole CUDA graphs: the run that traced their nodes."""
REPORT = "report"
"""Name of the nsys report, without suffix."""

_FULL_BELOW = 2**20
_OURS = (
    "report.*",
    "report_pqtdir",
    "sidecar.*.jsonl",
    "trace.*.json*",
    "run.json",
    "job.json",
    "analysis.json",
    "ranks.json",
    "ranks.html",
    "nsys.log",
    "graph_nodes",
    "rank[0-9]*",
    "process[0-9]*",
)


def create(wanted: Path | None, name: str, *, force: bool) -> Path:
    """Make the folder of a run: ``wanted``, else a new one named by time and program.

    Raises:
        UsageError: it holds another run and ``force`` is off, or it cannot be written.

    """
    folder = wanted or Path(PARENT) / f"{time.strftime('%Y%m%d-%H%M%S')}-{name}"
    if wanted is None:
        return _first_free(folder)
    _make(folder)
    ours = _ours_in(folder)
    if ours and not force:
        raise UsageError(
            f"{wanted} holds an earlier run: give another -o, or --force to replace it"
        )
    _remove(ours)
    _restrict_if_empty(folder)
    return folder


def create_for_rank(
    wanted: Path | None,
    name: str,
    place: Placement,
    environ: Mapping[str, str],
    *,
    force: bool = False,
) -> Path:
    """Make the folder of one rank below the folder that all ranks of the job share.

    A rank that comes again (an elastic restart, two programs with one rank) gets ``rank0-2``: none
    overwrites another. With ``force`` the rank that comes first replaces what another job left.

    Raises:
        UsageError: the shared folder belongs to another job and ``force`` is off, or it cannot be
            written.

    """
    key = job_key(environ)
    shared = wanted or Path(PARENT) / f"{name}-{key}"
    _make(shared)
    _restrict_if_empty(shared)
    _claim(shared, hashlib.sha256(key.encode()).hexdigest()[:16], force=force)
    stem = f"process{os.getpid()}" if place.rank is None else f"rank{place.rank}"
    return _first_free(shared / stem)


def of_ranks(shared: Path) -> list[Path]:
    """The folders of a job's ranks that recorded something, the lowest rank's first."""
    found = [file.parent for file in shared.glob("*/run.json")]
    ours = [folder for folder in found if folder.name.startswith(("rank", "process"))]
    return sorted(ours, key=lambda folder: (folder.name[0] != "r", _numbers(folder.name)))


def _numbers(name: str) -> list[int]:
    return [int(digits) for digits in re.findall(r"\d+", name)]


def job_key(environ: Mapping[str, str]) -> str:
    """What all ranks of a job on a node have in common, and two jobs do not."""
    words = []
    for names in (
        ("SLURM_JOB_ID", "SLURM_STEP_ID"),
        ("TORCHELASTIC_RUN_ID",),
        ("PMIX_NAMESPACE",),
        ("NVPROBE_JOB",),
    ):
        if all(environ.get(name, "none") != "none" for name in names):
            words = [environ[name] for name in names]
            break
    else:
        words = [str(os.getppid())]
    return re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(words)).strip("-.")[:60] or "job"


def write_json(file: Path, document: Mapping[str, Any]) -> None:
    """Write a JSON file as a whole: a reader never sees half of it."""
    partial = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with open(partial, "w", encoding="utf-8", opener=_private_opener) as text:
            text.write(json.dumps(document, indent=1) + "\n")
        partial.replace(file)
    finally:
        partial.unlink(missing_ok=True)


def plain_words(words: Sequence[str]) -> list[str]:
    """A command fit for ``run.json``: absolute paths by their last part, secrets starred out."""
    parts = (word.partition("=") for word in words)
    return redacted_words(
        [
            f"{option}={_last_part(value)}" if equals else _last_part(option)
            for option, equals, value in parts
        ]
    )


def keep_private(folder: Path) -> None:
    """Take what a run wrote from all but its owner: nsys writes its report for all to read."""
    for path in _ours_in(folder):
        if not path.is_symlink():
            _restrict(path)


def _restrict(path: Path) -> None:
    with suppress(OSError):  # on a file system without modes there is nothing to do
        path.chmod(0o700 if path.is_dir() else 0o600)


def _last_part(word: str) -> str:
    return Path(word).name if word.startswith(("/", "~")) else word


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise _cannot_write(folder, error) from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"{folder} cannot be written: give a folder of your own with -o")


def _restrict_if_empty(folder: Path) -> None:
    """Close a folder to others; not one that holds the user's own files, or that all share."""
    found = folder.stat()
    shared = found.st_mode & stat.S_ISVTX or found.st_uid != os.geteuid()
    if not shared and not any(folder.iterdir()):
        _restrict(folder)


def _first_free(folder: Path) -> Path:
    """Make ``folder``, or else ``folder-2`` and so on; safe among processes that race for it."""
    for number in range(1, 10_000):
        free = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        try:
            free.mkdir(parents=True, mode=0o700)
        except FileExistsError:
            continue
        except OSError as error:
            raise _cannot_write(folder, error) from None
        _restrict(free)
        return free
    raise UsageError(f"{folder} and 9999 more exist: remove some, or give another -o")


def _claim(shared: Path, key: str, *, force: bool) -> None:
    """Mark a shared folder as this job's; the rank that comes first writes the mark.

    The mark is its own lock: the other ranks wait while the first one clears the folder.
    """
    mark = shared / "job.json"
    try:
        with open(mark, "a+", encoding="utf-8", opener=_private_opener) as file:
            with suppress(OSError):  # a file system without locks: only clearing needs one
                fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            text = file.read()
            if text and _job_of(text) == key:
                return
            if text:
                _clear_of_another_job(shared, mark, force=force)
                file.truncate(0)
            file.write(json.dumps({"schema": "nvprobe.job/1", "job": key}))
    except OSError as error:
        raise _cannot_write(shared, error) from None


def _private_opener(file: str, flags: int) -> int:
    descriptor = os.open(file, flags, 0o600)
    with suppress(OSError):  # of another user: it is that one's to protect
        os.fchmod(descriptor, 0o600)
    return descriptor


def _job_of(text: str) -> str | None:
    """The job of a mark; where there are no locks, ranks that came at once have each written it."""
    with suppress(ValueError, KeyError, TypeError):
        return str(json.JSONDecoder().raw_decode(text)[0]["job"])
    return None


def _clear_of_another_job(shared: Path, mark: Path, *, force: bool) -> None:
    if not force:
        raise UsageError(
            f"{shared} holds the ranks of another job: give another -o, or --force to replace them"
        )
    _remove([path for path in _ours_in(shared) if path != mark])


def _ours_in(folder: Path) -> list[Path]:
    """What an earlier run left in a folder."""
    return [path for pattern in _OURS for path in folder.glob(pattern)]


def _remove(paths: Sequence[Path]) -> None:
    for path in paths:
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def _cannot_write(folder: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{folder} cannot be created ({error.strerror}): give a folder that can be written with -o"
    )


def disk_full(folder: Path) -> bool:
    """Whether a folder's file system has no space left, or cannot be asked."""
    try:
        return shutil.disk_usage(folder).free < _FULL_BELOW
    except OSError:
        return False


@contextmanager
def temporary() -> Iterator[Path]:
    """A folder for nsys's own files; its path is short, because sockets lie in it."""
    folder = Path(tempfile.mkdtemp(prefix="nvprobe-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
