"""Module ranges under a real NVTX tool: names, structure, and what must not change."""

from __future__ import annotations

import pytest

from tests.nvtx_recorder import Recorder

pytest.importorskip("torch")

NET = """
    import copy, io, pickle, threading, warnings
    import torch
    from torch import nn
    import nvprobe
    from nvprobe.instrumentation.modules import annotate_modules

    class Block(nn.Module):
        def __init__(self, shared=None):
            super().__init__()
            self.linear = shared or nn.Linear(8, 8)
            self.act = nn.GELU()
            self.drop = nn.Dropout(0.5)
        def forward(self, x, *, scale=1.0):
            return x + self.drop(self.act(self.linear(x))) * scale

    class Net(nn.Module):
        def __init__(self, blocks=2, share=False):
            super().__init__()
            shared = nn.Linear(8, 8) if share else None
            self.blocks = nn.ModuleList([Block(shared) for _ in range(blocks)])
            self.head = nn.Linear(8, 2)
        def forward(self, x):
            for block in self.blocks:
                x = block(x, scale=2.0)
            return {"logits": self.head(x), "extra": None}

    torch.manual_seed(0)
    x = torch.randn(4, 8)
"""

BLOCK_PATHS = [
    f"Net/blocks.{i}{child}"
    for i in range(2)
    for child in ("", f"/blocks.{i}.linear", f"/blocks.{i}.act", f"/blocks.{i}.drop")
]
NET_PATHS = ["Net", *BLOCK_PATHS, "Net/head"]


def with_net(code: str) -> str:
    """The nets above, then a test's own lines."""
    return "\n".join(line.removeprefix("    ") for line in (NET + code).splitlines())


def test_every_module_has_its_dotted_path(torch_recorder: Recorder):
    recording = torch_recorder.run(
        with_net("    assert nvprobe.annotate(Net())(x)['extra'] is None")
    )
    assert recording.paths("module") == NET_PATHS
    assert len(recording.ranges()) == len(NET_PATHS)


def test_selection_by_depth_glob_class_and_predicate(torch_recorder: Recorder):
    code = """
    for options in (
        dict(depth=0), dict(depth=2), dict(modules="*.linear"), dict(modules="Block"),
        dict(modules=nn.GELU), dict(modules=("head", nn.Dropout)), dict(name="Model", depth=0),
        dict(modules=lambda path, module: path.endswith("act")),
    ):
        with nvprobe.range(repr(sorted(options))):
            nvprobe.annotate(Net(), **options)(x)
    try:
        nvprobe.annotate(Net(), depth=-1)
    except nvprobe.UsageError as error:
        assert "depth=-1" in str(error)
    """
    groups: list[list[str]] = []
    for one in torch_recorder.run(with_net(code)).ranges():
        if one.category == "user":
            groups.append([])
        else:
            groups[-1].append(one.name)
    linears = [f"blocks.{i}.linear" for i in range(2)]
    assert groups == [
        ["Net"],
        ["Net", "blocks.0", "blocks.1", "head"],
        ["Net", *linears],
        ["Net", "blocks.0", "blocks.1"],
        ["Net", "blocks.0.act", "blocks.1.act"],
        ["Net", "blocks.0.drop", "blocks.1.drop", "head"],
        ["Model"],
        ["Net", "blocks.0.act", "blocks.1.act"],
    ]


def test_ranges_close_on_exceptions_interrupts_and_in_threads(torch_recorder: Recorder):
    code = """
    class Fails(nn.Module):
        def __init__(self, error):
            super().__init__()
            self.inner = nn.Identity()
            self.error = error
        def forward(self, x):
            self.inner(x)
            raise self.error
    for error in (ValueError(), KeyboardInterrupt(), SystemExit(), GeneratorExit()):
        model = nvprobe.annotate(nn.Sequential(nn.Identity(), Fails(error)))
        try:
            model(x)
        except BaseException as caught:
            assert caught is error
    net = nvprobe.annotate(Net())
    threads = [threading.Thread(target=net, args=(x,)) for _ in range(4)]
    [one.start() for one in threads]; [one.join() for one in threads]
    """
    recording = torch_recorder.run(with_net(code))
    paths = recording.paths("module")
    failing = ["Sequential", "Sequential/0", "Sequential/1", "Sequential/1/1.inner"]
    assert paths[:16] == failing * 4
    by_thread: dict[int, list[str]] = {}
    for one in recording.ranges("module")[16:]:
        by_thread.setdefault(one.thread, []).append("/".join(one.path))
    assert list(by_thread.values()) == [NET_PATHS] * 4


