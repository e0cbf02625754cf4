"""Triton kernels forward and backward: the manifest against what torch.profiler captured."""

# ruff: noqa: F403, F405
from prelude import *

torch.use_deterministic_algorithms(True, warn_only=True)  # embedding's backward adds atomically

net = Net().to(DEVICE)
step = training(net, torch.compile(net, fullgraph=True))
ids = data()
for _ in range(3):
    loss = step(ids)
SEEN["bits"] = bits(net, loss)
graphs = names("graph 0:0")
VERDICTS["forward and backward ranges"] = graphs == ["graph 0:0 fwd", "graph 0:0 bwd"] * 3
manifests = lines("graph")
captured = [n for n in kernel_names(lambda: step(ids)) if n.startswith("triton_")]
told = triton(manifests)
VERDICTS["manifest's Triton kernels are the captured ones in order"] = captured == told
SEEN["triton kernels"] = [len(captured), len(told)]
nodes = [n for m in manifests for k in m["kernels"] for n in k["nodes"]]
VERDICTS["every kernel has a line"] = all(
    any(n["src"] for n in k["nodes"]) for m in manifests for k in m["kernels"]
)
modules = {n["module"][0] for n in nodes if n["module"]}
VERDICTS["every block is named"] = {f"blocks.{i}.fc1" for i in range(3)} <= modules
VERDICTS["no graph break"] = not lines("graph_break")
done()
