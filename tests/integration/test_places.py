"""Places in programs that use torch: modules, phases, loaders, streams, compiled code."""

from __future__ import annotations

import os
import textwrap
from pathlib import Path

import pytest

from tests.nvtx_recorder import ROOT
from tests.nvtx_recorder.with_torch import TorchPython
from tests.unit.test_places import marked, run

torch = pytest.importorskip("torch")

TRAINING = """
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset, Subset
    import nvprobe

    nvprobe.instrument()

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.both = nn.ReLU()

        def forward(self, x):
            x = self.both(x)  # inner A
            x = self.inner(x)  # inner B
            return self.both(x)  # inner C

    class Items(Dataset):
        def __len__(self):
            return 8

        def __getitem__(self, index):  # made
            return torch.ones(4)

    def together(samples):  # collated
        return torch.stack(samples)

    model = nn.Sequential(Block(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(Subset(Items(), range(8)), batch_size=4, collate_fn=together)

    def train():
        for batch in loader:  # loop
            loss = model(batch).sum()  # root
            loss.backward()  # backward
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # clip
            optimizer.step()  # optimizer

    train()
    with torch.no_grad():
        model(torch.ones(2, 4))  # again
        model.forward(torch.ones(2, 4))  # forward
"""


def test_where_modules_and_phases_are_called_and_batches_made(
    tmp_path: Path, torch_python: TorchPython
):
    found, text = run(tmp_path, TRAINING, torch_python)
    assert marked(found, text) == {
        "inner A": {("0.both", "called")},
        "inner B": {("0.inner", "called")},
        "inner C": {("0.both", "called")},
        "made": {("data", "made")},
        "collated": {("data", "made")},
        "loop": {("data", "loop")},
        "root": {(name, "called") for name in ("forward", "Sequential", "0", "1")},
        "backward": {("backward", "called")},
        "clip": {("clip", "called")},
        "optimizer": {("optimizer", "called")},
        "again": {(name, "called") for name in ("evaluation", "Sequential", "0", "1")},
        "forward": {(name, "called") for name in ("evaluation", "Sequential", "0", "1")},
    }
    details = {row["name"]: row["detail"] for row in found if row["category"] == "module"}
    assert details == {
        "Sequential": None, "0": "Sequential", "1": "Sequential",
        "0.both": "Sequential", "0.inner": "Sequential",
    }  # fmt: skip


def test_workers_make_batches_apart(tmp_path: Path, torch_python: TorchPython):
    program = """
        import torch
        from torch.utils.data import DataLoader, IterableDataset
        import nvprobe

        class Stream(IterableDataset):
            def __iter__(self):  # apart
                yield from torch.ones(6, 2)

        if __name__ == "__main__":
            nvprobe.instrument(children=False)
            for batch in DataLoader(Stream(), batch_size=3, num_workers=1):  # loop
                pass
    """
    found, text = run(tmp_path, program, torch_python)
    assert marked(found, text) == {"apart": {("data", "made_apart")}, "loop": {("data", "loop")}}


STREAMS = """
    import torch
    import nvprobe

    nvprobe.instrument()

    class Stream(torch.cuda.Stream):
        '''Stands for a stream where there is no GPU: torch's own methods, nothing behind them.'''

        def __new__(cls, handle):
            return object.__new__(cls)

        def __init__(self, handle):
            self.handle = handle

        @property
        def cuda_stream(self):
            return self.handle

        def wait_event(self, event):
            pass

        def record_event(self, event=None):
            pass

    main, side = Stream(0), Stream(77)

    def wait():
        main.wait_stream(side)  # A

    def again():
        wait()  # caller

    side.wait_stream(main)  # B
    for _ in range(4):
        again()  # loop
        wait()  # other caller
        torch.cuda.empty_cache()  # C
"""


