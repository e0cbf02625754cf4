"""Windows by request and by load of programs that generate, under nsys and torch.profiler.

The programs import stand-ins of transformers and vLLM, whose functions nvprobe hooks.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.integration.launch.conftest import Launcher, ranges_in
from tests.integration.test_inference_hooks import GENERATE

pytestmark = pytest.mark.slow
pytest.importorskip("torch")

REQUESTS = """
import threading, torch
from transformers.generation.utils import GenerationMixin
def serve():
    for length in range(1, 5):
        GenerationMixin().generate(torch.zeros(2, length, dtype=torch.long), 5)
thread = threading.Thread(target=serve)
thread.start()
thread.join()
"""

DETAILS = """
from types import SimpleNamespace
def compute_iteration_details(running):
    return SimpleNamespace(num_ctx_requests=0, num_ctx_tokens=0,
                           num_generation_requests=running, num_generation_tokens=running)
"""

WORKER = """
import torch
class Worker:
    def execute_model(self, running): return torch.ones(1) + 1
    def sample_tokens(self, grammar): pass
"""

GROWING = """
import sys, time
from vllm.v1.worker.gpu_worker import Worker
turn = 0
while turn < int(sys.argv[1]):
    Worker().execute_model(min(1 + turn // 40, 5))
    time.sleep(0.01)
    turn += 1
"""


@pytest.fixture
def engines(launch: Launcher) -> Launcher:
    """Packages of these names beside the programs."""
    generate = "import torch\n" + GENERATE.partition("\nmodule(")[0]
    site = launch.folder / "site"
    for module, text in (
        ("transformers.generation.utils", generate),
        ("vllm.v1.utils", DETAILS),
        ("vllm.v1.worker.gpu_worker", WORKER),
    ):
        file = site.joinpath(*module.split(".")).with_suffix(".py")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        for package in file.relative_to(site).parents[:-1]:
            (site / package / "__init__.py").touch()
    launch.environ["PYTHONPATH"] += f"{os.pathsep}{site}"
    return launch


def recorded(folder: Path, backend: str) -> Counter[str]:
    """Names of ranges in a run folder, and how often."""
    if backend == "nsys":
        return Counter(ranges_in(folder / "report.sqlite"))
    (trace,) = folder.glob("trace.*.json.gz")
    with gzip.open(trace, "rt") as file:
        events = json.load(file)["traceEvents"]
    return Counter(one["name"] for one in events if one.get("cat") == "user_annotation")


@pytest.mark.parametrize("backend", [pytest.param("nsys", marks=pytest.mark.nsys), "torch"])
def test_a_window_of_requests_holds_these(engines: Launcher, backend: str) -> None:
    script = engines.script(REQUESTS)
    result = engines("--backend", backend, "--requests", "1:3", "--no-analyze", script)
    assert result.code == 0, result.err
    assert result.run["window"] == "requests 1:3"
    found = recorded(result.folder, backend)
    prompts = {name for name in found if name.startswith("prefill[")}
    assert prompts == {"prefill[bs=2 tok=4]", "prefill[bs=2 tok=6]"}
    assert found["decode[bs=2 tok=2]"] == 8


def test_a_window_of_requests_that_never_come(engines: Launcher) -> None:
    script = engines.script(REQUESTS)
    result = engines("--backend", "torch", "--requests", "7:", "--no-analyze", script)
    assert result.code == 0
    assert "(requests 7:) never opened: the program made 20 steps" in result.err


def decoding(found: Counter[str]) -> list[int]:
    """How many requests the recorded iterations work on."""
    return [int(one) for one in re.findall(r"_generation_(\d+)\(", " ".join(found))]


@pytest.mark.nsys
def test_a_server_is_recorded_under_load_for_a_while_and_ends(engines: Launcher) -> None:
    server = engines.folder / "vllm"
    server.write_text(f"#!{sys.executable}\n{GROWING}")
    server.chmod(0o755)
    result = engines("--when", "3", "--duration", "1", "--no-analyze", str(server), str(10**9))
    assert result.code == 0, "the end was asked for"
    assert result.run["window"] == "from 3 requests in a step on"
    assert min(decoding(recorded(result.folder, "nsys"))) >= 3


def test_load_opens_the_window_of_torch_profiler(engines: Launcher) -> None:
    script = engines.script(GROWING)
    result = engines(
        "--backend", "torch", "--when", "3", "--duration", "0.2", "--no-analyze", script, "200"
    )
    assert result.code == 0, result.err
    assert min(decoding(recorded(result.folder, "torch"))) == 3
