#!/usr/bin/env python3
"""A fifth set of programs that judge findings: science, robots, genomes, graphs, retrieval.

    python scripts/gpu/fifth_judge_programs.py NAME [--change KIND] [--steps 40]
    python scripts/gpu/fifth_judge_programs.py --measure [NAME ...]     a line of JSON for each

Six train and six infer. Nine have one planted cause, whose remedy is the first change; one has a
habit that other work hides (``speech_units``), and two are healthy (``protein_pretraining``,
``passage_index``). Written without knowledge of how nvprobe decides.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from pair_runner import BF16, CUDA, DEVICE, Step, changes, graphed, main, size
from torch import nn
from torch.nn import functional

import nvprobe

torch._dynamo.config.recompile_limit = 64  # every compiled module of this file counts


def counted(step: Step) -> Step:
    """A step of inference: without an optimizer, a program says where its steps begin."""

    def one() -> object:
        with nvprobe.step():
            return step()

    return one


def compiled(*modules: nn.Module) -> None:
    """Compile modules in place, each by itself: those of one kind share what is compiled."""
    for module in modules:
        if CUDA:
            module.compile(dynamic=False)


def adam(parameters: Iterable[nn.Parameter], lr: float = 1e-4) -> torch.optim.Optimizer:
    """One kernel for many parameters, with its counter of steps on the GPU."""
    return torch.optim.AdamW(parameters, lr=lr, fused=True, capturable=CUDA)


def heads_of(width: int) -> int:
    return max(width // 64, 1)


class Layer(nn.Module):
    """A layer of a transformer: norms first, fused attention, GELU."""

    def __init__(self, width: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads_of(width), causal
        self.norm, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def mix(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """What each position takes from the others."""
        return functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention, then feed-forward."""
        rows, length, width = x.shape
        qkv = self.qkv(self.norm(x)).view(rows, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = self.mix(*qkv.unbind(0)).transpose(1, 2).reshape(rows, length, width)
        x = x + self.out(mixed)
        return x + self.down(functional.gelu(self.up(self.after(x))))


def layers(count: int, width: int, causal: bool = False) -> nn.Sequential:
    return nn.Sequential(*(Layer(width, causal) for _ in range(size(count))))


# --- Training -------------------------------------------------------------------------------------


class Lion(torch.optim.Optimizer):
    """The sign of a momentum (Chen et al., 2023), as its reference implementation writes it."""

    def __init__(self, params: Iterable[nn.Parameter], lr: float, foreach: bool) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99), "decay": 0.1})
        self.foreach = foreach

    def step(self) -> None:
        """Update all parameters that have a gradient."""
        with torch.no_grad():
            self.update()

    def update(self) -> None:
        """One at a time, or all at once."""
        for group in self.param_groups:
            params = [one for one in group["params"] if one.grad is not None]
            for one in params:
                if not self.state[one]:
                    self.state[one]["average"] = torch.zeros_like(one)
            averages = [self.state[one]["average"] for one in params]
            grads = [one.grad for one in params]
            update = self.all_at_once if self.foreach else self.one_by_one
            update(params, grads, averages, group["lr"], group["decay"], *group["betas"])

    @staticmethod
    def one_by_one(
        params: list[torch.Tensor], grads: list[torch.Tensor], averages: list[torch.Tensor],
        lr: float, decay: float, fast: float, slow: float,
    ) -> None:  # fmt: skip
        """A handful of kernels for each parameter."""
        for param, grad, average in zip(params, grads, averages, strict=True):
            param.mul_(1 - lr * decay)  # <- dna_language_model
            update = average.clone().mul_(fast).add_(grad, alpha=1 - fast)  # <- dna_language_model
            param.add_(update.sign_(), alpha=-lr)  # <- dna_language_model
            average.mul_(slow).add_(grad, alpha=1 - slow)  # <- dna_language_model

    @staticmethod
    def all_at_once(
        params: list[torch.Tensor], grads: list[torch.Tensor], averages: list[torch.Tensor],
        lr: float, decay: float, fast: float, slow: float,
    ) -> None:  # fmt: skip
        """A handful of kernels for all of them."""
        torch._foreach_mul_(params, 1 - lr * decay)
        updates = torch._foreach_mul(averages, fast)
        torch._foreach_add_(updates, grads, alpha=1 - fast)
        torch._foreach_sign_(updates)
        torch._foreach_add_(params, updates, alpha=-lr)
        torch._foreach_mul_(averages, slow)
        torch._foreach_add_(averages, grads, alpha=1 - slow)


