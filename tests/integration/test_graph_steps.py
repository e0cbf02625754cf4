"""Steps of programs that replay CUDA graphs, with a graph class that needs no GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nvprobe.launch.settings import Settings
from tests.nvtx_recorder import ROOT, Recorder, Recording

pytestmark = pytest.mark.slow

pytest.importorskip("torch")

PROGRAM = """
import contextlib
import nvprobe, torch, torch.cuda.graphs
from torch import nn
from torch.utils.data import DataLoader

class CUDAGraph:
    def capture_begin(self): pass
    def capture_end(self): pass
    def replay(self): pass

torch.cuda.graphs.CUDAGraph = CUDAGraph
nvprobe.instrument()

@contextlib.contextmanager
def capture(graph):
    graph.capture_begin()
    yield
    graph.capture_end()

def captured(do=lambda: None):
    graph = CUDAGraph()
    with capture(graph):
        do()
    return graph

class Replay(nn.Module):
    def forward(self, graph):
        with nvprobe.range("copy"):
            pass
        graph.replay()

model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x = torch.ones(3, 4)
def backward():
    model(x).sum().backward()
def train():
    backward()
    optimizer.step()
"""


def replays(recording: Recording) -> list[list[int | None]]:
    """The ids of the graphs replayed in each step."""
    found: list[list[int | None]] = []
    for one in recording.ranges():
        if one.category == "step":
            found.append([])
        elif one.name.startswith("cudagraph replay") and "step" in one.path:
            found[-1].append(one.payload)
    return found


def test_a_replay_of_a_captured_training_step_is_a_step(recorder: Recorder):
    recording = recorder.run(
        PROGRAM
        + """
for _ in range(3):
    train()
graph = captured(train)
step = Replay()
for _ in range(5):
    step(graph)
for _ in range(2):
    train()                                        # the optimizer's own steps count as before
    captured().replay()                            # and this graph does not matter
"""
    )
    assert replays(recording) == [[], [], [], [1], [1], [1], [1], [1], [2], [3]]
    paths = recording.paths()
    assert paths.count("step/forward/Replay/copy") == 5
    assert paths.count("step/cudagraph capture 1/optimizer") == 1  # in the last warm-up step


def test_the_first_thing_a_program_does_may_be_the_capture(recorder: Recorder):
    recording = recorder.run(
        PROGRAM
        + """
graph = captured(train)
from nvprobe.instrumentation import graphs
assert graphs.capturing() == 0
for x in DataLoader(range(3)):
    graph.replay()
"""
    )
    assert replays(recording) == [[], [1], [1], [1]]
    assert recording.paths().count("step/data") == 4  # the last wait finds the loader exhausted


def test_a_graph_without_optimizer_leaves_the_steps_to_the_optimizer(recorder: Recorder):
    recording = recorder.run(
        PROGRAM
        + """
train()
graph = captured(backward)
step = Replay()
for _ in range(3):
    for _ in range(2):                             # gradient accumulation
        step(graph)
    optimizer.step()
"""
    )
    assert replays(recording) == [[], [1, 1], [1, 1], [1, 1]]


INFERENCE = {
    "for _ in range(3): prefill.replay()": [[1], [1], [1]],
    "for _ in range(3): prefill.replay(); decode.replay()": [[1, 2], [1, 2], [1, 2]],
    "prefill.replay(); [decode.replay() for _ in range(4)]": [[1, 2], [2], [2], [2]],
    "for _ in DataLoader(range(3)): prefill.replay()": [[1], [1], [1]],
    "for _ in range(3): net(prefill)": [[1], [1], [1]],
    "for _ in range(3): inside(prefill)": [],
    "for _ in nvprobe.steps(range(2)): decode.replay(); decode.replay()": [[2, 2], [2, 2]],
}


def test_inference_by_replays(recorder: Recorder):
    recording = recorder.run(
        PROGRAM
        + f"""
from nvprobe.instrumentation.periods import periods
net = Replay().eval()
prefill, decode = captured(), captured()
torchs = {{"__name__": "torch._inductor.cudagraph_trees"}}
exec("def run(graph): graph.replay()", torchs)     # who replays is a module of torch
inside = torchs["run"]
for loop in {list(INFERENCE)!r}:
    with nvprobe.range(loop):                      # its last step ends with it
        exec(loop)
    periods.__init__()
