"""GPU time by module, forward and backward apart: the second owner as a table."""

from __future__ import annotations

from typing import Any

import numpy as np

from nvprobe.analysis.grouping import distinct
from nvprobe.analysis.waiting.code_lines import NO_LINE, OpLines
from nvprobe.attribution.ledger import Entry
from nvprobe.attribution.model import ModuleMethod, Modules, Phase
from nvprobe.trace import Column

_MOST_LINES = 5


def module_records(modules: Modules, lines: OpLines) -> list[dict[str, Any]]:
    """One row per module, most GPU time first.

    ``ops`` counts the ops that have a share in it; ``sources`` are the lines behind most of its
    time. What a backward pass computes again of the forward is ``recompute_gpu_ns``.
    """
    used, row = np.unique(modules.module, return_inverse=True)
    row = row.reshape(-1)
    names = [str(modules.names[int(code)].as_py()) for code in used]
    sums = {phase: _sums(row, modules, modules.phase == phase, len(used)) for phase in Phase}
    ops = np.zeros(len(used), np.int64)
    pairs, _ = distinct(row.astype(np.int64) << 40 | modules.op)
    np.add.at(ops, pairs >> 40, 1)
    sources = _sources(row, modules, lines, len(used))
    total = np.sum(list(sums.values()), axis=0)
    return [
        {
            "module": names[at],
            "forward_gpu_ns": int(sums[Phase.FORWARD][at]),
            "backward_gpu_ns": int(sums[Phase.BACKWARD][at]),
            "recompute_gpu_ns": int(sums[Phase.RECOMPUTE][at]),
            "ops": int(ops[at]),
            "sources": sources[at],
        }
        for at in np.argsort(-total, kind="stable").tolist()
    ]


def module_ledger_records(ledger: dict[ModuleMethod, Entry]) -> dict[str, dict[str, int]]:
    """Ops and GPU time by the way their modules were found; they add up to the totals."""
    return {
        method.name.lower(): {"ops": entry.ops, "gpu_ns": entry.gpu_ns}
        for method, entry in ledger.items()
    }


def _sums(row: Column, modules: Modules, chosen: Column, size: int) -> Column:
    out = np.zeros(size, np.int64)
    np.add.at(out, row[chosen], modules.gpu_ns[chosen])
    return out


def _sources(row: Column, modules: Modules, lines: OpLines, size: int) -> list[list[str]]:
    """The lines behind most of each module's time: the manifest's, else the frames'."""
    manifest = np.asarray(modules.source, np.int64)
    frame = lines.line[modules.op].astype(np.int64)
    # Lines of frames are coded behind those of the manifest.
    code = np.where(
        manifest >= 0, manifest, np.where(frame != NO_LINE, frame + len(modules.names), -1)
    )
    known = np.flatnonzero(code >= 0)
    keys, which = distinct(row[known].astype(np.int64) << 32 | code[known])
    pairs = keys >> 32, keys & 0xFFFFFFFF
    time = np.zeros(len(keys), np.int64)
    np.add.at(time, which, modules.gpu_ns[known])
    out: list[list[str]] = [[] for _ in range(size)]
    for at in np.lexsort((pairs[1], -time, pairs[0])).tolist():
        listed = out[int(pairs[0][at])]
        if len(listed) < _MOST_LINES:
            listed.append(_text(int(pairs[1][at]), modules, lines))
    return out


def _text(code: int, modules: Modules, lines: OpLines) -> str:
    if code < len(modules.names):
        return str(modules.names[code].as_py())
    return lines.text(code - len(modules.names)) or ""
