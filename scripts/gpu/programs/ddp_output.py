"""Two ranks that train under DDP and write to stdout and stderr; they synchronize in every way.

torchrun --nproc-per-node 2 ddp_output.py; nccl with two GPUs, else gloo. Output has no times.
"""

import os
import sys
import warnings

import torch
import torch.distributed as dist
from torch import nn

DEVICE = "cuda" if torch.cuda.device_count() > 1 else "cpu"
RANK = int(os.environ["RANK"])

if DEVICE == "cuda":
    torch.cuda.set_device(RANK)
dist.init_process_group("nccl" if DEVICE == "cuda" else "gloo")
torch.manual_seed(0)
model: nn.Module = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 8)).to(DEVICE)
model = nn.parallel.DistributedDataParallel(
    model, device_ids=[RANK] if DEVICE == "cuda" else None, find_unused_parameters=True
)
optimizer = torch.optim.AdamW(model.parameters())
for step in range(12):
    x = torch.randn(16, 64).to(DEVICE)
    y = model(x)
    loss = y[y > 0].mean() + y.nonzero().float().mean() * 0
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    total = torch.tensor([loss.item()], device=DEVICE)
    dist.all_reduce(total)
    dist.barrier()
    if bool(total > 0) and RANK == 0:
        print(f"step {step}: loss", total.cpu().tolist()[0] > 0, flush=True)
        print(f"step {step} ends", file=sys.stderr, flush=True)
    if step == 3 and RANK == 1:
        warnings.warn("the program's own warning", stacklevel=1)
dist.destroy_process_group()
