"""Compiled graphs in the terminal report: what each costs, why it broke, what compiling took."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from nvprobe.analysis.result import Analysis
from nvprobe.readers.input_errors import counted
from nvprobe.report.console.format import percent, plain, time
from nvprobe.report.console.tables import new_table
from nvprobe.report.console.view import TreeView

__all__ = ["compiled"]

_LINES = 8
"""Rows of the table; the JSON has all."""


def compiled(analysis: Analysis, view: TreeView, width: int) -> RenderableType | None:
    """Graphs of torch.compile, those with most GPU time first, and what is to say of each."""
    graphs = analysis.compiled_graphs
    if not graphs:
        return None
    several = len({graph["process"] for graph in graphs}) > 1
    total, pids = analysis.ledger.total, analysis.attribution.trace.processes.pid
    gpu = ("GPU", "GPU %", "Triton") if total.ops else ()
    process = ("Process",) if several else ()
    known = {"dispatch_ns": "Dispatch", "compile_ns": "Compiling"}
    known = {key: head for key, head in known.items() if any(graph[key] for graph in graphs)}
    out = new_table("Compiled graph", *process, "Calls", "Host", *gpu, *known.values())
    graphs = sorted(graphs, key=lambda graph: (-graph["gpu_ns"], -graph["host_ns"]))
    for graph in graphs[:_LINES]:
        out.add_row(
            plain(_name(graph)),
            *([str(int(pids[graph["process"]]))] if several else []),
            f"{graph['calls']:,}",
            time(graph["host_ns"]),
            *(_gpu(graph, total.gpu_ns) if gpu else ()),
            *("–" if graph[key] is None else time(graph[key]) for key in known),
        )
    more = len(graphs) - _LINES
    notes = [*_notes(graphs), *([f"… {counted(more, 'more graph')} (--json)"] if more > 0 else [])]
    return Group(out, *(Text(plain(note).plain, "dim") for note in notes))


def _name(graph: dict[str, Any]) -> str:
    return f"{graph['id']} {graph['phase']}"


def _gpu(graph: dict[str, Any], total: int) -> tuple[str, str, str]:
    own = graph["gpu_ns"]
    return time(own), percent(own, total), percent(graph["kernels"]["triton"]["gpu_ns"], own)


def _notes(graphs: list[dict[str, Any]]) -> list[str]:
    """A line for each graph that broke or was compiled again."""
    out = []
    for graph in graphs:
        if graph["break_source"] or graph["break_reason"]:
            where = f" at {graph['break_source']}" if graph["break_source"] else ""
            why = f": {graph['break_reason']}" if graph["break_reason"] else ""
            idle = graph["break_idle_ns"]
            lost = f"; the GPU waits {time(idle)} for the next graph" if idle else ""
            out.append(f"{_name(graph)} breaks{where}{why}{lost}")
        if graph["recompile_reasons"]:
            out.append(f"{_name(graph)} is a recompilation: {graph['recompile_reasons'][0]}")
    return out[:_LINES]
