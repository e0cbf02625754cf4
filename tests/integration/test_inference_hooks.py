"""Steps and phases of inference without edits: on stand-ins for engines, and on transformers.

The stand-ins have the modules, classes and methods that the hooks name, and call them in the order
of the sources that were read; vLLM, SGLang and diffusers themselves cannot run here.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from nvprobe.attribution.engines import StepPhase, parse
from nvprobe.instrumentation import inference
from tests.nvtx_recorder import Recorder, Recording

pytest.importorskip("torch")

START = """
import sys, types, torch
def module(name, **members):
    made = types.ModuleType(name)
    vars(made).update(members)
    parts = name.split(".")
    for last in range(1, len(parts)):
        sys.modules.setdefault(".".join(parts[:last]), types.ModuleType(".".join(parts[:last])))
    sys.modules[name] = made
    return made
"""

GENERATE = """
class GenerationMixin:
    def generate(self, input_ids, max_new_tokens):
        self.model_inputs = input_ids
        self._prefill(input_ids, None, {})
        turn = 0
        while self._has_unfinished_sequences(turn >= max_new_tokens, False, device="cpu"):
            if turn:
                self.forward()
            turn += 1
    def _prefill(self, input_ids, config, kwargs): return self.forward()
    def _has_unfinished_sequences(self, finished, synced, device): return not finished
    def forward(self): return torch.ones(2) + 1
module("transformers.generation.utils", GenerationMixin=GenerationMixin)
"""

OLDER = (
    GENERATE.replace("        self._prefill(input_ids, None, {})\n", "")
    .replace("    def _prefill(self, input_ids, config, kwargs): return self.forward()\n", "")
    .replace(
        "            if turn:\n                self.forward()\n", "            self.forward()\n"
    )
)

RUN = """
import nvprobe
nvprobe.instrument()
for _ in range(2):
    GenerationMixin().generate(torch.zeros(3, 7, dtype=torch.long), 5)
"""


def phases(recording: Recording) -> list[str]:
    """The phases directly in steps, in order."""
    return [one.name for one in recording.ranges("phase") if one.path[-2:-1] == ("step",)]


def run(torch_recorder: Recorder, code: str) -> Recording:
    return torch_recorder.run(textwrap.dedent(code))


def test_tokens_of_generate_are_steps(torch_recorder: Recorder) -> None:
    found = run(torch_recorder, START + GENERATE + RUN)
    request = ["prefill[bs=3 tok=21]", *["decode[bs=3 tok=3]"] * 4]
    assert phases(found) == request * 2
    assert [one.payload for one in found.ranges("step")] == list(range(10))
    assert all(one.path[0] == "generate" for one in found.ranges("step"))


def test_generate_of_versions_without_a_prefill_of_its_own(torch_recorder: Recorder) -> None:
    found = run(torch_recorder, START + OLDER + RUN)
    assert phases(found) == ["prefill", *["decode"] * 4] * 2


def test_a_generation_that_fails_leaves_nothing_open(torch_recorder: Recorder) -> None:
    broken = GENERATE.replace("                self.forward()", "                raise OSError")
    found = run(
        torch_recorder,
        START
        + broken
        + """
import nvprobe
nvprobe.instrument()
try:
    GenerationMixin().generate(torch.zeros(1, 4, dtype=torch.long), 5)
except OSError:
    print("raised")
with nvprobe.range("after"):
    pass
""",
    )
    assert [one.path for one in found.ranges() if one.name == "after"] == [("after",)]


DIFFUSION = """
class Scheduler:
    def step(self, noise, t, latents): return latents
class AutoencoderKL:
    def decode(self, latents): return latents
class DiffusionPipeline:
    def __init__(self): self.scheduler, self.vae = Scheduler(), AutoencoderKL()
    def progress_bar(self, iterable=None, total=None): return iterable
    def __call__(self, steps):
        self.progress_bar(total=steps)
        for t in range(steps):
            self.scheduler.step(torch.ones(1) * 2, t, None)
        return self.vae.decode(torch.ones(1))
module("diffusers.pipelines.pipeline_utils", DiffusionPipeline=DiffusionPipeline)
module("diffusers.models.autoencoders.autoencoder_kl", AutoencoderKL=AutoencoderKL)
import nvprobe
nvprobe.instrument()
for _ in range(2):
    DiffusionPipeline()(6)