def test_a_step_that_begins_inside_a_module_ends_with_it(torch_recorder: Recorder):
    code = """
    class Trains(nn.Module):
        def forward(self, x):
            nvprobe.step()
            with nvprobe.range("work"):
                return x
    model = nvprobe.annotate(nn.Sequential(nn.Identity(), Trains()))
    for _ in range(2):
        model(x)
    nvprobe.step()
    model(x)
    with nvprobe.range("after"):
        pass
    model(x)
    """
    paths = torch_recorder.run(with_net(code)).paths()
    own = [f"Sequential{below}" for below in ("", "/0", "/1", "/1/step", "/1/step/work")]
    # A step that is open already cannot end inside the model that is called in it.
    assert paths == [
        *own * 2,
        "step",
        *(f"step/Sequential{below}" for below in ("", "/0", "/1", "/1/work")),
        "step/after",
        *(f"step/Sequential{below}" for below in ("", "/0", "/1", "/1/work")),
    ]


def test_shared_subclassed_lazy_and_odd_modules(torch_recorder: Recorder):
    code = """
    class Wide(nn.Linear):
        def forward(self, x):
            return super().forward(x)
    class Odd(nn.Module):
        def forward(self, *args, **kwargs):
            return args, kwargs, object
    lazy = nvprobe.annotate(nn.Sequential(nn.LazyLinear(4), nn.ReLU()))
    lazy(x)
    assert type(lazy[0]) is nn.Linear
    net = nvprobe.annotate(Net(share=True))
    net(x)
    wide = nvprobe.annotate(nn.Sequential(Wide(8, 8), Odd()))
    assert wide(x)[2] is object
    module = nn.Linear(8, 8)
    module.forward = lambda x: x + 1        # a forward of its own, as accelerate makes
    own = nvprobe.annotate(nn.Sequential(module))
    assert torch.equal(own(x), x + 1)
    lists = nvprobe.annotate(nn.ModuleDict({"a": nn.Identity()}))
    lists["a"](x)
    nvprobe.annotate(own, name="Twice")(x)
    nvprobe.instrumentation.modules.remove(own)
    own(x)
    assert not module._forward_hooks and not module._forward_pre_hooks
    assert not module._forward_hooks_always_called
    """
    names = torch_recorder.run(with_net(code)).names("module")
    assert names[:3] == ["Sequential", "0", "1"]
    assert names[3:12] == [
        "Net",
        "blocks.0",
        "blocks.0.linear",
        "blocks.0.act",
        "blocks.0.drop",
        "blocks.1",
        "blocks.0.linear",
        "blocks.1.act",
        "blocks.1.drop",
    ]
    assert names[12:] == ["head", "Sequential", "0", "1", "Sequential", "0", "a", "Twice", "0"]


def test_copies_pickles_and_state_are_as_before(torch_recorder: Recorder):
    code = """
    plain = Net()
    keys = list(plain.state_dict())
    net = nvprobe.annotate(copy.deepcopy(plain))
    assert list(net.state_dict()) == keys
    assert [n for n, _ in net.named_modules()] == [n for n, _ in plain.named_modules()]
    assert repr(net) == repr(plain)
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in net.modules())
    with nvprobe.range("deepcopy"):
        copy.deepcopy(net)(x)
    with nvprobe.range("copy"):
        shallow = copy.copy(net.head)
        shallow.training = False
        seen = []
        shallow.extra = lambda: seen.append(shallow)
        assert net.head.training and not hasattr(net.head, "extra")
        shallow(x)
    linear = nvprobe.annotate(nn.Linear(8, 8))
    data = pickle.dumps(linear)
    assert b"nvprobe.instrumentation" not in data, "a checkpoint must load without nvprobe"
    buffer = io.BytesIO(); torch.save(net, buffer); buffer.seek(0)
    with nvprobe.range("loaded"):
        loaded = torch.load(buffer, weights_only=False)
        loaded(x)
        nvprobe.annotate(loaded, depth=0)(x)
    import inspect
    assert str(inspect.signature(net.blocks[0].forward)) == "(x, *, scale=1.0)"
    assert inspect.getfullargspec(net.blocks[0].forward).kwonlydefaults == {"scale": 1.0}
    before = Net.__dict__["forward"]
    for model in (net, loaded, linear):
        nvprobe.instrumentation.modules.remove(model)
    assert Net.__dict__["forward"] is not before
    assert nn.Linear.forward.__code__.co_name == "forward"
    assert not hasattr(nn.Linear.forward, "__wrapped__")
    with nvprobe.range("removed"):
        net(x)
    """
    groups: dict[str, list[str]] = {}
    for one in torch_recorder.run(with_net(code)).ranges():
        if one.category == "user":
            groups[one.name] = []
        else:
            groups[list(groups)[-1]].append("/".join(one.path[1:]))
    assert groups == {"deepcopy": NET_PATHS, "copy": ["head"], "loaded": ["Net"], "removed": []}


