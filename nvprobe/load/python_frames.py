"""Python frames among the call stacks of nsys (``--python-backtrace=cuda``).

A frame is Python's where its symbol, or the module it stands in, names a ``.py`` file with a line:
``train.py:31``, ``train.py(31)`` or ``File "train.py", line 31``, with or without the function's
name around it. No documented export has these, so anything of that form is taken, and what names
no line is a native frame.
"""

from __future__ import annotations

import re
from pathlib import PurePosixPath

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.load.nsys_frames import UNKNOWN
from nvprobe.load.tables import Rows, Tables
from nvprobe.trace import Column

__all__ = ["python_line", "python_lines"]

_WHERE = re.compile(
    r"(?P<file>[^\s\"'()\[\]:!]+\.pyx?)[\"']?\s*(?::|\(|,? line |\[)\s*(?P<line>\d{1,7})\b"
)
_LINE_ALONE = re.compile(r"(?::|\(|\bline )\s*(?P<line>\d{1,7})\)?\s*$")
_PACKAGES = ("site-packages", "dist-packages")
_KEPT = 3
"""Last parts kept of a path that lies in no package, as the sidecar's are."""


def python_line(symbol: str | None, module: str | None) -> str | None:
    """``file:line`` of a Python frame, without this machine's folders; None for a native one."""
    for text in filter(None, (symbol, module)):
        found = _WHERE.search(text)
        if found:
            return f"{_short(found['file'])}:{int(found['line'])}"
    if module and symbol and module.endswith(".py"):
        alone = _LINE_ALONE.search(symbol)
        if alone:
            return f"{_short(module)}:{int(alone['line'])}"
    return None


def _short(path: str) -> str:
    parts = PurePosixPath(path.replace("\\", "/")).parts
    for place in range(len(parts) - 1, 0, -1):
        if parts[place] in _PACKAGES:
            return "/".join(parts[place + 1 :])
    absolute = bool(parts) and (parts[0] == "/" or parts[0].endswith(":"))
    return "/".join(parts[1:][-_KEPT:] if absolute else parts)


def python_lines(rows: Rows, tables: Tables) -> tuple[Column, pa.StringArray]:
    """(row of the texts per frame of a table of call chains, -1; distinct texts).

    Only frames whose symbol or module mentions a ``.py`` file are looked at, each pair once.
    """
    symbol, module = rows.ints("symbol", UNKNOWN), rows.ints("module", UNKNOWN)
    code = np.full(len(rows), -1, np.int32)
    ids = np.unique(np.concatenate((symbol, module)))
    ids = ids[ids != UNKNOWN]
    texts = tables.strings(ids)
    mentions = pc.fill_null(pc.match_substring(texts, ".py"), False)
    wanted = ids[mentions.to_numpy(zero_copy_only=False)]
    at = np.flatnonzero(np.isin(symbol, wanted) | np.isin(module, wanted))
    if not len(at):
        return code, pa.array([], pa.string())
    pairs, place = np.unique(np.stack((symbol[at], module[at]), 1), axis=0, return_inverse=True)
    text = dict(zip(ids.tolist(), texts.to_pylist(), strict=True))
    lines = pa.array(
        [python_line(text.get(s), text.get(m)) for s, m in pairs.tolist()], pa.string()
    )
    coded = pc.dictionary_encode(lines)
    rows_of = np.asarray(pc.fill_null(coded.indices, -1), np.int32)
    code[at] = rows_of[place.ravel()]
    return code, coded.dictionary