"""
    )
    found: dict[str, list[list[int | None]]] = {loop: [] for loop in INFERENCE}
    for one in recording.ranges():
        if one.category == "step":
            found[one.path[0]].append([])
        elif one.name.startswith("cudagraph replay") and "step" in one.path:
            found[one.path[0]][-1].append(one.payload)
    assert found == INFERENCE


PROGRAMS = ROOT / "scripts" / "gpu" / "programs"
UNDER_STAND_IN = f"""
import atexit, runpy, sys
from tests.cuda_bindings import calls
atexit.register(lambda: print(" ".join(calls)))
sys.path.insert(0, {str(PROGRAMS)!r})
import torch
available, torch.cuda.is_available = torch.cuda.is_available, lambda: False
import net                                         # the program's tensors stay on the CPU
torch.cuda.is_available = available
runpy.run_path({str(PROGRAMS / "manual_graph.py")!r}, run_name="__main__")
"""


def test_a_window_of_steps_in_a_program_that_replays_its_training_step(
    recorder: Recorder, tmp_path: Path
):
    """The program of scripts/gpu, whole, with torch's own classes: only CUDA's part is missing."""
    status = tmp_path / "status"
    status.mkdir()
    settings = Settings(status=str(status), first=16, last=20, trigger="cuda")
    recording = recorder.run(UNDER_STAND_IN, launched=True, **settings.to_environ())
    # Three steps warm up; the capture is in the third; each of the 24 replays is a step.
    # Ranges are written from two steps before the window to its end.
    assert replays(recording) == [[]] * 14 + [[1]] * 6 + [[]] * 7
    assert recording.paths().count("step/forward/Replay/cudagraph replay 1") == 6
    assert recording.paths().count("step/cudagraph capture 1/optimizer") == 1
    (file,) = status.iterdir()
    told = json.loads(file.read_text())
    assert (told["steps"], told["opened"], told["closed"]) == (27, 16, 20)
    calls = recording.stdout.split("\n")[1].split()
    opened, closed = calls.index("profiler_start"), calls.index("profiler_stop")
    assert calls[:opened].count("replay") == 16 - 3
    assert calls[opened:closed].count("replay") == 4
    assert calls[closed - 1] == "synchronize", "the GPU finishes its steps inside the window"
    assert "synchronize" not in calls[calls.index("capture_begin") : calls.index("capture_end")]


def test_no_window_opens_or_closes_inside_a_capture(recorder: Recorder, tmp_path: Path):
    settings = Settings(status=str(tmp_path), first=0, last=3, trigger="cuda")
    code = """
    from tests.cuda_bindings import calls
    import torch
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert "profiler_start" not in calls
    for _ in range(3):
        graph.replay()
    wanted = "profiler_start synchronize replay replay synchronize synchronize profiler_stop replay"
    made = [call for call in calls if call != "set_sync_debug_mode"]
    assert made[-8:] == wanted.split(), calls
    """
    recorder.run(code, launched=True, **settings.to_environ())


@pytest.mark.parametrize(("first", "last"), [(4, 6), (2, 4)])
def test_the_programs_own_steps_are_counted_from_the_first(
    recorder: Recorder, tmp_path: Path, first: int, last: int
):
    """Replays of the warm-up are no steps of the window, unless it has opened in them."""
    settings = Settings(status=str(tmp_path), first=first, last=last, trigger="cuda")
    code = """
    from tests.cuda_bindings import calls
    import nvprobe, torch
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        pass
    for _ in range(4):
        graph.replay()
    for i in nvprobe.steps(range(8)):
        calls.append(str(i))
    print(*(call for call in calls if call.isdigit() or call.startswith("profiler")))
    """
    recording = recorder.run(code, launched=True, **settings.to_environ())
    told = json.loads(next(tmp_path.glob("window.*.json")).read_text())
    assert (told["opened"], told["closed"]) == (first, last)
    if first == 4:  # only three replays were begun before the one that ends at the first own step
        wanted = "0 1 2 3 profiler_start 4 5 profiler_stop 6 7"
        assert (told["steps"], told["found"]) == (8, 0)
    else:
        wanted = "profiler_start profiler_stop 0 1 2 3 4 5 6 7"
        assert (told["steps"], told["found"]) == (12, 4)
    assert recording.stdout.split("\n")[-2] == wanted