def test_models_that_python_or_a_predicate_makes_hard_to_handle(torch_recorder: Recorder):
    code = """
    import logging
    class Equal(nn.Module):                 # without a hash, then
        def __eq__(self, other):
            return True
        def forward(self, x):
            return x
    class Named(nn.Module):                 # scripted modules have a _c, too
        def __init__(self):
            super().__init__()
            self._c = nn.ReLU()
        def forward(self, x):
            return self._c(x)
    said = []
    class Keep(logging.Handler):
        def emit(self, record):
            said.append(record.getMessage())
    logging.getLogger("nvprobe").addHandler(Keep())
    nvprobe.instrument(modules=lambda path, module: path != "odd" or 1 / 0)
    for one in (Equal(), Equal(), Named(), torch.jit.script(nn.ReLU())):
        assert torch.equal(one(x), x if isinstance(one, Equal) else x.relu())
    odd = nn.Sequential()
    odd.add_module("odd", nn.ReLU())
    for _ in range(2):
        assert torch.equal(odd(x), x.relu())
    assert len(said) == 1 and "no ranges for the modules of Sequential" in said[0], said
    """
    names = torch_recorder.run(with_net(code)).names("module")
    assert names == ["Equal", "Equal", "Named", "_c", "ReLU", "ReLU"]


def test_values_gradients_and_random_state_are_bit_identical(torch_recorder: Recorder):
    code = """
    import sys
    def run(instrumented, build, train=True):
        torch.manual_seed(1)
        model = build()
        if instrumented:
            model = nvprobe.annotate(model)
        model.train(train)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        values = []
        for i in range(4):
            x = torch.randn(2, 6, 16)
            with torch.set_grad_enabled(train):
                out = model(x)
            if train:
                out.square().mean().backward()
                values += [p.grad.clone() for p in model.parameters()]
                optimizer.step(); optimizer.zero_grad()
            values.append(out.detach())
        return values + list(model.state_dict().values()) + [torch.get_rng_state()]

    layer = lambda: nn.TransformerEncoderLayer(16, 4, 32, dropout=0.3, batch_first=True)
    builds = [
        lambda: nn.TransformerEncoder(layer(), 2),
        lambda: nn.Sequential(nn.Conv1d(6, 6, 3, padding=1), nn.BatchNorm1d(6), nn.Dropout(0.5),
                              nn.ReLU(inplace=True)),
    ]
    fused = torch._transformer_encoder_layer_fwd
    calls = []
    def counted(*args):
        calls.append(1)
        return fused(*args)
    torch._transformer_encoder_layer_fwd = counted
    for build in builds:
        for train in (True, False):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                a, b = run(False, build, train), run(True, build, train)
            assert len(a) == len(b) and all(torch.equal(p, q) for p, q in zip(a, b, strict=True))
    assert len(calls) == 16, "the fused inference path must be taken as before"
    """
    torch_recorder.run(with_net(code))


