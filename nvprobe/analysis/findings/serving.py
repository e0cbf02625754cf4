"""What slows the steps of an inference program, beyond what slows any program.

Steps are compared with steps of the same phase, and graph replays with launches of the same batch.
Savings are replayed where the replayed steps have what a finding is about as often as the capture
(`replayed`), else bounds of the captured window: each rule says what its two ends assume.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from nvprobe.analysis.findings.model import Evidence, Finding
from nvprobe.analysis.grouping import counts
from nvprobe.analysis.inference.phases import intervals, leading_steps
from nvprobe.analysis.inference.slowest import collection_ns
from nvprobe.analysis.model import UNKNOWN, FoundBy
from nvprobe.analysis.verdict import duration
from nvprobe.attribution.engines import StepPhase
from nvprobe.trace import Column
from nvprobe.trace.cuda_calls import CallRole, calls_with

STALLS = 3
"""A prefill stalls decode where its step is so many times as long."""
WASTED = 0.15
"""Padding is worth a word from this share of the computed requests on."""
FEW = 3


def prefill_stalls(evidence: Evidence) -> Iterator[Finding]:
    """Decode waits while prompts are read: requests that decode get their token late.

    Nothing is saved: the prompts have to be read. What changes is when.
    """
    steps, rows = evidence.steps, leading_steps(evidence.steps)
    phase = steps.phase[rows]
    decode = rows[phase == StepPhase.DECODE]
    if len(decode) < FEW:
        return
    # A host that runs ahead is done with a step long before the GPU is.
    length = np.maximum(intervals(steps, rows), steps.gpu_busy_ns[rows])
    level = int(np.median(length[phase == StepPhase.DECODE]))
    between = np.zeros(len(rows), bool)
    if steps.found_by[rows[0]] == FoundBy.ENGINE:  # elsewhere it begins the next requests
        between[1:-1] = (phase[:-2] == StepPhase.DECODE) & (phase[2:] == StepPhase.DECODE)
    stalling = (phase == StepPhase.MIXED) | ((phase == StepPhase.PREFILL) & between)
    stalling &= length >= STALLS * level
    stalled = rows[stalling]
    if not len(stalled):
        return
    late = int((length[stalling] - level).sum())
    tokens = steps.prefill_tokens[stalled]
    typical = int(np.median(length[stalling]))
    yield Finding(
        id="prefill_stall",
        title=f"Prefill holds decode up in {len(stalled):,} of {len(rows):,} steps: they take "
        f"{duration(typical)} (median), a decode step {duration(level)}",
        path=int(steps.path[stalled[0]]),
        sources=(),
        evidence={
            "steps": len(stalled),
            "step_ns": typical,
            "decode_step_ns": level,
            "late_ns": late,
            "prefill_tokens": None if (tokens == UNKNOWN).any() else int(tokens.sum()),
        },
        saves_ns=(0, 0),
        delays_ns=late,
        advice=(
            "read long prompts in smaller chunks: vLLM --max-num-batched-tokens, SGLang "
            "--chunked-prefill-size, TensorRT-LLM enable_chunked_prefill and max_num_tokens",
            "or read prompts on other GPUs (disaggregated prefill)",
        ),
    )


def graphs_missed(evidence: Evidence) -> Iterator[Finding]:
    """Decode steps that launch kernel by kernel where others of their kind replay CUDA graphs.

    High: they become as long as the median step with a graph and at least their batch; low: half.
    """
    steps, rows = evidence.steps, leading_steps(evidence.steps)
    mine = steps.phase[rows] == StepPhase.DECODE
    decode, length = rows[mine], intervals(steps, rows)[mine]
    graph = _calls_in(evidence, (CallRole.GRAPH_LAUNCH,))[decode] > 0
    bare = ~graph & (_calls_in(evidence, (CallRole.KERNEL_LAUNCH,))[decode] > 0)
    if np.count_nonzero(graph) < FEW or np.count_nonzero(bare) < FEW:
        return
    batch = steps.decode_requests[decode]
    usual, slow = int(np.median(length[graph])), int(np.median(length[bare]))
    longer = np.maximum(length[bare] - usual, 0)
    high = int(longer.sum())
    known = not (batch == UNKNOWN).any()
    largest = int(batch[graph].max()) if known else None
    beyond = known and int(batch[bare].min()) > int(batch[graph].max())
    why = f"batches beyond {largest}" if beyond else "without a graph"
    yield Finding(
        id="graph_missed",
        title=f"{np.count_nonzero(bare):,} of {len(decode):,} decode steps launch kernel by "
        f"kernel ({why}): {duration(slow)} each, "
        f"{duration(usual)} with a graph",
        path=int(steps.path[decode[bare][0]]),
        sources=(),
        evidence={
            "steps_without_graph": int(np.count_nonzero(bare)),
            "steps_with_graph": int(np.count_nonzero(graph)),
            "step_without_graph_ns": slow,
            "step_with_graph_ns": usual,
            "largest_batch_with_graph": largest,
            "smallest_batch_without_graph": int(batch[bare].min()) if known else None,
        },
        saves_ns=(high // 2, high),
        ops=np.flatnonzero(np.isin(evidence.step_of_op, decode[bare])),
        advice=(
            "capture graphs for these batches: vLLM compilation_config.cudagraph_capture_sizes, "
            "SGLang --cuda-graph-max-bs, TensorRT-LLM cuda_graph_config.max_batch_size",
            "or keep the batch within what is captured: --max-num-seqs, --max-running-requests",
        ),
    )


def padding(evidence: Evidence) -> Iterator[Finding]:
    """CUDA graphs that compute for more requests than there are.

    High: the GPU time of a step shrinks by the share of padding; low: nothing, as decode reads the
    weights whatever the batch.
    """
    steps, rows = evidence.steps, leading_steps(evidence.steps)
    padded, real = steps.padded_requests[rows], steps.decode_requests[rows]
    known = (padded != UNKNOWN) & (real != UNKNOWN) & (padded > 0)
    if np.count_nonzero(known) < FEW:
        return
    wasted = 1 - int(real[known].sum()) / int(padded[known].sum())
    if wasted < WASTED:
        return
    share = 1 - real[known] / padded[known]
    high = int((share * steps.gpu_busy_ns[rows[known]]).sum())
    yield Finding(
        id="batch_padding",
        title=f"CUDA graphs compute for {int(padded[known].sum()):,} requests where "
        f"{int(real[known].sum()):,} decode: {wasted:.0%} is padding",
        path=int(steps.path[rows[known][0]]),
        sources=(),
        evidence={"padding_share": round(wasted, 4), "steps": int(np.count_nonzero(known))},
        saves_ns=(0, high),
        ops=np.flatnonzero(np.isin(evidence.step_of_op, rows[known])),
        advice=("capture graphs for more batch sizes near those that occur",),
    )


def garbage_collection(evidence: Evidence) -> Iterator[Finding]:
    """Python's garbage collection inside steps. High: all of it; low: half, if it is done rarer."""
    spent = collection_ns(evidence.attribution, evidence.steps)
    rows = leading_steps(evidence.steps)
    total = int(spent[rows].sum())
    if not total:
        return
    hit = rows[spent[rows] > 0]
    yield Finding(
        id="garbage_collection",
        title=f"Python collects garbage in {len(hit):,} of {len(rows):,} steps, "
        f"{duration(int(np.median(spent[hit])))} each (median)",
        path=-1,
        sources=(),
        evidence={"steps": len(hit), "ns": total, "longest_ns": int(spent[hit].max())},
        saves_ns=(total // 2, total),
        advice=(
            "gc.freeze() after the start, so that long-lived objects are not looked at again",
            "gc.disable() in the loop and gc.collect() where nobody waits",
        ),
    )


def draft_cost(evidence: Evidence) -> Iterator[Finding]:
    """What a draft model takes of the time: a fact, as nothing says how many tokens it earns."""
    steps, rows = evidence.steps, leading_steps(evidence.steps)
    phase, interval = steps.phase[rows], intervals(steps, rows)
    draft = int(interval[phase == StepPhase.DRAFT].sum())
    verify = int(interval[phase == StepPhase.VERIFY].sum())
    if not draft or not verify:
        return
    yield Finding(
        id="draft_cost",
        title=f"The draft model takes {draft / (draft + verify):.0%} of draft and verify steps "
        f"({duration(draft)} of {duration(draft + verify)})",
        path=-1,
        sources=(),
        evidence={"draft_ns": draft, "verify_ns": verify},
        saves_ns=(0, 0),
        advice=("compare tokens per second without it, or with fewer draft tokens per step",),
    )


def _calls_in(evidence: Evidence, roles: tuple[CallRole, ...]) -> Column:
    """Calls with some roles by step."""
    calls = evidence.trace.calls
    rows = np.flatnonzero(calls_with(evidence.trace, roles))
    step = evidence.step_at(calls.process[rows], calls.start[rows])
    return counts(step, len(evidence.steps))
