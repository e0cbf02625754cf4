"""What torch says that each communicating kernel carries: elements, their type, the group.

Kineto copies it from the operator ``record_param_comms`` to the kernel. A size is counted as
NCCL's own payloads count it: what a rank puts in, of a reduce-scatter what it gets out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from nvprobe.trace import NO_NAME, Column, Messages

MESSAGE_COLUMNS = ("message_bytes", "group", "seq", "peer")
_SIZES = {
    "byte": 1, "char": 1, "bool": 1, "short": 2, "uint16": 2, "half": 2, "bfloat16": 2, "int": 4,
    "uint32": 4, "float": 4, "long": 8, "uint64": 8, "double": 8, "complexhalf": 4,
    "complexfloat": 8, "complexdouble": 16,
}  # fmt: skip
"""Bytes of an element by torch's name of its type."""


def message_columns(arguments: list[Any], rows: Callable[[list[Any]], Column]) -> dict[str, Column]:
    """The columns of some kernels; ``rows`` gives the rows of texts among the names."""
    size = len(arguments)
    columns = {name: np.full(size, NO_NAME, np.int64) for name in MESSAGE_COLUMNS}
    said = [row for row, one in enumerate(arguments) if one.collective]
    if said:
        found = [arguments[row] for row in said]
        columns["message_bytes"][said] = [_bytes(one) for one in found]
        columns["seq"][said] = [one.seq for one in found]
        columns["peer"][said] = [_peer(one) for one in found]
        columns["group"][said] = rows([_plain(one.group) for one in found])
    return columns


def messages(ops: dict[str, Column]) -> Messages:
    """The messages among the ops."""
    rows = np.flatnonzero(ops["message_bytes"] > 0)
    if not len(rows):
        return Messages.absent()
    return Messages(
        op=rows,
        bytes=ops["message_bytes"][rows],
        group=ops["group"][rows],
        sequence=ops["seq"][rows],
        peer=ops["peer"][rows],
    )


def _bytes(one: Any) -> int:
    """Size of one message; -1 where its elements or their type are not known."""
    kind = _plain(one.dtype).lower()
    element = 1 if kind.startswith("float8") else _SIZES.get(kind, 0)
    gets = "reduce_scatter" in one.collective or "recv" in one.collective
    first, second = (one.elements_out, one.elements_in)[:: 1 if gets else -1]
    elements = first if first > 0 else second
    return elements * element if elements > 0 and element else -1


def _peer(one: Any) -> int:
    """The other rank of a point-to-point message, -1 of any other."""
    if "send" in one.collective:
        return int(one.target_rank)
    return int(one.source_rank) if "recv" in one.collective else -1


def _plain(text: str) -> str:
    """A text without the quotes that some versions of torch write around it."""
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text
