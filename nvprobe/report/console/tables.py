"""Tables as the terminal report draws them: numbers beside their names, at any width."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rich.cells import cell_len, set_cell_size
from rich.table import Table
from rich.text import Text

from nvprobe.readers.input_errors import printable
from nvprobe.report.console.names import apart

_GAP = 2
_LONGEST = 400
_NAME = 16
"""Least columns of names, where they are as long; the first names have a third of the width."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of texts; the first of a table is its names."""

    head: str
    cells: Sequence[str]
    left: bool = False
    cuts: Callable[[Sequence[str], int], list[str]] | None = None
    """How its texts are made shorter; None: they are not."""
    rank: int = 0
    """Where there are too few columns, the highest is left out; 0 never is."""

    @property
    def width(self) -> int:
        """Columns that head and cells need."""
        return max(map(cell_len, (self.head, *self.cells)))


def names(head: str, cells: Sequence[str], rank: int = 0) -> Column:
    """Paths, kernels, lines: cut so that they can be told apart."""
    return Column(head, [printable(text, _LONGEST) for text in cells], True, apart, rank)


def words(head: str, cells: Sequence[str], rank: int = 0) -> Column:
    """Short texts that are never cut."""
    return Column(head, [printable(text, _LONGEST) for text in cells], True, None, rank)


def numbers(head: str, cells: Sequence[str], rank: int = 0) -> Column:
    """Numbers with their units, right-aligned."""
    return Column(head, cells, False, None, rank)


def table(width: int, *columns: Column) -> Text:
    """The columns that fit, each as wide as it needs; names take what is left."""
    kept = [column for column in columns if column.cells]
    while _least(kept, width) > width and any(column.rank for column in kept):
        kept.remove(max(kept, key=lambda column: column.rank))
    widths = _widths(kept, width)
    cells = [
        column.cuts(column.cells, size) if column.cuts else column.cells
        for column, size in zip(kept, widths, strict=True)
    ]
    heads = _line(kept, widths, [column.head for column in kept])
    lines = [Text(_line(kept, widths, row)) for row in zip(*cells, strict=True)]
    return Text("\n", no_wrap=True, overflow="ellipsis").join([Text(heads, "bold dim"), *lines])


def more(number: int, noun: str, option: str = "--top") -> list[Text]:
    """What a table leaves out, and the option that shows it."""
    word = noun if number == 1 else f"{noun}s"
    return [Text(f"… {number:,} more {word} ({option})", "dim")] if number > 0 else []


def _least(columns: Sequence[Column], width: int) -> int:
    """Columns of the terminal below which the table is not readable."""
    sizes = [min(one.width, _NAME) if one.cuts else one.width for one in columns]
    sizes[0] = min(columns[0].width, max(_NAME, width // 3))
    return sum(sizes) + _GAP * (len(sizes) - 1)


def _widths(columns: Sequence[Column], width: int) -> list[int]:
    """What names need, shared by two columns of them where it is too much."""
    flexible = [one for one in columns if one.cuts]
    left = width - _GAP * (len(columns) - 1) - sum(one.width for one in columns if not one.cuts)
    sizes: dict[int, int] = {}
    for position, one in enumerate(sorted(flexible, key=lambda one: one.width)):
        share = max(left, 0) // (len(flexible) - position)
        sizes[id(one)] = min(one.width, share)
        left -= sizes[id(one)]
    return [sizes.get(id(one), one.width) for one in columns]


def _line(columns: Sequence[Column], widths: Sequence[int], cells: Sequence[str]) -> str:
    padded = []
    for column, size, text in zip(columns, widths, cells, strict=True):
        space = " " * (size - cell_len(text))
        padded.append(set_cell_size(text, size) if column.left else space + text)
    return (" " * _GAP).join(padded).rstrip()


def new_table(*columns: str) -> Table:
    """A table of styled cells: the first column takes the width that is left."""
    out = Table(box=None, padding=(0, 2, 0, 0), header_style="bold dim")
    for position, name in enumerate(columns):
        left = position == 0 or name == "What"
        out.add_column(name, justify="left" if left else "right", no_wrap=True, overflow="ellipsis")
    return out
