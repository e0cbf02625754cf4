"""Every way of compiling, cold and from warm caches, under a real NVTX tool on the CPU."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from pathlib import Path

import pytest

from tests.nvtx_recorder import Recorder, Recording

pytestmark = pytest.mark.slow

pytest.importorskip("torch")

NET = """
import json, os, sys
PLAIN = bool(os.environ.get("PLAIN"))
from nvprobe.instrumentation import compiled, emitter, sidecar
if not PLAIN:
    sidecar.open("side")
    compiled.install()
    assert "torch" not in sys.modules
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.fc = nn.Linear(d, d)
        self.norm = nn.LayerNorm(d)
    def forward(self, x):
        h = self.fc(x)
        h = torch.tanh(h)
        return self.norm(x + h)

class Net(nn.Module):
    def __init__(self, d=8):
        super().__init__()
        self.blocks = nn.ModuleList(Block(d) for _ in range(3))
        self.head = nn.Linear(d, 2)
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)
"""
BLOCK_LINES = {
    text: number
    for number, line in enumerate(NET.lstrip("\n").splitlines(), 1)
    if (text := line.strip())
}
"""Line of each statement in the script (`Recorder.run` keeps the text, less its first newline)."""

STYLES = (
    NET
    + """
def regional(net):
    for block in net.blocks:
        block.compile()
    return net

def submodule(net):
    net.blocks[1] = torch.compile(net.blocks[1])
    return net

def in_place(net):
    net.compile()
    return net

def function(net):
    @torch.compile
    def run(x):
        return net(x) * 2
    return run

STYLES = {
    "model": lambda net: torch.compile(net, fullgraph=True),
    "function": function,
    "in_place": in_place,
    "regional": regional,
    "submodule": submodule,
    "dynamic": lambda net: torch.compile(net, dynamic=True),
    "reduce-overhead": lambda net: torch.compile(net, mode="reduce-overhead"),
    "max-autotune": lambda net: torch.compile(net, mode="max-autotune"),
    "max-autotune-no-cudagraphs": lambda net: torch.compile(net, mode="max-autotune-no-cudagraphs"),
}
for style, make in STYLES.items():
    torch._dynamo.reset()
    torch.manual_seed(0)
    net = Net()
    run = make(net)
    x = torch.randn(4, 8, requires_grad=True)
    emitter.push(emitter.label(f"style {style}", emitter.Category.USER))
    sidecar.write("style", name=style)
    for _ in range(2):
        out = run(x)
        out.square().sum().backward()
    with torch.no_grad():
        idle = run(x)
    emitter.pop()
    grads = [p.grad for p in net.parameters()]
    bits = [t.detach().numpy().tobytes().hex() for t in (out, idle, x.grad, *grads)]
    breaks = sum(torch._dynamo.utils.counters["graph_break"].values())
    print(json.dumps([style, breaks, bits, torch.rand(1).item()]))
