"""Steps and phases of programs that name none, recorded by a real NVTX tool."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.nvtx_recorder import Range, Recorder, Recording

pytest.importorskip("torch")

PROGRAM = """
import nvprobe, torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
torch.manual_seed(0)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.head = nn.Linear(8, 2)
    def forward(self, x):
        return self.head(self.body(x).relu())
def make(batches=6, batch=2):
    data = TensorDataset(torch.randn(batches * batch, 4), torch.zeros(batches * batch).long())
    net = Net()
    loader, loss = DataLoader(data, batch_size=batch), nn.CrossEntropyLoss()
    return net, loader, torch.optim.AdamW(net.parameters()), loss
"""

INSTRUMENT = PROGRAM.replace("torch.manual_seed(0)", "nvprobe.instrument()\ntorch.manual_seed(0)")


def shape(recording: Recording) -> list[list[str]]:
    """For every step the phases right below it, in order."""
    found: list[list[str]] = []
    for one in recording.ranges():
        if one.category == "step":
            found.append([])
        elif one.category == "phase" and one.path[-2:-1] == ("step",):
            found[-1].append(one.name)
    return found


def outside(recording: Recording) -> list[str]:
    """Phases in no step."""
    return [one.name for one in recording.ranges("phase") if "step" not in one.path]


def indices(ranges: list[Range]) -> list[int | None]:
    return [one.payload for one in ranges]


def test_a_training_loop_without_a_line_of_nvprobe(torch_recorder: Recorder):
    code = (
        INSTRUMENT
        + """
