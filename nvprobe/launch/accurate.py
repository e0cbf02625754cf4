"""``nvprobe launch --accurate``: the program twice, CUDA graphs whole first and then by node.

Tracing each node slows a graph replay and puts idle time between its kernels. Times are taken of
the run with whole graphs, what is in a graph of the other; `nvprobe.merging.graph_nodes` joins
them. A program that launches no CUDA graph runs once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from nvprobe.errors import NvprobeError
from nvprobe.launch import rundir
from nvprobe.launch.finish import ANALYSIS, PAGE, analyse_runs
from nvprobe.launch.options import Outcome
from nvprobe.launch.plan import Plan


def run_twice(plan: Plan, folder: Path, run: Callable[[Plan, Path], Outcome]) -> Outcome:
    """The outcome of the first run, with the second one's folder in its own."""
    whole, nodes = two_plans(plan)
    outcome = run(whole, folder)
    exports = [file for file in outcome.files if file.name.startswith(f"{rundir.REPORT}.")]
    if exports and _has_graphs(exports[-1]):
        second = run(nodes, rundir.create(folder / rundir.GRAPH_NODES, "", force=True))
        outcome.notes.append("the program ran a second time to see into its CUDA graphs")
        if second.problem:
            outcome.notes.append(f"without what is in its CUDA graphs: {second.problem}")
    elif exports:
        outcome.notes.append("no CUDA graph was launched: one run is accurate")
    if plan.options.analyze and outcome.captured:
        outcome.notes += analyse_runs([folder], folder, plan.options)
        outcome.files += [*folder.glob(ANALYSIS), *folder.glob(PAGE)]
    return outcome


def two_plans(plan: Plan) -> tuple[Plan, Plan]:
    """With CUDA graphs whole, and by node."""
    options = replace(plan.options, analyze=False)
    whole, nodes = (replace(options, kernels_in_graphs=each) for each in (False, True))
    return replace(plan, options=whole), replace(plan, options=nodes)


def _has_graphs(export: Path) -> bool:
    """Whether an export has whole graphs; yes where nothing here can read it."""
    try:
        from nvprobe.readers import load
        from nvprobe.trace import OpKind

        trace = load(export)
    except (ImportError, NvprobeError):
        return True
    return bool((trace.ops.kind == OpKind.GRAPH).any())
