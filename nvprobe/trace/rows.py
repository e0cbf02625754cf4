"""Rows that are described once, for every layer: each field says what it means, and its unit.

As in ``gpu_ns: Annotated[int, ns("GPU time of its ops")]``; ``nvprobe.report.schema`` makes
columns, JSON Schema and documentation of them.
"""

from __future__ import annotations

import msgspec
from msgspec import Meta


class Row(msgspec.Struct, frozen=True, gc=False):
    """One row of a table, or an object of the analysis document."""


def is_(about: str) -> Meta:
    """A field without a unit."""
    return Meta(description=about)


def measured(unit: str, about: str) -> Meta:
    """A field in a unit."""
    return Meta(description=about, extra_json_schema={"unit": unit})


def ns(about: str) -> Meta:
    """A field in nanoseconds."""
    return measured("ns", about)


def size(about: str) -> Meta:
    """A field in bytes."""
    return measured("bytes", about)


def pair(first: str, second: str, about: str, unit: str | None = None) -> Meta:
    """Two numbers: one array in JSON, two columns with these names in tables."""
    known = {} if unit is None else {"unit": unit}
    return Meta(description=about, extra_json_schema=known, extra={"columns": (first, second)})
