"""Graph breaks between blocks and a recompile: reasons, lines, ranges around each block."""

# ruff: noqa: D101, D102, F403, F405
from prelude import *


class Broken(Net):
    def forward(self, ids):
        x = self.emb(ids)
        for block in self.blocks:
            x = block(x)
            torch._dynamo.graph_break()
        return self.head(x)


net = Broken().to(DEVICE)
step = training(net, torch.compile(net), optimizer=False)
ids = data()
for _ in range(2):
    loss = step(ids)
step(data(batch=6))
SEEN["bits"] = bits(net, loss)
reasons = lines("graph_break")
SEEN["breaks"] = [[b["compile_id"], b["source"], b["reason"][:80]] for b in reasons]
VERDICTS["breaks have reason and line"] = bool(reasons) and all(b["source"] for b in reasons)
recompiles = lines("recompile")
SEEN["recompiles"] = [
    [r["compile_id"], r["source"], r["reasons"][0]["guard"][:80]] for r in recompiles
]
VERDICTS["recompile of a new shape"] = any(
    "size mismatch" in r["reasons"][0]["guard"] for r in recompiles
)
around = [p for p, _ in RANGES if p.split("/")[-1].startswith("graph") and "blocks." in p]
SEEN["graphs inside blocks"] = sorted(set(around))[:9]
VERDICTS["blocks around their graph"] = {f"blocks.{i}" for i in range(3)} <= {
    part for p in around for part in p.split("/")
}
done()
