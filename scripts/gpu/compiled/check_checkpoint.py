"""Activation checkpointing of both kinds, eager and compiled."""

# ruff: noqa: D101, D102, F403, F405
from prelude import *
from torch.utils.checkpoint import checkpoint

torch.use_deterministic_algorithms(True, warn_only=True)  # embedding's backward adds atomically


class Checkpointed(Net):
    reentrant = False

    def forward(self, ids):
        x = self.emb(ids)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return self.head(x)


ids = data()
for reentrant in (False, True):
    torch.manual_seed(0)
    net = Checkpointed().to(DEVICE)
    net.reentrant = reentrant
    loss = training(net)(ids)
    SEEN[f"bits {reentrant}"] = bits(net, loss)
    VERDICTS[f"recomputed modules have ranges (reentrant {reentrant})"] = (
        len({t for p, t in RANGES if p.endswith("blocks.0.fc1")}) == 2
    )
    RANGES.clear()
torch.manual_seed(0)
net = Checkpointed().to(DEVICE)
step = training(net, torch.compile(net))
for _ in range(2):
    loss = step(ids)
SEEN["bits compiled"] = bits(net, loss)
manifests = [m for m in lines("graph") if m["phase"] == "bwd"]
again = [
    n
    for m in manifests
    for k in m["kernels"]
    for n in k["nodes"]
    if n["from_node"] and not n["bwd"]
]
VERDICTS["compiled: recomputed nodes are told"] = bool(again)
VERDICTS["compiled: ranges"] = any(n.endswith("bwd") for n in names("graph"))
done()
