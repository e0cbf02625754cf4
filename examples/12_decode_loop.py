"""A decode step of eight requests is hundreds of short kernels, which Python launches one by one.

Advised: replay the step as one CUDA graph for each token.
"""

from __future__ import annotations

import torch
from common import endless, measure, options, phase
from torch import nn

chosen = options()
WIDTH, LAYERS, CONTEXT = chosen.size(1024, 64), chosen.size(24, 2), 256
REQUESTS, HEADS = 8, 8


class Layer(nn.Module):
    """Attention to the tokens so far, which a cache keeps, and two products."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))
        self.register_buffer("cache", torch.zeros(2, REQUESTS, HEADS, CONTEXT, WIDTH // HEADS))

    def forward(self, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).view(REQUESTS, 1, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        self.cache[0].index_copy_(2, place, k)
        self.cache[1].index_copy_(2, place, v)
        seen = torch.arange(CONTEXT, device=x.device) <= place[:, None]
        found = nn.functional.scaled_dot_product_attention(q, *self.cache, attn_mask=seen)
        x = x + self.out(found.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(x)


class Decoder(nn.Module):
    """The next token of each request from its last one."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(1000, WIDTH), nn.Linear(WIDTH, 1000)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))

    def forward(self, tokens: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, place)
        return self.head(x).argmax(-1)


@torch.inference_mode()
def main() -> None:
    model = Decoder().to(chosen.device, chosen.dtype).eval()
    tokens = torch.zeros(REQUESTS, 1, dtype=torch.long, device=chosen.device)
    place = torch.zeros(1, dtype=torch.long, device=chosen.device)
    graph = None
    if chosen.fixed and chosen.device == "cuda":
        with torch.cuda.stream(torch.cuda.Stream()):
            model(tokens, place)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            tokens.copy_(model(tokens, place))
            place.add_(1)
    for _ in measure(endless(None), chosen):
        with phase(f"decode[bs={REQUESTS} tok={REQUESTS}]"):
            if graph is None:
                tokens.copy_(model(tokens, place))  # planted: each kernel is a launch of its own
                place.add_(1)
            else:
                graph.replay()


if __name__ == "__main__":
    main()