"""
)
NAMES = [
    *("model", "function", "in_place", "regional", "submodule", "dynamic"),
    *("reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"),
]


def script(text: str) -> str:
    return text.lstrip("\n")


def run(recorder: Recorder, text: str, cache: Path, **environment: str) -> Recording:
    return recorder.run(
        script(text), timeout=900, TORCHINDUCTOR_CACHE_DIR=str(cache), **environment
    )


def lines(recording: Recording) -> list[dict]:
    files = sorted((recording.folder / "side").glob("sidecar.*"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def results(recording: Recording) -> list[list]:
    return [json.loads(line) for line in recording.stdout.splitlines() if line.startswith("[")]


def by_style(recording: Recording) -> dict[str, list[str]]:
    """Names of the ranges inside each style, in order."""
    found: dict[str, list[str]] = defaultdict(list)
    for one in recording.ranges():
        if one.path[0].startswith("style ") and len(one.path) > 1:
            found[one.path[0].removeprefix("style ")].append(one.name)
    return found


def graphs_by_style(recording: Recording) -> dict[str, list[dict]]:
    found: dict[str, list[dict]] = defaultdict(list)
    style = ""
    for line in lines(recording):
        if line["kind"] == "style":
            style = line["name"]
        elif line["kind"] == "graph":
            found[style].append(line)
    return found


@pytest.fixture(scope="module")
def four_runs(nvtx_library: Path, tmp_path_factory: pytest.TempPathFactory):
    """One cache, four runs in an order that would show any exchange between them."""
    folder = tmp_path_factory.mktemp("styles")
    recorder, cache = Recorder(nvtx_library, folder), folder / "cache"
    order = [("plain cold", "1"), ("cold", ""), ("warm", ""), ("plain warm", "1")]
    return {name: run(recorder, STYLES, cache, PLAIN=plain) for name, plain in order}


@pytest.mark.parametrize("state", ["cold", "warm"])
def test_every_style_has_its_graph_ranges(four_runs, state):
    styles = by_style(four_runs[state])
    assert list(styles) == NAMES
    for style, names in styles.items():
        graphs = [name for name in names if name.startswith("graph ")]
        forward = [name for name in graphs if name.endswith(" fwd")]
        backward = [name for name in graphs if name.endswith(" bwd")]
        each = 3 if style == "regional" else 1
        assert len(forward) == 3 * each, (style, graphs)
        assert len(backward) == 2 * each, (style, graphs)
        ids = {name.split()[1] for name in forward}
        assert {name.split()[1] for name in backward} <= ids
        assert any(name.startswith("compile ") for name in names), style


def test_backward_ranges_carry_the_number_of_their_node(four_runs):
    ranges = four_runs["cold"].ranges("graph")
    backward = [one for one in ranges if one.name.endswith(" bwd") and one.name[0] == "g"]
    assert backward
    assert all(one.payload is not None for one in backward)
    model = [one.payload for one in backward if one.path[0] == "style model"]
    assert model == sorted(set(model))


def test_results_are_the_same_bits_in_every_order(four_runs):
    expected = results(four_runs["plain cold"])
    assert [row[0] for row in expected] == NAMES
    for name, recording in four_runs.items():
        assert results(recording) == expected, name


def test_manifests_survive_the_caches_and_no_cache_is_shared_with_plain_runs(four_runs):
    cold, warm = graphs_by_style(four_runs["cold"]), graphs_by_style(four_runs["warm"])
    assert list(cold) == list(warm) == NAMES
    for style in NAMES:
        known = {(g["compile_id"], g["phase"]): g["kernels"] for g in cold[style]}
        again = {(g["compile_id"], g["phase"]): g["kernels"] for g in warm[style]}
        assert all(known.values()), style
        assert again == known, style
    spans = {
        name: [line for line in lines(four_runs[name]) if line["kind"] == "compile_span"]
        for name in ("cold", "warm")
    }
    # The first graph is new to nvprobe although a plain run has filled the cache with it.
    assert spans["cold"][0]["cache_misses"] > 0
    assert spans["cold"][0]["cache_hits"] == 0
    assert spans["warm"][0]["cache_hits"] > 0
    # One graph of these styles was seen to be compiled anew by a warm run.
    hits, misses = (
        sum(span[f"cache_{kind}"] for span in spans["warm"]) for kind in ("hits", "misses")
    )
    assert misses <= 1 < len(NAMES) <= hits


def generated_calls(recording: Recording) -> list[str]:
    return json.loads(recording.stdout.splitlines()[-1])


MANIFEST = (
    NET
    + """
net = torch.compile(Net())
net(torch.randn(4, 8)).sum().backward()
import re
from torch._inductor.codecache import PyCodeCache
found = []
for module in PyCodeCache.modules:
    text = open(module.__file__).read()
    if "def call(" in text:
        body = text.partition("def call(")[2].partition("def benchmark_compiled_module")[0]
        call = r"(?:^|= )\\s*(cpp_fused\\w+|extern_kernels\\.\\w+)\\("
        found.append(re.findall(call, body, re.M))
print(json.dumps(found))
"""
)


def test_manifest_names_module_and_line_of_every_generated_kernel(recorder, tmp_path):
    recording = run(recorder, MANIFEST, tmp_path / "cache")
    graphs = [line for line in lines(recording) if line["kind"] == "graph"]
    assert [(one["compile_id"], one["phase"]) for one in graphs] == [("0/0", "fwd"), ("0/0", "bwd")]
    written = [[kernel["name"] for kernel in one["kernels"]] for one in graphs]
    assert sorted(written) == sorted(generated_calls(recording))
    assert all(len(names) > 6 for names in written)
    places = defaultdict(set)
    for graph in graphs:
        for kernel in graph["kernels"]:
            known = [node for node in kernel["nodes"] if node["module"] and node["src"]]
            assert known, kernel
            for node in known:
                places[node["module"][0]].add(node["src"])
    for number in range(3):
        block = f"blocks.{number}"
        assert places[f"{block}.fc"] == {place("h = self.fc(x)")}
        assert places[f"{block}.norm"] == {place("return self.norm(x + h)")}
        assert places[block] == {place("h = torch.tanh(h)"), place("return self.norm(x + h)")}
    assert places["head"] == {place("return self.head(x)")}
    assert set(places) == {"head"} | {
        f"blocks.{i}{end}" for i in range(3) for end in ("", ".fc", ".norm")
    }


def place(statement: str) -> str:
    return f"script.py:{BLOCK_LINES[statement]} forward"


RENAMED = (
    NET
    + """
