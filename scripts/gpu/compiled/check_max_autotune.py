"""max-autotune: template kernels in the manifest, replays."""

# ruff: noqa: F403, F405
from prelude import *

net = nn.Sequential(nn.Linear(512, 512), nn.GELU(), nn.Linear(512, 512)).to(DEVICE).half()
run = torch.compile(net, mode="max-autotune")
x = torch.randn(256, 512, device=DEVICE, dtype=torch.half, requires_grad=True)
for _ in range(4):
    torch.compiler.cudagraph_mark_step_begin()
    run(x).float().square().mean().backward()
    net.zero_grad()
    x.grad = None
manifests = lines("graph")
VERDICTS["graph ranges"] = {"graph 0:0 fwd", "graph 0:0 bwd"} <= set(names("graph"))
told = triton(manifests)
SEEN["kernels"] = [k["name"] for m in manifests for k in m["kernels"]]
VERDICTS["manifest"] = len(manifests) == 2 and all(m["kernels"] for m in manifests)


def again():
    torch.compiler.cudagraph_mark_step_begin()
    run(x).float().square().mean().backward()


captured = [n for n in kernel_names(again) if n.startswith("triton_")]
SEEN["captured"], SEEN["told"] = captured, told
mine = [n for n in captured if n in set(told)]
VERDICTS["Triton kernels in order"] = mine == told
VERDICTS["replays"] = bool(names("cudagraph replay"))
done()
