"""Budgets from ``[tool.nvprobe.budget]`` of the project: they choose what is checked, no more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nvprobe.cli.defaults import BUDGET, project_table

if TYPE_CHECKING:
    from nvprobe.comparison.budget import Budget


EXIT_CODES = {"pass": 0, "fail": 3, "cannot tell": 4}
"""How a command ends by the outcome of its gate."""


def budgets_of() -> list[Budget]:
    """The project's budgets, none where it has no such table. Raises UsageError."""
    from nvprobe.comparison.budget import read_budgets

    _, table = project_table(lambda _: None)
    return read_budgets(table.get(BUDGET, {}), f"tool.nvprobe.{BUDGET}")
