"""A few training steps on the CPU, for examples/gate/gate: ``--slow`` makes each step longer."""

import sys
import time

import torch

import nvprobe

torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

for _ in nvprobe.steps(range(30)):
    with nvprobe.range("load"):
        time.sleep(0.02 + 0.04 * ("--slow" in sys.argv))
        batch = torch.randn(32, 64)
    loss = model(batch).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
