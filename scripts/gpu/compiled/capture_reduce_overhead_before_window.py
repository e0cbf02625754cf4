"""Cudagraph trees captured before the profiled window."""

# ruff: noqa: F403, F405
from prelude import *

net = Net().to(DEVICE)
step = training(net, torch.compile(net, mode="reduce-overhead"), optimizer=False)
ids = data()


def one():
    torch.compiler.cudagraph_mark_step_begin()
    step(ids)


for _ in range(6):
    one()
window(one)
