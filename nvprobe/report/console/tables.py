"""Tables as the terminal report draws them."""

from __future__ import annotations

from rich.table import Table

__all__ = ["new_table"]


def new_table(*columns: str, **widths: int) -> Table:
    """A table whose first column takes the width that is left; the others are right-aligned."""
    out = Table(box=None, padding=(0, 2, 0, 0), header_style="bold dim", expand=True)
    for position, name in enumerate(columns):
        right = position > 0 and name not in ("Mostly in", "Domain", "Where", "In", "Cause")
        out.add_column(
            name,
            justify="right" if right else "left",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if position == 0 else None,
            width=widths.get(name.replace(" ", "_")),
        )
    return out
