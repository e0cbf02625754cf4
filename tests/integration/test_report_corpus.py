"""The first screen of every kind of capture in the corpus: one screen, at any width, and text."""

from __future__ import annotations

import pytest
from rich.cells import cell_len

from nvprobe.analysis import Analysis, analyze
from nvprobe.analysis.selection import Selection, select
from nvprobe.merging.load import load
from nvprobe.report.console.view import View
from tests.unit.report.test_console import printed

CAPTURES = (
    *(
        "runs/nano",
        "runs/nanoc",
        "runs/hf",
        "runs/pl",
        "runs/gen",
        "runs/ddp/rank0",
        "pairs/loader",
    ),
    *("nsys/h200/graph_graph.sqlite", "nsys/h200/threaded_server.sqlite"),
    *("nsys/public/2024.6_llama3.sqlite", "nsys/public/2026.2_two_gpus.sqlite"),
    *("nsys/public/nvtx_without_cuda.sqlite", "nsys/public/runtime_without_kernels.sqlite"),
    *("kineto/public/h100_qwen_stacks.json.gz", "kineto/public/b200_compile_nccl.json.gz"),
    *("kineto/public/vllm_graph_replay.json.gz", "kineto/public/cpu_only.json.gz"),
)
LINES = {100: 52, 200: 46}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", params=CAPTURES)
def analysis(request, corpus) -> Analysis:
    return analyze(select(load(corpus / request.param), Selection(), ()))


@pytest.mark.parametrize("width", [40, 80, 100, 160, 200])
def test_it_is_one_screen_of_text(analysis, width):
    text = printed(analysis, width, View())
    lines = text.splitlines()
    assert max(map(cell_len, lines)) <= width
    assert len(lines) <= LINES.get(width, 100)
    assert all(char.isprintable() for char in text.replace("\n", ""))
    assert "\\/" not in text


@pytest.mark.parametrize("width", [80, 160])
def test_rows_of_a_table_can_be_told_apart(analysis, width):
    """Names differ; of idle places, names and causes."""
    parts = printed(analysis, width, View()).split("\n\n")
    for part in parts:
        if part.startswith("Heaviest paths"):
            names = [line.split("  ")[0] for line in part.splitlines()[1:]]
            assert len(set(names)) == len(names)
