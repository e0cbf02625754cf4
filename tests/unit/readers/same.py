"""Whether two Traces say the same, name rows compared by their texts."""

from __future__ import annotations

import dataclasses

import numpy as np

from nvprobe.trace import Table, Trace

NAMES = {
    "name", "short_name", "domain", "category", "metric", "symbol", "shapes", "types",
    "schema_name", "field", "text",
}  # fmt: skip


def differences(left: Trace, right: Trace, ignore: tuple[str, ...] = ("sources",)) -> list[str]:
    """Fields in which two traces differ; empty when they are the same."""
    out: list[str] = []
    for spec in dataclasses.fields(Trace):
        if spec.name in ("strings", *ignore):
            continue
        one, other = getattr(left, spec.name), getattr(right, spec.name)
        if isinstance(one, Table) and isinstance(other, Table):
            out += [f"{spec.name}.{name}" for name in _columns(left, one, right, other)]
        elif spec.name == "sidecar":
            out += ["sidecar"] if one.recorded or other.recorded else []
        elif one != other:
            out.append(spec.name)
    return out


def _columns(left: Trace, one: Table, right: Trace, other: Table) -> list[str]:
    mine, theirs = one.columns(), other.columns()
    if one.recorded != other.recorded:
        return ["(recorded)"]
    if mine.keys() != theirs.keys():
        return ["columns"]
    return [
        name
        for name in mine
        if not (
            left.texts(mine[name]) == right.texts(theirs[name])
            if name in NAMES
            else np.array_equal(mine[name], theirs[name], equal_nan=mine[name].dtype.kind == "f")
        )
    ]
