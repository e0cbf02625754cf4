"""Lines of a sidecar (docs/sidecar.md) as what they tell.

Every function may raise one of :data:`MALFORMED` for a line that is not as documented.
"""

from __future__ import annotations

from typing import Any

from nvprobe.readers.sidecar_file import is_whole
from nvprobe.trace.sidecar import (
    CompileSpan,
    GraphBreak,
    GraphManifest,
    ManifestKernel,
    ManifestNode,
    Recompile,
    SyncSource,
)

__all__ = ["MALFORMED", "compile_spans", "graph_break", "manifest", "recompile", "sync", "text_of"]

MALFORMED = (TypeError, ValueError, KeyError, IndexError, AttributeError)
"""What a value of another type than the documented one leads to."""


def manifest(line: dict[str, Any], process: int) -> GraphManifest:
    """The kernels of one compiled graph."""
    kernels = tuple(
        ManifestKernel(
            name=str(kernel.get("name")),
            extern=bool(kernel.get("extern")),
            nodes=tuple(_node(node) for node in kernel.get("nodes") or []),
        )
        for kernel in line.get("kernels") or []
    )
    return GraphManifest(process, str(line.get("compile_id")), str(line.get("phase")), kernels)


def _node(node: dict[str, Any]) -> ManifestNode:
    module = node.get("module") or (None, None)
    backward = bool(node.get("bwd"))
    sequence = node.get("seq_nr")
    return ManifestNode(
        name=str(node.get("fx")),
        op=str(node.get("op")),
        module=text_of(module[0]),
        module_class=text_of(module[1]),
        source=text_of(node.get("src")),
        backward=backward,
        recomputed=bool(node.get("from_node")) and not backward,
        sequence=sequence if isinstance(sequence, int) and is_whole(sequence) else -1,
    )


def graph_break(line: dict[str, Any], process: int) -> GraphBreak:
    """Why a graph ended."""
    return GraphBreak(
        process=process,
        compile_id=text_of(line.get("compile_id")),
        reason=str(line.get("reason") or ""),
        source=text_of(line.get("source")),
        function=text_of(line.get("function")),
        stack=tuple(map(str, line.get("stack") or ())),
    )


def recompile(line: dict[str, Any], process: int) -> Recompile:
    """Why a frame was compiled again."""
    reasons = line.get("reasons") or ([line["reason"]] if line.get("reason") else [])
    return Recompile(
        process=process,
        compile_id=text_of(line.get("compile_id")),
        source=text_of(line.get("source")),
        function=text_of(line.get("function")),
        reasons=tuple(
            str(one.get("guard")) if isinstance(one, dict) else str(one) for one in reasons
        ),
    )


def compile_spans(line: dict[str, Any], process: int, shift: int | None) -> list[CompileSpan]:
    """A compilation, on the trace's clock; none where no clock joins them."""
    start = line.get("start_unix_ns", line.get("start_ns"))
    end = line.get("end_unix_ns", line.get("end_ns"))
    if shift is None or start is None or end is None:
        return []
    if not is_whole(start) or not is_whole(end):
        raise ValueError("no times")
    hits = line.get("cache_hits")
    return [
        CompileSpan(
            process=process,
            compile_id=text_of(line.get("compile_id")),
            phase=str(line.get("phase") or "fwd"),
            start=start + shift,
            end=end + shift,
            source=text_of(line.get("source")),
            function=text_of(line.get("function")),
            cache_hits=hits if isinstance(hits, int) and is_whole(hits) else 0,
            failed=text_of(line.get("failed")),
        )
    ]


def sync(line: dict[str, Any], process: int) -> SyncSource:
    """A line that makes the host wait."""
    count = line.get("count", 1)
    if not is_whole(count):
        raise ValueError("no count")
    stack = tuple(map(str, line.get("stack") or ()))
    sampled = line.get("sampled") is True
    return SyncSource(process, str(line.get("source")), stack, int(count), sampled)


def text_of(value: Any) -> str | None:
    """A text, None for anything else."""
    return value if isinstance(value, str) else None
