"""Python frames in the call stacks of CUDA calls, in the forms they may be written in."""

from __future__ import annotations

from pathlib import Path

import pytest

from nvprobe.analyze.waiting.lines import chain_lines
from nvprobe.load import load
from nvprobe.load.python_frames import python_line
from tests.unit.load.exports import kernel, launch, strings, texts, write

CHAINS = {
    "CUDA_CALLCHAINS": "id INTEGER NOT NULL, symbol INTEGER NOT NULL, module INTEGER NOT NULL, "
    "unresolved INTEGER, originalIP INTEGER, stackDepth INTEGER NOT NULL"
}


@pytest.mark.parametrize(
    ("symbol", "module", "line"),
    [
        ("train.py:31", "python3.12", "train.py:31"),
        ("forward (train.py:31)", None, "train.py:31"),
        ("train.py(31): forward", None, "train.py:31"),
        ('File "src/train.py", line 31, in forward', None, "src/train.py:31"),
        ("forward at /home/ann/secret/proj/src/train.py:31", None, "proj/src/train.py:31"),
        ("forward", "/home/ann/secret/proj/src/train.py:31", "proj/src/train.py:31"),
        ("forward:31", "/home/ann/secret/proj/src/train.py", "proj/src/train.py:31"),
        ("forward", "/v/lib/python3.12/site-packages/torch/nn/linear.py:7", "torch/nn/linear.py:7"),
        ("forward", "train.py", None),
        ("at::native::item(at::Tensor const&)", "/opt/torch/lib/libtorch.so", None),
        ("0x7fb7", "/usr/bin/python3.12", None),
        ("happy::function(int)", "lib.pyd", None),
        (None, None, None),
    ],
)
def test_lines_of_frames(symbol: str | None, module: str | None, line: str | None) -> None:
    assert python_line(symbol, module) == line


def test_the_users_innermost_line_of_each_call(tmp_path: Path) -> None:
    names = strings(
        "cudaLaunchKernel", "gemm", "libtorch.so", "at::addmm", "forward",
        "/v/site-packages/torch/nn/linear.py:7", "/home/ann/a/b/c/model.py:12", "main",
        "train.py:40",
    )  # fmt: skip
    stack = [(0, 4, 3), (1, 5, 6), (2, 5, 7), (3, 8, 9)]
    chains = [{"id": 1, "stackDepth": d, "symbol": s, "module": m} for d, s, m in stack]
    chains += [
        {"id": 2, "stackDepth": 0, "symbol": 4, "module": 3},
        {"id": 3, "stackDepth": 1, "symbol": 8, "module": 9},
        {"id": 3, "stackDepth": 0, "symbol": 4, "module": 3},
    ]
    trace = load(
        write(
            tmp_path / "r.sqlite",
            {
                "StringIds": names,
                "CUPTI_ACTIVITY_KIND_RUNTIME": [
                    launch(n, n * 10, n * 10 + 5, callchainId=n) for n in (1, 2, 3)
                ],
                "CUPTI_ACTIVITY_KIND_KERNEL": [kernel(n, n * 20, n * 20 + 5) for n in (1, 2, 3)],
                "CUDA_CALLCHAINS": chains,
            },
            CHAINS,
        )
    )
    assert trace.callchains is not None
    assert trace.callchains.line is not None
    assert texts(trace, trace.callchains.line) == [
        None, "torch/nn/linear.py:7", "b/c/model.py:12", "train.py:40", None, None, "train.py:40",
    ]  # fmt: skip
    assert not any("ann" in text for text in trace.strings.to_pylist())
    assert trace.calls is not None
    row, labels = chain_lines(trace, trace.calls.callchain)
    found = [labels[int(one)].as_py() if one >= 0 else None for one in row]
    assert found == ["b/c/model.py:12", None, "train.py:40"]


def test_native_stacks_have_no_lines(corpus: Path) -> None:
    trace = load(corpus / "nsys" / "h200" / "sync_callchains.sqlite")
    assert trace.callchains is not None
    assert trace.callchains.line is None