def test_checkpointing_ddp_and_scripting(torch_recorder: Recorder):
    code = """
    from torch.utils.checkpoint import checkpoint
    import torch.distributed as dist, tempfile
    class Saved(nn.Module):
        def __init__(self, reentrant):
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
            self.reentrant = reentrant
        def forward(self, x):
            for layer in (self.first, self.second):
                x = checkpoint(lambda y, run=layer: run(y).relu(), x, use_reentrant=self.reentrant)
            return x
    for reentrant in (True, False):
        with nvprobe.range(f"reentrant {reentrant}"):
            nvprobe.annotate(Saved(reentrant))(x.clone().requires_grad_()).sum().backward()
    dist.init_process_group("gloo", init_method=f"file://{tempfile.mktemp()}", rank=0, world_size=1)
    from torch.nn.parallel import DistributedDataParallel as DDP
    with nvprobe.range("ddp after"):
        ddp = DDP(nvprobe.annotate(Net()))
        ddp(x)["logits"].sum().backward()
    with nvprobe.range("ddp before"):
        nvprobe.annotate(DDP(Net()))(x)["logits"].sum().backward()
    with nvprobe.range("script"):
        model = nvprobe.annotate(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            scripted = torch.jit.script(model)
            traced = torch.jit.trace(model, x)
        assert torch.equal(scripted(x), model(x)) and torch.equal(traced(x), model(x))
        nvprobe.annotate(nn.Sequential(scripted))(x)
    with nvprobe.range("parallel"):
        net = nvprobe.annotate(Net())
        assert nn.parallel.replicate is not None
        replica = net.head._replicate_for_data_parallel()
        replica._parameters = {}
        replica.weight, replica.bias = net.head.weight * 2, net.head.bias * 2
        assert torch.allclose(replica(x), net.head(x) * 2)
    with nvprobe.range("fx"):
        graph = torch.fx.symbolic_trace(nvprobe.annotate(nn.Sequential(nn.Linear(8, 8), nn.ReLU())))
        exported = torch.export.export(nvprobe.annotate(nn.Sequential(nn.Linear(8, 8))), (x,))
        assert exported.module()(x).shape == (4, 8)
    dist.destroy_process_group()
    """
    groups: dict[str, list[str]] = {}
    recording = torch_recorder.run(with_net(code))
    main = recording.ranges("user")[0].thread
    for one in recording.ranges():
        if one.category == "user":
            groups[one.name] = []
        elif one.thread == main:
            groups[list(groups)[-1]].append(one.name)
    recomputed = ["second", "first"]
    assert groups["reentrant True"] == ["Saved", "first", "second", *recomputed]
    assert groups["reentrant False"] == groups["reentrant True"]
    assert groups["ddp after"][0] == "Net"
    assert groups["ddp before"][:2] == ["DistributedDataParallel", "Net"]
    assert groups["parallel"] == ["head", "head"]


def test_fsdp2_and_checkpoint_wrappers_keep_the_names(torch_recorder: Recorder):
    pytest.importorskip("torch.distributed.fsdp", reason="a torch without distributed")
    code = """
    import tempfile
    import torch.distributed as dist
    from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    dist.init_process_group("gloo", init_method=f"file://{tempfile.mktemp()}", rank=0, world_size=1)
    mesh = init_device_mesh("cpu", (1,))
    for order in ("annotated first", "sharded first"):
        model = nn.Sequential(nn.Linear(8, 8), nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
        if order == "annotated first":
            nvprobe.annotate(model)
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        if order == "sharded first":
            nvprobe.annotate(model)
        with nvprobe.range(order):
            model(x).sum().backward()
    with nvprobe.range("wrapped"):
        nvprobe.annotate(nn.Sequential(checkpoint_wrapper(nn.Linear(8, 8))))(x).sum().backward()
    dist.destroy_process_group()
    """
    groups: dict[str, list[str]] = {}
    for one in torch_recorder.run(with_net(code)).ranges():
        if one.category == "user":
            groups[one.name] = []
        elif one.path[0] in groups and one.category == "module":
            groups[one.path[0]].append(one.name)
    names = ["Sequential", "0", "1", "1.0", "1.1"]
    assert groups == {
        "annotated first": names,
        "sharded first": names,
        "wrapped": ["Sequential", "0", "0"],  # recomputed in backward
    }


