#!/usr/bin/env python3
"""Twelve more programs of many domains that judge findings: a planted cause, and what else to try.

    python scripts/gpu/fourth_judge_programs.py NAME [--change KIND] [--steps 40]
    python scripts/gpu/fourth_judge_programs.py --measure [NAME ...]     a line of JSON for each

Eight train and four infer. Nine have one cause that outweighs all others, one has a habit that
costs nothing where it stands, and two are healthy: nothing that they could try saves much.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import zlib
from collections import deque
from collections.abc import Callable, Iterator

import torch
from pair_runner import AS_IT_IS, BF16, CUDA, DEVICE, Step, changes, graphed, main, size
from torch import nn
from torch.nn import functional

import nvprobe


def counted(step: Step) -> Step:
    """Without an optimizer, by which nvprobe finds steps, a program says where they begin."""

    def one() -> object:
        with nvprobe.step():
            return step()

    return one


def adamw(model: nn.Module, rate: float = 1e-4) -> torch.optim.Optimizer:
    """One kernel for all parameters, whose count of steps lives on the GPU."""
    return torch.optim.AdamW(model.parameters(), lr=rate, fused=CUDA, capturable=CUDA)


def training(loss: Callable[[], torch.Tensor], optimizer: torch.optim.Optimizer) -> Step:
    """A step: loss, gradients, optimizer."""

    def step() -> torch.Tensor:
        value = loss()
        value.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return value.detach()

    return step


def compiled(layers: nn.ModuleList) -> nn.ModuleList:
    """Each layer compiled by itself: equal layers share the code. Only on a GPU."""
    if not CUDA:
        return layers
    return nn.ModuleList([torch.compile(layer, dynamic=False) for layer in layers])


def pinned(tensor: torch.Tensor) -> torch.Tensor:
    """In memory that the GPU reads by itself."""
    return tensor.pin_memory() if CUDA else tensor


class Block(nn.Module):
    """A layer of a transformer: fused attention and a perceptron, each behind a norm."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The next hidden states."""
        rows, length, width = x.shape
        parts = self.qkv(self.before(x)).view(rows, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = self.attention(q, k, v).transpose(1, 2).reshape(rows, length, width)
        x = x + self.out(mixed)
        return x + self.down(functional.gelu(self.up(self.between(x))))

    def attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Values weighted by how keys fit."""
        return functional.scaled_dot_product_attention(q, k, v)


# --- training: tabular -----------------------------------------------------------------------


class Lion(torch.optim.Optimizer):
    """The optimizer "evolved sign momentum", as most copies of it are written."""

    def __init__(self, params: Iterator[nn.Parameter], together: bool, lr: float = 3e-4) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99), "decay": 0.01})
        self.together = together

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:
        """One update of all parameters."""
        for group in self.param_groups:
            params = [one for one in group["params"] if one.grad is not None]
            for one in params:
                if not self.state[one]:
                    self.state[one]["average"] = torch.zeros_like(one)
            grads = [one.grad for one in params]
            averages = [self.state[one]["average"] for one in params]
            rate, (fast, slow) = group["lr"], group["betas"]
            kept = 1 - rate * group["decay"]
            if self.together:
                torch._foreach_mul_(params, kept)
                updates = torch._foreach_mul(averages, fast)
                torch._foreach_add_(updates, grads, alpha=1 - fast)
                torch._foreach_sign_(updates)
                torch._foreach_add_(params, updates, alpha=-rate)
                torch._foreach_mul_(averages, slow)
                torch._foreach_add_(averages, grads, alpha=1 - slow)
                continue
            for param, grad, average in zip(params, grads, averages, strict=True):
                param.mul_(kept)  # <- lion_by_parameter
                update = average.mul(fast)  # <- lion_by_parameter
                update.add_(grad, alpha=1 - fast).sign_()  # <- lion_by_parameter
                param.add_(update, alpha=-rate)  # <- lion_by_parameter
                average.mul_(slow).add_(grad, alpha=1 - slow)  # <- lion_by_parameter


class ColumnLayer(nn.Module):
    """Attention among the columns of a table, with a projection for each of its inputs."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The next hidden states."""
        seen = self.before(x)
        q, k, v = (
            made(seen).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for made in (self.query, self.key, self.value)
        )
        mixed = functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(functional.relu(self.up(self.between(x))))


class TableTransformer(nn.Module):
    """Numbers of a row as tokens, and a class for the row."""

    def __init__(self, columns: int, width: int, depth: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(columns, width) * 0.1)
        self.bias = nn.Parameter(torch.zeros(columns, width))
        self.summary = nn.Parameter(torch.zeros(width))
        self.layers = nn.Sequential(*[ColumnLayer(width, size(8)) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 8)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """Logits of rows."""
        tokens = torch.addcmul(self.bias, rows.unsqueeze(-1), self.weight)
        tokens = torch.cat([self.summary.expand(len(rows), 1, -1), tokens], 1)
        return self.head(self.norm(self.layers(tokens)[:, 0]))


@changes("launch_loop", "launch_bound")
def lion_by_parameter(change: str) -> Step:
    """Classes of rows of a table (tabular); a hand-written optimizer updates tensor by tensor."""
    rows = size(512, 8)
    model = TableTransformer(size(31, 5), size(256, 16), size(16)).to(DEVICE, BF16)
    x = torch.randn(rows, size(31, 5), device=DEVICE, dtype=BF16)
    y = torch.randint(8, (rows,), device=DEVICE)
    optimizer = Lion(model.parameters(), together=change == "launch_loop")
    step = training(lambda: functional.cross_entropy(model(x).float(), y), optimizer)
    return graphed(step) if change == "launch_bound" else step


# --- training: science -----------------------------------------------------------------------


@contextlib.contextmanager
def products(precision: str) -> Iterator[None]:
    """FP32 products at a precision; elsewhere at PyTorch's own."""
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision("highest")


class GridMixer(nn.Module):
    """Mixes the cells of a grid, then the variables in each cell."""

    def __init__(self, cells: int, width: int) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.far, self.near = nn.Linear(cells, 2 * cells), nn.Linear(2 * cells, cells)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The next state of the grid."""
        mixed = self.far(self.before(x).transpose(1, 2))  # <- weather_in_fp32
        x = x + self.near(functional.gelu(mixed)).transpose(1, 2)  # <- weather_in_fp32
        wide = functional.gelu(self.up(self.between(x)))  # <- weather_in_fp32
        return x + self.down(wide)  # <- weather_in_fp32


@changes("fp32_gemm", "launch_bound")
def weather_in_fp32(change: str) -> Step:
    """A surrogate of a weather model (science), all of it in FP32 as its authors left it."""
    rows, cells, width, variables = 8, size(512, 8), size(768, 16), size(70, 4)
    layers = [GridMixer(cells, width) for _ in range(size(8))]
    model = nn.Sequential(nn.Linear(variables, width), *layers, nn.Linear(width, variables))
    model.to(DEVICE)
    now = torch.randn(rows, cells, variables, device=DEVICE)
    later = now.roll(1, 1) * 0.9
    latitude = torch.linspace(0.2, 1, cells, device=DEVICE)[:, None]

    def loss() -> torch.Tensor:
        return ((now + model(now) - later).square() * latitude).mean()

    trained = training(loss, adamw(model))

    def step() -> object:
        with products("high" if change == "fp32_gemm" else "highest"):
            return trained()

    return graphed(step) if change == "launch_bound" else step


# --- training: language (music) --------------------------------------------------------------


class RootMeanSquare(nn.Module):
    """A norm in FP32, as reference implementations write it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The scaled input."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)  # <- music_reference
        return wide.to(x.dtype) * self.weight  # <- music_reference


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary positions."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin  # <- music_reference


class MusicLayer(nn.Module):
    """A layer with rotary positions, a gated perceptron and norms without a mean."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = RootMeanSquare(width), RootMeanSquare(width)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate = nn.Linear(width, 11 * width // 4, bias=False)
        self.up = nn.Linear(width, 11 * width // 4, bias=False)
        self.down = nn.Linear(11 * width // 4, width, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """The next hidden states."""
        parts = self.qkv(self.before(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        seen = self.between(x)
        return x + self.down(functional.silu(self.gate(seen)) * self.up(seen))  # <- music_reference


class Composer(nn.Module):
    """A language model over the events of a score."""

    def __init__(self, events: int, width: int, depth: int, length: int) -> None:
        super().__init__()
        heads = size(16)
        half = width // heads // 2
        angles = torch.arange(length)[:, None] * 10000 ** (-torch.arange(half) / half)
        angles = torch.cat([angles, angles], -1)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        self.events = nn.Embedding(events, width)
        self.layers = nn.ModuleList([MusicLayer(width, heads) for _ in range(depth)])
        self.norm = nn.RMSNorm(width)
        self.head = nn.Linear(width, events, bias=False)

    def forward(self, scores: torch.Tensor) -> torch.Tensor:
        """Logits of the next events."""
        x = self.events(scores)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.head(self.norm(x))


@changes("elementwise_chain", "launch_bound")
def music_reference(change: str) -> Step:
    """A language model of music (language): norms, rotations and gates as chains of kernels."""
    events, length = size(1024, 32), size(1024, 16)
    model = Composer(events, size(1024, 16), size(8), length).to(DEVICE, BF16)
    scores = torch.randint(events, (size(12), length + 1), device=DEVICE)
    if change == "elementwise_chain":
        model.layers = compiled(model.layers)

    def loss() -> torch.Tensor:
        logits = model(scores[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1).float(), scores[:, 1:].flatten())

    step = training(loss, adamw(model))
    return graphed(step) if change == "launch_bound" else step


# --- training: recommendation ----------------------------------------------------------------


class ClickModel(nn.Module):
    """Large tables of users and items below a perceptron."""

    def __init__(self, users: int, items: int, width: int, sparse: bool) -> None:
        super().__init__()
        how = {"sparse": sparse, "device": DEVICE}
        self.users = nn.Embedding(users, width, **how)  # <- clicks_by_dense_tables
        self.items = nn.Embedding(items, width, **how)  # <- clicks_by_dense_tables
        self.tower = nn.Sequential(
            nn.Linear(2 * width + 13, size(1024, 16)), nn.ReLU(),
            nn.Linear(size(1024, 16), size(512, 8)), nn.ReLU(),
            nn.Linear(size(512, 8), size(256, 8)), nn.ReLU(),
            nn.Linear(size(256, 8), 1),
        )  # fmt: skip

    def forward(self, who: torch.Tensor, what: torch.Tensor, rest: torch.Tensor) -> torch.Tensor:
        """Logits of clicks."""
        user = self.users(who)  # <- clicks_by_dense_tables
        item = self.items(what)  # <- clicks_by_dense_tables
        return self.tower(torch.cat([user, item, rest], 1)).squeeze(1)


@changes("dense_embedding_gradient", "fp32_gemm")
def clicks_by_dense_tables(change: str) -> Step:
    """Clicks of users on items (recommendation): few of six million rows are used in a step."""
    users, items, rows = 4_000_000 if CUDA else 1000, 2_000_000 if CUDA else 500, size(8192, 16)
    sparse = change == "dense_embedding_gradient"
    model = ClickModel(users, items, size(64, 8), sparse).to(DEVICE)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    some = [
        [torch.randint(rows_of, (rows,), device=DEVICE) for rows_of in (users, items)]
        + [torch.randn(rows, 13, device=DEVICE), torch.rand(rows, device=DEVICE).round()]
        for _ in range(8)
    ]
    batches = itertools.cycle(some)

    def loss() -> torch.Tensor:
        who, what, rest, clicked = next(batches)
        return functional.binary_cross_entropy_with_logits(model(who, what, rest), clicked)

    trained = training(loss, optimizer)

    def step() -> object:
        with products("high" if change == "fp32_gemm" else "highest"):
            return trained()

    return step


# --- training: speech ------------------------------------------------------------------------


@changes("implicit_sync", "launch_loop")
def speech_gradient_log(change: str) -> Step:
    """An acoustic model (speech) that logs the norm of each parameter's gradient in each step."""
    rows, frames, width, sounds = size(16), size(800, 16), size(512, 16), size(2000, 16)
    model = nn.Sequential(
        nn.Linear(160, width),
        *[Block(width, size(8)) for _ in range(size(16))],
        nn.LayerNorm(width),
        nn.Linear(width, sounds),
    ).to(DEVICE, BF16)
    features = torch.randn(rows, frames, 80, device=DEVICE, dtype=BF16)
    labels = torch.randint(sounds, (rows, frames // 2), device=DEVICE)
    optimizer = adamw(model)
    log: deque[dict[str, object]] = deque(maxlen=50)

    def norms() -> dict[str, object]:
        named = [(name, one.grad) for name, one in model.named_parameters()]
        if change == "implicit_sync":
            return {name: grad.norm() for name, grad in named}
        if change == "launch_loop":
            found = torch._foreach_norm([grad for _, grad in named])
            return {name: one.item() for (name, _), one in zip(named, found, strict=True)}
        return {name: grad.norm().item() for name, grad in named}  # <- speech_gradient_log

    def step() -> torch.Tensor:
        pairs = features.view(rows, frames // 2, 160)  # two frames at a time
        logits = model(pairs).flatten(0, 1)
        loss = functional.cross_entropy(logits.float(), labels.flatten())
        loss.backward()
        log.append(norms())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


# --- training: text --------------------------------------------------------------------------

GRAMS = 24
"""Parts of a word that are looked at."""


def parts(word: str, buckets: int) -> list[int]:
    """Hashes of the three to five letters in a row of a word, so many for each."""
    whole = f"<{word}>"
    found = []
    for length in (3, 4, 5):
        for start in range(len(whole) - length + 1):
            gram = whole[start : start + length].encode()  # <- intents_hashed_in_loop
            found.append(1 + zlib.crc32(gram) % (buckets - 1))  # <- intents_hashed_in_loop
    return (found + [0] * GRAMS)[:GRAMS]


class IntentModel(nn.Module):
    """What a text is about: words from their parts, and a transformer over them."""

    def __init__(self, buckets: int, width: int, depth: int) -> None:
        super().__init__()
        self.grams = nn.Embedding(buckets, width, padding_idx=0)
        self.layers = nn.Sequential(*[Block(width, size(8)) for _ in range(depth)])
        self.head = nn.Linear(width, 20)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Logits of the intents."""
        return self.head(self.layers(self.grams(ids).mean(2)).mean(1))


@changes("host_work", "launch_bound")
def intents_hashed_in_loop(change: str) -> Step:
    """Intents of short texts (text classification), whose letters are hashed in each step."""
    rows, words, buckets = size(64, 4), size(24, 4), size(30_000, 64)
    letters = random.Random(0)
    texts = [
        " ".join(
            "".join(letters.choices("abcdefghijklmnopqrstuvwxyz", k=letters.randint(4, 10)))
            for _ in range(words)
        )
        for _ in range(8 * rows)
    ]
    model = IntentModel(buckets, size(512, 16), size(6)).to(DEVICE, BF16)
    intents = torch.randint(20, (rows,), device=DEVICE)
    optimizer = adamw(model)

    def encoded(some: list[str]) -> torch.Tensor:
        lists = [[parts(word, buckets) for word in text.split()] for text in some]
        return torch.tensor(lists)

    ready = encoded(texts) if change == "host_work" else None
    starts = itertools.cycle(range(0, len(texts), rows))

    def batch() -> torch.Tensor:
        start = next(starts)
        if ready is not None:
            return ready[start : start + rows]
        return encoded(texts[start : start + rows])  # <- intents_hashed_in_loop

    def loss(ids: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(model(ids).float(), intents)

    if change != "launch_bound":
        return training(lambda: loss(pinned(batch()).to(DEVICE, non_blocking=True)), optimizer)
    fixed = torch.zeros(rows, words, GRAMS, dtype=torch.long, device=DEVICE)
    whole = graphed(training(lambda: loss(fixed), optimizer))

    def step() -> object:
        fixed.copy_(pinned(batch()), non_blocking=True)
        return whole()

    return step


# --- inference: biology ----------------------------------------------------------------------


class GenomeLayer(Block):
    """A layer over the bases of a genome, with attention by hand."""

    def attention(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Values weighted by how keys fit."""
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5  # <- genome_attention_by_hand
        weights = scores.softmax(-1)  # <- genome_attention_by_hand
        return weights @ v  # <- genome_attention_by_hand


@changes("unfused_attention", "launch_bound")
def genome_attention_by_hand(change: str) -> Step:
    """Expression from a genome's bases (biology, inference): product, softmax, product."""
    rows, length, width = size(8), size(2048, 16), size(512, 16)
    kind = Block if change == "unfused_attention" else GenomeLayer
    kept = BF16 if CUDA else torch.float32  # rounds alike, on a CPU
    bases = nn.Embedding(5, width).to(DEVICE, kept)
    layers = [kind(width, size(8)) for _ in range(size(8))]
    trunk = nn.Sequential(*layers, nn.LayerNorm(width), nn.Linear(width, 64)).to(DEVICE, kept)
    genome = torch.randint(5, (rows, length), device=DEVICE)

    @torch.no_grad()
    def step() -> torch.Tensor:
        tracks = trunk(bases(genome)).float()
        return functional.softplus(tracks).view(rows, length // 8, 8, 64).mean(2)

    return counted(graphed(step) if change == "launch_bound" else step)


# --- inference: robots -----------------------------------------------------------------------


class Denoiser(nn.Module):
    """One step from noise to actions."""

    def __init__(self, actions: int, width: int) -> None:
        super().__init__()
        self.register_buffer("rates", torch.logspace(0, 3, width // 2))
        self.enter, self.time = nn.Linear(actions, width), nn.Linear(width, width)
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in range(4)])
        self.ups = nn.ModuleList([nn.Linear(width, width) for _ in range(4)])
        self.downs = nn.ModuleList([nn.Linear(width, width) for _ in range(4)])
        self.leave = nn.Linear(width, actions)

    def forward(self, x: torch.Tensor, seen: torch.Tensor, now: torch.Tensor) -> torch.Tensor:
        """Actions with less noise; ``now`` are the time and two factors of the schedule."""
        angles = now[0] * self.rates
        hidden = self.enter(x) + seen + self.time(torch.cat([angles.sin(), angles.cos()]))
        for norm, up, down in zip(self.norms, self.ups, self.downs, strict=True):
            hidden = hidden + down(functional.mish(up(norm(hidden))))
        return ((x - now[1] * self.leave(hidden)) * now[2]).clamp(-3, 3)


class Policy(nn.Module):
    """Two cameras and the joints of a robot, a transformer over them, and a denoiser."""

    def __init__(self, width: int, depth: int, actions: int) -> None:
        super().__init__()
        channels = [3, *(max(width // 2**i, 2) for i in (3, 2, 1, 0, 0))]
        eyes = [
            nn.Sequential(nn.Conv2d(a, b, 3, 2, 1), nn.GroupNorm(2, b), nn.SiLU())
            for a, b in itertools.pairwise(channels)
        ]
        self.eyes = nn.Sequential(*eyes)
        self.joints = nn.Linear(14, width)
        self.layers = nn.ModuleList([Block(width, size(4)) for _ in range(depth)])
        self.denoiser = Denoiser(actions, width)

    def forward(
        self, images: torch.Tensor, joints: torch.Tensor, x: torch.Tensor, plan: list[torch.Tensor]
    ) -> torch.Tensor:
        """The next actions, from noise."""
        looks = self.eyes(images).flatten(2).transpose(1, 2).flatten(0, 1)
        tokens = torch.cat([self.joints(joints), looks]).unsqueeze(0)
        for layer in self.layers:
            tokens = layer(tokens)
        seen = tokens.mean(1)
        for now in plan:
            x = self.denoiser(x, seen, now)  # <- robot_policy_eager
        return x


@changes("launch_bound", "elementwise_chain")
def robot_policy_eager(change: str) -> Step:
    """A diffusion policy for one robot (robots, inference): a thousand tiny kernels a tick."""
    actions, turns = size(112, 8), size(24)
    policy = Policy(size(256, 16), size(6), actions).to(DEVICE, BF16)
    policy.eyes.to(memory_format=torch.channels_last)
    images = torch.rand(2, 3, 128, 128, device=DEVICE, dtype=BF16)
    images = images.contiguous(memory_format=torch.channels_last)
    joints = torch.randn(1, 14, device=DEVICE, dtype=BF16)
    noise = torch.randn(1, actions, device=DEVICE, dtype=BF16)
    times = torch.linspace(1, 0, turns, device=DEVICE)
    table = torch.stack([times, 0.2 * times, 1 + 0.1 * times], 1).to(BF16)
    plan = [row.clone() for row in table]
    if change == "elementwise_chain" and CUDA:
        policy.layers = compiled(policy.layers)
        policy.denoiser = torch.compile(policy.denoiser, dynamic=False)

    @torch.no_grad()
    def step() -> torch.Tensor:
        return policy(images, joints, noise, plan)  # <- robot_policy_eager

    return counted(graphed(step) if change == "launch_bound" else step)


# --- inference: video ------------------------------------------------------------------------


class Stage(nn.Module):
    """Two convolutions, added to what comes in."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The next pictures."""
        return functional.relu(x + self.second(functional.relu(self.first(x))))


@changes("pageable_copy", "launch_bound")
def video_from_pageable(change: str) -> Step:
    """Scores of frames of a video (vision, inference): each batch comes from ordinary memory."""
    rows, side, channels = size(64), 224 if CUDA else 32, size(96, 8)
    model = nn.Sequential(
        nn.Conv2d(3, channels, 4, 4), *[Stage(channels) for _ in range(size(4))],
        nn.Conv2d(channels, 2 * channels, 2, 2), *[Stage(2 * channels) for _ in range(size(6))],
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * channels, size(400, 10)),
    )  # fmt: skip
    model.to(DEVICE, BF16, memory_format=torch.channels_last)
    clips = [torch.rand(rows, 3, side, side) for _ in range(6)]
    if change == "pageable_copy":
        clips = [pinned(one) for one in clips]
    video = itertools.cycle(clips)

    @torch.no_grad()
    def scores(frames: torch.Tensor) -> torch.Tensor:
        x = ((frames - 0.45) / 0.22).to(BF16, memory_format=torch.channels_last)
        return model(x).float().softmax(1)

    if change == "launch_bound":
        frames = torch.zeros(rows, 3, side, side, device=DEVICE)
        whole = graphed(lambda: scores(frames))

        def replayed() -> object:
            frames.copy_(next(video))
            return whole()

        return counted(replayed)
    if change == "pageable_copy":
        return counted(lambda: scores(next(video).to(DEVICE, non_blocking=True)))
    return counted(lambda: scores(next(video).to(DEVICE)))  # <- video_from_pageable


# --- training: diffusion, with a habit that costs nothing --------------------------------------


class DiffusionLayer(nn.Module):
    """A layer of a diffusion transformer, scaled and shifted by the time."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(width, elementwise_affine=False)
        self.between = nn.LayerNorm(width, elementwise_affine=False)
        self.control = nn.Linear(width, 6 * width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """The next hidden states."""
        shift, scale, gate, shift2, scale2, gate2 = self.control(time)[:, None].chunk(6, -1)
        seen = torch.addcmul(shift, self.before(x), 1 + scale)
        q, k, v = self.qkv(seen).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = torch.addcmul(x, gate, self.out(mixed))
        seen = torch.addcmul(shift2, self.between(x), 1 + scale2)
        return torch.addcmul(x, gate2, self.down(functional.gelu(self.up(seen))))


class Diffusion(nn.Module):
    """Predicts the noise in patches of a picture."""

    def __init__(self, patch: int, width: int, depth: int) -> None:
        super().__init__()
        self.enter, self.time = nn.Linear(patch, width), nn.Linear(1, width)
        self.layers = nn.ModuleList([DiffusionLayer(width, size(16)) for _ in range(depth)])
        self.leave = nn.Linear(width, patch)

    def forward(self, x: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """The noise."""
        x, seen = self.enter(x), functional.silu(self.time(time))
        for layer in self.layers:
            x = layer(x, seen)
        return self.leave(x)


@changes("implicit_sync", "elementwise_chain")
def diffusion_checked_loss(change: str) -> Step:
    """Diffusion in patches of pictures: looks at each loss, behind a GPU that has much to do."""
    rows, patches, patch = size(48), size(256, 8), size(64, 8)
    model = Diffusion(patch, size(1024, 16), size(10)).to(DEVICE, BF16)
    pictures = torch.randn(rows, patches, patch, device=DEVICE, dtype=BF16)
    optimizer = adamw(model)
    bad = torch.zeros((), dtype=torch.bool, device=DEVICE)
    if change == "elementwise_chain":
        model.layers = compiled(model.layers)

    def step() -> torch.Tensor:
        time = torch.rand(rows, 1, device=DEVICE, dtype=BF16)
        noise = torch.randn_like(pictures)
        mixed = torch.lerp(pictures, noise, time[..., None])
        loss = functional.mse_loss(model(mixed, time).float(), noise.float())
        if change == "implicit_sync":
            bad.logical_or_(~torch.isfinite(loss.detach()))
        elif not torch.isfinite(loss):  # <- diffusion_checked_loss
            raise FloatingPointError("the loss is not finite")
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


# --- healthy: training, and inference ----------------------------------------------------------


@changes("launch_bound")
def satellite_healthy(change: str) -> Step:
    """Masked patches of satellite pictures (vision): wide, compiled, BF16, a fused optimizer."""
    rows, patches, bands, width = size(64), size(256, 8), size(768, 8), size(1536, 16)
    enter, leave = nn.Linear(bands, width), nn.Linear(width, bands)
    layers = compiled(nn.ModuleList([Block(width, size(24)) for _ in range(size(6))]))
    model = nn.ModuleList([enter, layers, leave]).to(DEVICE, BF16)
    pictures = torch.randn(rows, patches, bands, device=DEVICE, dtype=BF16)
    seen = torch.rand(rows, patches, 1, device=DEVICE).gt(0.6).to(BF16)

    def loss() -> torch.Tensor:
        x = enter(pictures * seen)
        for layer in layers:
            x = layer(x)
        return functional.mse_loss(leave(x), pictures)

    step = training(loss, adamw(model))
    return graphed(step) if change == "launch_bound" else step


@changes("launch_bound", "exposed_copy")
def passages_healthy(change: str) -> Step:
    """Vectors of passages for a search (language, inference): compiled, BF16, pinned uploads."""
    rows, length, width, words = size(32), size(512, 8), size(1024, 16), size(30_000, 64)
    table = nn.Embedding(words, width).to(DEVICE, BF16)
    blocks = [Block(width, size(16)).to(DEVICE, BF16) for _ in range(size(10))]
    layers = compiled(nn.ModuleList(blocks))
    passages = itertools.cycle([pinned(torch.randint(words, (rows, length))) for _ in range(6)])

    @torch.no_grad()
    def vectors(ids: torch.Tensor) -> torch.Tensor:
        x = table(ids)
        for layer in layers:
            x = layer(x)
        return functional.normalize(x.mean(1), dim=-1)

    if change == "launch_bound":
        ids = torch.zeros(rows, length, dtype=torch.long, device=DEVICE)
        whole = graphed(lambda: vectors(ids))

        def replayed() -> object:
            ids.copy_(next(passages), non_blocking=True)
            return whole()

        return counted(replayed)
    if change == AS_IT_IS or not CUDA:
        return counted(lambda: vectors(next(passages).to(DEVICE, non_blocking=True)))
    side = torch.cuda.Stream()

    def ahead() -> torch.Tensor:
        with torch.cuda.stream(side):
            return next(passages).to(DEVICE, non_blocking=True)

    waiting = deque([ahead()])

    def step() -> torch.Tensor:
        main_stream = torch.cuda.current_stream()
        main_stream.wait_stream(side)
        now = waiting.popleft()
        now.record_stream(main_stream)
        waiting.append(ahead())
        return vectors(now)

    return counted(step)


if __name__ == "__main__":
    main(__doc__)
