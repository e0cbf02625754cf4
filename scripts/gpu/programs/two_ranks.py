"""A transformer block stack on several ranks; what communicates how is the first argument.

    torchrun --nproc-per-node 2 two_ranks.py KIND [--late CYCLES] [--uneven SHARE] [--steps N]

KIND: ``ddp``, ``fsdp2``, ``tensor`` (tensor parallel), ``compiled`` (functional collectives
inside torch.compile), ``blocking`` (gradients are reduced one after the other on the compute
stream after the backward pass) and ``hidden`` (the same as they become ready, on their own
stream). ``--late``: rank 1 spins for so many cycles of its GPU in each step. ``--uneven``: it has
so many more tokens, as a share (not of kinds that exchange activations). Without a GPU it is
small, runs on gloo, and sleeps for the time of the spin: to try the script that captures it.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn

GPU = torch.cuda.is_available()
WIDTH, TOKENS = (2048, 4096) if GPU else (64, 128)
BLOCKS = {"compiled": 2}
"""Of kinds that have not eight of them: what is compiled takes its time."""
DTYPE = torch.bfloat16 if GPU else torch.float32
CYCLES_S = 1.98e9


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


def connect() -> torch.device:
    """Join the other ranks; the device of this one."""
    rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", rank) if GPU else torch.device("cpu")
    if GPU:
        torch.cuda.set_device(rank)
    dist.init_process_group("nccl" if GPU else "gloo", device_id=device if GPU else None)
    return device


def build(kind: str, device: torch.device) -> tuple[nn.Module, Callable[[], None]]:
    """The model as KIND wants it, and what to do after the backward pass."""
    blocks = [Block() for _ in range(BLOCKS.get(kind, 8))]
    model: nn.Module = nn.Sequential(*blocks).to(device, DTYPE)
    works: list[dist.Work] = []
    if kind == "ddp":
        ids = [device.index] if GPU else None
        return nn.parallel.DistributedDataParallel(model, device_ids=ids), lambda: None
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

    size = (dist.get_world_size(),)
    mesh = init_device_mesh("cuda" if GPU else "cpu", size, mesh_dim_names=("tp",))
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


def spin(cycles: int) -> None:
    """Keep the GPU busy for so many cycles."""
    if GPU:
        torch.cuda._sleep(cycles)
    else:
        time.sleep(cycles / CYCLES_S)


def synchronize() -> None:
    """Wait for the GPU."""
    if GPU:
        torch.cuda.synchronize()


def train(
    model: nn.Module, finish: Callable[[], None], steps: int, late: int = 0, wait: bool = False,
    uneven: float = 0,
) -> list[float]:  # fmt: skip
    """Train some steps; seconds of each, ``wait``: to the end of its GPU work."""
    kinds = {type(parameter) for parameter in model.parameters()}
    alike = None if len(kinds) == 1 else False  # torch does not mix kinds of tensors in one kernel
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, foreach=alike)
    tokens = TOKENS + int(uneven * TOKENS) * dist.get_rank()
    x = torch.randn(tokens, WIDTH, device=next(model.parameters()).device, dtype=DTYPE)
    times = []
    for _ in range(steps):
        begin = time.perf_counter()
        if dist.get_rank() == 1 and late:
            spin(late)
        loss = model(x).float().square().mean()
        loss.backward()
        finish()
        optimizer.step()
        optimizer.zero_grad()
        if wait:
            synchronize()
        times.append(time.perf_counter() - begin)
    synchronize()
    return times


def main() -> None:
    """One kind."""
    parser = argparse.ArgumentParser()
    parser.add_argument("kind")
    parser.add_argument("--late", type=int, default=0)
    parser.add_argument("--uneven", type=float, default=0)
    parser.add_argument("--steps", type=int, default=30)
    given = parser.parse_args()
    device = connect()
    torch.manual_seed(0)
    model, finish = build(given.kind, device)
    train(model, finish, given.steps, given.late, uneven=given.uneven)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
