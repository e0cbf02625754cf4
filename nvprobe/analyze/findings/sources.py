"""Lines of the program for findings that have none, from recorded Python frames.

A frame names a function and its first line: ``train.py:50 (step)``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from nvprobe.analyze.findings.model import Evidence, Finding
from nvprobe.analyze.grouping import sums
from nvprobe.analyze.waiting.lines import code_lines

__all__ = ["with_sources"]

_SHARE = 0.2
"""A line is named if this much of the finding's GPU time was called for in it."""
_MOST = 3


def with_sources(evidence: Evidence, found: Sequence[Finding]) -> list[Finding]:
    """Findings with the lines that called for their ops, the longest first."""
    calls = evidence.trace.calls
    if calls is None or all(one.sources or one.ops is None for one in found):
        return list(found)
    lines = code_lines(evidence.trace)
    if lines is None:
        return list(found)
    out = []
    for one in found:
        if one.sources or one.ops is None:
            out.append(one)
            continue
        call = evidence.attribution.call[one.ops]
        known = call >= 0
        label = np.full(len(call), -1, np.int64)
        label[known] = lines.at(calls.thread[call[known]], calls.start[call[known]])
        spent = sums(label, evidence.attribution.duration[one.ops], len(lines.labels))
        largest = np.argsort(-spent, kind="stable")[:_MOST]
        total = int(evidence.attribution.duration[one.ops].sum())
        named = [str(lines.labels[int(row)].as_py()) for row in largest
                 if spent[row] and spent[row] >= _SHARE * total]  # fmt: skip
        out.append(dataclasses.replace(one, sources=tuple(named)))
    return out
