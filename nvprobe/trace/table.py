"""What every table of a trace is made of: equal-length columns, and the values that mean "none"."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[Any]

NO_ROW = -1
"""A reference to another table that leads nowhere."""
NO_NAME = -1
"""A string column without a value."""
NO_DEVICE = -1
"""An op whose device the source does not record."""
OPEN = int(np.iinfo(np.int64).max)
"""The end of a range that was never closed: it is open to the end of the capture."""
NO_PAYLOAD = int(np.iinfo(np.int64).min)
"""The payload of a range or mark that carries none."""


@dataclass(frozen=True, slots=True)
class ColumnSchema:
    """What a column of a table holds."""

    name: str
    dtype: np.dtype[Any]
    about: str
    unit: str = ""
    """``ns`` since the trace's time zero, ``bytes``, ``Hz``; empty for a number or a row."""
    refers: str | None = None
    """The table (field of Trace) whose rows the values are; ``strings`` for texts."""
    missing: float | None = None
    """The value that means that there is none."""
    enum: type[IntEnum] | None = None
    optional: bool = False
    """Whether the whole column may be ``None``."""


def column(
    dtype: str,
    about: str = "",
    *,
    unit: str = "",
    refers: str | None = None,
    missing: float | None = None,
    enum: type[IntEnum] | None = None,
    optional: bool = False,
) -> Any:
    """A dataclass field for one column of ``dtype``; see :class:`ColumnSchema`."""
    schema = ColumnSchema("", np.dtype(dtype), about, unit, refers, missing, enum, optional)
    metadata = {"column": schema}
    return field(default=None, metadata=metadata) if optional else field(metadata=metadata)


def row_of(table: str, about: str, *, dtype: str = "i4", missing: int = NO_ROW) -> Any:
    """A column of rows of another table of the Trace."""
    return column(dtype, about, refers=table, missing=missing)


def name_of(about: str, *, optional: bool = False) -> Any:
    """A column of rows of the trace's strings."""
    return column("i4", about, refers="strings", missing=NO_NAME, optional=optional)


def time_of(about: str, *, missing: int | None = None) -> Any:
    """A column of instants: int64 nanoseconds since the trace's time zero."""
    return column("i8", about, unit="ns", missing=missing)


T = TypeVar("T", bound="Table")


class _Recorded:
    """What is known of a table besides its columns."""

    __slots__ = ("recorded",)
    recorded: bool
    """Whether the source has this table: one without rows may be recorded (nothing happened) or
    not (nothing is known)."""


@dataclass(frozen=True, slots=True)
class Table(_Recorded):
    """Base of the column tables: equal-length one-dimensional arrays, ``None`` for unknown ones."""

    def __post_init__(self) -> None:
        """Cast each column to its declared type and refuse unequal lengths."""
        object.__setattr__(self, "recorded", True)
        lengths = set()
        for spec in dataclasses.fields(self):
            values = getattr(self, spec.name)
            if values is None:
                continue
            array = np.ascontiguousarray(values, dtype=spec.metadata["column"].dtype)
            object.__setattr__(self, spec.name, array)
            lengths.add(array.shape)
        if len(lengths) > 1:
            raise ValueError(f"{type(self).__name__}: columns of unequal length {sorted(lengths)}")

    def __len__(self) -> int:
        return next(len(values) for values in self.columns().values())

    def columns(self) -> dict[str, Column]:
        """The columns that are known, by name."""
        known = ((spec.name, getattr(self, spec.name)) for spec in dataclasses.fields(self))
        return {name: values for name, values in known if values is not None}

    def with_columns(self: T, **columns: Column | None) -> T:
        """The table with other columns in place of its own; what was not recorded stays so."""
        return dataclasses.replace(self, **columns) if self.recorded else self

    def moved(self: T, rows: Mapping[str, Column], times: Callable[[str, Column], Column]) -> T:
        """The table as another Trace has it: references led to its rows, instants to its clock.

        ``rows`` has for a table (``strings`` for texts) the new row of each, that of a reference
        that leads nowhere last; references to other tables stay. ``times`` takes a column's name
        and values.
        """
        columns = {}
        for schema in self.column_schemas():
            values = getattr(self, schema.name)
            known = None if schema.refers is None else rows.get(schema.refers)
            if values is not None and known is not None:
                columns[schema.name] = known[values]
            elif values is not None and schema.unit == "ns":
                columns[schema.name] = times(schema.name, values)
        return self.with_columns(**columns)

    def take(self: T, rows: Column) -> T:
        """The rows chosen by a boolean mask or an index array."""
        return self.with_columns(**{name: values[rows] for name, values in self.columns().items()})

    @classmethod
    def column_schemas(cls) -> tuple[ColumnSchema, ...]:
        """What each column holds, in order."""
        return tuple(
            dataclasses.replace(spec.metadata["column"], name=spec.name)
            for spec in dataclasses.fields(cls)
        )

    @classmethod
    def empty(cls: type[T]) -> T:
        """A table without rows: recorded, and nothing happened."""
        return cls(
            **{
                spec.name: np.empty(0, spec.metadata["column"].dtype)
                for spec in dataclasses.fields(cls)
                if spec.default is not None
            }
        )

    @classmethod
    def joined(cls: type[T], parts: Sequence[Mapping[str, Column | None]]) -> T:
        """The rows of all parts (columns by name), one after the other; absent without parts.

        A column that one of them does not know is known of none.
        """
        if not parts:
            return cls.absent()
        columns = {}
        for name in parts[0]:
            known = [values for part in parts if (values := part.get(name)) is not None]
            whole = np.concatenate(known) if len(known) > 1 else known[0] if known else None
            columns[name] = whole if len(known) == len(parts) else None
        return cls(**columns)

    @classmethod
    def absent(cls: type[T]) -> T:
        """The table of a source that did not record it: no rows, and not ``recorded``."""
        table = cls.empty()
        object.__setattr__(table, "recorded", False)
        return table
