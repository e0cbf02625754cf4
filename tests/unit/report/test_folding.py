"""Siblings that are alike are one row; what is summed is what was there."""

from __future__ import annotations

import numpy as np
import pytest

from nvprobe.analysis import Analysis
from nvprobe.report.console.folding import fold
from nvprobe.report.console.view import View, visible_tree
from tests.unit.analysis.scenes import ADD, BF16_GEMM, Scene, analysis_of, loop
from tests.unit.report.test_console import printed


def layers(scene: Scene) -> None:
    """Twelve blocks of two modules, a list of unlike modules, and experts of unlike kernels."""

    def module(name: str, *kernels: str) -> None:
        scene.inside(name, lambda: [scene.launch(kernel, 10_000) for kernel in kernels])

    def block(number: int) -> None:
        module(f"h.{number}.attn", BF16_GEMM)
        module(f"h.{number}.ln", ADD)

    for number in range(12):
        scene.inside(f"h.{number}", lambda number=number: block(number))
    for number in range(6):
        module(f"net.{number}", BF16_GEMM if number % 2 else ADD)
    for number in range(2):
        module(f"pair.{number}", ADD)


@pytest.fixture(scope="module")
def analysis() -> Analysis:
    return analysis_of(loop(layers))


def rows(analysis: Analysis, *, unfold: bool = False) -> dict[str, int]:
    """(label, GPU time) of each line of the tree."""
    folds = fold(analysis, unfold=unfold)
    nodes, _ = visible_tree(analysis, View(top=1000), folds)
    gpu = folds.sums(analysis.ranges.gpu_ns)
    return {folds.counted_text(node.path): int(gpu[node.path]) for node in nodes}


def test_layers_fold_with_what_is_below_them(analysis):
    found = rows(analysis)
    total = found["step"]
    assert {name: round(ns / total, 3) for name, ns in found.items() if "h." in name} == {
        "step/h.* ×12": round(24 / 32, 3),
        "step/h.*/h.*.attn ×12": round(12 / 32, 3),
        "step/h.*/h.*.ln ×12": round(12 / 32, 3),
    }


def test_unlike_siblings_with_one_pattern_stay_apart_and_say_which_they_are(analysis):
    named = {name for name in rows(analysis) if "net" in name}
    assert named == {"step/net.* (0–4) ×3", "step/net.* (1–5) ×3"}


def test_two_are_not_folded(analysis):
    assert {"step/pair.0", "step/pair.1"} <= rows(analysis).keys()


def test_every_path_belongs_to_one_row(analysis):
    folds = fold(analysis)
    own = analysis.ranges.gpu_self_ns
    assert folds.sums(own).sum() == own.sum()
    assert np.array_equal(folds.first[folds.first], folds.first)
    assert (folds.first <= np.arange(len(own))).all()


def test_unfold_shows_each(analysis):
    assert len(rows(analysis, unfold=True)) == 1 + 12 * 3 + 6 + 2


def test_the_spread_of_the_siblings_is_a_column(analysis):
    text = printed(analysis, 120, View(show=("ranges",)))
    [line] = [line for line in text.splitlines() if "h.* ×12" in line]
    assert text.split("Range")[1].splitlines()[0].endswith("Each")
    assert line.endswith(" 80.0 µs")
