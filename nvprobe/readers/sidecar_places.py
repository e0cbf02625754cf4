"""Places of a sidecar (docs/sidecar.md): one a position, with its highest count."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from nvprobe.readers.sidecar_file import is_whole
from nvprobe.trace.sidecar import Place

__all__ = ["places"]


def places(rows: Iterable[Mapping[str, Any]], process: int) -> list[Place]:
    """The places of one process, in the order they were met; rows without a line are left out."""
    found: dict[tuple[object, ...], Place] = {}
    for row in rows:
        one = _place(row, process)
        if one is not None:
            key = (one.name, one.category, one.role, one.source, one.stack, one.detail)
            known = found.setdefault(key, one)
            found[key] = one if one.count > known.count else known
    return list(found.values())


def _place(row: Mapping[str, Any], process: int) -> Place | None:
    name, role, source = row.get("name"), row.get("role"), row.get("source")
    if not (isinstance(name, str) and isinstance(role, str) and isinstance(source, str)):
        return None
    stack, count = row.get("stack"), row.get("count")
    return Place(
        process=process,
        name=name,
        category=_text(row.get("category")),
        role=role,
        source=source,
        stack=tuple(map(str, stack)) if isinstance(stack, list) else (),
        detail=_text(row.get("detail")),
        count=count if isinstance(count, int) and is_whole(count) else 1,
    )


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
