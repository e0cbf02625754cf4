"""Programs that do not know nvprobe, instrumented at their start, and the processes they start."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.nvtx_recorder import Recorder, Recording

pytestmark = pytest.mark.slow

TRAIN = """
import sys
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
    def forward(self, x):
        return self.layer(x)

def train(steps=2):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(steps):
        net(torch.randn(2, 4)).sum().backward()
        optimizer.step()
"""


def run(
    recorder: Recorder, code: str, *arguments: str, check: bool = True, **environment: str
) -> Recording:
    return recorder.run(code, *arguments, launched=True, check=check, **environment)


@pytest.mark.parametrize("as_module", [False, True])
def test_the_program_sees_what_python_gives_it(recorder: Recorder, tmp_path: Path, as_module: bool):
    code = """
        import json, sys, pickle
        class Local: pass
        main = sys.modules["__main__"]
        assert main.Local is Local and pickle.loads(pickle.dumps(Local())).__class__ is Local
        print(json.dumps([__name__, sys.argv[1:], sys.path[0], __file__.rpartition("/")[2],
                          __spec__ is None, main.__dict__ is globals()]))
        sys.exit(7)
    """
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(code))
    program = ["-m", "program"] if as_module else [str(script)]
    outputs = []
    for environment in (recorder.environment(tmp_path), recorder.launched(tmp_path)):
        completed = subprocess.run(
            [sys.executable, *program, "a", "--b", "-m"],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert completed.returncode == 7, completed.stderr
        outputs.append(json.loads(completed.stdout))
    assert outputs[0] == outputs[1]


def test_modules_of_the_program_are_its_own(recorder: Recorder, tmp_path: Path):
    """Also those named as modules that nvprobe imports, from the script's folder, not another."""
    for name in ("json", "logging", "click"):
        (tmp_path / f"{name}.py").write_text(f"print('own {name}')")
    script = tmp_path / "train.py"
    script.write_text("import json, logging, click, sys; print(sorted(sys.path))")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "json.py").write_text("print('not of the program')")
    outputs = [
        subprocess.run(
            [sys.executable, str(script)],
            env=environment,
            cwd=elsewhere,
            capture_output=True,
            text=True,
            timeout=240,
        )
        for environment in (recorder.environment(tmp_path), recorder.launched(tmp_path))
    ]
    assert outputs[0].stdout.startswith("own json\nown logging\nown click\n")
    assert (outputs[1].stdout, outputs[1].stderr) == (outputs[0].stdout, outputs[0].stderr)


def test_a_script_without_a_line_of_nvprobe(recorder: Recorder, tmp_path: Path):
    pytest.importorskip("torch")
    recording = run(recorder, TRAIN + "train()", NVPROBE_SIDECAR=str(tmp_path / "side"))
    assert (
        recording.paths("phase")
        == [f"step/{phase}" for phase in ("forward", "backward", "optimizer")] * 2
    )
    assert recording.paths("module") == ["step/forward/Net", "step/forward/Net/layer"] * 2
    (file,) = (tmp_path / "side").iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    states = {line["name"]: line["state"] for line in lines if line["kind"] == "hook"}
    assert states["phases"] == states["modules"] == states["syncs"] == "on"
    kinds = {line["kind"] for line in lines}
    assert {"header", "clock", "root", "module", "step"} <= kinds
    assert str(tmp_path) not in file.read_text()


def test_options_come_from_the_environment(recorder: Recorder):
    pytest.importorskip("torch")
    shallow = run(recorder, TRAIN + "train(1)", NVPROBE_DEPTH="0", NVPROBE_EMITTER="nvtx")
    assert shallow.names("module") == ["Net"]
    chosen = run(recorder, TRAIN + "train(1)", NVPROBE_MODULES="nothing,Linear")
    assert chosen.names("module") == ["Net", "layer"]
    off = run(recorder, TRAIN + "train(1)", NVPROBE_EMITTER="off")
    assert off.ranges() == []


@pytest.mark.parametrize("folder", ["", "side"])
def test_models_are_only_looked_for_where_it_reaches_anybody(recorder: Recorder, folder: str):
    pytest.importorskip("torch")
    code = """
        import os
        import nvprobe
        nvprobe.instrument(children=False)
        import torch
        model = torch.nn.Linear(2, 2)
        model(torch.ones(2))
        found = "_nvprobe_range" in vars(model)
        assert found == bool(os.environ["NVPROBE_SIDECAR"]), found
    """
    assert recorder.run(code, attached=False, NVPROBE_SIDECAR=folder).ranges() == []


def test_spawned_and_started_children_are_instrumented_too(recorder: Recorder, tmp_path: Path):
    pytest.importorskip("torch")
    (tmp_path / "hidden").mkdir()
    hidden = tmp_path / "hidden" / "sitecustomize.py"
    hidden.write_text("import builtins; builtins.hidden_ran = True")
    code = (
        TRAIN
        + """
if __name__ == "__main__":
    import multiprocessing, subprocess, builtins
    context = multiprocessing.get_context("spawn")
    child = context.Process(target=train, args=(1,))
    child.start(); child.join()
    assert child.exitcode == 0
    code = "import builtins; assert builtins.hidden_ran; print('plain')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).stdout == b"plain\\n"
    if len(sys.argv) > 1:
        train(1)
    else:
        subprocess.run([sys.executable, __file__, "child"], check=True)
"""
    )
    first, *others = recorder.launched(tmp_path)["PYTHONPATH"].split(os.pathsep)
    recording = run(
        recorder,
        code,
        PYTHONPATH=os.pathsep.join([first, str(hidden.parent), *others]),
        NVPROBE_SIDECAR=str(tmp_path / "side"),
    )
    by_process: dict[int, list[str]] = {}
    for one in recording.ranges("module"):
        by_process.setdefault(one.pid, []).append(one.name)
    assert list(by_process.values()) == [["Net", "layer"]] * 3  # spawned, started, its spawned one
    assert len(list((tmp_path / "side").iterdir())) == 4


def test_torchrun_children_have_their_rank(recorder: Recorder, tmp_path: Path):
    pytest.importorskip("torch")
    script = tmp_path / "train.py"
    script.write_text(TRAIN + "train(1)")
    folder = tmp_path / "record"
    folder.mkdir()
    completed = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nproc-per-node=2",
            "--standalone",
            str(script),
        ],
        env=recorder.launched(folder) | {"NVPROBE_SIDECAR": str(tmp_path / "side")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert completed.returncode == 0, completed.stderr[-3000:]
    recording = Recording(folder, completed)
    assert recording.names("module").count("Net") == 2
    headers = [
        json.loads(file.read_text().splitlines()[0]) for file in (tmp_path / "side").iterdir()
    ]
    assert sorted(str(header["rank"]) for header in headers) == ["0", "1", "None"]


def test_the_launchers_part_is_started_by_name(recorder: Recorder, tmp_path: Path):
    code = "print('ran')"
    recording = run(recorder, code, NVPROBE_INPROCESS="not json")
    assert recording.stdout == "ran\n"


def test_a_warning_of_nvprobes_own_says_whose_it_is(recorder: Recorder, tmp_path: Path):
    """It neither reaches the program's log nor looks like the program's words."""
    code = """
        import logging
        logging.basicConfig(format="PROGRAM %(message)s")
        logging.getLogger("nvprobe").warning("capture window: x")
        logging.warning("y")
    """
    recording = run(recorder, code)
    assert recording.completed.stderr == "nvprobe: capture window: x\nPROGRAM y\n"