"""


def test_denoising_steps_end_with_the_scheduler(torch_recorder: Recorder) -> None:
    found = run(torch_recorder, START + DIFFUSION)
    assert phases(found) == ["denoise"] * 12
    assert Counter(one.name for one in found.ranges("phase"))["vae decode"] == 2
    decoded = [one for one in found.ranges("phase") if one.name == "vae decode"]
    assert all("step" not in one.path for one in decoded)


VLLM = """
Details = types.SimpleNamespace
def compute_iteration_details(output):
    return Details(num_ctx_requests=output[0], num_ctx_tokens=output[1],
                   num_generation_requests=output[2], num_generation_tokens=output[2])
module("vllm.v1.utils", compute_iteration_details=compute_iteration_details)
class Worker:
    def execute_model(self, scheduler_output): return torch.ones(1) + 1
    def sample_tokens(self, grammar): return torch.ones(1) + 1
class Scheduler:
    def schedule(self): return next(self.batches)
class EngineCore:
    def __init__(self, batches):
        self.scheduler, self.worker = Scheduler(), Worker()
        self.scheduler.batches = iter(batches)
    def step(self):
        self.worker.execute_model(self.scheduler.schedule())
        self.worker.sample_tokens(None)
module("vllm.v1.worker.gpu_worker", Worker=Worker)
module("vllm.v1.core.sched.scheduler", Scheduler=Scheduler)
module("vllm.v1.engine.core", EngineCore=EngineCore)
import nvprobe
nvprobe.instrument()
core = EngineCore([(1, 512, 0), (0, 0, 1), (1, 64, 1)])
for _ in range(3):
    core.step()
"""


def test_iterations_of_vllm_have_its_own_names(torch_recorder: Recorder) -> None:
    found = run(torch_recorder, START + VLLM)
    names = [one.name for one in found.ranges() if one.name.startswith("execute_")]
    assert names == [
        "execute_context_1(512)_generation_0(0)",
        "execute_context_0(0)_generation_1(1)",
        "execute_context_1(64)_generation_1(1)",
    ]
    assert len(found.ranges("step")) == 3
    every = Counter(one.name for one in found.ranges("phase"))
    assert every["schedule"] == every["sample"] == every["engine step: core"] == 3


SGLANG = """
Mode, Batch = types.SimpleNamespace, types.SimpleNamespace
class ModelRunner:
    def forward(self, forward_batch): return torch.ones(1) + 1
class Scheduler:
    def get_next_batch_to_run(self): return next(self.batches)
    def run_batch(self, batch): return self.runner.forward(batch)
    def process_batch_result(self, batch, result): pass
module("sglang.srt.model_executor.model_runner", ModelRunner=ModelRunner)
module("sglang.srt.managers.scheduler", Scheduler=Scheduler)
import nvprobe
nvprobe.instrument()
server = Scheduler()
server.runner = ModelRunner()
server.batches = iter([Batch(forward_mode=Mode(name="EXTEND"), batch_size=2, extend_num_tokens=99),
                       Batch(forward_mode=Mode(name="DECODE"), batch_size=2),
                       Batch()])
for _ in range(3):
    batch = server.get_next_batch_to_run()
    server.process_batch_result(batch, server.run_batch(batch))
