"""What makes the batches of a DataLoader: the user's lines behind a wait for data.

Looked at once an iterator: `_dataset`, `_collate_fn` and `_num_workers` of torch's
``_BaseDataLoaderIter`` (2.0 to 2.13). What is not there, or not the user's, is not noted.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from types import CodeType
from typing import Any

from nvprobe.instrumentation import places
from nvprobe.instrumentation.emitter import Category

log = logging.getLogger("nvprobe")

_noted: weakref.WeakSet[Any] = weakref.WeakSet()
_METHODS = ("__getitems__", "__getitem__", "__iter__")
_WRAPPERS = 8
"""Data sets around one another (``Subset`` of ``ConcatDataset``) that are looked through."""


def note(iterator: Any) -> None:
    """Note the lines of a loader's iterator, the first time it is met."""
    try:
        if iterator in _noted:
            return
        _noted.add(iterator)
        apart = bool(getattr(iterator, "_num_workers", 0))
        role = places.MADE_APART if apart else places.MADE
        for code in _makers(iterator):
            places.define("data", Category.PHASE, role, code)
    except Exception as error:  # a data set may answer anything to an attribute
        log.debug("no lines of a data set: %r", error)


def _makers(iterator: Any) -> Iterator[CodeType]:
    """The data set's own methods, then the function that makes a batch of samples."""
    waiting = [getattr(iterator, "_dataset", None)]
    for _ in range(_WRAPPERS):
        if not waiting:
            break
        dataset = waiting.pop(0)
        found = [places.code_of(getattr(type(dataset), name, None)) for name in _METHODS]
        yield from (code for code in found[:2] if code is not None)
        if found[2] is not None and not any(found[:2]):
            yield found[2]
        waiting += _inner(dataset)
    collate = places.code_of(getattr(iterator, "_collate_fn", None))
    if collate is not None:
        yield collate


def _inner(dataset: Any) -> list[Any]:
    """The data sets that one is around.

    Lists and tuples alone are looked into: the data sets of a ``ChainDataset`` may come from a
    generator, and whoever asks it for one takes it from the program.
    """
    held = vars(dataset) if hasattr(dataset, "__dict__") else {}
    if "dataset" in held:
        return [held["dataset"]]
    several = held.get("datasets")
    return list(several[:_WRAPPERS]) if isinstance(several, (list, tuple)) else []
