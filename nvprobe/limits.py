"""How much an input may ask for, next to its own size: one limit for each kind of resource.

A small file can ask for any amount of memory and time: packed blanks, a table that SQLite computes,
a list that names itself a million times. Readers count while they read, and end with one line where
an input asks for more than any real one does. `raised` multiplies every limit (``--raise-limits``);
docs/security.md lists them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from nvprobe.errors import UsageError

HOW_TO_RAISE = "if you trust it, --raise-limits 10 reads it"

_factor: ContextVar[float] = ContextVar("nvprobe limits", default=1.0)


@contextmanager
def raised(factor: float) -> Iterator[None]:
    """Every limit ``factor`` times as high, within this context."""
    if not isinstance(factor, int | float) or not factor > 0:
        raise UsageError(f"factor={factor!r}: give a number above 0")
    before = _factor.set(factor)
    try:
        yield
    finally:
        _factor.reset(before)


def unpacked(packed: int) -> int:
    """Bytes that ``packed`` bytes of a compressed file may become: 64 MiB and 200 for each.

    Traces become 10 to 40 times as long; gzip itself reaches 1,000.
    """
    return int(_factor.get() * (64 * 2**20 + 200 * packed))


def record_bytes() -> int:
    """Bytes of one event, line or text: 64 MiB."""
    return int(_factor.get() * 64 * 2**20)


def rows(size: int, per_byte: float) -> int:
    """Rows that ``size`` bytes of a file may hold: a million, and some for each byte.

    ``per_byte`` is 0.25 for SQLite, whose rows take four bytes at least, 1 for a pickle and 50 for
    compressed columns.
    """
    return int(_factor.get() * (1_000_000 + per_byte * size))


def nesting() -> int:
    """Ranges around a range: 5,000."""
    return int(_factor.get() * 5000)


def path_bytes() -> int:
    """Bytes of all owner paths as texts: 256 MiB. Each repeats the names above it."""
    return int(_factor.get() * 256 * 2**20)