@pytest.mark.slow
def test_torch_compile_sees_nothing_of_it(torch_recorder: Recorder):
    code = """
    import sys
    import torch._dynamo
    from torch._dynamo.utils import counters

    class Broken(Net):
        def forward(self, x):
            for block in self.blocks:
                x = block(x)
                torch._dynamo.graph_break()
            return self.head(x)

    class Sub(Net):                               # defaults, a closure (super), a wrapped base
        def forward(self, x, scale=1.0, *, shift=0.5):
            return super().forward(x * scale + shift)

    def regional(model):
        for block in model.blocks:
            block.compile(backend="eager", fullgraph=True)
        return model
    def submodules(model):
        model.blocks[0] = torch.compile(model.blocks[0], backend="eager")
        return model
    def in_function(model):
        return torch.compile(lambda x: model(x), backend="eager", fullgraph=True)
    def method(model):
        model.compile(backend="eager", fullgraph=True)
        return model
    def whole(model):
        return torch.compile(model, backend="eager", fullgraph=True)
    def breaking(model):
        return torch.compile(model, backend="eager")

    styles = [(whole, Net), (method, Net), (in_function, Net), (regional, Net), (submodules, Net),
              (breaking, Broken), (whole, lambda: nn.Linear(8, 8)),
              (whole, lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU())), (whole, Sub),
              (in_function, Sub)]
    def after(compiled):
        return nvprobe.annotate(compiled) if isinstance(compiled, nn.Module) else compiled
    results = {}
    for when in ("bare", "before", "after"):
        for number, (style, build) in enumerate(styles):
            torch._dynamo.reset(); counters.clear()
            torch.manual_seed(0)
            model = build()
            if when == "before":
                model = nvprobe.annotate(model)
            compiled = style(model)
            if when == "after":
                compiled = after(compiled)
            with nvprobe.range(f"{when} {number} {style.__name__}"):
                for _ in range(3):
                    out = compiled(x)
            for grown in (x[:2], x):
                compiled(grown)
            facts = {key: dict(value) for key, value in counters.items() if key != "frames"}
            results[when, number] = facts
    for (when, number), facts in results.items():
        assert facts == results["bare", number], (when, number, facts, results["bare", number])
    """
    groups: dict[str, list[str]] = {}
    for one in torch_recorder.run(with_net(code)).ranges():
        if one.category == "user":
            groups[one.name] = []
        elif one.path[0] in groups:  # the calls with other shapes have no range around them
            groups[one.path[0]].append(one.name)
    shown = {"before": 0, "after": 0}
    for title, names in groups.items():
        when, number, style = title.split()
        if when == "bare" or number in "6789":
            continue
        shown[when] += len(names)
        if style in ("whole", "method"):
            assert names == ["Net"] * 3, title
        if style == "regional":
            assert names == ["Net", "blocks.0", "blocks.1", "head"] * 3, title
        if style == "breaking":
            assert names[-4:] == ["Broken", "blocks.0", "blocks.1", "head"], title
    assert shown["before"] == shown["after"]


def test_sidecar_rows_bracket_the_backward_nodes(torch_recorder: Recorder, tmp_path):
    code = """
    from nvprobe.instrumentation import sidecar
    sidecar.open()
    net = nvprobe.annotate(Net())
    out = net(x)["logits"]
    with torch.no_grad():
        net(x)                                   # makes no nodes: no rows
    nodes, waiting = {}, [out.grad_fn]
    while waiting:
        node = waiting.pop()
        nodes[node._sequence_nr()] = node.name()
        waiting += [child for child, _ in node.next_functions if child is not None]
    print(__import__("json").dumps(nodes))
    """
    import json

    recording = torch_recorder.run(with_net(code), NVPROBE_SIDECAR=str(tmp_path / "side"))
    nodes = {int(number): name for number, name in json.loads(recording.stdout).items()}
    (file,) = (tmp_path / "side").iterdir()
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    rows = [
        dict(zip(line["columns"], row, strict=True))
        for line in lines
        if line["kind"] == "module"
        for row in line["rows"]
    ]
    made = [row for row in rows if row["last_seq"] > row["first_seq"]]
    assert rows == made

    def innermost(number: int) -> str | None:
        holding = [row for row in made if row["first_seq"] <= number < row["last_seq"]]
        return min(holding, key=lambda row: row["last_seq"] - row["first_seq"])["module"]

    owners = {
        (name.split("::")[-1], innermost(number))
        for number, name in nodes.items()
        if "AccumulateGrad" not in name
    }
    assert ("GeluBackward0", "blocks.0.act") in owners
    assert ("AddmmBackward0", "blocks.1.linear") in owners
    assert ("AddmmBackward0", "head") in owners
    assert ("AddBackward0", "blocks.1") in owners
    (root,) = (line for line in lines if line["kind"] == "root")
    assert (root["name"], root["class"], root["modules"]) == ("Net", "Net", len(NET_PATHS))
    assert all(row["start_ns"] <= row["end_ns"] for row in rows)
