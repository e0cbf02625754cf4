"""The map over all captures of a job: in processes of this machine, or on a Dask cluster.

A capture that cannot be read costs its rank, never the job. A worker that dies costs another try.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path

import pyarrow as pa

from nvprobe.errors import NvprobeError, UsageError
from nvprobe.ranks.discovery import Source
from nvprobe.ranks.document import Failed
from nvprobe.ranks.map import summarize
from nvprobe.ranks.store import content_bytes, default_folder, key_of, read, write
from nvprobe.ranks.summary import Summary

_TRIES = 2
"""So often a capture is tried by itself after a worker died."""
_CONNECT_S = 10
_PROCESS_BYTES = 160 << 20
"""A worker without a capture (docs/ranks.md has the figures)."""
_WORTH_BYTES = 32 << 20
"""Content that is read before another process has started."""
_TIMES_CONTENT = 4
"""Bytes that a worker holds at most per byte of a capture's text or tables."""
_LONGEST_ERROR = 300


@dataclasses.dataclass(frozen=True, slots=True)
class Mapped:
    """What came of one source: summaries, by file or as they are, or why there are none."""

    source: Source
    path: Path | None = None
    ranks: tuple[Summary, ...] = ()
    error: str | None = None

    def summaries(self) -> list[Summary]:
        """The ranks of the source; empty where it failed."""
        return list(self.ranks) if self.path is None else read(self.path)

    @property
    def failed(self) -> Failed | None:
        """What is said of a source that could not be read."""
        return None if self.error is None else Failed(self.source.name, self.error)


def mapped(source: Source, folder: Path | None, key: str | None = None) -> Mapped:
    """Summarize one source, unless its summary is in ``folder`` already; ``key``: where known."""
    try:
        if folder is None:
            return Mapped(source, ranks=tuple(summarize(source)))
        key = key_of(source) if key is None else key
        known = _known(source, folder, key)
        return known or Mapped(source, path=write(folder, key, summarize(source)))
    except NvprobeError as error:
        return Mapped(source, error=str(error))
    except Exception as error:  # whatever is wrong with one capture, the others count
        kind = "" if isinstance(error, OSError) else f"{type(error).__name__}: "
        return Mapped(source, error=f"{kind}{error}"[:_LONGEST_ERROR])


def _known(source: Source, folder: Path, key: str) -> Mapped | None:
    """A summary that is there and can be read."""
    place = folder / f"{key}.parquet"
    try:
        read(place)
    except (OSError, ValueError, LookupError, TypeError, pa.ArrowException):
        return None
    return Mapped(source, path=place)


def map_locally(
    sources: Sequence[Source],
    folder: Path | None = None,
    *,
    jobs: int | None = None,
    done: Callable[[int], None] = lambda _: None,
) -> list[Mapped]:
    """Every source in up to ``jobs`` processes (as many as CPUs and memory allow), in their order.

    ``folder`` keeps the summaries, by default one in nvprobe's cache. ``done`` is called with how
    many are finished.
    """
    folder = default_folder() if folder is None else folder
    found: dict[int, Mapped] = {}

    def keep(row: int, result: Mapped) -> None:
        """Count one result."""
        found[row] = result
        done(len(found))

    keys = _keys(sources, folder, keep)
    left = [(row, one) for row, one in enumerate(sources) if row not in found]
    number = workers([one for _, one in left], jobs, _available_bytes())
    if number < 2:
        for row, one in left:
            keep(row, mapped(one, folder, keys[row]))
        return [found[row] for row in range(len(sources))]
    for row, result in _in_pool(left, folder, keys, number):
        keep(row, result)
    for row, one in left:
        if row not in found:
            keep(row, _alone(one, folder, keys[row]))
    return [found[row] for row in range(len(sources))]


def _keys(
    sources: Sequence[Source], folder: Path | None, keep: Callable[[int, Mapped], None]
) -> list[str | None]:
    """The key of each source, where it can be read; what is summarized already is kept at once."""
    if folder is None:
        return [None] * len(sources)
    place = folder

    def known(source: Source) -> tuple[str | None, Mapped | None]:
        """A key and what is there: hashing and reading let other threads run."""
        with contextlib.suppress(OSError):
            key = key_of(source)
            return key, _known(source, place, key)
        return None, None

    keys: list[str | None] = []
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        for row, (key, result) in enumerate(threads.map(known, sources)):
            keys.append(key)
            if result is not None:
                keep(row, result)
    return keys


def _in_pool(
    sources: Sequence[tuple[int, Source]],
    folder: Path | None,
    keys: Sequence[str | None],
    jobs: int,
) -> Iterator[tuple[int, Mapped]]:
    """What a pool gets done; it ends early where one of its processes is killed."""
    with _pool(jobs) as pool:
        futures = {pool.submit(mapped, one, folder, keys[row]): row for row, one in sources}
        for future in as_completed(futures):
            try:
                yield futures[future], future.result()
            except BrokenProcessPool:
                return


def _alone(source: Source, folder: Path | None, key: str | None) -> Mapped:
    """One source in a process of its own, so that it can only take itself along."""
    for _ in range(_TRIES):
        for _, result in _in_pool([(0, source)], folder, [key], 1):
            return result
    return Mapped(source, error="the process that read it was killed, out of memory perhaps")


def _pool(jobs: int) -> ProcessPoolExecutor:
    """Spawned, for the libraries in use do not survive a fork while their threads run."""
    return ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))


def workers(sources: Sequence[Source], wanted: int | None, available: int) -> int:
    """How many processes are worth it and fit: each may hold what the largest capture needs."""
    contents = [content_bytes(one) for one in sources]
    worth = wanted or min(os.cpu_count() or 1, sum(contents) // _WORTH_BYTES)
    need = _PROCESS_BYTES + _TIMES_CONTENT * max(contents, default=0)
    return max(1, min(worth, len(sources), available // need))


def _available_bytes() -> int:
    """Memory that the system can give without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
        return int(found[0]) * 1024
    except (OSError, IndexError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def map_on_cluster(
    address: str,
    sources: Sequence[Source],
    folder: Path,
    *,
    done: Callable[[int], None] = lambda _: None,
) -> list[Mapped]:
    """Every source on the workers of a Dask cluster; they see the captures and ``folder``.

    Dask gives what a lost worker had in hand to another one, a few times.
    """
    try:
        from distributed import Client, KilledWorker
        from distributed import as_completed as completed
    except ImportError as error:
        raise UsageError(
            "--cluster: Dask's distributed is not installed here: pip install distributed"
        ) from error
    try:
        client = Client(address, timeout=_CONNECT_S)
    except (OSError, ValueError) as error:
        raise UsageError(f"--cluster {address}: no scheduler answers there ({error})") from error
    with client:
        futures = client.map(mapped, sources, folder=folder, pure=False, retries=1)
        row_of = {future.key: row for row, future in enumerate(futures)}
        found: dict[int, Mapped] = {}
        for future in completed(futures):
            row = row_of[future.key]
            fault = future.exception() if future.status == "error" else None
            if fault is None:
                found[row] = future.result()
            else:
                why = "its worker was killed" if isinstance(fault, KilledWorker) else str(fault)
                found[row] = Mapped(sources[row], error=f"on the cluster: {why}"[:_LONGEST_ERROR])
            done(len(found))
    return [found[row] for row in range(len(sources))]
