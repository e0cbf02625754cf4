"""Kept work: exports of reports and Traces of large inputs; a second command starts at once.

Everything lies below one folder (``$NVPROBE_CACHE``, else ``nvprobe`` in the user's cache folder),
readable by the user alone: names of a program may reveal more than its owner wants to share. What
another user owns or could have written is not read: not the folder, not an entry, not a file. An
entry is found by a fingerprint of the input *and* of nvprobe's own readers, so it is never stale:

* size, inode and the times of last change of every file of the input, which no ordinary program
  can set back together, and a hash of blocks spread over each file;
* the source text of the packages that make a Trace.

A file changed within the last seconds is not kept: two changes within one tick of the file
system's clock could look the same. The cache is bounded; what was not used longest goes first.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nvprobe.cache_folder import cache_folder, is_own, make_own
from nvprobe.errors import UsageError

_SETTLED_S = 2.0
_BLOCK = 1 << 16
_BLOCKS = 32
_DEFAULT_LIMIT = 20 * 2**30
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_SIZE = re.compile(r"(?P<number>\d{1,18}(?:\.\d+)?)\s*(?P<unit>[KMGT]?)I?B?")
_OURS = re.compile(r"[0-9a-f]{40}|\.[0-9a-f]{8}-.*")
"""Folders of entries, finished or not: any other folder is the user's."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One kept result."""

    kind: str
    """``export`` or ``trace``."""
    name: str
    """Base name of the input it was made of."""
    path: Path
    bytes: int
    used: float
    """When it was last used, seconds since the epoch."""


def limit_bytes() -> int:
    """How much may be kept: ``NVPROBE_CACHE_SIZE`` (``500M``, ``20G``), by default 20 GiB."""
    given = os.environ.get("NVPROBE_CACHE_SIZE", "").strip()
    if not given:
        return _DEFAULT_LIMIT
    match = _SIZE.fullmatch(given.upper())
    if match is None:
        raise UsageError(f"NVPROBE_CACHE_SIZE={given!r}: give a size such as 500M or 20G")
    return int(float(match["number"]) * _UNITS[match["unit"]])


def fingerprint(path: Path) -> str | None:
    """What identifies the content of a file, or of a folder's files; ``None`` where it may change.

    Reads at most 2 MiB of each file.
    """
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    digest = hashlib.blake2b(_makers(), digest_size=20)
    for file in files:
        with file.open("rb") as stream:
            found = os.fstat(stream.fileno())
            if time.time() - max(found.st_mtime, found.st_ctime) < _SETTLED_S:
                return None
            facts = (
                file.name, found.st_size, found.st_dev, found.st_ino, found.st_mtime_ns,
                found.st_ctime_ns,
            )  # fmt: skip
            digest.update(repr(facts).encode())
            step = max(found.st_size // _BLOCKS, _BLOCK)
            for place in [*range(0, found.st_size, step), max(found.st_size - _BLOCK, 0)]:
                stream.seek(place)
                digest.update(stream.read(_BLOCK))
    return digest.hexdigest()


def kept(kind: str, key: str, name: str, make: Callable[[Path], None]) -> Path | None:
    """The folder of a kept result, made by ``make`` (into the folder it is given) if need be.

    ``None`` where nothing can be kept (no folder, no space); errors of ``make`` pass through and
    leave nothing behind.
    """
    root = cache_folder()
    if root is None or not make_own(root) or not make_own(root / kind):
        return None
    place = root / kind / key
    if place.is_symlink():
        place.unlink()
    if _is_usable(place):
        with contextlib.suppress(OSError):
            os.utime(place)
        return place
    try:
        partial = Path(tempfile.mkdtemp(prefix=f".{key[:8]}-", dir=place.parent))
    except OSError:
        return None
    try:
        make(partial)
        with contextlib.suppress(OSError):
            (partial / "name").write_text(name, "utf-8", "surrogateescape")
            for file in partial.iterdir():
                file.chmod(0o600)
            _put(partial, place)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    _evict(keep=place)
    return place if _is_usable(place) else None


def entries() -> list[Entry]:
    """What is kept, used longest ago first."""
    root = cache_folder()
    mine = root is not None and is_own(root)
    found = [_entry(path) for path in _places(root)] if root and mine else []
    return sorted((entry for entry in found if entry), key=lambda entry: entry.used)


def clear() -> int:
    """Remove everything that is kept; returns the bytes that were freed."""
    freed = 0
    for entry in entries():
        shutil.rmtree(entry.path, ignore_errors=True)
        freed += 0 if entry.path.exists() else entry.bytes
    return freed


def _is_usable(place: Path) -> bool:
    """Whether a finished entry is there, all of it this user's and not to be written by others."""
    try:
        whole = is_own(place) and is_own(place / "name")
        return whole and all(is_own(file) for file in place.iterdir())
    except OSError:
        return False


def _put(partial: Path, place: Path) -> None:
    """Move a finished result into its place; another process may have been faster."""
    try:
        partial.replace(place)
    except OSError:
        if not _is_usable(place):
            shutil.rmtree(place, ignore_errors=True)
            with contextlib.suppress(OSError):
                partial.replace(place)


def _evict(keep: Path) -> None:
    """Remove what was used longest ago until everything fits; ``keep`` goes last."""
    found = sorted(entries(), key=lambda entry: (entry.path == keep, entry.used))
    excess = sum(entry.bytes for entry in found) - limit_bytes()
    for entry in found:
        if excess <= 0:
            return
        if entry.path == keep:  # in use right now: too large to keep, gone after this command
            return
        shutil.rmtree(entry.path, ignore_errors=True)
        excess -= entry.bytes


def _places(root: Path) -> Iterator[Path]:
    for kind in ("export", "trace"):
        with contextlib.suppress(OSError):
            found = [path for path in (root / kind).iterdir() if _OURS.fullmatch(path.name)]
            yield from (path for path in found if path.is_dir())


def _entry(path: Path) -> Entry | None:
    try:
        size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
        name = path / "name"
        text = name.read_text("utf-8", "surrogateescape") if name.is_file() else "unfinished"
        return Entry(path.parent.name, text, path, size, path.stat().st_mtime)
    except OSError:  # removed meanwhile
        return None


@functools.cache
def _makers() -> bytes:
    """A digest of the source of everything that has a say in what a Trace looks like."""
    digest = hashlib.blake2b(digest_size=20)
    readers = Path(__file__).parent
    trace = readers.parent / "trace"
    for file in sorted([*readers.rglob("*.py"), *trace.rglob("*.py")]):
        digest.update(file.read_bytes())
    return digest.digest()
