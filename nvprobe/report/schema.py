"""Typed rows: from the fields of one struct come its JSON, Arrow columns, SQL columns and docs.

A field says what it means and its unit, ``Annotated[int, ns("GPU time of its ops")]``. In a flat
table a struct inside a row becomes columns that start with its name, a pair two columns (`pair`),
and a dictionary a list of `NAMED` values; lists stay lists (``database`` and CSV make child tables
of them).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import inspect

from nvprobe.analysis.model import UNKNOWN
from nvprobe.analysis.result import Analysis
from nvprobe.trace import Column, Table
from nvprobe.trace.rows import Row

NAMED = pa.struct(
    [
        ("name", pa.string()),
        ("integer", pa.int64()),
        ("real", pa.float64()),
        ("text", pa.string()),
    ]
)
"""One entry of a dictionary whose values are of several types."""


R = TypeVar("R", bound=Row)


def rows(kind: type[R], table: Table | None = None, /, **columns: Sequence[Any]) -> list[R]:
    """Rows from columns of equal length; those that are not given are the table's own."""
    size = len(table) if table is not None else 0
    ordered = [
        columns[name] if name in columns else numbers(getattr(table, name), size)
        for name in kind.__struct_fields__
    ]
    return [kind(*values) for values in zip(*ordered, strict=True)]


def numbers(column: Column | None, size: int) -> list[int | None]:
    """A column as Python integers; null where unknown, or everywhere if not computed."""
    if column is None:
        return [None] * size
    values: list[int | None] = column.tolist()
    if len(column) and bool((column == UNKNOWN).any()):
        return [None if value == UNKNOWN else value for value in values]
    return values


def path_texts(analysis: Analysis, paths: Column) -> list[str | None]:
    """Texts of path rows, null for -1."""
    table = analysis.attribution.paths
    known = {int(row): table.text(int(row)) for row in np.unique(paths[paths >= 0])}
    return [known.get(row) for row in paths.tolist()]


def fractions(column: Column) -> list[float | None]:
    """A column of numbers, null where there is none."""
    return [value if math.isfinite(value) else None for value in column.tolist()]


class Field(NamedTuple):
    """One column of a flat table."""

    name: str
    about: str
    unit: str | None
    type: pa.DataType
    of: Callable[[Any], Any]
    """Its value in a row."""


@cache
def fields(kind: type[Row]) -> tuple[Field, ...]:
    """The columns of a kind of row."""
    return tuple(_fields(kind, "", lambda row: row))


def arrow(kind: type[R], found: Sequence[R]) -> pa.Table:
    """Rows as an Arrow table, typed also where there are none."""
    columns = fields(kind)
    schema = pa.schema([(field.name, field.type) for field in columns])
    values = [pa.array([field.of(row) for row in found], field.type) for field in columns]
    return pa.table(values, schema=schema)


def _fields(kind: type[msgspec.Struct], prefix: str, of: Callable[[Any], Any]) -> list[Field]:
    out: list[Field] = []
    for field in msgspec.structs.fields(kind):
        type_ = inspect.type_info(field.type)
        meta = type_ if isinstance(type_, inspect.Metadata) else None
        plain = _plain(type_)
        name, inner = prefix + field.encode_name, _inside(of, field.name)
        if isinstance(plain, inspect.StructType):
            out += _fields(plain.cls, f"{name}_", inner)
            continue
        known = (meta and meta.extra_json_schema) or {}
        about, unit = known.get("description", ""), known.get("unit")
        if isinstance(plain, inspect.TupleType):
            names = ((meta and meta.extra) or {})["columns"]
            kinds = (_arrow_type(_plain(item)) for item in plain.item_types)
            out += [
                Field(prefix + one, about, unit, kind_, _item(inner, at))
                for at, (one, kind_) in enumerate(zip(names, kinds, strict=True))
            ]
        else:
            out.append(Field(name, about, unit, _arrow_type(plain), _converted(inner, plain)))
    return out


def _plain(type_: inspect.Type) -> inspect.Type:
    """A type without its description and without null."""
    if isinstance(type_, inspect.Metadata):
        return _plain(type_.type)
    if isinstance(type_, inspect.UnionType):
        some = [_plain(one) for one in type_.types if not isinstance(one, inspect.NoneType)]
        return some[0] if len(some) == 1 else inspect.AnyType()
    return type_


_SCALARS: dict[type[inspect.Type], pa.DataType] = {
    inspect.IntType: pa.int64(),
    inspect.FloatType: pa.float64(),
    inspect.BoolType: pa.bool_(),
    inspect.StrType: pa.string(),
    inspect.LiteralType: pa.string(),
}


def _arrow_type(plain: inspect.Type) -> pa.DataType:
    if isinstance(plain, inspect.ListType):
        return pa.list_(_arrow_type(_plain(plain.item_type)))
    if isinstance(plain, inspect.DictType):
        return pa.list_(NAMED)
    if isinstance(plain, inspect.StructType):
        return pa.struct([(field.name, field.type) for field in fields(plain.cls)])
    return _SCALARS[type(plain)]


def _inside(of: Callable[[Any], Any], name: str) -> Callable[[Any], Any]:
    def value(row: Any) -> Any:
        outer = of(row)
        return None if outer is None else getattr(outer, name)

    return value


def _item(of: Callable[[Any], Any], at: int) -> Callable[[Any], Any]:
    def value(row: Any) -> Any:
        both = of(row)
        return None if both is None else both[at]

    return value


def _converted(of: Callable[[Any], Any], plain: inspect.Type) -> Callable[[Any], Any]:
    """Dictionaries and structs in lists as Arrow takes them."""
    if isinstance(plain, inspect.DictType):
        return lambda row: [_named(*entry) for entry in (of(row) or {}).items()]
    if isinstance(plain, inspect.ListType):
        item = _plain(plain.item_type)
        if isinstance(item, inspect.StructType):
            return lambda row: [msgspec.to_builtins(one) for one in of(row) or ()]
    return of


def _named(name: str, value: Any) -> dict[str, Any]:
    kind = "text" if isinstance(value, str) else "real" if isinstance(value, float) else "integer"
    return {"name": name, kind: value}


def flat(name: str, table: pa.Table) -> dict[str, pa.Table]:
    """A table for formats without lists: each list a table of its own, which refers to ``row``."""
    lists = [field.name for field in table.schema if pa.types.is_list(field.type)]
    if not lists:
        return {name: table}
    row = pa.array(np.arange(len(table)))
    out = {name: table.drop_columns(lists).add_column(0, "row", row)}
    for column in lists:
        values = table[column].combine_chunks()
        parent = np.asarray(pc.list_parent_indices(values), np.int64)
        place = np.arange(len(parent)) - np.searchsorted(parent, parent)
        items = pc.list_flatten(values)
        if pa.types.is_list(items.type):
            items = pa.array(["x".join(map(str, one)) for one in items.to_pylist()], pa.string())
        struct = pa.types.is_struct(items.type)
        inner = (
            dict(zip(items.type.names, items.flatten(), strict=True))
            if struct
            else {"value": items}
        )
        out[f"{name}_{column}"] = pa.table({f"{name}_row": parent, "place": place, **inner})
    return out