net, loader, optimizer, loss = make(3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
for x, y in loader:
    x, y = x.to("meta").to("cpu") if False else x, y
    out = net(x)
    value = loss(out, y)
    optimizer.zero_grad()
    value.backward()
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
"""
    )
    recording = torch_recorder.run(code)
    one = ["data", "forward", "loss", "backward", "clip", "optimizer", "scheduler"]
    steps = shape(recording)
    assert steps == [one, one, [*one, "data"]]  # the last wait finds the loader exhausted
    assert indices(recording.ranges("step")) == [0, 1, 2]
    modules = [path for path in recording.paths("module") if path.startswith("step/forward")]
    assert modules == ["step/forward/Net", "step/forward/Net/body", "step/forward/Net/head"] * 3
    assert recording.paths("module").count("step/loss/CrossEntropyLoss") == 3


def test_batches_read_one_ahead(torch_recorder: Recorder):
    """As Accelerate does: the last batch is there before the loader has none left."""
    code = (
        INSTRUMENT
        + """
def ahead(loader):
    batches = iter(loader)
    batch = next(batches)
    for following in batches:
        yield batch
        batch = following
    yield batch

net, loader, optimizer, loss = make(3)
for _ in range(2):
    for x, y in ahead(loader):
        loss(net(x), y).backward()
        optimizer.step()
    torch.save(net.state_dict(), "weights")
"""
    )
    recording = torch_recorder.run(code)
    assert indices(recording.ranges("step")) == [0, 1, 2, 3, 4, 5]
    assert recording.names("phase").count("checkpoint") == 2


def test_instrument_can_be_undone(torch_recorder: Recorder):
    code = (
        INSTRUMENT.replace("nvprobe.instrument()", "")
        + """
import sys
from nvprobe.instrumentation import instrument

ROOTS = ("torch", "__main__")

def functions():
    found = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in ROOTS:
            for key, value in list(vars(module).items()):
                found[name, key] = value
                if isinstance(value, type) and value.__module__.partition(".")[0] in ROOTS:
                    found |= {(name, key, one): it for one, it in vars(value).items()
                              if callable(it)}
    return found

def train():
    for x, y in loader:
        loss(net(x), y).backward()
        optimizer.step()

net, loader, optimizer, loss = make(3)
train()
x = torch.ones(2, 4).tolist()
before = functions()
for _ in range(2):
    nvprobe.instrument(children=False)
    train()
    instrument.remove()
after = functions()
print([name for name in before if before[name] is not after.get(name) and
       callable(before[name])])
print([key for module in net.modules() for key in vars(module) if "nvprobe" in key])
train()
"""
    )
    recording = torch_recorder.run(code)
    assert recording.stdout.splitlines() == ["[]", "[]"]
    assert len(recording.ranges("step")) == 6


def test_accumulation_two_optimizers_and_a_loop_without_loader(torch_recorder: Recorder):
    code = (
        INSTRUMENT
        + """
import sys
what = sys.argv[1]
net, loader, optimizer, loss = make(6)
if what == "accumulation":
    for i, (x, y) in enumerate(loader):
        loss(net(x), y).backward()
        if i % 3 == 2:
            optimizer.step(); optimizer.zero_grad()
if what == "gan":
    other = torch.optim.SGD(Net().parameters(), 0.1)
    for x, y in loader:
        loss(net(x), y).backward(); optimizer.step()
        loss(net(x), y).backward(); other.step()
if what == "bare":
    x, y = next(iter(loader))
    for i in range(6):
        loss(net(x), y).backward(); optimizer.step()
"""
    )
    steps = shape(torch_recorder.run(code, "accumulation"))
    micro = ["data", "forward", "loss", "backward"]
    accumulated = [*micro * 3, "optimizer"]
    assert steps == [accumulated, [*accumulated, "data"]]
    half = ["forward", "loss", "backward", "optimizer"]
    both = ["data", *half, *half]
    assert shape(torch_recorder.run(code, "gan")) == [*[both] * 5, [*both, "data"]]
    bare = shape(torch_recorder.run(code, "bare"))
    assert bare == [["data", *half, *half], *[half] * 4]


def test_evaluation_is_no_step_and_inference_is_one_a_batch(torch_recorder: Recorder):
    code = (
        INSTRUMENT
        + """
import sys
net, loader, optimizer, loss = make(2)
if sys.argv[1] == "train":
    for epoch in range(2):
        net.train()
        for x, y in loader:
            loss(net(x), y).backward(); optimizer.step()
        net.eval()
        with torch.no_grad():
            for x, y in loader:
                net(x)
else:
    del optimizer
    net.eval()
    with torch.inference_mode():
        for x, y in loader:
            net(x)
"""
    )
    recording = torch_recorder.run(code, "train")
    training = ["data", "forward", "loss", "backward", "optimizer"]
    assert shape(recording) == [training, [*training, "data"]] * 2
    evaluation = [one for one in recording.ranges("phase") if one.name == "evaluation"]
    assert len(evaluation) == 4
    assert all("step" not in one.path for one in evaluation)
    inference = shape(torch_recorder.run(code, "infer"))
    assert inference == [["data", "forward"], ["data", "forward", "data"]]


def test_evaluation_is_no_step_where_training_calls_a_part_of_the_model(torch_recorder: Recorder):
    code = (
        INSTRUMENT
        + """
class Task(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net
    def forward(self, x):
        return self.net(x)
net, loader, _, loss = make(batches=2)
task = Task(net)
optimizer = torch.optim.SGD(task.parameters(), lr=0.1)
def evaluate():
    task.eval()
    with torch.no_grad():
        for x, _ in loader:
            task(x)
    task.train()
evaluate()                                             # a look whether it runs: inference so far
for _ in range(2):
    for x, y in loader:
        def closure():
            optimizer.zero_grad()
            value = loss(task.net(x), y)
            value.backward()
            return value
        optimizer.step(closure)
    evaluate()
"""
    )
    recording = torch_recorder.run(code)
    phases = [[name for name in step if name != "data"] for step in shape(recording)]
    assert phases == [["forward"]] * 2 + [["optimizer"]] * 4
    assert outside(recording).count("evaluation") == 4


def test_explicit_steps_and_ranges_around_them(torch_recorder: Recorder, tmp_path: Path):
    code = (
        PROGRAM
        + """
from nvprobe.instrumentation import sidecar
from nvprobe.instrumentation.steps import on_step
sidecar.open()
seen = []
on_step(seen.append)
on_step(lambda n: 1 / 0)
loader = nvprobe.steps([10, 20, 30])
assert len(loader) == 3
for i, item in enumerate(loader):
    with nvprobe.range("body", payload=item):
        pass
for item in nvprobe.steps(iter([1, 2])):
    pass
for item in nvprobe.steps([1, 2]):
    break
try:
    for item in nvprobe.steps([1, 2]):
        raise ValueError
except ValueError:
    with nvprobe.range("handler"):
        pass
for i in range(2):
    with nvprobe.step():
        with nvprobe.range("block"):
            pass
with nvprobe.range("epoch"):
    for i in range(2):
        nvprobe.step()
        with nvprobe.range("call"):
            pass
with nvprobe.range("after"):
    with nvprobe.range("nested"):
        nvprobe.step()
print(seen)
"""
    )
    recording = torch_recorder.run(code, NVPROBE_SIDECAR=str(tmp_path / "side"))
    assert recording.paths() == [
        *["step", "step/data", "step/body"] * 2,
        "step",
        "step/data",
        "step/body",
        "step/data",
        *["step", "step/data"] * 3,  # an iterator without length: the last wait finds no batch
        "step/data exhausted",
        *["step", "step/data"] * 2,  # left by break, left by an exception
        "handler",
        *["step", "step/block"] * 2,
        "epoch",
        *["epoch/step", "epoch/step/call"] * 2,
        "after",
        "after/nested",
        "after/nested/step",
    ]
    count = Counter(recording.names())["step"]
    numbers = [*range(6), *range(5, count - 1)]  # 5 is given again after that wait
    assert indices(recording.ranges("step")) == numbers
    assert json.loads(recording.stdout) == numbers
    (file,) = (tmp_path / "side").iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    rows = [row for line in lines if line["kind"] == "step" for row in line["rows"]]
    assert [row[0] for row in rows] == numbers
    assert {row[5] for row in rows} == {"loop", "call", "exhausted"}
    assert all(0 <= row[4] <= row[3] - row[2] for row in rows)


def test_a_loader_that_turns_out_to_be_exhausted_gives_no_step(torch_recorder: Recorder):
    code = (
        INSTRUMENT
        + """
class Stream(torch.utils.data.IterableDataset):    # a dataset without length
    def __iter__(self):
        return iter(torch.randn(4, 4))
net, _, optimizer, _ = make()
for epoch in range(2):
    for x in DataLoader(Stream(), batch_size=2):
        net(x).sum().backward(); optimizer.step()
for batch in nvprobe.steps(iter([1])):
    with nvprobe.range("body"):
        for _ in nvprobe.steps([]):                # cannot take the step around it along
            pass
"""
    )
    recording = torch_recorder.run(code)
    one = ["data", "forward", "backward", "optimizer"]
    assert shape(recording) == [one, one, ["data", "data exhausted"]] * 2 + [
        ["data"],
        ["data", "data exhausted"],
    ]
    assert indices(recording.ranges("step")) == [0, 1, 2, 2, 3, 4, 4, 5]


def test_a_step_found_by_itself_ends_with_the_range_around_it(torch_recorder: Recorder):
    code = (
        INSTRUMENT
        + """
net, loader, optimizer, loss = make(2)
def train():
    for x, y in loader:
        loss(net(x), y).backward(); optimizer.step()
for epoch in range(2):
    with nvprobe.range("epoch", payload=epoch):
        train()
x, y = next(iter(loader))
for i in range(3):
    with nvprobe.range("iteration"):
        loss(net(x), y).backward(); optimizer.step()
for i in range(2):
    with nvprobe.step():
        net(x)
"""
    )
    recording = torch_recorder.run(code)
    paths = [path for path in recording.paths() if path.endswith("step")]
    # A batch outside the loop opens a step that cannot end inside the ranges of the iterations.
    assert paths == [*["epoch/step"] * 4, "step", *["step"] * 2]
    tops = {one.path[0] for one in recording.ranges()}
    assert tops == {"epoch", "step"}
    explicit = [one for one in recording.ranges("phase") if one.path == ("step", "forward")]
    assert len(explicit) == 2


def test_device_copies_data_in_threads_and_exceptions_stay_balanced(torch_recorder: Recorder):
    code = (
        INSTRUMENT
        + """
import threading
x = torch.ones(3)
x.to("meta"); x.to(torch.device("meta")); x.to(device="meta", dtype=torch.float16)
x.to(torch.empty(1, device="meta"))
x.to(torch.float64); x.to("cpu"); x.to(torch.zeros(1)); torch.empty(2, device="meta").to("meta")
class Boom(nn.Module):
    def forward(self, x):
        raise KeyboardInterrupt
for action in (lambda: Boom()(x), lambda: x.backward(), lambda: x.to("nowhere")):
    try:
        action()
    except BaseException:
        pass
class Bad(torch.optim.SGD):
    def step(self, closure=None):
        raise RuntimeError
bad = Bad(Net().parameters(), 0.1)
try:
    bad.step()
except RuntimeError:
    pass
def work():
    net, loader, optimizer, loss = make(2)
    for x, y in loader:
        loss(net(x), y).backward(); optimizer.step()
threads = [threading.Thread(target=work) for _ in range(3)]
[one.start() for one in threads]; [one.join() for one in threads]
"""
    )
    recording = torch_recorder.run(code)
    names = recording.names("phase")
    assert names.count("h2d") == 5  # four, and the one that failed
    assert names.count("optimizer") == 1 + 6
    assert len({one.thread for one in recording.ranges("step")}) == 1


def test_bits_warnings_and_copies_are_as_before(torch_recorder: Recorder):
    code = (
        PROGRAM
        + """
import sys, copy, pickle, warnings, io, random
if sys.argv[1] == "instrumented":
    nvprobe.instrument()
torch.manual_seed(3); random.seed(3)
net, loader, optimizer, loss = make()
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4)
net = nn.Sequential(net, nn.Dropout(0.2))
for epoch in range(2):
    for x, y in loader:
        value = loss(net(x), y)
        value.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        optimizer.step(); scheduler.step(); optimizer.zero_grad()
net.eval()
state = copy.deepcopy(net).state_dict() | {"out": net(x).detach(), "loss": value.detach()}
again = pickle.loads(pickle.dumps(net))
assert torch.equal(again(x), net(x))
optimizer.load_state_dict(copy.deepcopy(optimizer.state_dict()))
for made in (pickle.loads(pickle.dumps(optimizer)), copy.deepcopy(optimizer)):
    assert type(made) is torch.optim.AdamW
out = io.BytesIO(); torch.save([state, torch.get_rng_state(), random.getstate()], out)
import hashlib
print(hashlib.sha256(out.getvalue()).hexdigest(), sorted(state))
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("error")
    warnings.resetwarnings()
    warnings.warn("mine")
print([str(one.message) for one in caught])
class Endless(torch.utils.data.IterableDataset):
    def __len__(self):
        return 1
    def __iter__(self):
        return iter(range(3))
class Warns(nn.Module):
    def forward(self, x):
        warnings.warn("forward", stacklevel=1)
        return x
annotate = nvprobe.annotate if sys.argv[1] == "instrumented" else lambda function: function
@annotate
def decorated():
    warnings.warn("decorated", stacklevel=2)
@annotate
def generated():
    warnings.warn("generated", stacklevel=2)
    yield
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    other = torch.optim.SGD(net.parameters())
    torch.optim.lr_scheduler.StepLR(other, 1).step()      # before the optimizer's
    longer = torch.utils.data.DataLoader(Endless(), batch_size=None)
    assert len(longer) == 1 and len(list(longer)) == 3
    Warns()(x), decorated(), list(generated())
    net.register_full_backward_hook(lambda *_: None)
    net(x).sum().backward()
from pathlib import Path
print([f"{Path(one.filename).name}:{one.lineno} {str(one.message)[:30]}" for one in caught])
print([one for one in map(str, warnings.filters) if "synchronizing" not in one])
"""
    )
    bare, instrumented = (torch_recorder.run(code, how) for how in ("bare", "instrumented"))
    assert bare.stdout == instrumented.stdout
    assert bare.ranges() == []
    assert instrumented.names().count("forward") >= 12
