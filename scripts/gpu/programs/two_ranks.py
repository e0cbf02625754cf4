"""A transformer block stack on several ranks; what communicates how is the first argument.

    torchrun --nproc-per-node 2 two_ranks.py KIND [--late CYCLES] [--steps N]

KIND: ``ddp``, ``fsdp2``, ``tensor`` (tensor parallel), ``compiled`` (functional collectives
inside torch.compile), ``blocking`` (gradients are reduced one after the other on the compute
stream after the backward pass) and ``hidden`` (the same as they become ready, on their own
stream). ``--late``: rank 1 spins for so many cycles of its GPU in each step. The last line of
rank 0 is the median step time without a profiler, and the bytes that each step communicates.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

WIDTH, BLOCKS, TOKENS = 2048, 8, 4096


class Block(nn.Module):
    """A residual MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x + mlp(x)."""
        return x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))


def build(kind: str, rank: int) -> tuple[nn.Module, Callable[[], None]]:
    """The model as KIND wants it, and what to do after the backward pass."""
    model: nn.Module = nn.Sequential(*[Block() for _ in range(BLOCKS)]).cuda().bfloat16()
    works: list[dist.Work] = []
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model, device_ids=[rank]), lambda: None
    if kind == "fsdp2":
        from torch.distributed.fsdp import fully_shard

        for block in model:  # type: ignore[attr-defined]
            fully_shard(block)
        fully_shard(model)
        return model, lambda: None
    if kind == "tensor":
        return tensor_parallel(model), lambda: None
    if kind == "compiled":
        return compiled(model), lambda: None
    if kind == "hidden":
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(
                lambda p: works.append(dist.all_reduce(p.grad, async_op=True))
            )

    def finish() -> None:
        """Reduce the gradients now, or wait for those under way."""
        if kind == "blocking":
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
        for work in works:
            work.wait()
        works.clear()

    return model, finish


def tensor_parallel(model: nn.Module) -> nn.Module:
    """Columns of ``up`` and rows of ``down`` are spread over the ranks."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh = init_device_mesh("cuda", (dist.get_world_size(),), mesh_dim_names=("tp",))
    for block in model:  # type: ignore[attr-defined]
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model


def compiled(model: nn.Module) -> nn.Module:
    """The sum of the ranks' outputs, inside one compiled graph."""
    from torch.distributed import _functional_collectives as functional

    class Summed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """The sum over the ranks, piece by piece and whole again."""
            world = dist.group.WORLD
            part = functional.reduce_scatter_tensor_autograd(self.inner(x), "sum", 0, world)
            return functional.all_gather_tensor_autograd(part, 0, world)

    return torch.compile(Summed())


def main() -> None:
    """Train some steps."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("--late", type=int, default=0)
    parser.add_argument("--steps", type=int, default=30)
    given = parser.parse_args()
    rank = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    torch.manual_seed(0)
    model, finish = build(given.kind, rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    x = torch.randn(TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16)
    times = []
    for _ in range(given.steps):
        begin = time.perf_counter_ns()
        if rank == 1 and given.late:
            torch.cuda._sleep(given.late)
        loss = model(x).float().square().mean()
        loss.backward()
        finish()
        optimizer.step()
        optimizer.zero_grad()
        if "NVPROBE_JOB" not in os.environ:  # alone: the real length of each step
            torch.cuda.synchronize()
        times.append(time.perf_counter_ns() - begin)
    torch.cuda.synchronize()
    if rank == 0:
        size = sum(p.numel() * p.element_size() for p in model.parameters())
        print(
            json.dumps({"step_ms": statistics.median(times[5:]) / 1e6, "bytes": size}), flush=True
        )
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
