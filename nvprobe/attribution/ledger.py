"""The ledger: methods and reasons partition the ops; counts and nanoseconds add up exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvprobe.attribution.model import Attribution, Method
from nvprobe.trace import Column


class LedgerError(AssertionError):
    """The books do not balance: a defect of nvprobe, never a rounding matter."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A number of ops and their GPU time."""

    ops: int
    gpu_ns: int


@dataclass(frozen=True, slots=True)
class Ledger:
    """Every op once, by method or reason."""

    total: Entry
    by_method: dict[Method, Entry]
    """Methods and reasons that occur."""
    by_process: tuple[tuple[int, Entry, dict[Method, Entry]], ...]
    """Per process with ops: (process row, total, by method)."""
    threads_without_range: dict[int, Entry]
    """``no_range_open`` by thread row."""


def ledger(attribution: Attribution) -> Ledger:
    """Book every op of an attribution. Raises LedgerError if a sum is not that of the file."""
    ops = attribution.trace.ops
    method, duration = attribution.method, attribution.duration
    total = Entry(len(ops), int(duration.sum()))
    by_process = []
    for process in np.unique(ops.process).tolist():
        mine = ops.process == process
        entry = Entry(int(mine.sum()), int(duration[mine].sum()))
        by_process.append((process, entry, _by_method(method[mine], duration[mine])))
    book = Ledger(
        total=total,
        by_method=_by_method(method, duration),
        by_process=tuple(by_process),
        threads_without_range=_by_thread(attribution),
    )
    _balance(book)
    return book


def _by_method(method: Column, duration: Column) -> dict[Method, Entry]:
    count = np.bincount(method, minlength=len(Method))
    time = np.zeros(len(Method), np.int64)
    np.add.at(time, method, duration)
    return {m: Entry(int(count[m]), int(time[m])) for m in Method if count[m]}


def _by_thread(attribution: Attribution) -> dict[int, Entry]:
    calls = attribution.trace.calls
    lost = np.flatnonzero(attribution.method == Method.NO_RANGE_OPEN)
    thread = calls.thread[attribution.call[lost]]
    out = {}
    for row in np.unique(thread).tolist():
        mine = lost[thread == row]
        out[row] = Entry(len(mine), int(attribution.duration[mine].sum()))
    return out


def _balance(book: Ledger) -> None:
    for parts in (
        list(book.by_method.values()),
        [entry for _, entry, _ in book.by_process],
        [entry for _, _, methods in book.by_process for entry in methods.values()],
    ):
        booked = Entry(sum(p.ops for p in parts), sum(p.gpu_ns for p in parts))
        if booked != book.total:
            raise LedgerError(f"booked {booked}, the file has {book.total}")
