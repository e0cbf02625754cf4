"""Cudagraph trees: capture, replay, and capture anew when the weights move."""

# ruff: noqa: F403, F405
from prelude import *

net = Net().to(DEVICE)
step = training(net, torch.compile(net, mode="reduce-overhead"), optimizer=False)
ids = data()
for _ in range(6):
    torch.compiler.cudagraph_mark_step_begin()
    step(ids)
captures, replays = names("cudagraph capture"), names("cudagraph replay")
SEEN["captures"], SEEN["replays"] = captures, len(replays)
VERDICTS["captured"] = len(captures) >= 2 and len(set(captures)) == len(captures)
VERDICTS["replayed with the id of a capture"] = bool(replays) and {
    r.split()[-1] for r in replays
} <= {c.split()[-1] for c in captures}
inside = [p for p, _ in RANGES if p.split("/")[-1].startswith("cudagraph")]
VERDICTS["inside the graph's range"] = all("/graph " in f"/{p}" for p in inside)
lot = lines("cudagraph")
VERDICTS["captures in the sidecar"] = len(lot) == len(captures)
for p in net.parameters():  # new addresses of the weights: the graphs are recorded anew
    p.data = p.data.clone()
before = len(captures)
for _ in range(4):
    torch.compiler.cudagraph_mark_step_begin()
    step(ids)
SEEN["captures after new weights"] = len(names("cudagraph capture")) - before
VERDICTS["recorded anew"] = len(names("cudagraph capture")) > before
done()
