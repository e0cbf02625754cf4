"""How much of a change comes true: the three models that each kind of change gives."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum

from nvprobe.analysis.replay.model import Model


class Level(IntEnum):
    """Of what the capture cannot tell, how much turns out well."""

    LOW = 0
    MID = 1
    HIGH = 2


Edit = Callable[[Model, Level], None]
"""Changes a model in place."""


def all_of(edits: Sequence[Edit]) -> Edit:
    """All these changes, one after the other."""

    def edit(model: Model, level: Level) -> None:
        for one in edits:
            one(model, level)

    return edit


def changed(model: Model, edit: Edit, level: Level) -> Model:
    """A copy with the change made."""
    copy = model.edit()
    edit(copy, level)
    return copy
