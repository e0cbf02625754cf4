"""Lines of hidden synchronisations, with torch's warning played by a Python one (no GPU here)."""

from __future__ import annotations

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


def test_filters_records_and_showwarning_stay_the_programs(recorder: Recorder, tmp_path: Path):
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
    recording = recorder.run(code, NVPROBE_SIDECAR=str(tmp_path / "side"))
    marks = [mark.text for mark in recording.marks("sync")]
    assert len(marks) == 7
    explicit = [line for line in sync_lines(tmp_path / "side") if "cuda.sync" in line["message"]]
    assert len(explicit) == 1
    assert marks[-1] == f"sync {explicit[0]['source']}"


def test_a_torch_without_cuda_is_left_alone(recorder: Recorder):
    code = """
    import warnings
    import torch
    from nvprobe.instrumentation import syncs
    syncs.install()
    warnings.warn("plain")
    syncs.uninstall()
    """
    recording = recorder.run(code, NVPROBE_EMITTER="nvtx")
    assert "plain" in recording.completed.stderr
    assert recording.marks("sync") == []


def test_the_remark_that_torch_makes_once_reaches_a_program_that_sets_the_mode(recorder: Recorder):
    code = (
        PROGRAM
        + """
said = []
def set_mode(mode):                               # TORCH_WARN_ONCE
    if not said:
        said.append(mode)
        warnings.warn("Synchronization debug mode is a prototype feature", stacklevel=1)
    modes.append(mode)
torch._C._cuda_set_sync_debug_mode = set_mode
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    syncs.install()
    assert said == [1] and caught == []
    for _ in range(2):
        torch.cuda.set_sync_debug_mode(0); line = sys._getframe().f_lineno
assert [(one.category, one.lineno) for one in caught] == [(UserWarning, line)], caught
assert caught[0].filename == __file__
"""
    )
    recorder.run(code)


def test_that_the_mode_is_a_prototype_is_told_only_to_who_sets_it(
    recorder: Recorder, tmp_path: Path
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
def initialise():
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
initialise()                                      # raises nothing, shows nothing
assert modes == [1]
syncs.uninstall()
assert modes == [1, 0] and warnings.filters == mine
torch.cuda._lazy_call = queue
syncs.install()
syncs.uninstall()
initialise()                                      # undone before CUDA was initialised
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
    recording = recorder.run(code, NVPROBE_SIDECAR=str(tmp_path / "side"))
    assert "prototype" not in recording.completed.stderr
