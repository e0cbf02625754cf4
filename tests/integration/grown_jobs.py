"""Jobs of several ranks grown from one real rank of DDP, with what is planted in them.

Kernels, calls, ranges and NCCL's own records stay those of the capture; times and communicators of
its 36 collectives (nine a step) and lengths of its compute kernels are what a test asks for.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from tests.conftest import CORPUS

SOURCE = CORPUS / "runs/ddp/rank0"
COMMUNICATOR = bytes.fromhex("63984e3e9baae4df")
"""Of the capture, as it stands in NCCL's records."""
AT = 32
US = 1_000
SCATTER = 3 * US
PER_STEP = 9
NCCL = "from StringIds s where s.id = k.demangledName and s.value like '%nccl%'"
TABLE = "CUPTI_ACTIVITY_KIND_KERNEL"


def times() -> np.ndarray:
    """(row id, start, end) of the collectives of the capture, int64 of shape (36, 3)."""
    database = sqlite3.connect(f"file:{SOURCE}/report.sqlite?mode=ro&immutable=1", uri=True)
    query = f"select k.rowid, k.start, k.end from {TABLE} k where exists (select 1 {NCCL})"
    found = np.array(database.execute(f"{query} order by k.start").fetchall(), np.int64)
    database.close()
    return found


def grow(
    folder: Path,
    groups: Sequence[Sequence[int]],
    *,
    transfer_us: Callable[[int], float] = lambda group: 150,
    late_us: Callable[[int, int], float] = lambda rank, number: 0,
    longer: Callable[[int], float] = lambda rank: 1,
    kernel: str | None = None,
    recompiled: Sequence[int] = (),
) -> Path:
    """Write a job whose ``groups`` of ranks communicate among themselves.

    Args:
        transfer_us: Of a group's collectives, from the last arrival on.
        late_us: How much later than in the capture a rank arrives at a collective, by its number.
        longer: Factor of a rank's compute kernels.
        kernel: Name of the communicating kernels in place of theirs.
        recompiled: Ranks on which a function was compiled again.
    """
    draw, known = np.random.default_rng(20), times()
    folder.mkdir(parents=True)
    (folder / "job.json").write_text(json.dumps({"schema": "nvprobe.job/1", "job": "grown"}))
    for number, group in enumerate(groups):
        planned = np.array([[late_us(rank, i) for i in range(len(known))] for rank in group])
        begin = known[:, 1] + (planned * US).astype(np.int64)
        begin += draw.integers(0, SCATTER, begin.shape)
        end = np.zeros(len(known), np.int64)
        for i in range(len(known)):  # a stream runs its kernels one after the other
            begin[:, i] = np.maximum(begin[:, i], end[max(i - 1, 0)] + SCATTER)
            end[i] = begin[:, i].max() + int(transfer_us(number) * US)
        for row, rank in enumerate(group):
            ends = end + draw.integers(0, SCATTER, len(end))
            place = folder / f"rank{rank}"
            _copy(place, rank, sum(map(len, groups)), recompiled=rank in recompiled)
            with sqlite3.connect(place / "report.sqlite") as database:
                _edit(database, known, begin[row], ends, number, longer(rank), kernel)
            database.close()
    return folder


def _copy(place: Path, rank: int, ranks: int, *, recompiled: bool) -> None:
    place.mkdir()
    shutil.copy(SOURCE / "report.sqlite", place)
    (place / "report.sqlite").chmod(0o600)
    run = json.loads((SOURCE / "run.json").read_text()) | {"rank": rank, "world_size": ranks}
    (place / "run.json").write_text(json.dumps(run))
    (sidecar,) = SOURCE.glob("sidecar.*.jsonl")
    lines = sidecar.read_text()
    if recompiled:
        reasons = [{"guard": "tensor 'x' size mismatch at index 0. expected 8, actual 7"}]
        again = {"kind": "recompile", "function": "forward", "compile_id": "0/1",
                 "source": "train.py:12", "reasons": reasons}  # fmt: skip
        lines += json.dumps(again) + "\n"
    (place / f"sidecar.{rank}.{sidecar.name.split('.')[2]}.jsonl").write_text(lines)


def _edit(
    database: sqlite3.Connection,
    known: np.ndarray,
    begin: np.ndarray,
    end: np.ndarray,
    group: int,
    longer: float,
    kernel: str | None,
) -> None:
    rows = zip(begin.tolist(), end.tolist(), known[:, 0].tolist(), strict=True)
    database.execute("pragma synchronous = off")
    database.executemany(f"update {TABLE} set start = ?, end = ? where rowid = ?", rows)
    own = (int.from_bytes(COMMUNICATOR, "little") + group).to_bytes(8, "little")
    payloads = database.execute(
        "select rowid, binaryData from NVTX_EVENTS where binaryData is not null"
    ).fetchall()
    changed = [(data[:AT] + own + data[AT + 8 :], row) for row, data in payloads]
    database.executemany("update NVTX_EVENTS set binaryData = ? where rowid = ?", changed)
    if longer != 1:
        database.execute(
            f"update {TABLE} as k set end = start + cast((end - start) * ? as int) "
            f"where not exists (select 1 {NCCL})",
            (longer,),
        )
    if kernel is not None:
        renamed = "update StringIds set value = ? where value like 'ncclDevKernel%'"
        database.execute(renamed, (kernel,))
