"""Outside a capture window only steps are counted, and nothing compiled notices the difference."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from nvprobe.launch.settings import Settings
from tests.nvtx_recorder import Recorder

pytest.importorskip("torch")


TRAINING = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
    def forward(self, x):
        return self.inner(x).relu()
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
to = torch._C.TensorBase.to
patched = []
for _ in range(10):
    patched.append(torch.Tensor.to is not to)
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
patched.append(torch.Tensor.to is not to)
print(patched)
"""


def test_ranges_are_written_from_two_steps_before_the_window_to_its_end(
    recorder: Recorder, tmp_path: Path
):
    settings = Settings(status=str(tmp_path), first=5, last=7, trigger="nvtx")
    side = tmp_path / "side"
    recording = recorder.run(
        TRAINING, launched=True, NVPROBE_SIDECAR=str(side), **settings.to_environ()
    )
    steps = recording.ranges("step")
    assert len(steps) == 10
    for category in ("module", "phase"):
        inside = {
            step.payload
            for step in steps
            for one in recording.ranges(category)
            if step.start_ns <= one.start_ns < step.end_ns
        }
        assert inside == {3, 4, 5, 6}, category
    # Between the steps a step's own boundary wakes: the fourth iteration begins asleep.
    assert "[False, False, False, False, True, True, True, True, False, False, False]" in (
        recording.stdout
    )


def test_without_a_tool_and_a_sidecar_torch_stays_as_it_is():
    code = """
import nvprobe
nvprobe.instrument()
import torch
from nvprobe.instrumentation import awake
model = torch.nn.Linear(2, 2)
model(torch.ones(1, 2).to("cpu")).sum().backward()
assert not awake.now
awake.wake()
assert not awake.now, "nobody will ever listen"
assert torch.Tensor.to is torch._C.TensorBase.to
assert not hasattr(torch.nn.Linear.forward, "__wrapped__")
"""
    unset = ("NVTX_INJECTION64_PATH", "NVPROBE_SIDECAR", "NVPROBE_EMITTER")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=240)


def test_annotation_switched_off_counts_steps_and_nothing_else(recorder: Recorder, tmp_path: Path):
    settings = Settings(status=str(tmp_path), first=5, last=7, trigger="nvtx")
    code = (
        TRAINING
        + """
import warnings
from nvprobe.instrumentation import steps
assert steps.count() == 10, steps.count()
assert not any(patched)
assert not hasattr(nn.Linear.forward, "__wrapped__")
assert warnings._showwarnmsg.__module__ == "warnings"
assert torch.cuda.synchronize.__module__ == "torch.cuda"
assert not hasattr(torch.cuda.synchronize, "__wrapped__")
"""
    )
    recording = recorder.run(
        code,
        launched=True,
        NVPROBE_SIDECAR=str(tmp_path / "side"),
        **settings.to_environ(),
        NVPROBE_EMITTER="off",
    )
    assert recording.ranges("module") == recording.ranges("phase") == []


def test_windows_of_the_program_wake_and_send_to_sleep(recorder: Recorder):
    recording = recorder.run(
        TRAINING.replace(
            "    optimizer.zero_grad()",
            "    if number in (2, 6): window = nvprobe.window(); window.__enter__()\n"
            "    optimizer.zero_grad()",
        )
        .replace(
            "    optimizer.step()",
            "    optimizer.step()\n    if number in (3, 7): window.__exit__(None, None, None)",
        )
        .replace("for _ in range", "for number in range")
        .replace("patched = []", "patched = wrapped = []")
        .replace(
            "patched.append(torch.Tensor.to is not to)",
            "number in (3, 5, 7, 9) and wrapped.append(hasattr(nn.Linear.forward, '__wrapped__'))",
        )
        .replace("import torch\n", "import nvprobe; nvprobe.instrument()\nimport torch\n", 1)
    )
    assert "[True, False, True, False, False]" in recording.stdout, "forward of Linear is wrapped"
    steps = [
        step.payload
        for step in recording.ranges("step")
        for one in recording.ranges("phase")
        if one.name == "backward" and step.start_ns <= one.start_ns < step.end_ns
    ]
    assert steps == [0, 1, 2, 3, 6, 7]


