"""What kind of program was captured, as far as advice depends on it and the capture shows it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from nvprobe.analysis.findings.model import Evidence
from nvprobe.analysis.kernels.classes import Activity
from nvprobe.analysis.path_quantities import recorded_calls
from nvprobe.analysis.units import TRAINS
from nvprobe.attribution.kinds import compiled_graphs
from nvprobe.attribution.model import Kind
from nvprobe.trace import OpKind, Trace

HUGGING_FACE, LIGHTNING = "transformers", "pytorch_lightning"
GENERATION = "generate"
_TRAINERS = {
    "transformers/trainer": HUGGING_FACE,
    "pytorch_lightning/": LIGHTNING,
    "lightning/pytorch/": LIGHTNING,
}
"""How the files of a trainer begin; a model of transformers alone is not a Trainer."""
_GENERATION = {"transformers/generation/": GENERATION}
_SHARDING = {"FSDP::": "fully_shard", "FullyShardedDataParallel": "FullyShardedDataParallel"}
"""How the ranges of sharded modules begin, and what makes them."""
_REPLICATION = "DistributedDataParallel"


@dataclass(frozen=True, slots=True)
class Program:
    """Facts about a program that decide which advice fits it."""

    trainer: str | None = None
    """`HUGGING_FACE` or `LIGHTNING`: whose trainer runs the loop; `GENERATION`, where generate
    of transformers does and no trainer is used."""
    sharding: str | None = None
    """``fully_shard`` or ``FullyShardedDataParallel``."""
    replicated: bool = False
    """DistributedDataParallel."""
    collectives: bool = False
    """Communication is launched in the steps, outside of CUDA graphs."""
    compiled: bool = False
    """Some of it is compiled by torch.compile."""
    replays: bool = False
    """Some of it is launched as CUDA graphs already."""
    trains: bool = True
    """Ranges speak of a backward pass or an optimizer, or nvprobe was not there to make these."""
    passes: int = 1
    """Backward passes of an optimizer step: with two or more, gradients accumulate."""

    @property
    def graphs(self) -> bool:
        """Whether nothing seen keeps its steps from being captured in CUDA graphs."""
        return not (self.sharding or self.collectives)

    @property
    def accumulates(self) -> bool:
        """Whether a step adds up the gradients of several micro-batches."""
        return self.passes > 1


def program(evidence: Evidence) -> Program:
    """Read the facts off a capture."""
    trace, paths = evidence.trace, evidence.attribution.paths
    names = [*paths.names.to_pylist(), *trace.sidecar.roots]
    communication = evidence.classes.activity == Activity.COMMUNICATION
    compiled = trace.sidecar.manifests or trace.sidecar.compile_spans
    return Program(
        trainer=_first_match(_sources(trace), _TRAINERS)
        or _first_match(_sources(trace), _GENERATION),
        sharding=_first_match(names, _SHARDING),
        replicated=any(name.startswith(_REPLICATION) for name in names),
        collectives=bool((communication & (evidence.ops.graph_node == 0)).any()),
        compiled=bool(compiled) or bool(compiled_graphs(paths).any()),
        replays=bool(
            (evidence.ops.graph_node != 0).any() or (evidence.ops.kind == OpKind.GRAPH).any()
        ),
        trains=not trace.sidecar.recorded
        or bool(pc.any(pc.match_substring_regex(paths.names, TRAINS)).as_py()),
        passes=_passes(evidence),
    )


def _sources(trace: Trace) -> Iterator[str]:
    """Every line that the sidecar has."""
    for place in trace.sidecar.places:
        yield from (place.source, *place.stack)
    for sync in trace.sidecar.syncs:
        yield from (sync.source, *sync.stack)


def _first_match(texts: Iterable[str], known: dict[str, str]) -> str | None:
    """What the first text that begins like one of ``known`` stands for."""
    return next((known[k] for text in texts for k in known if text.startswith(k)), None)


def _passes(evidence: Evidence) -> int:
    """Backward passes per optimizer step, rounded down; 1 where either has no range."""
    paths = evidence.attribution.paths
    calls = recorded_calls(evidence.attribution)
    names = np.array(paths.names.to_pylist(), object)[paths.name]
    backward, optimizer = (
        int(calls[(paths.kind == Kind.PHASE) & (names == name)].sum())
        for name in ("backward", "optimizer")
    )
    return max(backward // optimizer, 1) if optimizer else 1