@pytest.mark.skipif(torch.version.cuda is not None, reason="stands in for streams torch lacks")
def test_stream_waits_and_the_emptied_cache_are_told_with_who_calls_their_helper(tmp_path: Path):
    found, text = run(tmp_path, STREAMS)
    wait, empty = "torch.cuda.Stream.wait_stream", "torch.cuda.empty_cache"
    assert marked(found, text) == {
        "A": {(wait, "called")}, "B": {(wait, "called")}, "C": {(empty, "called")},
    }  # fmt: skip
    stacks = {
        tuple(text[int(str(line).rpartition(":")[2]) - 1].rpartition("# ")[2] for line in stack):
        (row["detail"], row["count"])
        for row in found if isinstance(stack := row["stack"], list)
    }  # fmt: skip
    assert stacks == {
        ("A", "caller", "loop"): ("default", 4),
        ("A", "other caller"): ("default", 4),
        ("B",): ("side", 1),
        ("C",): (None, 4),
    }


def test_compiled_code_is_left_alone_and_its_caller_known(
    tmp_path: Path, torch_python: TorchPython
):
    program = """
        import torch
        from torch import nn
        import nvprobe

        nvprobe.instrument()
        made = nvprobe.range("made before")

        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = nn.Linear(4, 4)

            def forward(self, x):
                with nvprobe.range("inside"):
                    return self.inner(x).relu()

        net = torch.compile(Net(), backend="eager", fullgraph=True)
        for _ in range(3):
            net(torch.ones(2, 4))  # A

        @torch.compile(backend="eager", fullgraph=True)
        def function(x):
            return x * 2

        for length in range(3, 6):
            torch._dynamo.mark_static(x := torch.ones(length))
            function(x)  # B

        from torch._dynamo.utils import counters
        assert not counters["graph_break"], counters
    """
    found, text = run(tmp_path, program, torch_python)
    assert marked(found, text) == {
        "A": {("Net", "called"), ("forward", "called")},
        "B": {("torch.compile", "called")},
    }


def test_data_sets_from_a_generator_are_left_to_the_program(
    tmp_path: Path, torch_python: TorchPython
):
    program = """
        from torch.utils.data import ChainDataset, DataLoader, IterableDataset
        import nvprobe

        nvprobe.instrument()

        class Part(IterableDataset):
            def __iter__(self):
                return iter((1, 2))

        chain = ChainDataset(Part() for _ in range(3))
        got = []
        for one in DataLoader(chain, batch_size=None):  # list() asks for its length: one goes
            got.append(one)
        assert got == [1, 2] * 3
    """
    run(tmp_path, program, torch_python)


def test_calls_that_no_line_makes_are_made_all_the_same(tmp_path: Path, torch_python: TorchPython):
    program = """
        import atexit
        import torch

        for name in ("empty_cache", "synchronize"):
            setattr(torch.cuda, name, lambda said=f"{name} done": print(said))
        import nvprobe

        nvprobe.instrument()
        atexit.register(torch.cuda.empty_cache)
        atexit.register(torch.cuda.synchronize)
        atexit.register(torch.nn.ReLU().forward, torch.ones(1))
        atexit.register(torch.nn.ReLU().forward, torch.ones(1))
        atexit.register(nvprobe.range("last").__enter__)
    """
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(program))
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "NVPROBE_SIDECAR": str(tmp_path / "out")
    }  # fmt: skip
    done = torch_python.run(script, (), environment, timeout=240)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr, done.stderr
    assert done.stdout.splitlines() == ["synchronize done", "empty_cache done"]


def test_the_stream_that_is_waited_for_may_be_named(tmp_path: Path, torch_python: TorchPython):
    program = """
        import torch

        waits = []
        torch.cuda.Stream.wait_stream = lambda self, stream: waits.append(stream)
        torch.cuda.Stream.wait_event = lambda self, event: waits.append(event)
        torch.cuda.Event.wait = lambda self, stream=None: waits.append(stream)
        import nvprobe

        nvprobe.instrument()
        torch.cuda.Stream.wait_stream(object(), stream=1)  # wait_stream
        torch.cuda.Stream.wait_event(object(), event=2)  # wait_event
        torch.cuda.Event.wait(object(), stream=3)  # wait
        assert waits == [1, 2, 3]
    """
    found, text = run(tmp_path, program, torch_python)
    assert {
        letter: {name.rpartition(".")[2] for name, _ in rows}
        for letter, rows in marked(found, text).items()
    } == {"wait_stream": {"wait_stream"}, "wait_event": {"wait_event"}, "wait": {"wait"}}
