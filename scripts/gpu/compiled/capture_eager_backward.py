"""Eager training, gradients accumulated twice, for a capture with nsys."""

# ruff: noqa: F403, F405
from prelude import *

net = Net().to(DEVICE)
step = training(net)
ids = data()
for _ in range(3):
    step(ids)


def accumulating():  # twice: AccumulateGrad adds in the second
    net(ids).float().square().mean().backward()
    net(ids).float().square().mean().backward()
    net.zero_grad()


window(accumulating)
