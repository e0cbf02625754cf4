"""Lines of hidden synchronizations, with torch's warning played by a Python one (no GPU here)."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from tests.nvtx_recorder import Recorder

pytest.importorskip("torch")

PROGRAM = """
import sys, warnings
import torch
import nvprobe
from nvprobe.instrumentation import sidecar, syncs

modes = []
torch._C._cuda_set_sync_debug_mode = modes.append          # a build without CUDA has none
torch._C._cuda_get_sync_debug_mode = lambda: modes[-1]
torch.cuda._lazy_call = lambda call, **kwargs: call()
torch.cuda._lazy_init = lambda: None
def synchronize(device=None):
    pass
torch.cuda.synchronize = synchronize

MESSAGE = "called a synchronizing CUDA operation (Triggered internally at CUDAFunctions.cpp:1.)"
def item():
    warnings.warn(MESSAGE, UserWarning, stacklevel=2)
sidecar.open()
"""


def sync_lines(folder: Path) -> list[dict]:
    (file,) = folder.iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [line for line in lines if line["kind"] == "sync"]


def test_marks_and_lines_name_the_users_line(recorder: Recorder, tmp_path: Path):
    code = (
        PROGRAM
        + """
syncs.install()
assert modes == [1]
def inner():
    item()                                       # the line
def outer():
    for _ in range(5):
        inner()
outer()
item()
torch.nn.Module.__call__                          # frames of torch are not the user's
class Net(torch.nn.Module):
    def forward(self, x):
        item()
        return x
nvprobe.annotate(torch.nn.Sequential(Net()))(torch.ones(1))
syncs.uninstall()
assert modes[-1] == 0
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    item()
assert len(caught) == 1
"""
    )
    recording = recorder.run(code, NVPROBE_SIDECAR=str(tmp_path / "side"))
    text = (recording.folder / "script.py").read_text().splitlines()
    frames = {name: 1 + text.index(name) for name in ("item()",)}
    line = 1 + next(i for i, one in enumerate(text) if "# the line" in one)
    marks = [mark.text for mark in recording.marks("sync")]
    assert marks[0].startswith("sync script.py:")
    assert len(marks) == 7
    assert frames["item()"] > line
    lines = sync_lines(tmp_path / "side")
    places = {entry["source"] for entry in lines}
    assert len(places) == 1  # the frame that warns is item() itself: its callers are in the stack
    stacks = [entry["stack"] for entry in lines]
    assert [entry["count"] for entry in lines] == [1, 2, 4]
    assert stacks[0][1] == f"script.py:{line}"
    assert all("torch" not in one and "/" not in one for stack in stacks for one in stack)


def test_filters_records_and_showwarning_stay_the_programs(
    torch_recorder: Recorder, tmp_path: Path
):
    code = (
        PROGRAM
        + """
warnings.simplefilter("error")
mine = warnings.filters[:]
shown = []
warnings.showwarning = lambda message, *rest: shown.append(str(message))
syncs.install()
item()                                            # "error" does not raise it
warnings.simplefilter("error")                    # neither does one set later
item()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("ignore")
    item()
    warnings.resetwarnings()
    warnings.simplefilter("always")
    item()
    warnings.warn("another", stacklevel=1)
assert [str(one.message) for one in caught] == ["another"], caught
try:
    warnings.warn("an error")
    raise SystemExit("not raised")
except UserWarning:
    pass