# A further line of the user's.
net = torch.compile(Net())
net(torch.randn(4, 8)).sum().backward()
"""
)


def test_the_same_computation_under_other_names_and_lines_has_its_own_manifest(recorder, tmp_path):
    cache = tmp_path / "cache"
    first = run(recorder, RENAMED, cache)
    moved = RENAMED.replace("class Block", "# moved\n\nclass Block").replace("head", "last")
    second = run(recorder, moved, cache)
    for recording, name, shift in ((first, "head", 0), (second, "last", 2)):
        graphs = [line for line in lines(recording) if line["kind"] == "graph"]
        nodes = [node for g in graphs for kernel in g["kernels"] for node in kernel["nodes"]]
        named = {node["module"][0] for node in nodes if node["module"]}
        assert name in named
        assert not named & ({"head", "last"} - {name})
        line = BLOCK_LINES["return self.head(x)"] + shift
        assert f"script.py:{line} forward" in {node["src"] for node in nodes}


BREAKS = """
from nvprobe.instrumentation import compiled, sidecar
sidecar.open("side")
compiled.install()
import torch

SCALE = 1

@torch.compile(backend="eager")
def f(x, k):
    x = x + k
    print("hi")  # BREAK builtin
    x = x * SCALE
    if x.sum() > 0:  # BREAK Data-dependent
        x = x + 1
    torch._dynamo.graph_break()  # BREAK graph_break
    return x.sin()

f(torch.ones(3), 1)

@torch.compile(backend="eager", dynamic=False)
def g(x, k):
    return x * k + SCALE

g(torch.ones(3), 1)
g(torch.ones(4), 1)  # size
g(torch.ones(4), 2)  # k
SCALE = 5
g(torch.ones(4), 2)  # SCALE
"""


def test_three_breaks_and_three_recompiles_with_reason_and_line(recorder, tmp_path):
    recording = run(recorder, BREAKS, tmp_path / "cache")
    found = lines(recording)
    source = script(BREAKS).splitlines()
    breaks = [line for line in found if line["kind"] == "graph_break"]
    expected = [
        (f"script.py:{number}", text.partition("# BREAK ")[2])
        for number, text in enumerate(source, 1)
        if "# BREAK " in text
    ]
    assert [line["source"] for line in breaks] == [at for at, _ in expected]
    for line, (_, word) in zip(breaks, expected, strict=True):
        assert word in line["reason"]
        assert line["compile_id"].endswith("/0")
    recompiles = [line for line in found if line["kind"] == "recompile"]
    assert [line["compile_id"] for line in recompiles] == ["4/1", "4/2", "4/3"]
    at_g = source.index("def g(x, k):")  # the decorator's line, from 1
    assert {line["source"] for line in recompiles} == {f"script.py:{at_g}"}
    assert {line["function"] for line in recompiles} == {"g"}
    latest = [line["reasons"][0]["guard"] for line in recompiles]
    assert re.search(r"size mismatch at index 0. expected 3, actual 4", latest[0])
    assert "k == 1" in latest[1]
    assert "SCALE" in latest[2]
    body = source.index("    return x * k + SCALE") + 1
    for line in recompiles[1:]:
        assert line["reasons"][0]["source"] == f"script.py:{body} g"
    text = (recording.folder / "side").glob("sidecar.*")
    assert not any(str(recording.folder) in file.read_text() for file in text)


def test_uninstall_puts_everything_back(recorder):
    recorder.run(
        """
        import torch, torch._inductor.output_code as o, torch._inductor.codecache as c
        import torch._dynamo.convert_frame as f, torch._logging as l, torch._inductor.debug as d
        import torch._inductor.codegen.cpp as cpp, torch._dynamo.callback as b
        def now():
            return (o.CompiledFxGraph.post_compile, o.CompiledFxGraph.__init__,
                    c.FxGraphHashDetails.__init__, l.trace_structured,
                    d.set_kernel_post_grad_provenance_tracing,
                    cpp.set_kernel_post_grad_provenance_tracing,
                    b.CompilationCallbackHandler.install_callbacks,
                    f.get_and_maybe_log_recompilation_reasons)
        before = now()
        from nvprobe.instrumentation import compiled
        compiled.install()
        during = now()
        assert all(a is not b for a, b in zip(before, during)), list(zip(before, during))
        compiled.install()
        assert now() == during
        compiled.uninstall()
        assert now() == before
        compiled.uninstall()
        """
    )
