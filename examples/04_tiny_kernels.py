"""Hundreds of kernels of two microseconds each: the GPU is done before the host launches the next.

Advised: replay them as one CUDA graph, as torch.compile(mode="reduce-overhead") does.
"""

from __future__ import annotations

import torch
from common import endless, measure, options, phase

chosen = options()
width = 64
layers = []
for _ in range(24):
    layers += [torch.nn.Linear(width, width), torch.nn.LayerNorm(width), torch.nn.ReLU()]
model = torch.nn.Sequential(*layers).to(chosen.device)
batch = torch.randn(32, width, device=chosen.device)

graph = None
if chosen.fixed and chosen.device == "cuda":
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad():
        for _ in range(3):
            model(batch)
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            model(batch)

for x in measure(endless(batch), chosen):
    with phase("forward"), torch.no_grad():
        if graph is None:
            model(x)  # planted: 72 launches for 72 tiny kernels
        else:
            graph.replay()