@pytest.mark.slow
def test_waking_and_sleeping_recompile_nothing(recorder: Recorder):
    recorder.run(
        """
        import nvprobe
        nvprobe.instrument()
        import torch
        from torch import nn
        from torch._dynamo.utils import counters
        from nvprobe.instrumentation import awake
        awake.sleep()
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(4, 4)
            def forward(self, x):
                return self.inner(x.to(torch.float32)).relu()[0]
        @torch.compile(backend="eager")
        def function(x):
            torch.cuda.empty_cache()
            y = x.sum()
            if y.item() > 0:
                x = x + 1
            return x.cpu(), x.to("cpu"), x[x > 0], x.nonzero()
        model = torch.compile(Net(), backend="eager")
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        torch._dynamo.config.error_on_recompile = True
        def run(x):
            model(x).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            function(x)
        x = torch.ones(2, 4)
        run(x); run(x)
        frames = counters["frames"].copy(), counters["stats"]["unique_graphs"]
        for change in (awake.wake, awake.sleep, awake.wake, awake.sleep):
            change()
            run(x)
        assert frames[1] == counters["stats"]["unique_graphs"], counters
        torch._dynamo.reset()
        awake.wake()                       # what is compiled awake is not compiled again asleep
        run(x); run(x)
        graphs = counters["stats"]["unique_graphs"]
        for change in (awake.sleep, awake.wake):
            change()
            run(x)
        assert graphs == counters["stats"]["unique_graphs"], counters
        """
    )


@pytest.mark.slow
def test_what_is_compiled_between_windows_is_not_compiled_again(recorder: Recorder):
    """Classes have their own ``forward`` back while asleep, until something is traced."""
    recorder.run(
        """
        import nvprobe
        nvprobe.instrument()
        import torch
        from torch import nn
        from torch._dynamo.utils import counters
        from nvprobe.instrumentation import awake, compiling
        awake.sleep()
        class Base(nn.Module):
            def forward(self, x):
                return x + 1
        class Derived(Base):
            def forward(self, x):
                return super().forward(x) * 2
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.derived = Derived()
                self.parts = nn.Sequential(nn.Linear(4, 4), nn.GELU())
                self.encoder = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
            def forward(self, x):
                x = self.derived(x)
                torch._dynamo.graph_break()
                return self.encoder(self.parts(x)[None])
        def wrapped(*classes):
            return [hasattr(one.forward, "__wrapped__") for one in classes]
        model = Net()
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        def step(called):
            called(torch.ones(2, 4)).sum().backward()
            optimizer.step()
        for _ in range(5):
            step(model)
        assert wrapped(Net, Derived, nn.Linear) == [True, False, False]
        awake.hold()                       # what a CUDA graph's capture does
        assert wrapped(Net, Derived, nn.Linear) == [True, True, True]
        awake.release()
        step(model)
        step(model)
        assert wrapped(Net, Derived, nn.Linear) == [True, False, False]
        own = nn.Linear.forward
        nn.Linear.forward = lambda self, x: own(self, x)  # replaced by the program meanwhile
        awake.wake()
        assert nn.Linear.forward.__wrapped__.__name__ == "<lambda>"
        awake.sleep()
        assert nn.Linear.forward.__name__ == "<lambda>"
        assert not hasattr(nn.Linear.forward, "__wrapped__")
        compiled = torch.compile(model, backend="eager")
        step(compiled)
        assert wrapped(Net, Derived, nn.Linear) == [True, True, True]
        step(compiled)
        graphs = counters["stats"]["unique_graphs"]
        torch._dynamo.config.error_on_recompile = True
        for change in (awake.wake, awake.sleep, awake.wake):
            change()
            step(compiled)
        assert graphs == counters["stats"]["unique_graphs"] > 0, counters
        """
    )