class TokenModel(nn.Module):
    """Tokens in, logits of tokens out: what reads DNA and proteins here."""

    def __init__(self, tokens: int, length: int, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.place = nn.Parameter(0.02 * torch.randn(length, width))
        self.layers, self.norm = layers(depth, width), nn.LayerNorm(width)
        self.head = nn.Linear(width, tokens)

    def loss(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """How wrong the logits are where tokens were hidden."""
        logits = self.head(self.norm(x)).flatten(0, 1).float()
        return functional.cross_entropy(logits, labels.flatten())

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """The loss."""
        return self.loss(self.layers(self.embed(tokens) + self.place), labels)


def hidden_tokens(rows: int, length: int, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens of which 15% are hidden, and what they were (-100 elsewhere)."""
    labels = torch.randint(1, vocabulary, (rows, length), device=DEVICE)
    chosen = torch.rand(rows, length, device=DEVICE) < 0.15
    return labels.masked_fill(chosen, 0), labels.masked_fill(~chosen, -100)


@changes("launch_loop", "launch_bound", "elementwise_chain")
def dna_language_model(change: str) -> Step:
    """A deep, narrow language model of DNA (6-mers), trained by a hand-written Lion."""
    length, vocabulary = size(512, 16), size(4104, 64)
    model = TokenModel(vocabulary, length, size(512, 32), 24).to(DEVICE, BF16)
    optimizer = Lion(model.parameters(), lr=1e-5, foreach=change == "launch_loop")
    tokens, labels = hidden_tokens(size(8), length, vocabulary)
    if change == "elementwise_chain":
        compiled(*model.layers)

    def step() -> torch.Tensor:
        loss = model(tokens, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return graphed(step) if change == "launch_bound" else step


@changes("dense_embedding_gradient", "launch_bound")
def knowledge_graph(change: str) -> Step:
    """Embeddings of a knowledge graph's entities (DistMult), shared negatives, Adam."""
    count, width, rows = size(2_500_000), size(128, 16), size(8192, 32)
    sparse = change == "dense_embedding_gradient"
    entities = nn.Embedding(count, width, sparse=sparse, device=DEVICE)  # <- knowledge_graph
    relations = nn.Embedding(size(1024), width, device=DEVICE)
    for table in (entities, relations):
        nn.init.normal_(table.weight, std=0.1)
    optimizers: list[torch.optim.Optimizer]
    if sparse:
        optimizers = [
            torch.optim.SparseAdam(entities.parameters(), lr=1e-3),
            torch.optim.Adam(relations.parameters(), lr=1e-3, fused=True, capturable=CUDA),
        ]
    else:
        both = [*entities.parameters(), *relations.parameters()]
        optimizers = [torch.optim.Adam(both, lr=1e-3, fused=True, capturable=CUDA)]

    def step() -> torch.Tensor:
        heads, tails = torch.randint(count, (2, rows), device=DEVICE)
        kinds = torch.randint(relations.num_embeddings, (rows,), device=DEVICE)
        others = torch.randint(count, (size(2048, 16),), device=DEVICE)
        asked = entities(heads) * relations(kinds)  # <- knowledge_graph
        true = (asked * entities(tails)).sum(1)  # <- knowledge_graph
        false = asked @ entities(others).T  # <- knowledge_graph
        loss = functional.softplus(-true).mean() + functional.softplus(false).mean()
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return graphed(step) if change == "launch_bound" else step


@changes("mask_select", "elementwise_chain")
def molecule_assays(change: str) -> Step:
    """Molecular fingerprints in, twelve assays out, most of which nobody has measured."""
    rows, bits, width, assays = size(4096, 32), size(4096), size(4096, 64), 12
    parts: list[nn.Module] = []
    for inputs in (bits, width, width, width):
        parts += [nn.Linear(inputs, width), nn.ReLU(), nn.Dropout(0.1)]
    encoder = nn.Sequential(*parts).to(DEVICE, BF16)
    head = nn.Linear(width, assays).to(DEVICE, BF16)
    optimizer = adam([*encoder.parameters(), *head.parameters()])
    fingerprints = (torch.rand(rows, bits, device=DEVICE) < 0.03).to(BF16)
    labels = torch.randint(2, (rows, assays), device=DEVICE).float()
    labels[torch.rand(rows, assays, device=DEVICE) < 0.7] = math.nan
    score = functional.binary_cross_entropy_with_logits
    if change == "elementwise_chain":
        compiled(encoder)

    def of_assay(logits: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        known = ~label.isnan()
        if change == "mask_select":
            each = score(logits, torch.where(known, label, 0.0), reduction="none")
            return torch.where(known, each, 0.0).sum() / known.sum()
        logits = logits[known]  # <- molecule_assays
        label = label[known]  # <- molecule_assays
        return score(logits, label)

    def step() -> torch.Tensor:
        logits = head(encoder(fingerprints)).float()
        losses = [of_assay(logits[:, i], labels[:, i]) for i in range(assays)]
        loss = torch.stack(losses).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


class WrittenOut(Layer):
    """A causal layer whose attention is written as in the textbook, if it is not ``fused``."""

    fused = False

    def mix(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Products, a mask, a softmax and products."""
        if self.fused:
            return super().mix(q, k, v)
        length = q.shape[2]
        later = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])  # <- load_forecast
        weights = scores.masked_fill(later, -math.inf).softmax(-1)  # <- load_forecast
        return weights @ v  # <- load_forecast


@changes("unfused_attention", "launch_bound")
def load_forecast(change: str) -> Step:
    """Electric loads in patches, each of which predicts the next one (as TimesFM does)."""
    rows, length, patch, width = size(32), size(1024, 8), size(32, 4), size(512, 32)
    stack = nn.Sequential(*(WrittenOut(width, causal=True) for _ in range(size(6))))
    for layer in stack:
        layer.fused = change == "unfused_attention"
    model = nn.Sequential(nn.Linear(patch, width), stack, nn.LayerNorm(width))
    model.append(nn.Linear(width, patch)).to(DEVICE, BF16)
    optimizer = adam(model.parameters())
    loads = torch.randn(rows, length + 1, patch, device=DEVICE, dtype=BF16)

    def step() -> torch.Tensor:
        loss = functional.mse_loss(model(loads[:, :-1]).float(), loads[:, 1:].float())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return graphed(step) if change == "launch_bound" else step


class SpeechUnits(nn.Module):
    """Spectrograms in, a loss over the units of hidden frames out (as HuBERT learns)."""

    def __init__(self, bands: int, width: int, depth: int, units: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(bands, width, 3, stride=2, padding=1)
        self.second = nn.Conv1d(width, width, 3, padding=1)
        self.nothing = nn.Parameter(torch.randn(width))
        self.layers, self.head = layers(depth, width), nn.Linear(width, units)

    def forward(self, sound: torch.Tensor, units: torch.Tensor) -> torch.Tensor:
        """The mean loss of the frames that were hidden."""
        x = functional.gelu(self.second(functional.gelu(self.first(sound)))).transpose(1, 2)
        chosen = torch.rand(units.shape, device=units.device) < 0.5
        x = self.layers(torch.where(chosen[..., None], self.nothing, x))
        logits = self.head(x).flatten(0, 1).float()
        each = functional.cross_entropy(logits, units.flatten(), reduction="none")
        return (each * chosen.flatten()).sum() / chosen.sum()


@changes("implicit_sync", "launch_bound")
def speech_units(change: str) -> Step:
    """Pretraining on speech that reads its loss in every step: the GPU hides what that costs."""
    rows, frames, units = size(16), size(1000, 8), size(504, 16)
    model = SpeechUnits(size(80, 8), size(1024, 32), 12, units).to(DEVICE, BF16)
    compiled(*model.layers)
    optimizer = adam(model.parameters())
    sound = torch.randn(rows, size(80, 8), 2 * frames, device=DEVICE, dtype=BF16)
    labels = torch.randint(units, (rows, frames), device=DEVICE)
    history: list[float] = []
    unread: list[torch.Tensor] = []

    def update() -> torch.Tensor:
        loss = model(sound, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    run: Callable[[], Any] = graphed(update) if change == "launch_bound" else update

    def step() -> torch.Tensor:
        loss = run()
        if change == "implicit_sync":
            unread.append(loss)
        else:
            history.append(loss.item())  # <- speech_units
        return loss

    return step


@changes("launch_bound", "elementwise_chain")
def protein_pretraining(change: str) -> Step:
    """A healthy step: a wide protein model with compiled layers, and a fused optimizer."""
    length, vocabulary = size(512, 16), 33
    model = TokenModel(vocabulary, length, size(1280, 32), 8).to(DEVICE, BF16)
    compiled(*model.layers)
    optimizer = adam(model.parameters())
    tokens, labels = hidden_tokens(size(32), length, vocabulary)
    loss_of = model.loss
    if change == "elementwise_chain" and CUDA:
        loss_of = torch.compile(model.loss, dynamic=False)

    def step() -> torch.Tensor:
        loss = loss_of(model.layers(model.embed(tokens) + model.place), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return graphed(step) if change == "launch_bound" else step


# --- Inference ------------------------------------------------------------------------------------


@contextlib.contextmanager
def products(precision: str) -> Iterator[None]:
    """How FP32 products are made, for a while."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


class Solution(NamedTuple):
    """What conjugate gradients hold between two iterations."""

    x: torch.Tensor
    left: torch.Tensor
    direction: torch.Tensor
    norm: torch.Tensor


def with_reads(matrix: torch.Tensor, now: Solution, least: float) -> Solution | None:
    """One iteration by numbers of the host; nothing, where it has converged."""
    x, left, direction, norm = now
    product = matrix @ direction
    alpha = (norm / direction.dot(product)).item()  # <- gaussian_process
    x, left = x.add(direction, alpha=alpha), left.sub(product, alpha=alpha)
    after = left.dot(left)
    if after.item() < least:  # <- gaussian_process
        return None
    beta = (after / norm).item()  # <- gaussian_process
    return Solution(x, left, left.add(direction, alpha=beta), after)


def without_reads(matrix: torch.Tensor, now: Solution, least: float) -> Solution:
    """The same on the device; a solution that has converged is kept."""
    x, left, direction, norm = now
    product = matrix @ direction
    alpha = torch.where(norm >= least, norm / direction.dot(product), 0.0)
    x, left = torch.addcmul(x, alpha, direction), torch.addcmul(left, -alpha, product)
    after = left.dot(left)
    return Solution(x, left, torch.addcmul(left, after / norm, direction), after)


@changes("implicit_sync", "fp32_gemm")
def gaussian_process(change: str) -> Step:
    """The posterior mean of a Gaussian process, by sixty iterations of conjugate gradients."""
    count, turns = size(10_240, 256), 60 if CUDA else 12
    points, asked = torch.rand(count, 4, device=DEVICE), torch.rand(512, 4, device=DEVICE)
    matrix = torch.cdist(points, points).square_().mul_(-8.0).exp_()
    matrix.diagonal().add_(1e-2)
    across = torch.cdist(asked, points).square_().mul_(-8.0).exp_()
    values = (5 * points).sin().sum(1) + 0.1 * torch.randn(count, device=DEVICE)
    least = 1e-12 * count

    def step() -> torch.Tensor:
        now = Solution(torch.zeros_like(values), values, values, values.dot(values))
        for _ in range(turns):
            if change == "implicit_sync":
                now = without_reads(matrix, now, least)
            elif (after := with_reads(matrix, now, least)) is not None:
                now = after
            else:
                break
        return across @ now.x

    def precise() -> object:
        with torch.no_grad(), products("high" if change == "fp32_gemm" else "highest"):
            return step()

    return counted(precise)


class Robot(NamedTuple):
    """What one robot has sent: angles of joints, forces at its wrist, a depth image."""

    joints: np.ndarray
    wrench: np.ndarray
    depth: np.ndarray


class FleetPolicy(nn.Module):
    """A small vision transformer over depth images, told the state of the arm; actions out."""

    def __init__(self, width: int, depth: int, pixels: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 8, stride=8)
        self.place = nn.Parameter(0.02 * torch.randn((pixels // 8) ** 2, width))
        self.state, self.layers = nn.Linear(20, width), layers(depth, width)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 14)

    def forward(
        self, joints: torch.Tensor, wrench: torch.Tensor, depth: torch.Tensor
    ) -> torch.Tensor:
        """What each robot should do."""
        x = self.patches(depth.to(BF16)[:, None]).flatten(2).transpose(1, 2) + self.place
        state = self.state(torch.cat([joints, wrench], 1).to(BF16))
        return self.head(self.norm(self.layers(x + state[:, None])).mean(1)).float()


@changes("small_copies", "launch_bound")
def robot_fleet(change: str) -> Step:
    """One server decides for a fleet of robots, each of which sends a few small arrays."""
    count, pixels = size(192, 3), size(64, 16)
    random = np.random.default_rng(0)
    shapes = ((14,), (6,), (pixels, pixels))
    messages = [
        [Robot(*(random.random(one, dtype=np.float32) for one in shapes)) for _ in range(count)]
        for _ in range(4)
    ]
    turns = itertools.cycle(messages)
    policy = FleetPolicy(size(384, 32), 8, pixels).to(DEVICE, BF16)
    packed = torch.empty(count, 20 + pixels * pixels, pin_memory=CUDA)
    rows = packed.numpy()

    def one_by_one(fleet: list[Robot]) -> list[torch.Tensor]:
        joints = [torch.from_numpy(one.joints).to(DEVICE) for one in fleet]  # <- robot_fleet
        wrench = [torch.from_numpy(one.wrench).to(DEVICE) for one in fleet]  # <- robot_fleet
        depth = [torch.from_numpy(one.depth).to(DEVICE) for one in fleet]  # <- robot_fleet
        return [torch.stack(joints), torch.stack(wrench), torch.stack(depth)]

    def at_once(fleet: list[Robot]) -> list[torch.Tensor]:
        """One copy; the buffer is free again, as each step ends with what was decided."""
        for row, one in zip(rows, fleet, strict=True):
            row[:14], row[14:20], row[20:] = one.joints, one.wrench, one.depth.ravel()
        there = packed.to(DEVICE, non_blocking=True)
        return [there[:, :14], there[:, 14:20], there[:, 20:].unflatten(1, (pixels, pixels))]

    upload = at_once if change == "small_copies" else one_by_one
    fixed = one_by_one(messages[0])

    def decided(state: list[torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            return policy(*state)

    def step() -> torch.Tensor:
        return decided(upload(next(turns))).cpu()

    if change != "launch_bound":
        return counted(step)
    replay: Callable[[], Any] = graphed(lambda: decided(fixed))

    def replayed() -> torch.Tensor:
        for kept, new in zip(fixed, upload(next(turns)), strict=True):
            kept.copy_(new)
        return replay().cpu()

    return counted(replayed)


@changes("weight_casts", "launch_bound", "elementwise_chain")
def weather_rollout(change: str) -> Step:
    """A global weather model steps twelve times ahead from a grid, in autocast."""
    width, leads, fields = size(3072, 64), size(12), size(256, 16)
    model = nn.Sequential(nn.Linear(fields, width), layers(6, width), nn.Linear(width, fields))
    model.to(DEVICE)
    if change == "elementwise_chain":
        compiled(*model[1])
    analysis = torch.randn(1, size(512, 8), fields, device=DEVICE)

    def rolled() -> torch.Tensor:
        state = analysis
        if change == "weight_casts":
            with torch.autocast(DEVICE, BF16):
                for _ in range(leads):
                    state = state + 0.1 * model(state)
            return state
        for _ in range(leads):
            with torch.autocast(DEVICE, BF16):  # <- weather_rollout
                state = state + 0.1 * model(state)  # <- weather_rollout
        return state

    def step() -> torch.Tensor:
        with torch.no_grad():
            return rolled()

    return counted(graphed(step) if change == "launch_bound" else step)


class Residual(nn.Module):
    """Two convolutions over time, scaled and shifted by what the robot sees."""

    def __init__(self, inputs: int, outputs: int, told: int) -> None:
        super().__init__()
        self.first = nn.Conv1d(inputs, outputs, 5, padding=2)
        self.second = nn.Conv1d(outputs, outputs, 5, padding=2)
        self.norms = nn.ModuleList([nn.GroupNorm(8, outputs), nn.GroupNorm(8, outputs)])
        self.told = nn.Sequential(nn.Mish(), nn.Linear(told, 2 * outputs))
        self.past = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: torch.Tensor, told: torch.Tensor) -> torch.Tensor:
        """One block."""
        scale, shift = self.told(told)[..., None].chunk(2, 1)
        y = functional.mish(self.norms[0](self.first(x))) * (1 + scale) + shift
        return functional.mish(self.norms[1](self.second(y))) + self.past(x)


class Denoiser(nn.Module):
    """A U-Net over a short plan of actions, of batch and channels and time."""

    def __init__(self, actions: int, told: int, widths: tuple[int, ...]) -> None:
        super().__init__()
        pairs = list(itertools.pairwise((actions, *widths)))
        self.down = nn.ModuleList([
            nn.ModuleList([Residual(a, b, told), Residual(b, b, told)]) for a, b in pairs
        ])  # fmt: skip
        self.shrink = nn.ModuleList([nn.Conv1d(b, b, 3, 2, 1) for _, b in pairs[:-1]])
        self.middle = nn.ModuleList([Residual(widths[-1], widths[-1], told) for _ in range(2)])
        self.up = nn.ModuleList([
            nn.ModuleList([Residual(2 * a, a, told), Residual(a, a, told)])
            for a in reversed(widths[:-1])
        ])  # fmt: skip
        self.grow = nn.ModuleList([
            nn.ConvTranspose1d(b, a, 4, 2, 1) for a, b in reversed(pairs[1:])
        ])  # fmt: skip
        self.last = nn.Conv1d(widths[0], actions, 1)

    def forward(self, x: torch.Tensor, told: torch.Tensor) -> torch.Tensor:
        """The noise in a plan."""
        kept = []
        for i, (first, second) in enumerate(self.down):
            x = second(first(x, told), told)
            if i < len(self.shrink):
                kept.append(x)
                x = self.shrink[i](x)
        for block in self.middle:
            x = block(x, told)
        for grow, (first, second) in zip(self.grow, self.up, strict=True):
            x = second(first(torch.cat([grow(x), kept.pop()], 1), told), told)
        return self.last(x)


@changes("launch_bound", "elementwise_chain")
def diffusion_policy(change: str) -> Step:
    """A robot's next sixteen actions, denoised in ten steps (DDIM): hundreds of tiny kernels."""
    rows, actions, told, turns = 4, 10, size(256, 16), size(10)
    widths = (size(128, 16), size(256, 16), size(512, 16))
    model = Denoiser(actions, told, widths).to(DEVICE)
    times = torch.randn(turns, told, device=DEVICE)
    left = torch.linspace(0.02, 0.98, turns + 1).flip(0).tolist()
    seen = torch.randn(rows, told, device=DEVICE)
    if change == "elementwise_chain":
        compiled(model)

    def denoised() -> torch.Tensor:
        plan = torch.randn(rows, actions, 16, device=DEVICE)
        for turn in range(turns):
            noise = model(plan, seen + times[turn])  # <- diffusion_policy
            now, after = left[turn], left[turn + 1]
            clean = ((plan - math.sqrt(now) * noise) / math.sqrt(1 - now)).clamp(-1, 1)
            plan = math.sqrt(1 - after) * clean + math.sqrt(after) * noise
        return plan

    def step() -> torch.Tensor:
        with torch.no_grad():
            return denoised()

    return counted(graphed(step) if change == "launch_bound" else step)


class Basecaller(nn.Module):
    """Current through a nanopore in, scores of states (5-mers) out."""

    def __init__(self, width: int, depth: int, states: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv1d(1, 64, 5, padding=2), nn.SiLU(),
            nn.Conv1d(64, width, 19, stride=6, padding=9), nn.SiLU(),
        )  # fmt: skip
        self.layers, self.norm = layers(depth, width), nn.LayerNorm(width)
        self.head = nn.Linear(width, states)

    def forward(self, signal: torch.Tensor) -> torch.Tensor:
        """Scores of batch, time and state."""
        return self.head(self.norm(self.layers(self.stem(signal).transpose(1, 2)))).float()


@changes("large_download", "launch_bound")
def nanopore_basecaller(change: str) -> Step:
    """Reads the bases of DNA from nanopores, and picks the best states of all scores."""
    model = Basecaller(size(512, 32), 6, size(512, 16)).to(DEVICE, BF16)
    signal = torch.randn(size(64), 1, size(2400, 60), device=DEVICE, dtype=BF16)

    def scored() -> torch.Tensor:
        with torch.no_grad():
            return model(signal)

    run: Callable[[], Any] = graphed(scored) if change == "launch_bound" else scored

    def step() -> torch.Tensor:
        scores = run()
        if change == "large_download":
            return scores.argmax(-1).cpu()
        return scores.cpu().argmax(-1)  # <- nanopore_basecaller

    return counted(step)


class PassageEncoder(nn.Module):
    """Tokens of passages in, a unit vector for each out."""

    def __init__(self, vocabulary: int, length: int, width: int, depth: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.place = nn.Parameter(0.02 * torch.randn(length, width))
        self.layers, self.norm = layers(depth, width), nn.LayerNorm(width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """One vector for each passage."""
        x = self.norm(self.layers(self.embed(tokens) + self.place))
        return functional.normalize(x.mean(1), dim=1)


@changes("launch_bound", "exposed_copy")
def passage_index(change: str) -> Step:
    """A healthy step: passages are encoded by compiled layers, and meet standing queries."""
    rows, length, width, vocabulary = size(256), size(256, 8), size(768, 32), size(30_000, 100)
    model = PassageEncoder(vocabulary, length, width, 6).to(DEVICE, BF16)
    compiled(*model.layers)
    queries = functional.normalize(torch.randn(size(20_000, 32), width, device=DEVICE)).to(BF16)
    made = [torch.randint(vocabulary, (rows, length)) for _ in range(4)]
    batches = itertools.cycle([one.pin_memory() if CUDA else one for one in made])

    def found(tokens: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return (model(tokens) @ queries.T).float().topk(10).values

    def plain() -> torch.Tensor:
        return found(next(batches).to(DEVICE, non_blocking=True))

    if change == "launch_bound":
        fixed = made[0].to(DEVICE)
        replay = graphed(lambda: found(fixed))

        def replayed() -> object:
            fixed.copy_(next(batches), non_blocking=True)
            return replay()

        return counted(replayed)
    if change == "exposed_copy" and CUDA:
        aside, ahead = torch.cuda.Stream(), []

        def fetch() -> None:
            with torch.cuda.stream(aside):
                ahead.append(next(batches).to(DEVICE, non_blocking=True))

        def early() -> torch.Tensor:
            torch.cuda.current_stream().wait_stream(aside)
            tokens = ahead.pop()
            tokens.record_stream(torch.cuda.current_stream())
            fetch()
            return found(tokens)

        fetch()
        return counted(early)
    return counted(plain)


if __name__ == "__main__":
    main(__doc__)
