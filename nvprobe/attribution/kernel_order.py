"""Which call of a compiled graph's manifest launched which of the ops recorded inside its range.

Generated (Triton) kernels carry their manifest name and are the *anchors*: the manifest's anchors
are the captured ones in the same order. A library call launches one to several kernels of other
names; the ops between two anchors belong to the library calls between them. Where a gap has
several calls, its ops are dealt out as far as they can be told apart, else all of them belong to
all the calls of the gap: a set, never a guess.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from difflib import SequenceMatcher
from itertools import groupby
from typing import TypeVar

from nvprobe.trace.sidecar import ManifestKernel

T = TypeVar("T")
Owners = tuple[int, ...]
"""Positions of manifest calls."""

_CONTINUES = re.compile(r"(?i)split_?k_?reduce|reduce_?split_?k")
"""Second kernels of one matrix product."""
_PRODUCT_KERNEL = re.compile(
    r"(?i)gemm|gemv|xmma|cutlass|Kernel2|nvjet|cublas|dot_kernel|bmm|matmul"
)
_ATTENTION = re.compile(r"(?i)fmha|flash|attention|sdp")
_PRODUCT_CALL = re.compile(r"(?:^|[._])(?:addmm|mm|bmm|baddbmm|addmv|mv|dot|_int_mm|_scaled_mm)\b")


def match_calls(
    calls: Sequence[ManifestKernel], names: Sequence[str], kernels: Sequence[bool]
) -> tuple[list[Owners], bool]:
    """The manifest calls of each op, and whether all anchors were found in order.

    Args:
        calls: The manifest.
        names: Short names of the ops inside one graph range, in the order of their launch.
        kernels: Whether each op is a kernel (else a copy or set).

    """
    anchors = {call.name for call in calls if not call.extern}
    in_calls = [i for i, call in enumerate(calls) if not call.extern]
    in_ops = [j for j, name in enumerate(names) if name in anchors]
    pairs = _pairs([calls[i].name for i in in_calls], [names[j] for j in in_ops])
    out: list[Owners] = [()] * len(names)
    before = (-1, -1)
    ends = [(in_calls[a], in_ops[b]) for a, b in pairs]
    for call, op in [*ends, (len(calls), len(names))]:
        between = [i for i in range(before[0] + 1, call) if calls[i].extern]
        _deal(calls, names, kernels, between, range(before[1] + 1, op), out)
        if op < len(names):
            out[op] = (call,)
        before = (call, op)
    return out, len(pairs) == len(in_calls) == len(in_ops)


def _pairs(expected: list[str], found: list[str]) -> list[tuple[int, int]]:
    """Positions of equal names; the longest common runs where the lists differ."""
    if expected == found:
        return [(i, i) for i in range(len(found))]
    blocks = SequenceMatcher(None, expected, found, autojunk=False).get_matching_blocks()
    return [(block.a + i, block.b + i) for block in blocks for i in range(block.size)]


def _deal(
    calls: Sequence[ManifestKernel],
    names: Sequence[str],
    kernels: Sequence[bool],
    between: list[int],
    ops: range,
    out: list[Owners],
) -> None:
    """Give the ops of one gap to the library calls of that gap."""
    groups = _launches(names, kernels, ops)
    if not between or not groups:
        return
    call_runs = _by_class(between, lambda i: bool(_PRODUCT_CALL.search(calls[i].name)))
    op_runs = _by_class(groups, lambda group: any(_is_product(names[j]) for j in group))
    same = [kind for kind, _ in call_runs] == [kind for kind, _ in op_runs]
    whole = not same or len(groups) == len(between)
    parts = [((False, between), (False, groups))] if whole else zip(call_runs, op_runs, strict=True)
    for (_, owners), (_, launched) in parts:
        each = len(owners) == len(launched)
        for position, group in enumerate(launched):
            for op in group:
                out[op] = (owners[position],) if each else tuple(owners)


def _launches(names: Sequence[str], kernels: Sequence[bool], ops: range) -> list[list[int]]:
    """Ops that certainly come from one call, together.

    A kernel with the copies and sets before it, and the second kernels of a split product.
    """
    groups: list[list[int]] = []
    waiting: list[int] = []
    for op in ops:
        if not kernels[op]:
            waiting.append(op)
        elif groups and _CONTINUES.search(names[op]):
            groups[-1] += [*waiting, op]
            waiting = []
        else:
            groups.append([*waiting, op])
            waiting = []
    if waiting and groups:
        groups[-1] += waiting
    return groups or ([waiting] if waiting else [])


def _is_product(name: str) -> bool:
    return bool(_PRODUCT_KERNEL.search(name)) and not _ATTENTION.search(name)


def _by_class(items: Iterable[T], kind: Callable[[T], bool]) -> list[tuple[bool, list[T]]]:
    """Runs of equal class: ``[(class, items), …]``."""
    return [(key, list(run)) for key, run in groupby(items, kind)]