"""


def test_iterations_of_sglang_have_its_own_names(torch_recorder: Recorder) -> None:
    found = run(torch_recorder, START + SGLANG)
    inner = [one.name for one in found.ranges("phase") if one.path[-2:-1] == ("step",)]
    iterations = [name for name in inner if not name.startswith("scheduler.")]
    assert iterations == ["step[EXTEND bs=2 toks=99]", "step[DECODE bs=2]", "iteration"]


def test_calls_of_a_root_module_in_inference_mode_are_steps(torch_recorder: Recorder) -> None:
    found = run(
        torch_recorder,
        """
        import nvprobe, torch
        from torch import nn
        nvprobe.instrument()
        net = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        helper = nn.Linear(4, 4)
        with torch.inference_mode():
            for _ in range(4):
                net(helper(torch.ones(1, 4)))
        """,
    )
    assert len(found.ranges("step")) == 4


@pytest.mark.slow
def test_calls_of_a_compiled_decode_function_are_steps(torch_recorder: Recorder) -> None:
    found = run(
        torch_recorder,
        """
        import nvprobe, torch
        from torch import nn
        nvprobe.instrument()
        net = nn.Linear(4, 4)
        prefill = torch.compile(lambda x: net(x).relu())
        decode = torch.compile(lambda x: net(x) + 1)
        with torch.no_grad():
            prefill(torch.ones(3, 4))
            for _ in range(5):
                decode(torch.ones(1, 4))
        decode(torch.ones(1, 4))  # with gradients: this loop may train
        """,
    )
    graphs = [one.path[0] for one in found.ranges("graph") if one.name.startswith("graph ")]
    assert graphs == ["step"] * 7
    assert len(found.ranges("step")) == 5  # the prefill with the first token, then each token


BATCHING = """
import nvprobe
nvprobe.instrument()
import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.generation import ContinuousBatchingConfig, GenerationConfig
from nvprobe.instrumentation import inference
model = LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=16, intermediate_size=16,
    num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=64)).eval()
model.set_attn_implementation("sdpa")
print(*(len(one.generated_tokens) for one in model.generate_batch(
    inputs=[[5] * 12, [7] * 30, [9] * 3],
    generation_config=GenerationConfig(max_new_tokens=4, eos_token_id=-1, do_sample=False),
    continuous_batching_config=ContinuousBatchingConfig(
        page_size=16, num_blocks=16, max_batch_tokens=24),
).values()), inference.begun)
"""


def test_a_batch_is_that_of_the_running_one_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asynchronous batching needs a GPU: a stand-in of its two sets of inputs and outputs."""
    monkeypatch.setattr(inference, "begun", 0)

    def request(position: int, query: int, *, new_token: bool) -> Any:
        state = SimpleNamespace(position_offset=position + query, initial_tokens=[1] * 10)
        return SimpleNamespace(state=state, query_length=query, has_new_token=new_token)

    batch = [request(8, 2, new_token=True), request(0, 7, new_token=False)]
    batch += [request(position, 1, new_token=True) for position in (10, 14, 11)]
    pairs = [SimpleNamespace(host_io=SimpleNamespace(requests_in_batch=one)) for one in ([], batch)]
    outputs = SimpleNamespace(io_pairs=pairs, current_pair=1)
    manager = SimpleNamespace(batch_processor=SimpleNamespace(inputs_and_outputs=outputs))
    assert inference._batching_phase(manager) == "iteration[prefill=2/9 decode=3/3]"
    assert inference.begun == 1


@pytest.mark.slow
def test_iterations_of_continuous_batching(recorder: Recorder) -> None:
    """Of transformers itself: 45 tokens of three prompts, then each token but the first."""
    pytest.importorskip("transformers", minversion="5.24")  # the options of older ones differ
    found = run(recorder, BATCHING)
    assert found.stdout.split() == ["4", "4", "4", "3"]
    names = [one.name for one in found.ranges("phase") if one.name.startswith("iteration[")]
    known = parse(pa.array(names)).batches
    assert len(known.phase) == len(names) == len(found.ranges("step"))
    assert known.prefill_tokens.sum() == 45
    assert known.prefill_requests[0] == 2
    assert known.decode_tokens.sum() >= 9
    assert known.phase[-1] == StepPhase.DECODE


TRANSFORMERS = """
import nvprobe
nvprobe.instrument()
import torch
from transformers import GPT2Config, GPT2LMHeadModel
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=64, n_embd=16, n_layer=1, n_head=2))
x = torch.randint(0, 64, (2, 8))
for _ in range(2):
    model.eval().generate(x, attention_mask=torch.ones_like(x), max_new_tokens=6, do_sample=False,
                          pad_token_id=0, eos_token_id=None)
"""


@pytest.mark.slow
def test_transformers_itself(torch_recorder: Recorder, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    found = run(torch_recorder, TRANSFORMERS)
    request = ["prefill[bs=2 tok=16]", *["decode[bs=2 tok=2]"] * 5]
    assert phases(found) == request * 2
    inside = [one.path for one in found.ranges("module") if one.name == "GPT2LMHeadModel"]
    assert len(inside) == 12
    assert all("step" in path for path in inside)
