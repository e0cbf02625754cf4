#!/usr/bin/env python3
"""Twelve more programs as people write them, to judge rules that never saw them.

    python scripts/gpu/third_judge_programs.py NAME [--change KIND] [--steps 40]
    python scripts/gpu/third_judge_programs.py --measure [NAME ...]     a line of JSON for each pair

They were written from the table of docs/findings.md, by somebody who had read neither the rules nor
what came of earlier judges. Nine have a cause and its fix; one has a habit that costs nothing here;
two are healthy. A step returns what has to be the same with the fix. ``scripts/gpu/pairs.py
--programs third_judge_programs`` runs them all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import torch
from pair_runner import BF16, CUDA, DEVICE, Step, changes, graphed, graphs, main, pair, size
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import nvprobe

LAST = torch.channels_last


def split(x: torch.Tensor, heads: int) -> torch.Tensor:
    """(batch, length, width) as (batch, heads, length, width of a head)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def feed_forward(width: int) -> nn.Sequential:
    """What follows attention."""
    return nn.Sequential(
        nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
    )


# Detection: non-maximum suppression by repeated selection.


def convolution(a: int, b: int, stride: int = 1) -> nn.Sequential:
    """Convolution, norm, activation."""
    return nn.Sequential(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU())


def overlaps(ones: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """Intersection over union of boxes (left, top, right, bottom), each with each."""
    begin = torch.maximum(ones[:, None, :2], others[None, :, :2])
    end = torch.minimum(ones[:, None, 2:], others[None, :, 2:])
    common = (end - begin).clamp(min=0).prod(-1)
    area, areas = ((boxes[:, 2:] - boxes[:, :2]).prod(-1) for boxes in (ones, others))
    return common / (area[:, None] + areas - common)


def suppressed(boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """The best boxes, none of which overlaps another: as in many tutorials."""
    order = scores.argsort(descending=True)
    kept = []
    while order.numel():
        best, order = order[:1], order[1:]
        kept.append(best)
        order = order[overlaps(boxes[best], boxes[order])[0] <= 0.5]  # <- detector
    return torch.cat(kept)


def suppressed_on_the_host(boxes: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """The same: overlaps on the GPU, all at once, and the choice on the host."""
    order = scores.argsort(descending=True)
    apart = (overlaps(boxes[order], boxes[order]) <= 0.5).cpu().numpy()
    left, kept = np.ones(len(order), dtype=bool), []
    for index in range(len(order)):
        if left[index]:
            kept.append(index)
            left &= apart[index]
    return order[torch.tensor(kept, device=DEVICE)]


@pair("mask_select")
def detector(fixed: bool) -> Step:
    """Boxes of pictures, suppressed by ``order[mask]`` until none is left; fixed: on the host."""
    widths = (3, 64, 128, 256, 512) if CUDA else (3, 4, 4, 4, 4)
    layers = [convolution(a, b, 2) for a, b in itertools.pairwise(widths)]
    layers += [convolution(widths[-1], widths[-1]) for _ in range(6)]
    model = nn.Sequential(*layers, nn.Conv2d(widths[-1], 5, 1))
    model = model.to(DEVICE, BF16, memory_format=LAST).eval()
    side = 512 if CUDA else 128
    images = torch.randn(4, 3, side, side, device=DEVICE, dtype=BF16).to(memory_format=LAST)
    centers = torch.arange(8, side, 16, device=DEVICE).float()
    grid = torch.cartesian_prod(centers, centers)
    choose = suppressed_on_the_host if fixed else suppressed

    @torch.inference_mode()
    def step() -> torch.Tensor:
        with nvprobe.step():
            moved, sizes, scores = model(images).float().flatten(2).mT.split((2, 2, 1), -1)
            middle, half = grid + 8 * moved, 32 * sizes.exp()
            boxes = torch.cat((middle - half, middle + half), -1)
            found = []
            for some, score in zip(boxes, scores[..., 0], strict=True):
                best = score.topk(128 if CUDA else 32)
                some = some[best.indices]
                found.append(some[choose(some, best.values)])
            return torch.cat(found)

    return step


# Translation: a beam search that compares its candidates on the host.


class DecoderLayer(nn.Module):
    """Attends to what was said before, and keeps the keys and values of a new word."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = feed_forward(width)

    def forward(self, x: torch.Tensor, cache: torch.Tensor, place: int) -> torch.Tensor:
        """One word for each row; ``cache`` is (2, rows, heads, length, width of a head)."""
        q, k, v = (split(one, self.heads) for one in self.qkv(self.norm(x)).chunk(3, -1))
        cache[0, :, :, place : place + 1], cache[1, :, :, place : place + 1] = k, v
        said = torch.arange(cache.shape[3], device=x.device)[None, None, None] <= place
        y = functional.scaled_dot_product_attention(q, cache[0], cache[1], attn_mask=said)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(x)


Choice = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


def best_one_by_one(sums: torch.Tensor, words: torch.Tensor) -> Choice:
    """Sums, beams and words of the best candidates of each sentence, (sentences, beams)."""
    chosen = []
    for sentence in range(len(sums)):
        candidates = []
        for beam, rank in itertools.product(range(sums.shape[1]), range(sums.shape[2])):
            total = sums[sentence, beam, rank].item()  # <- beam_search
            word = words[sentence, beam, rank].item()  # <- beam_search
            candidates.append((total, beam, word))
        candidates.sort(reverse=True)
        chosen.append(candidates[: sums.shape[1]])
    best = torch.tensor(chosen, device=DEVICE)
    return best[..., 0], best[..., 1].long(), best[..., 2].long()


def best_on_the_gpu(sums: torch.Tensor, words: torch.Tensor) -> Choice:
    """The same, for all sentences at once."""
    best = sums.flatten(1).topk(sums.shape[1])
    word = words.flatten(1).gather(1, best.indices)
    return best.values, best.indices // sums.shape[2], word


@pair("implicit_sync")
def beam_search(fixed: bool) -> Step:
    """Sums of each candidate read with ``.item()``; fixed: compared on the GPU."""
    sentences, beams, length, vocabulary = 8, 4, 64, size(8192)
    heads, width, depth = (8, 512, 8) if CUDA else (2, 16, 2)
    with torch.device(DEVICE):
        embedding = nn.Embedding(vocabulary, width, dtype=BF16)
        layers = nn.ModuleList(DecoderLayer(width, heads) for _ in range(depth)).to(BF16).eval()
        head = nn.Linear(width, vocabulary, dtype=BF16)
        caches = torch.zeros(depth, 2, sentences * beams, heads, length, width // heads, dtype=BF16)
        begin = torch.tensor([0.0] + [-torch.inf] * (beams - 1)).expand(sentences, beams)
        first = torch.arange(sentences)[:, None] * beams
        words, sums = torch.zeros(sentences, beams, dtype=torch.long), begin.clone()
    best, turn = best_on_the_gpu if fixed else best_one_by_one, itertools.count()

    @torch.inference_mode()
    def step() -> torch.Tensor:
        with nvprobe.step():
            place = next(turn) % length
            if place == 0:
                sums.copy_(begin)
            x = embedding(words.view(-1, 1))
            for layer, cache in zip(layers, caches, strict=True):
                x = layer(x, cache, place)
            chances = head(x[:, 0]).float().log_softmax(-1).view(sentences, beams, -1)
            some = chances.topk(beams)
            found, parents, next_words = best(sums[..., None] + some.values, some.indices)
            caches.copy_(caches.index_select(2, (first + parents).flatten()))
            words.copy_(next_words)
            sums.copy_(found)
            return sums.clone()

    return step


# Speech: what describes the frames is made on the host, in each layer.


def sinusoids(length: int, width: int, device: str) -> torch.Tensor:
    """Places of frames as waves, (length, width)."""
    rates = torch.exp(torch.arange(0, width, 2, device=device) * (-math.log(1e4) / width))
    angles = torch.arange(length, device=device)[:, None] * rates
    return torch.cat((angles.sin(), angles.cos()), -1)


class SpeechLayer(nn.Module):
    """Attends to the frames of a recording; places are added to queries and keys."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qk, self.v = nn.Linear(width, 2 * width), nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.before, self.after = feed_forward(width), feed_forward(width)

    def forward(
        self, x: torch.Tensor, lengths: torch.Tensor, places: torch.Tensor | None
    ) -> torch.Tensor:
        """One layer; ``lengths`` in frames, where the places are."""
        x = x + 0.5 * self.before(x)
        mask = torch.arange(x.shape[1], device=lengths.device) < lengths[:, None]
        if places is None:
            mask = mask.to(x.device)  # <- speech_encoder
            places = sinusoids(*x.shape[1:], "cpu").to(x.device, x.dtype)  # <- speech_encoder
        return self.attended(x, mask, places)

    def attended(self, x: torch.Tensor, mask: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        """What follows what is made on the host."""
        y = self.norm(x)
        q, k = (split(one, self.heads) for one in self.qk(y + places).chunk(2, -1))
        y = functional.scaled_dot_product_attention(
            q, k, split(self.v(y), self.heads), attn_mask=mask[:, None, None]
        )
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + 0.5 * self.after(x)


@changes("host_tensors", "launch_bound")
def speech_encoder(change: str) -> Step:
    """Places and masks made on the host in each layer: on the GPU, or graphs between them."""
    fixed = change == "host_tensors"
    width, frames, marks = size(512, 16), size(400), size(80)
    heads, depth = (8, 12) if CUDA else (2, 2)
    with torch.device(DEVICE):
        enter = nn.Conv1d(marks, width, 5, 4, 2, dtype=BF16)
        layers = nn.ModuleList(SpeechLayer(width, heads) for _ in range(depth)).to(BF16)
        head = nn.Linear(width, 32, dtype=BF16)
        sounds = torch.randn(8, marks, 4 * frames, dtype=BF16)
        targets = torch.randint(0, 32, (8, frames))
    model = nn.ModuleList((enter, layers, head))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA, capturable=CUDA)
    lengths = torch.linspace(frames // 2, frames, 8).long()
    places = sinusoids(frames, width, DEVICE).to(BF16) if fixed else None

    def update(x: torch.Tensor) -> torch.Tensor:
        loss = functional.cross_entropy(head(x).float().flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    def step() -> torch.Tensor:
        x = enter(sounds).mT
        given = lengths.to(DEVICE) if fixed else lengths
        for layer in layers:
            x = layer(x, given, places)
        return update(x)

    if change != "launch_bound":
        return step
    masks = torch.ones(depth, 8, frames, dtype=torch.bool, device=DEVICE)
    waves = torch.zeros(depth, frames, width, dtype=BF16, device=DEVICE)

    def until_upload(layer: int) -> Callable[[torch.Tensor | None], torch.Tensor]:
        def part(x: torch.Tensor | None) -> torch.Tensor:
            if x is None:
                x = enter(sounds).mT
            else:
                x = layers[layer - 1].attended(x, masks[layer - 1], waves[layer - 1])
            return x + 0.5 * layers[layer].before(x)

        return part

    def last(x: torch.Tensor) -> torch.Tensor:
        return update(layers[-1].attended(x, masks[-1], waves[-1]))

    *parts, last = graphs(*map(until_upload, range(depth)), last)

    def step_in_graphs() -> torch.Tensor:
        x = None
        for part, mask, wave in zip(parts, masks, waves, strict=True):
            x = part(x)
            mask.copy_(torch.arange(frames) < lengths[:, None])
            wave.copy_(sinusoids(frames, width, "cpu"))
        return last(x)

    return step_in_graphs


# Pictures: what is rebuilt goes to the host in every step, to be looked at.


class Autoencoder(nn.Module):
    """Pictures to a small random map, and back."""

    def __init__(self, width: int, latent: int) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            convolution(3, width, 2), convolution(width, 2 * width, 2),
            convolution(2 * width, 4 * width, 2), nn.Conv2d(4 * width, 2 * latent, 1),
        )  # fmt: skip
        layers: list[nn.Module] = [convolution(latent, 4 * width)]
        for a in (4 * width, 2 * width, width):
            layers += [nn.Upsample(scale_factor=2.0), convolution(a, max(a // 2, width))]
        self.decoder = nn.Sequential(*layers, nn.Conv2d(width, 3, 3, 1, 1))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """What is rebuilt, and how far the map is from a normal one."""
        mean, spread = self.encoder(x).float().chunk(2, 1)
        z = mean + torch.randn_like(mean) * (0.5 * spread).exp()
        far = 0.5 * (mean.square() + spread.exp() - 1 - spread).mean()
        return self.decoder(z), far


@pair("large_download")
def variational_autoencoder(fixed: bool) -> Step:
    """What is rebuilt is kept for a preview in every step; fixed: in every hundredth."""
    model = Autoencoder(size(64, 4), 16).to(DEVICE, memory_format=LAST)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=CUDA)
    side = 128 if CUDA else 16
    images = torch.rand(size(64), 3, side, side, device=DEVICE).to(memory_format=LAST)
    previews: dict[str, np.ndarray] = {}
    turn = itertools.count()

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast(DEVICE, BF16):
            rebuilt, far = model(images)
            loss = functional.mse_loss(rebuilt.float(), images) + 1e-3 * far
        loss.backward()
        optimizer.step()
        if not fixed or next(turn) % 100 == 0:
            shown = rebuilt.detach().float().clamp(0, 1)
            previews["rebuilt"] = shown.cpu().numpy()  # <- variational_autoencoder
        return loss.detach()

    return step


# Clouds of points: the nearest by sorting all of them.


class EdgeConvolution(nn.Module):
    """Looks at each point and its nearest ones, as in DGCNN."""

    def __init__(self, a: int, b: int, count: int, fixed: bool) -> None:
        super().__init__()
        self.own, self.other = nn.Linear(a, b), nn.Linear(a, b, bias=False)
        self.norm, self.count, self.fixed = nn.LayerNorm(b), count, fixed

    def nearest(self, x: torch.Tensor) -> torch.Tensor:
        """Indices of the nearest points of the same cloud, (clouds, points, count)."""
        far = torch.cdist(x, x)
        if self.fixed:
            return far.topk(self.count, largest=False).indices
        return far.argsort(-1)[..., : self.count]  # <- point_clouds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """New features."""
        clouds, points, _ = x.shape
        near = self.nearest(x.detach())
        rows = near + points * torch.arange(clouds, device=x.device)[:, None, None]
        others = self.other(x).flatten(0, 1).index_select(0, rows.flatten())
        edges = self.own(x)[:, :, None] + others.view(clouds, points, self.count, -1)
        return functional.leaky_relu(self.norm(edges), 0.2).amax(2)


@pair("full_sort")
def point_clouds(fixed: bool) -> Step:
    """The twenty nearest points by ``argsort``; fixed: by ``topk``."""
    widths = (3, 64, 64, 128) if CUDA else (3, 4, 4, 8)
    count = 20 if CUDA else 4
    layers = [EdgeConvolution(a, b, count, fixed) for a, b in itertools.pairwise(widths)]
    model = nn.Sequential(*layers, nn.Linear(widths[-1], 512), nn.ReLU()).to(DEVICE)
    head = nn.Linear(512, 40).to(DEVICE)
    parameters = [*model.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.01, momentum=0.9)
    points = torch.randn(8, size(2048), 3, device=DEVICE)
    labels = torch.randint(0, 40, (8,), device=DEVICE)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(head(model(points).amax(1)), labels)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


# Proteins: every block is computed again for its gradients, though memory is plenty.


class PairBlock(nn.Module):
    """Each row of a map of pairs attends to itself, with a bias that the map gives."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.bias, self.gate = nn.Linear(width, heads, bias=False), nn.Linear(width, width)
        self.mlp = feed_forward(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One block; ``x`` is (residues, residues, width)."""
        y = self.norm(x)
        q, k, v = (split(one, self.heads) for one in self.qkv(y).chunk(3, -1))
        bias = self.bias(y).permute(2, 0, 1).contiguous()
        z = functional.scaled_dot_product_attention(
            q, k, v, attn_mask=bias.expand(len(x), -1, -1, -1)
        )
        x = x + self.out(z.transpose(1, 2).flatten(2) * self.gate(y).sigmoid())
        return x + self.mlp(x)


@pair("needless_checkpoints")
def protein_pairs(fixed: bool) -> Step:
    """Checkpoints around each block, as for much longer proteins; fixed: none."""
    residues, width = size(256, 8), size(128, 16)
    with torch.device(DEVICE):
        blocks = nn.ModuleList(PairBlock(width, 4) for _ in range(8 if CUDA else 2)).to(BF16)
        head = nn.Linear(width, 64, dtype=BF16)
        pairs = torch.randn(residues, residues, width, dtype=BF16)
        bins = torch.randint(0, 64, (residues * residues,))
    parameters = [*blocks.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-4, fused=CUDA)

    def step() -> torch.Tensor:
        x = pairs
        for block in blocks:
            x = block(x) if fixed else checkpoint(block, x, use_reentrant=False)  # <- protein_pairs
        loss = functional.cross_entropy(head(x).float().flatten(0, 1), bins)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


# Physics: a small network, differentiated twice in each of three coordinates.


@changes("launch_bound")
def wave_equation(change: str) -> Step:
    """A thousand small kernels, one after the other; fixed: the step as one CUDA graph."""
    width = size(128, 8)
    layers: list[nn.Module] = [nn.Linear(3, width), nn.Tanh()]
    for _ in range(5):
        layers += [nn.Linear(width, width), nn.Tanh()]
    model = nn.Sequential(*layers, nn.Linear(width, 1)).to(DEVICE)
    replayed = change == "launch_bound" and CUDA
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=replayed)
    inside = torch.rand(size(2048), 3, device=DEVICE, requires_grad=True)
    border = torch.rand(size(512), 3, device=DEVICE)
    begin = torch.rand(size(512), 3, device=DEVICE) * torch.tensor([1.0, 1.0, 0.0], device=DEVICE)
    shape = (math.pi * begin[:, :2]).sin().prod(-1, keepdim=True)

    def gradient(of: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(of.sum(), inside, create_graph=True)[0]  # <- wave_equation

    def train() -> torch.Tensor:
        optimizer.zero_grad()
        first = gradient(model(inside))  # <- wave_equation
        xx, yy, tt = (gradient(first[:, i])[:, i] for i in range(3))  # <- wave_equation
        loss = (tt - 0.25 * (xx + yy)).square().mean()
        loss = loss + (model(begin) - shape).square().mean()  # <- wave_equation
        loss = loss + model(border).square().mean()  # <- wave_equation
        loss.backward()  # <- wave_equation
        optimizer.step()  # <- wave_equation
        return loss.detach()

    return graphed(train) if replayed else train


# Quantization: rounding written out, operator by operator.


def rounded(x: torch.Tensor) -> torch.Tensor:
    """Values as of 8 bits; gradients pass."""
    scale = x.detach().abs().amax() / 127  # <- quantization_aware
    q = (x / scale).round().clamp(-127, 127) * scale  # <- quantization_aware
    return x + (q - x).detach()  # <- quantization_aware


def rounded_at_once(x: torch.Tensor) -> torch.Tensor:
    """The same by the operator that PyTorch has for it."""
    scale = torch.linalg.vector_norm(x.detach(), torch.inf) / 127
    zero = torch.zeros(1, device=x.device, dtype=torch.int32)
    return torch.fake_quantize_per_tensor_affine(x, scale, zero, -127, 127)


class QuantizedLinear(nn.Linear):
    """A layer that trains as it will run, with weights and inputs of 8 bits."""

    fixed = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The product of what is rounded."""
        quantize = rounded_at_once if self.fixed else rounded
        x, weight = quantize(x.float()), quantize(self.weight)  # <- quantization_aware
        return functional.linear(x, weight, self.bias)


@pair("elementwise_chain")
def quantization_aware(fixed: bool) -> Step:
    """Rounding to 8 bits in eight operators; fixed: in one."""
    width = size(2048)
    layers: list[nn.Module] = []
    for _ in range(8):
        layers += [QuantizedLinear(width, width, device=DEVICE), nn.ReLU(inplace=True)]
        layers[-2].fixed = fixed
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(size(8192), width, device=DEVICE)
    target = torch.randn(size(8192), width, device=DEVICE)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast(DEVICE, BF16):
            loss = functional.mse_loss(model(x).float(), target)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


# Recommendation: experts called one after the other.


def experts(count: int, width: int) -> nn.ModuleList:
    """Small networks that all see the same rows."""
    return nn.ModuleList(
        nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width))
        for _ in range(count)
    )


class Mixture(nn.Module):
    """What a gate makes of its experts, added to what comes in."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(width, count), experts(count, width)

    def answers(self, x: torch.Tensor) -> torch.Tensor:
        """Of all experts, (rows, experts, width)."""
        return torch.stack([expert(x) for expert in self.experts], 1)  # <- mixture_of_tasks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Weighted by the gate."""
        return x + (self.gate(x).softmax(-1)[:, None] @ self.answers(x))[:, 0]


class StackedMixture(Mixture):
    """The same with the experts' weights in one tensor for each of their layers."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__(count, width)
        each = [list(expert.parameters()) for expert in self.experts]
        first, bias, second, last = map(torch.stack, zip(*each, strict=True))
        self.weights = nn.ParameterList((first.detach().mT.clone(), second.detach().mT.clone()))
        self.biases = nn.ParameterList((bias.detach()[:, None], last.detach()[:, None]))
        del self.experts

    def answers(self, x: torch.Tensor) -> torch.Tensor:
        """Of all experts, by two products."""
        every = x.expand(len(self.weights[0]), -1, -1)
        hidden = torch.baddbmm(self.biases[0], every, self.weights[0]).relu()
        return torch.baddbmm(self.biases[1], hidden, self.weights[1]).transpose(0, 1)


@changes("products_in_a_row", "launch_bound")
def mixture_of_tasks(change: str) -> Step:
    """Two dozen experts in a Python loop, on three levels: batched products, or a CUDA graph."""
    width, count = size(256), 24 if CUDA else 4
    kind = StackedMixture if change == "products_in_a_row" else Mixture
    levels = nn.Sequential(*(kind(count, width) for _ in range(3))).to(DEVICE, BF16)
    heads = nn.Linear(width, 2).to(DEVICE, BF16)
    parameters = [*levels.parameters(), *heads.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=CUDA, capturable=CUDA)
    rows = torch.randn(size(4096), width, device=DEVICE, dtype=BF16)
    clicks = torch.randint(0, 2, (size(4096), 2), device=DEVICE).float()

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(heads(levels(rows)).float(), clicks)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return graphed(step) if change == "launch_bound" else step


# A GAN, whose loop over weights costs nothing where convolutions take the time.


class Upward(nn.Module):
    """Twice as large, with a residual block."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.enter = convolution(a, b)
        self.inner = nn.Sequential(convolution(b, b), convolution(b, b))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One level up."""
        x = self.enter(functional.interpolate(x, scale_factor=2.0))
        return x + self.inner(x)


@changes("launch_loop", "elementwise_chain")
def pictures_gan(change: str) -> Step:
    """Weights averaged in a loop: nothing to gain by ``foreach``. Or both networks compiled."""
    widths = (512, 512, 256, 256, 128) if CUDA else (8, 8, 4, 4, 4)
    up = [Upward(a, b) for a, b in itertools.pairwise(widths)]
    generator = nn.Sequential(*up, nn.Conv2d(widths[-1], 3, 3, 1, 1), nn.Tanh())
    down = [convolution(a, b, 2) for a, b in itertools.pairwise((3, *widths[::-1]))]
    critic = nn.Sequential(*down, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[0], 1))
    for one in (generator, critic):
        one.to(DEVICE, memory_format=LAST)
        if change == "elementwise_chain" and CUDA:
            one.compile()
    learns = {"lr": 2e-4, "betas": (0.5, 0.99), "fused": CUDA}
    of_generator = torch.optim.Adam(generator.parameters(), **learns)
    of_critic = torch.optim.Adam(critic.parameters(), **learns)
    count = size(256)
    images = torch.rand(count, 3, 64, 64, device=DEVICE).to(memory_format=LAST)
    now = [one.detach() for one in generator.parameters()]
    average = [one.clone() for one in now]

    def draw() -> torch.Tensor:
        noise = torch.randn(count, widths[0], 4, 4, device=DEVICE)
        return generator(noise.to(memory_format=LAST))

    def step() -> torch.Tensor:
        with torch.autocast(DEVICE, BF16):
            drawn = draw()
            real, false = critic(images).float(), critic(drawn.detach()).float()
            loss = (functional.softplus(-real) + functional.softplus(false)).mean()
        of_critic.zero_grad()
        loss.backward()
        of_critic.step()
        with torch.autocast(DEVICE, BF16):
            fooled = functional.softplus(-critic(drawn).float()).mean()
        of_generator.zero_grad()
        fooled.backward()
        of_generator.step()
        if change == "launch_loop":
            torch._foreach_lerp_(average, now, 0.001)
        else:
            for kept, new in zip(average, now, strict=True):
                kept.mul_(0.999).add_(new, alpha=0.001)  # <- pictures_gan
        return torch.stack([loss.detach(), average[0].mean()])

    return step


# Healthy programs: large kernels, fused where they can be.


@pair("none")
def distilled_student(fixed: bool) -> Step:
    """A wide teacher in 16 bits without gradients, a smaller student: nothing wrong with it."""
    width, inner, classes = size(8192), size(4096), size(1000)
    with torch.device(DEVICE):
        parts: list[nn.Module] = []
        for _ in range(8):
            parts += [nn.Linear(width, width, dtype=BF16), nn.ReLU(inplace=True)]
        teacher = nn.Sequential(*parts, nn.Linear(width, classes, dtype=BF16)).eval()
        student = nn.Sequential(
            nn.Linear(width, inner), nn.ReLU(inplace=True), nn.Linear(inner, inner),
            nn.ReLU(inplace=True), nn.Linear(inner, classes),
        ).to(BF16)  # fmt: skip
        x = torch.randn(size(8192), width, dtype=BF16)
    optimizer = torch.optim.SGD(student.parameters(), lr=0.01)

    def step() -> torch.Tensor:
        with torch.no_grad():
            known = functional.log_softmax(teacher(x).float() / 2, -1)
        guessed = functional.log_softmax(student(x).float() / 2, -1)
        loss = functional.kl_div(guessed, known, reduction="batchmean", log_target=True)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


class Residual(nn.Module):
    """Two convolutions, added to what comes in, as in EDSR."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(width, width, 3, 1, 1), nn.Conv2d(width, width, 3, 1, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One block."""
        return x + 0.1 * self.two(functional.relu(self.one(x)))


@pair("none")
def compiled_super_resolution(fixed: bool) -> Step:
    """Pictures twice as large by compiled blocks, channels last: nothing wrong with it."""
    width = size(256, 8)
    with torch.device(DEVICE):
        blocks = [Residual(width) for _ in range(16 if CUDA else 2)]
        model = nn.Sequential(
            nn.Conv2d(3, width, 3, 1, 1), *blocks, nn.Conv2d(width, 12, 3, 1, 1), nn.PixelShuffle(2)
        )
        model = model.to(BF16, memory_format=LAST).eval()
        frames = torch.rand(8, 3, size(192, 8), size(192, 8), dtype=BF16).to(memory_format=LAST)
    for block in blocks:
        block.compile()

    @torch.inference_mode()
    def step() -> torch.Tensor:
        with nvprobe.step():
            return model(frames)

    return step


if __name__ == "__main__":
    main(__doc__)
