"""make_graphed_callables on a block of an instrumented model, and a manual graph."""

# ruff: noqa: F403, F405
from prelude import *

net = Net().to(DEVICE)
ids = data()
eager = training(net, optimizer=False)(ids).item()
x = torch.randn(4, 64, 128, device=DEVICE, requires_grad=True)
block = torch.cuda.make_graphed_callables(net.blocks[1], (x,))
captures = names("cudagraph capture")
VERDICTS["forward and backward captured"] = len(captures) == 2
noted = lines("cudagraph")
inner = [r[0] for one in noted for r in one["ranges"]]
SEEN["ranges in captures"] = sorted(set(inner))
VERDICTS["modules inside the capture in the sidecar"] = any("fc1" in name for name in inner)
graphed = training(net, optimizer=False)(ids).item()
VERDICTS["same loss"] = abs(eager - graphed) < 1e-4
VERDICTS["replayed"] = len(names("cudagraph replay")) == 2
g = torch.cuda.CUDAGraph()
y = torch.randn(8, 128, device=DEVICE)
head = nn.Linear(128, 8).to(DEVICE)
stream = torch.cuda.Stream()
with torch.cuda.stream(stream):
    head(y)
torch.cuda.synchronize()
with torch.no_grad(), torch.cuda.graph(g):
    z = head(y)
g.replay()
g.replay()
VERDICTS["manual graph"] = (
    names("cudagraph replay")[-2:]
    == [names("cudagraph capture")[-1].replace("capture", "replay")] * 2
)
done()
