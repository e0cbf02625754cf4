"""Compiled graphs in the terminal report: what each costs, why it broke, what compiling took."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from nvprobe.analysis.result import Analysis
from nvprobe.report.console.format import percent, plain, time
from nvprobe.report.console.tables import Column, more, names, numbers, table
from nvprobe.report.console.view import View


def compiled(analysis: Analysis, view: View, width: int) -> RenderableType | None:
    """Graphs of torch.compile, those with most GPU time first, and what is to say of each."""
    graphs = analysis.compiled_graphs
    if not graphs:
        return None
    several = len({graph["process"] for graph in graphs}) > 1
    total, pids = analysis.ledger.total, analysis.attribution.trace.processes.pid
    known = {"dispatch_ns": ("Dispatch", 3), "compile_ns": ("Compiling", 4)}
    graphs = sorted(graphs, key=lambda graph: (-graph["gpu_ns"], -graph["host_ns"]))
    shown = graphs[: view.rows()]
    processes = [str(int(pids[graph["process"]])) for graph in shown]
    out = table(
        width,
        names("Compiled graph", [_name(graph) for graph in shown]),
        *([numbers("Process", processes)] if several else []),
        numbers("Calls", [f"{graph['calls']:,}" for graph in shown], 2),
        numbers("Host", [time(graph["host_ns"]) for graph in shown], 1),
        *(_gpu(shown, total.gpu_ns) if total.ops else ()),
        *(
            numbers(head, ["–" if one[key] is None else time(one[key]) for one in shown], rank)
            for key, (head, rank) in known.items()
            if any(graph[key] for graph in graphs)
        ),
    )
    notes = [Text(plain(note), "dim") for note in _notes(graphs, view.rows())]
    return Group(out, *notes, *more(len(graphs) - len(shown), "graph"))


def _name(graph: dict[str, Any]) -> str:
    return f"{graph['id']} {graph['phase']}"


def _gpu(graphs: list[dict[str, Any]], total: int) -> list[Column]:
    own = [graph["gpu_ns"] for graph in graphs]
    triton = [graph["kernels"]["triton"]["gpu_ns"] for graph in graphs]
    shares = zip(triton, own, strict=True)
    return [
        numbers("GPU", [time(gpu) for gpu in own]),
        numbers("GPU %", [percent(gpu, total) for gpu in own]),
        numbers("Triton", [percent(part, gpu) for part, gpu in shares], 5),
    ]


def _notes(graphs: list[dict[str, Any]], most: int) -> list[str]:
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
    return out[:most]
