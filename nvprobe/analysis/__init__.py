"""From an Attribution to tables: no I/O, no drawing.

``analyze(attribution)`` runs every analysis; each is a function of its own in a module beside this.
"""

from __future__ import annotations

import dataclasses

from nvprobe.analysis.bounds import bound
from nvprobe.analysis.compiled import CompiledGraph, compiled_graphs
from nvprobe.analysis.completeness import lost_launches, missing, warnings
from nvprobe.analysis.critical_time import OnPath, critical_time
from nvprobe.analysis.findings import Evidence, findings, gather
from nvprobe.analysis.inference import Inference, inference, main_step
from nvprobe.analysis.inference.client import Latency, client_latencies
from nvprobe.analysis.kernels.by_name import copies, kernel_traits, kernels, suspect_ops
from nvprobe.analysis.kernels.work import path_work
from nvprobe.analysis.memory import snapshot_peaks
from nvprobe.analysis.model import Steps
from nvprobe.analysis.modules import module_ledger_records, module_records
from nvprobe.analysis.operators import OperatorTable, operator_table
from nvprobe.analysis.path_quantities import idle_of_steps, path_quantities, with_waits
from nvprobe.analysis.profiler_cost import profiler_cost
from nvprobe.analysis.replay.gate import Fidelity
from nvprobe.analysis.replay.prepared import Replay, replay_of
from nvprobe.analysis.result import Analysis
from nvprobe.analysis.shapes import RangeShapes, range_shapes
from nvprobe.analysis.steady import left_out
from nvprobe.analysis.step_parts import step_parts
from nvprobe.analysis.steps import span_rows, step_spread, steps
from nvprobe.analysis.verdict import Doubts, verdict
from nvprobe.analysis.waiting.code_lines import OpLines, op_lines
from nvprobe.analysis.waiting.gaps import device_use
from nvprobe.attribution.ledger import ledger
from nvprobe.attribution.model import Attribution, Modules
from nvprobe.attribution.modules import module_ledger, modules
from nvprobe.readers.client_results import ClientResults
from nvprobe.readers.memory_snapshot import MemorySnapshot

__all__ = ["Analysis", "analyze"]


def analyze(
    attribution: Attribution,
    snapshot: MemorySnapshot | None = None,
    client: ClientResults | None = None,
) -> Analysis:
    """Everything that a report shows of one run; LedgerError if the books do not balance.

    ``snapshot``: a torch memory snapshot of it; ``client``: what a client of the server measured.
    """
    lost = lost_launches(attribution)
    suspect = suspect_ops(attribution.trace.ops, attribution.valid)
    step_rows = steps(attribution, lost)
    devices = device_use(attribution)
    shapes = range_shapes(attribution.trace)
    evidence = gather(attribution, step_rows, devices, lost, suspect, shapes)
    by, fidelity = _replay(attribution, step_rows, evidence)
    found = findings(evidence, by)
    owners, lines, graphs, operators = _code(attribution, shapes)
    ranges = with_waits(path_quantities(attribution), attribution, evidence.waits)
    doubts = Doubts(len(lost), int(attribution.duration[suspect].sum()))
    served = inference(
        attribution, step_rows, evidence.waits, evidence.classes, evidence.step_of_op
    )
    kernel_rows = kernels(attribution, suspect)
    return Analysis(
        attribution=attribution,
        verdict=verdict(
            attribution, devices, ranges, doubts, bound(evidence, found, by), main_step(served)
        ),
        ledger=ledger(attribution),
        ranges=ranges,
        kernels=kernel_rows,
        copies=copies(attribution),
        steps=dataclasses.replace(step_rows, idle_ns=idle_of_steps(evidence.waits, step_rows)),
        step_spread=step_spread(step_rows),
        spans=span_rows(attribution.trace),
        devices=devices,
        inference=served,
        client=_answers(attribution, step_rows, served, client),
        left_out=left_out(attribution),
        warnings=warnings(attribution, suspect, lost, step_rows),
        missing=missing(attribution, step_rows, shapes, owners, fidelity),
        waits=evidence.waits,
        modules=module_records(owners, lines),
        module_ledger=module_ledger_records(module_ledger(attribution, owners)),
        operators=[] if operators is None else operators.records(),
        compiled_graphs=[graph.record() for graph in graphs],
        memory=evidence.memory,
        allocator=evidence.allocator,
        snapshot=snapshot,
        snapshot_peaks=() if snapshot is None else snapshot_peaks(snapshot, attribution),
        counters=evidence.counters,
        findings=found,
        traits=kernel_traits(attribution, kernel_rows, evidence.classes, evidence.fit),
        work=None if evidence.work is None else path_work(attribution, evidence.work),
        profiler=profiler_cost(evidence, by),
        critical_time=_critical(by, evidence),
        step_parts=step_parts(attribution, step_rows, evidence.waits),
        places=evidence.waits.places,
    )


def _replay(
    attribution: Attribution, step_rows: Steps, evidence: Evidence
) -> tuple[Replay | None, Fidelity | None]:
    """The replay of a run whose steps repeat and whose idle time can be trusted."""
    if not (evidence.idle_trusted and evidence.repeats):
        return None, None
    return replay_of(attribution, step_rows, evidence.waits)


def _critical(by: Replay | None, evidence: Evidence) -> tuple[OnPath, ...] | None:
    """The critical path of the unchanged steps, where there is a replay."""
    if by is None:
        return None
    return critical_time(by.sample, by.models[0], evidence.waits.syncs, evidence.classes)


def _answers(
    attribution: Attribution,
    step_rows: Steps,
    served: Inference | None,
    client: ClientResults | None,
) -> list[Latency] | None:
    """What a client waited for, where one measured and steps have phases."""
    if client is None or served is None:
        return None
    return client_latencies(attribution.trace, step_rows, served.rows, client)


def _code(
    attribution: Attribution, shapes: RangeShapes
) -> tuple[Modules, OpLines, list[CompiledGraph], OperatorTable | None]:
    """Modules, lines, compiled graphs and operators, looked up in the whole of a selection."""
    whole = attribution.whole
    inside = None if attribution.unfiltered is None else attribution.unfiltered.ranges
    owners, lines = modules(whole), op_lines(whole)
    graphs = compiled_graphs(whole, owners, inside)
    operators = operator_table(whole, lines, shapes, inside)
    if attribution.unfiltered is not None:
        ops = attribution.unfiltered.ops
        owners, lines = owners.of(ops), OpLines(lines.line[ops], lines.labels)
    return owners, lines, graphs, operators