warnings.filterwarnings("always", "shown")
warnings.warn("shown")
assert shown == ["shown"], shown
assert [one for one in warnings.filters[1:] if "shown" not in str(one)] == mine, warnings.filters
torch.cuda.set_sync_debug_mode(1)                 # the program wants to see them, too
item()
assert shown[1:] == [MESSAGE]
torch.cuda.set_sync_debug_mode("default")
assert modes[-1] == 1
item()
assert len(shown) == 2
torch.cuda.synchronize()
syncs.uninstall()
assert [one for one in warnings.filters if "shown" not in str(one)] == mine
"""
    )
    recording = torch_recorder.run(code, NVPROBE_SIDECAR=str(tmp_path / "side"))
    marks = [mark.text for mark in recording.marks("sync")]
    assert len(marks) == 7
    explicit = [line for line in sync_lines(tmp_path / "side") if "cuda.sync" in line["message"]]
    assert len(explicit) == 1
    assert marks[-1] == f"sync {explicit[0]['source']}"


def test_a_torch_without_cuda_is_left_alone(torch_recorder: Recorder):
    code = """
    import warnings
    import torch
    from nvprobe.instrumentation import syncs
    syncs.install()
    warnings.warn("plain")
    syncs.uninstall()
    """
    recording = torch_recorder.run(code, NVPROBE_EMITTER="nvtx")
    assert "plain" in recording.completed.stderr
    assert recording.marks("sync") == []


def test_that_the_mode_is_a_prototype_is_told_only_to_who_sets_it(
    torch_recorder: Recorder, tmp_path: Path
):
    code = (
        PROGRAM
        + """
PROTOTYPE = "Synchronization debug mode is a prototype feature and does not yet detect all"
def set_mode(mode):                               # in truth it warns once a process
    warnings.warn(PROTOTYPE, UserWarning, stacklevel=1)
    modes.append(mode)
torch._C._cuda_set_sync_debug_mode = set_mode
waiting, immediate = [], torch.cuda._lazy_call
def queue(call, **kwargs):
    waiting.append(call)
def initialize():
    torch.cuda._lazy_call = immediate
    while waiting:
        waiting.pop(0)()
torch.cuda._lazy_call = queue
import threading
warnings.simplefilter("error")
mine = warnings.filters[:]
syncs.install()
assert modes == []
def elsewhere():                                  # another thread, while ours is being set
    warnings.warn(PROTOTYPE)
def threaded(mode):
    caught = []
    def run():
        try:
            elsewhere()
        except UserWarning as error:
            caught.append(error)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert len(caught) == 1
    set_mode(mode)
initialize()                                      # raises nothing, shows nothing
assert modes == [1]
syncs.uninstall()
assert modes == [1, 0] and warnings.filters == mine
torch.cuda._lazy_call = queue
syncs.install()
syncs.uninstall()
initialize()                                      # undone before CUDA was initialized
assert modes == [1, 0]
torch._C._cuda_set_sync_debug_mode = threaded
syncs.install()
assert modes == [1, 0, 1]
try:
    torch.cuda.set_sync_debug_mode("warn")        # the program's own: its filters count
    raise SystemExit("not raised")
except UserWarning:
    pass
syncs.uninstall()
"""
    )
    recording = torch_recorder.run(code, NVPROBE_SIDECAR=str(tmp_path / "side"))
    assert "prototype" not in recording.completed.stderr


STEPS = """
from nvprobe.instrumentation import awake, steps
awake.sleep()
mine = warnings.filters[:]
syncs.install()
assert modes == [] and warnings.filters == mine
def own():
    warnings.warn("the program's own")            # shown once, whatever begins and ends around it
own()
awake.wake()
assert modes == [1]
class Resident(torch.Tensor):                     # a tensor that says it is on a GPU
    is_cuda = True
    __torch_function__ = torch._C._disabled_torch_function_impl
x = torch.ones(3).as_subclass(Resident)
def wait():
    if modes[-1]:
        item()                                    # torch warns
    else:
        x.tolist()                                # and no more once the mode is off
def run(number):
    steps.begin("call")
    for _ in range(4):
        wait(); wait()
    own()
for number in range(6):
    run(number)
    assert modes == [1, 0][: 1 + (number >= 2)], (number, modes)
