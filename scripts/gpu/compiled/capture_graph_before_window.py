"""A manual CUDA graph captured before the profiled window."""

# ruff: noqa: F403, F405
from prelude import *

net = Net().to(DEVICE)
ids = data()
with torch.no_grad():
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        net(ids)
        net(ids)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = net(ids)
window(graph.replay)
