"""A compiled loop over blocks with a graph break: one graph serves all blocks."""

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
for _ in range(3):
    step(ids)
window(lambda: step(ids))
