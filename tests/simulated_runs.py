"""Runs as a loop on a GPU makes them: steps that resemble one another, outliers, runs that differ.

Every run shifts as a whole (clocks) and in each part (placement of memory, choice of kernels).
Steps follow one another with an autoregressive noise; host time varies by more than GPU time. In
one step of fifty something else on the machine takes time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from nvprobe.comparison import compare
from nvprobe.comparison.gate import gate, regressions
from nvprobe.report.document import Document
from nvprobe.report.step_parts import StepPart, StepParts

PARTS = {
    ("step/forward", "gpu"): 3_000_000,
    ("step/forward", "host"): 1_200_000,
    ("step/forward/attn", "gpu"): 1_500_000,
    ("step/forward/mlp", "gpu"): 2_500_000,
    ("step/backward", "gpu"): 9_000_000,
    ("step/backward", "host"): 2_000_000,
    ("step/backward", "launch_call"): 600_000,
    ("step/optimizer", "gpu"): 1_800_000,
    ("step", "device_wait"): 400_000,
}
"""Nanoseconds of each part in a step of 22 ms."""
RUN_SHIFT, PART_SHIFT = 0.008, 0.004
GPU_NOISE, HOST_NOISE, ALIKE = 0.006, 0.06, 0.5
OUTLIERS, OUTLIER_NS = 0.02, 8_000_000


@dataclass(frozen=True)
class Rates:
    """How comparisons of one kind ended, as shares."""

    failed: float
    cannot_tell: float


def run(
    template: Document,
    rng: np.random.Generator,
    steps: int,
    slower: Mapping[str, float] | None = None,
) -> Document:
    """A run; ``slower``: by what share the GPU time of a path, or all of ``step``, takes longer."""
    slower = slower or {}
    shift = 1 + rng.normal(0, RUN_SHIFT)
    outlier = (rng.random(steps) < OUTLIERS) * OUTLIER_NS * rng.random(steps)
    parts = []
    for (path, what), mean in PARTS.items():
        noise = GPU_NOISE if what == "gpu" else HOST_NOISE
        own = shift * (1 + rng.normal(0, PART_SHIFT)) * (1 + noise * _alike(rng, steps))
        own *= 1 + slower.get("step", 0)
        own *= 1 + (slower.get(path, 0) if what == "gpu" and path != "step" else 0)
        ns = mean * own + (outlier if (path, what) == ("step/backward", "host") else 0)
        parts.append(StepPart(path, what, np.rint(np.maximum(ns, 0)).astype(int).tolist()))
    (some,) = template.step_parts.counts[1:2]
    table = StepParts("gpu", parts, [some] * steps)
    one = template.steps[1]
    listed = [msgspec.structs.replace(one, index=number) for number in range(steps)]
    return msgspec.structs.replace(template, step_parts=table, steps=listed, profiler=None)


def _alike(rng: np.random.Generator, steps: int) -> np.ndarray:
    """Autoregressive noise of variance 1."""
    out = np.empty(steps)
    out[0] = rng.normal()
    fresh = rng.normal(0, np.sqrt(1 - ALIKE**2), steps)
    for step in range(1, steps):
        out[step] = ALIKE * out[step - 1] + fresh[step]
    return out


def template_of(document: Document) -> Document:
    """The ranges of the simulated paths around the steps of a document."""
    (one,) = [found for found in document.ranges if found.path == "step"]
    paths = ["step", "step/forward", "step/forward/attn", "step/forward/mlp", "step/backward",
             "step/optimizer"]  # fmt: skip
    ranges = [msgspec.structs.replace(one, path=path, gpu_ns=n + 1) for n, path in enumerate(paths)]
    return msgspec.structs.replace(document, ranges=ranges, findings=[])


def outcomes(
    template: Document, *, pairs: int, steps: int, runs: tuple[int, int], most: float = 0.0,
    over_floor: float | None = None, path: str = "step", seed: int = 0,
) -> Rates:  # fmt: skip
    """Compare simulated pairs; ``over_floor``: how far beyond the noise floor ``path`` is slower.

    The floor is that of the very runs, before anything is made slower.
    """
    ended = []
    for pair in range(pairs):
        slower = {}
        if over_floor is not None:
            before, after = _sides(template, seed, pair, steps, runs, {})
            slower = {path: _floor(before, after, path) + over_floor}
        before, after = _sides(template, seed, pair, steps, runs, slower)
        ended.append(gate(regressions(compare(before, after), most)).outcome)
    return Rates(ended.count("fail") / pairs, ended.count("cannot tell") / pairs)


def _sides(
    template: Document, seed: int, pair: int, steps: int, runs: tuple[int, int],
    slower: Mapping[str, float],
) -> tuple[Sequence[Document], Sequence[Document]]:  # fmt: skip
    """The same noise for the same seed and pair, whatever is slower."""
    rng = np.random.default_rng((seed, pair))
    before = [run(template, rng, steps) for _ in range(runs[0])]
    return before, [run(template, rng, steps, slower) for _ in range(runs[1])]


def _floor(before: Sequence[Document], after: Sequence[Document], path: str) -> float:
    (step,) = compare(before, after).steps
    if path == "step":
        return step.step.floor_ns / step.step.before_ns
    (found,) = [one.gpu for one in step.paths if one.before == path]
    return found.floor_ns / found.before_ns
