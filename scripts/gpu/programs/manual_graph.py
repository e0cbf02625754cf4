"""Training by hand-made CUDA graph: captured once, replayed every step."""

import torch
from net import BATCH, DEVICE, LENGTH, WIDTH, batches, timed, transformer
from torch import nn

model = transformer()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, capturable=DEVICE == "cuda")
x = torch.zeros(BATCH, LENGTH, WIDTH, device=DEVICE)
classes = torch.zeros(BATCH, dtype=torch.long, device=DEVICE)


def train() -> None:
    """One step on the static inputs."""
    optimizer.zero_grad(set_to_none=True)
    nn.functional.cross_entropy(model(x).mean(1), classes).backward()
    optimizer.step()


side = torch.cuda.Stream()
side.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(side):
    for _ in range(3):
        train()
torch.cuda.current_stream().wait_stream(side)
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    train()


class Replay(nn.Module):
    """Copies a batch in and replays the graph."""

    def forward(self, batch: torch.Tensor, labels: torch.Tensor) -> None:
        """One training step."""
        x.copy_(batch)
        classes.copy_(labels)
        graph.replay()


timed(batches(), Replay())