assert torch.Tensor.tolist is not torch._C.TensorBase.tolist
awake.sleep()
assert modes == [1, 0] and warnings.filters == mine
assert torch.Tensor.item is torch._C.TensorBase.item
own()
assert not any("synchron" in str(key) for key in __warningregistry__), __warningregistry__
"""


def test_after_three_steps_each_line_is_marked_once_a_step(
    torch_recorder: Recorder, tmp_path: Path
):
    code = PROGRAM.replace("stacklevel=2", "stacklevel=1") + STEPS
    recording = torch_recorder.run(code, NVPROBE_SIDECAR=str(tmp_path / "side"))
    marks = recording.marks("sync")
    pushed = [
        event.unix_ns for event in recording.events if (event.kind, event.text) == ("push", "step")
    ]
    per_step = [
        sum(start <= mark.unix_ns < end for mark in marks)
        for start, end in itertools.pairwise([*pushed, 2**63])
    ]
    assert per_step == [8, 8, 1, 1, 1, 1], per_step
    assert recording.completed.stderr.count("UserWarning: the program's own") == 1


def test_a_program_that_waits_by_the_thousand_passes_few_wrappers_a_step(torch_recorder: Recorder):
    """The first waits of each step are followed, so that a rare one has its line all the same."""
    code = (
        PROGRAM
        + """
from nvprobe.instrumentation import sync_methods
class Resident(torch.Tensor):                     # a tensor that says it is on a GPU
    is_cuda = True
    __torch_function__ = torch._C._disabled_torch_function_impl
x = torch.ones(3).as_subclass(Resident)
noted = []
sync_methods.begin(lambda what: bool(noted.append(what)), indexing=False)
def step(rare):
    sync_methods.again()
    assert torch.Tensor.tolist is not torch._C.TensorBase.tolist
    if rare:
        x.cpu()
    for _ in range(5 * sync_methods.MOST):
        x.tolist()
    assert torch.Tensor.tolist is torch._C.TensorBase.tolist
    assert "cpu" not in vars(torch.Tensor)
for number in range(4):
    step(rare=number == 2)
assert noted == ["Tensor.tolist"] * 2 + ["Tensor.cpu"] + ["Tensor.tolist"] * 2, noted
sync_methods.again()
sync_methods.end()
sync_methods.again()
assert "tolist" not in vars(torch.Tensor)
"""
    )
    torch_recorder.run(code)


def test_a_distributed_program_has_its_methods_noted_and_no_debug_mode(
    torch_recorder: Recorder, tmp_path: Path
):
    code = (
        PROGRAM
        + """
class Resident(torch.Tensor):                     # a tensor that says it is on a GPU
    is_cuda = True
    __torch_function__ = torch._C._disabled_torch_function_impl
x = torch.ones(3).as_subclass(Resident)
syncs.install()
assert modes == [], modes
x.tolist()                                        # sync
x[x > 0]                                          # sync
x[0]
bool(x.sum().as_subclass(Resident))               # sync
torch.ones(1).item()
syncs.uninstall()
assert torch.Tensor.item is torch._C.TensorBase.item
assert "__getitem__" not in vars(torch.Tensor)
"""
    )
    recording = torch_recorder.run(
        code, NVPROBE_SIDECAR=str(tmp_path / "side"), RANK="0", WORLD_SIZE="2", LOCAL_RANK="0"
    )
    text = (recording.folder / "script.py").read_text().splitlines()
    wanted = [f"script.py:{at}" for at, one in enumerate(text, 1) if one.endswith("# sync")]
    assert [line["source"] for line in sync_lines(tmp_path / "side")] == wanted


def test_a_program_that_becomes_distributed_gives_the_debug_mode_up(torch_recorder: Recorder):
    code = (
        PROGRAM
        + """
syncs.install()
assert modes == [1]
import torch.distributed as dist
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
assert modes == [1, 0]
assert torch.Tensor.item is not torch._C.TensorBase.item
dist.destroy_process_group()
"""
    )
    torch_recorder.run(code)
