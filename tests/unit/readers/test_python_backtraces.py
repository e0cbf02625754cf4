"""Python back-traces of CUDA calls: NVTX marks that begin with their call.

The schema in the corpus (nsys 2025.3, exported without payloads) is that of the samples, and its
141 marks begin with 141 calls; the payloads here are made by hand after it.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from nvprobe.analysis import analyze
from nvprobe.analysis.waiting.code_lines import call_lines
from nvprobe.attribution import attribute
from nvprobe.readers import load
from nvprobe.trace import Trace
from tests.unit.readers.exports import THREAD, kernel, launch, texts
from tests.unit.readers.test_python_samples import (
    LINEAR,
    LOAD,
    STEP,
    domain,
    export,
    sample,
    stack,
)

PADDED = 7 << 32
"""The line has 32 bits; what stands behind it means nothing."""


@pytest.fixture
def traced(tmp_path: Path) -> Trace:
    """Four calls: in torch below the user, in the user, without a stack, of another thread."""
    calls = [
        launch(1, 100, 110), launch(2, 200, 210), launch(3, 300, 310),
        {**launch(4, 200, 210), "globalTid": THREAD + 9},
    ]  # fmt: skip
    kernels = [kernel(n, 100 * n + 20, 100 * n + 90) for n in (1, 2, 3, 4)]
    events = [
        domain(3, text="Python Backtrace on CUDA"),
        sample(200, stack((STEP, 13), (LOAD, 2))),
        sample(100, stack((LINEAR, 2125), (STEP, 12 + PADDED), (LOAD, 2))),
        sample(301, stack((STEP, 99))),
        sample(200, stack((LOAD, 40)), thread=THREAD + 9),
        sample(300, None),
    ]
    return load(export(tmp_path, events, calls, kernels))


def test_each_call_has_the_users_innermost_line(traced: Trace) -> None:
    order = [0, 1, 2, 3]
    row, labels = call_lines(traced, traced.calls.correlation.argsort()[order])
    found = [labels[int(one)].as_py() if one >= 0 else None for one in row]
    assert found == ["train.py:12", "train.py:13", None, "data/loader.py:40"]


def test_back_traces_are_neither_marks_nor_samples(traced: Trace) -> None:
    assert not len(traced.marks)
    assert not traced.python_samples.recorded
    assert traced.domains == ()
    assert traced.backtraces.time.tolist() == [200, 100, 301, 200]
    assert "train.py(12): step" in texts(traced, traced.backtrace_stacks.symbol)
    assert any("1 Python back-traces have no stack" in text for text in traced.warnings)


def test_a_call_without_calls_has_no_line(traced: Trace) -> None:
    row, _ = call_lines(traced, np.array([-1, -1]))
    assert row.tolist() == [-1, -1]


def test_the_corpus_has_one_with_each_call_and_says_that_payloads_are_missing(
    corpus: Path,
) -> None:
    trace = load(corpus / "nsys" / "h200" / "sync_callchains.sqlite")
    assert not len(trace.marks)
    assert any("141 Python back-traces" in text for text in trace.warnings)
    assert analyze(attribute(trace)).findings is not None
