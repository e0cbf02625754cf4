"""Which module objects open ranges of one name, and which of them train.

Layers that are held in a plain list, or called one by one, all have their class's name: a range
says "a ``Block``", not which one. These rows of the sidecar say how many there are. Of models,
whose calls are phases, they also say in which modes each is called: one that trains and is
evaluated is another matter than a second model that only ever helps.

An object is known by the `forwards.Record` in it, as its address may be used again.
"""

from __future__ import annotations

import itertools
import os
import sys
from typing import TYPE_CHECKING

from nvprobe.instrumentation import sidecar

if TYPE_CHECKING:
    from torch import nn

    from nvprobe.instrumentation.forwards import Record

COLUMNS = ("name", "root", "object", "trains")
MOST = 16_384
"""Rows written: modules that are made anew in each step are not noted beyond that."""

_numbers = itertools.count()
_noted: set[tuple[int, bool | None]] = set()
"""Objects by number, and modes, that the sidecar has."""


def trains(module: nn.Module) -> bool:
    """Whether a call of a module now is one whose gradients are wanted, in training mode."""
    return module.training and bool(sys.modules["torch"].is_grad_enabled())


def model_called(record: Record, module: nn.Module) -> None:
    """Note a model, and whether it trains in this call or is evaluated.

    In training mode without gradients it does neither: a generator makes pictures for the other
    network so.
    """
    if sidecar.is_open():
        note(record, trains(module) or (None if module.training else False))


def note(record: Record, mode: bool | None) -> None:
    """Write that this object opens ranges of its record's name, once for each mode.

    Args:
        record: The object's.
        mode: Whether it trains (True) or is evaluated (False); None where it is neither, or
            nobody looked.

    """
    if record.number < 0:
        record.number = next(_numbers)
    key = record.number, mode
    if key in _noted or len(_noted) >= MOST or not sidecar.is_open():
        return
    _noted.add(key)
    sidecar.row("object", COLUMNS, (record, record.within, record.number, mode))


os.register_at_fork(after_in_child=_noted.clear)
