"""DDP with one process over NCCL, eager and compiled, and collectives."""

# ruff: noqa: F403, F405
import torch.distributed as dist
from prelude import *

dist.init_process_group(
    "nccl" if DEVICE == "cuda" else "gloo", store=dist.HashStore(), rank=0, world_size=1
)
net = Net().to(DEVICE)
ddp = nn.parallel.DistributedDataParallel(net)
ids = data()
step = training(net, ddp)
for _ in range(2):
    step(ids)
VERDICTS["modules under DDP"] = any("blocks.0.fc1" in p for p, _ in RANGES)
t = torch.ones(1024, device=DEVICE)
dist.all_reduce(t)
dist.broadcast(t, 0)
VERDICTS["collectives"] = names("all_reduce")[-1:] + names("broadcast")[-1:] == [
    "all_reduce default",
    "broadcast default",
]
rows = [
    dict(zip(one["columns"], r, strict=True)) for one in lines("collective") for r in one["rows"]
]
VERDICTS["bytes"] = [r["bytes"] for r in rows if r["op"] == "all_reduce"][-1:] == [4096]
compiled = torch.compile(ddp)
step = training(net, compiled)
for _ in range(3):
    loss = step(ids)
VERDICTS["compiled DDP has graph ranges"] = any(n.endswith("fwd") for n in names("graph")) and any(
    n.endswith("bwd") for n in names("graph")
)
SEEN["graphs"] = sorted(set(names("graph")))
SEEN["loss"] = float(loss)
dist.destroy_process_group()
done()
