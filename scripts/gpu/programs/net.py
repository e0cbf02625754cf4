"""What the programs share: a small transformer, batches, and a timed loop."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable

import torch
from torch import nn

WARMUP, MEASURED = 8, 16
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
WIDTH, LENGTH, BATCH = (512, 128, 16) if DEVICE == "cuda" else (32, 8, 4)


class Attention(nn.Module):
    """Self-attention over (batch, length, width)."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Eight heads."""
        batch, length, _ = x.shape
        heads = self.qkv(x).view(batch, length, 3, 8, WIDTH // 8).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(*heads)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))


class Block(nn.Module):
    """One transformer block."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention, then the MLP, each added to its input."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


def transformer() -> nn.Module:
    """Three blocks and a head, on the GPU; on the CPU where a program is only tried out."""
    torch.manual_seed(0)
    return nn.Sequential(*(Block() for _ in range(3)), nn.Linear(WIDTH, 10)).to(DEVICE)


def batches() -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    """Input and classes from pageable host memory, as many as there are steps."""
    for _ in range(WARMUP + MEASURED):
        yield torch.randn(BATCH, LENGTH, WIDTH), torch.randint(10, (BATCH,))


def timed(batches: Iterable[tuple[torch.Tensor, ...]], step: Callable[..., object]) -> None:
    """Run the steps; print the mean time of those after the warm-up as JSON."""
    for index, batch in enumerate(batches):
        if index == WARMUP:
            synchronize()
            begin = time.perf_counter()
        step(*(part.to(DEVICE) for part in batch))
    synchronize()
    step_ms = 1000 * (time.perf_counter() - begin) / MEASURED
    print(json.dumps({"step_ms": round(step_ms, 3)}), flush=True)


def synchronize() -> None:
    """Wait for the GPU where there is one."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def trainer(model: nn.Module) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """A training step with AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(x: torch.Tensor, classes: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = nn.functional.cross_entropy(model(x).mean(1), classes)
        loss.backward()
        optimizer.step()
        return loss

    return step
