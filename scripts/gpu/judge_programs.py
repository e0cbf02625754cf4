#!/usr/bin/env python3
"""Programs as people write them, with one cause and its fix: judges of rules that never saw them.

    python scripts/gpu/judge_programs.py NAME [--change KIND] [--steps 40]
    python scripts/gpu/judge_programs.py --measure [NAME ...]     a line of JSON for each pair

They were written before the rules were looked at, and are measured once the rules are frozen. Some
hold a habit that costs nothing here, and some nothing at all. ``scripts/gpu/pairs.py --programs
judge_programs`` runs them all.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import torch
from pair_runner import (
    BF16,
    CUDA,
    DEVICE,
    Step,
    changes,
    graphed,
    graphs,
    main,
    pair,
    size,
    wait,
)  # fmt: skip
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset

import nvprobe


def endless(loader: DataLoader[tuple[torch.Tensor, ...]]) -> Iterator[list[torch.Tensor]]:
    """Epoch after epoch."""
    while True:
        yield from loader


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend."""
        batch, length, width = x.shape
        q, k, v = (
            one.view(batch, length, self.heads, -1).transpose(1, 2)
            for one in self.qkv(x).chunk(3, -1)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Layer(nn.Module):
    """A transformer's layer."""

    def __init__(self, width: int, heads: int, causal: bool = True) -> None:
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, causal)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attend, then think."""
        x = x + self.attention(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    """A small GPT."""

    def __init__(self, vocabulary: int, width: int, depth: int, heads: int, length: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss."""
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class Pictures(Dataset[tuple[torch.Tensor, int]]):
    """Pictures, cropped and flipped in Python as they are read."""

    def __init__(self, count: int) -> None:
        self.pictures = np.random.default_rng(0).integers(0, 255, (256, 72, 72, 3), dtype=np.uint8)
        self.count = count
        self.random = np.random.default_rng(1)

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:  # <- picture_classifier
        picture = self.pictures[index % 256]
        top, left = self.random.integers(0, 8, 2)
        picture = picture[top : top + 64, left : left + 64]
        if self.random.random() < 0.5:
            picture = picture[:, ::-1]
        scaled = picture.astype(np.float32) / 255
        scaled = (scaled - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
        return torch.from_numpy(scaled.transpose(2, 0, 1).astype(np.float32)), index % 100


def small_cnn(classes: int) -> nn.Sequential:
    """A convolutional classifier."""
    widths = (3, 64, 128, 256)
    parts: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        parts += [nn.Conv2d(a, b, 3, 2, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, classes))


@pair("input_wait")
def picture_classifier(fixed: bool) -> Step:
    """Pictures read by the training process itself; fixed: by eight workers."""
    workers = {"num_workers": 8 if CUDA else 1, "persistent_workers": True, "prefetch_factor": 2}
    loader = DataLoader(
        Pictures(128 * 400),
        size(128),
        drop_last=True,
        pin_memory=CUDA,
        **(workers if fixed else {}),
    )
    model = small_cnn(100).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    batches = endless(loader)

    def step() -> None:
        images, labels = next(batches)  # <- picture_classifier
        images = images.to(DEVICE, non_blocking=True)
        labels = labels.to(DEVICE, non_blocking=True)
        optimizer.zero_grad()
        with torch.autocast(DEVICE, BF16):
            loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()

    return step


@changes("input_wait", "elementwise_chain")
def light_loader(change: str) -> Step:
    """No workers either, but the GPU has enough to do: nothing to gain. Or what trains compiled."""
    rows = TensorDataset(torch.randn(8192, size(1024)), torch.randint(0, 10, (8192,)))
    workers = {"num_workers": 4 if CUDA else 1, "persistent_workers": True}
    more = workers if change == "input_wait" else {}
    loader = DataLoader(rows, 256, shuffle=True, drop_last=True, pin_memory=CUDA, **more)
    width = size(8192)
    parts: list[nn.Module] = [nn.Linear(size(1024), width, device=DEVICE), nn.ReLU()]
    for _ in range(10):
        parts += [nn.Linear(width, width, device=DEVICE, dtype=BF16), nn.ReLU()]
    model = nn.Sequential(*parts, nn.Linear(width, 10)).to(DEVICE, BF16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = endless(loader)

    def noised_loss(features: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        noised = (features + 0.1 * torch.randn_like(features)).repeat(8, 1)
        return functional.cross_entropy(model(noised).float(), labels.repeat(8))

    compiles = change == "elementwise_chain" and CUDA
    loss = torch.compile(noised_loss) if compiles else noised_loss

    def step() -> None:
        features, labels = next(batches)  # <- light_loader
        features = features.to(DEVICE, BF16, non_blocking=True)
        labels = labels.to(DEVICE, non_blocking=True)
        optimizer.zero_grad()
        for _ in range(2):  # two views of each row, noised
            loss(features, labels).backward()
        optimizer.step()

    return step


@pair("unfused_attention")
def hugging_face_gpt2(fixed: bool) -> Step:
    """GPT-2 of transformers with eager attention; fixed: with sdpa."""
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=size(16384), n_positions=size(1024), n_layer=6, n_head=12 if CUDA else 2,
        n_embd=768 if CUDA else 32, use_cache=False,
        attn_implementation="sdpa" if fixed else "eager",
    )  # fmt: skip
    with torch.device(DEVICE):
        model = GPT2LMHeadModel(config).to(BF16).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA)
    ids = torch.randint(0, size(16384), (size(8), size(1024)), device=DEVICE)

    def step() -> None:
        loss = model(input_ids=ids, labels=ids).loss  # <- hugging_face_gpt2
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


class Denoiser(nn.Module):
    """Predicts noise from a picture and the time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(64, width), nn.SiLU(), nn.Linear(width, width))
        self.enter, self.leave = nn.Conv2d(4, width, 3, 1, 1), nn.Conv2d(width, 4, 3, 1, 1)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, width, 3, 1, 1))
            for _ in range(48 if CUDA else 2)
        )

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """The noise."""
        rates = torch.exp(torch.arange(32, device=x.device) * (-math.log(1e4) / 32))
        angles = t.to(x.dtype)[:, None] * rates.to(x.dtype)
        time = self.time(torch.cat((angles.sin(), angles.cos()), 1))[:, :, None, None]
        h = self.enter(x) + time
        for block in self.blocks:
            h = h + block(h)
        return self.leave(h)


@changes("implicit_sync", "elementwise_chain")
def diffusion_sampler(change: str) -> Step:
    """Sampling whose schedule lives on the GPU and is asked for: on the host, or compiled."""
    model = Denoiser(size(192, 16)).to(DEVICE, BF16).eval()
    if change == "elementwise_chain" and CUDA:
        model.compile()
    count = 1000
    betas = torch.linspace(1e-4, 0.02, count)
    alphas, bars = 1 - betas, torch.cumprod(1 - betas, 0)
    x = torch.randn(4, 4, size(64), size(64), device=DEVICE, dtype=BF16)
    on_gpu = [one.to(DEVICE) for one in (alphas, bars, betas)]
    on_host = [one.tolist() for one in (alphas, bars, betas)]
    times = torch.arange(count - 1, -1, -1, device=DEVICE)
    turn = itertools.count()

    @torch.no_grad()
    def as_it_is() -> None:
        with nvprobe.step():
            t = times[next(turn) % count]
            noise = model(x, t.expand(4))
            alpha, bar, beta = (one[t] for one in on_gpu)  # <- diffusion_sampler
            mean = (x - (1 - alpha) / (1 - bar).sqrt() * noise) / alpha.sqrt()
            if t > 0:  # <- diffusion_sampler
                mean = mean + beta.sqrt() * torch.randn_like(x)
            x.copy_(mean.clamp(-3, 3))

    @torch.no_grad()
    def with_the_schedule_on_the_host() -> None:
        with nvprobe.step():
            t = count - 1 - next(turn) % count
            noise = model(x, torch.full((4,), t, device=DEVICE))
            alpha, bar, beta = (one[t] for one in on_host)
            mean = (x - (1 - alpha) / math.sqrt(1 - bar) * noise) / math.sqrt(alpha)
            if t > 0:
                mean = mean + math.sqrt(beta) * torch.randn_like(x)
            x.copy_(mean.clamp(-3, 3))

    return with_the_schedule_on_the_host if change == "implicit_sync" else as_it_is


class Convolution(nn.Module):
    """Messages along edges, averaged at their ends."""

    def __init__(self, width: int, gathered: bool) -> None:
        super().__init__()
        self.message, self.own = nn.Linear(width, width), nn.Linear(width, width)
        self.gathered = gathered

    def forward(self, x: torch.Tensor, edges: torch.Tensor, degree: torch.Tensor) -> torch.Tensor:
        """New features of the nodes."""
        source, target = edges
        sent = self.message(x)
        sent = sent.index_select(0, source) if self.gathered else sent[source]  # <- graph_network
        summed = torch.zeros_like(x).index_add_(0, target, sent)
        return functional.relu(self.own(x) + summed / degree)


@pair("index_gradient")
def graph_network(fixed: bool) -> Step:
    """Features of the nodes at the begin of each edge by ``x[source]``; fixed: index_select."""
    nodes, edges, width = size(50_000), size(800_000), size(128)
    ends = torch.randint(0, nodes, (2, edges), device=DEVICE)
    degree = torch.bincount(ends[1], minlength=nodes).clamp(min=1)[:, None].float()
    layers = nn.ModuleList(Convolution(width, fixed) for _ in range(3)).to(DEVICE)
    head = nn.Linear(width, 16).to(DEVICE)
    optimizer = torch.optim.Adam([*layers.parameters(), *head.parameters()], lr=1e-3, fused=CUDA)
    features = torch.randn(nodes, width, device=DEVICE)
    labels = torch.randint(0, 16, (nodes,), device=DEVICE)

    def step() -> None:
        optimizer.zero_grad()
        x = features
        for layer in layers:
            x = layer(x, ends, degree)
        functional.cross_entropy(head(x), labels).backward()
        optimizer.step()

    return step


@changes("explicit_sync", "launch_bound")
def timed_lstm(change: str) -> Step:
    """Phases timed with synchronizations where the GPU is busy: without, or a graph for each."""
    width = size(1024)
    embedding = nn.Embedding(5000, width)
    lstm = nn.LSTM(width, width, 3, batch_first=True)
    model = nn.ModuleList((embedding, lstm, nn.Linear(width, 5000))).to(DEVICE, BF16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=CUDA, capturable=CUDA)
    ids = torch.randint(0, 5000, (256, size(129)), device=DEVICE)

    def now() -> None:
        if change != "explicit_sync":
            wait()  # <- timed_lstm

    def forward(_: None) -> torch.Tensor:
        optimizer.zero_grad()
        hidden, _ = lstm(embedding(ids[:, :-1]))
        logits = model[2](hidden).flatten(0, 1)
        return functional.cross_entropy(logits, ids[:, 1:].flatten())

    def backward(loss: torch.Tensor) -> None:
        loss.backward()

    def update(_: None) -> None:
        optimizer.step()

    if change == "launch_bound":
        forward, backward, update = graphs(forward, backward, update)

    def step() -> None:
        now()
        loss = forward(None)
        now()
        backward(loss)
        now()
        update(None)
        now()

    return step


class Cart:
    """A pole on a cart, as in Gym, one at a time."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        self.reset()

    def reset(self) -> np.ndarray:
        """A new episode."""
        self.state = self.random.uniform(-0.05, 0.05, 4)
        return self.state.astype(np.float32)

    def step(self, action: int) -> tuple[np.ndarray, float, bool]:  # <- actor_critic
        """Push, and see."""
        _, speed, angle, turning = self.state
        force = 10.0 if action else -10.0
        temp = (force + 0.05 * turning**2 * np.sin(angle)) / 1.1
        top = 9.8 * np.sin(angle) - np.cos(angle) * temp
        turned = top / (0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1))
        moved = temp - 0.05 * turned * np.cos(angle) / 1.1
        change = np.array([speed, moved, turning, turned])
        self.state = np.clip(self.state + 0.02 * change, -5, 5)
        done = bool(abs(self.state[0]) > 2.4 or abs(self.state[2]) > 0.21)
        return (self.reset() if done else self.state.astype(np.float32)), 1.0, done


class Carts:
    """Many carts at once, in arrays."""

    def __init__(self, count: int) -> None:
        self.state = np.random.default_rng(0).uniform(-0.05, 0.05, (count, 4))

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Push all of them."""
        _, speed, angle, turning = self.state.T
        force = np.where(actions > 0, 10.0, -10.0)
        temp = (force + 0.05 * turning**2 * np.sin(angle)) / 1.1
        top = 9.8 * np.sin(angle) - np.cos(angle) * temp
        turned = top / (0.5 * (4 / 3 - 0.1 * np.cos(angle) ** 2 / 1.1))
        moved = temp - 0.05 * turned * np.cos(angle) / 1.1
        self.state = np.clip(
            self.state + 0.02 * np.stack([speed, moved, turning, turned], 1), -5, 5
        )
        done = (np.abs(self.state[:, 0]) > 2.4) | (np.abs(self.state[:, 2]) > 0.21)
        self.state[done] = 0
        return self.state.astype(np.float32), np.ones(len(done), np.float32), done


@pair("host_work")
def actor_critic(fixed: bool) -> Step:
    """A rollout of environments in a Python loop, then an update; fixed: in one NumPy call."""
    count, length = 64, 8
    policy = nn.Sequential(nn.Linear(4, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh())
    model = nn.ModuleList((policy, nn.Linear(256, 2), nn.Linear(256, 1))).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-4, fused=CUDA)
    carts, many = [Cart(seed) for seed in range(count)], Carts(count)
    seen = [np.stack([cart.reset() for cart in carts])]

    def pushed(actions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if fixed:
            state, rewards, _ = many.step(actions)
            return state, rewards
        results = [c.step(a) for c, a in zip(carts, actions, strict=True)]  # <- actor_critic
        return np.stack([r[0] for r in results]), np.array([r[1] for r in results], np.float32)

    def step() -> None:
        states, taken, rewards = [], [], []
        for _ in range(length):
            state = torch.from_numpy(seen[0]).to(DEVICE)
            with torch.no_grad():
                action = torch.multinomial(model[1](policy(state)).softmax(-1), 1)[:, 0]
            seen[0], reward = pushed(action.cpu().numpy())
            states.append(state)
            taken.append(action)
            rewards.append(torch.from_numpy(reward))
        hidden = policy(torch.cat(states))
        returns = torch.stack(rewards).flip(0).cumsum(0).flip(0).flatten().to(DEVICE)
        values = model[2](hidden)[:, 0]
        chosen = functional.cross_entropy(model[1](hidden), torch.cat(taken), reduction="none")
        loss = (chosen * (returns - values.detach())).mean() + (returns - values).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


@pair("dense_embedding_gradient")
def recommender(fixed: bool) -> Step:
    """Item factors with dense gradients and Adam; fixed: sparse ones and SparseAdam."""
    items, width = size(4_000_000), 64
    kind = {"mode": "mean", "sparse": fixed, "device": DEVICE}
    table = nn.EmbeddingBag(items, width, **kind)  # <- recommender
    tower = nn.Sequential(nn.Linear(width, 512), nn.ReLU(), nn.Linear(512, width)).to(DEVICE)
    others = torch.optim.Adam(tower.parameters(), lr=1e-3)
    sparse = torch.optim.SparseAdam if fixed else torch.optim.Adam
    embedding = sparse(table.parameters(), lr=1e-3)
    history = torch.randint(0, items, (size(2048), 20), device=DEVICE)
    bought = torch.randint(0, items, (size(2048), 1), device=DEVICE)

    def step() -> None:
        users = tower(table(history))  # <- recommender
        scores = users @ table(bought).T
        loss = functional.cross_entropy(scores, torch.arange(len(users), device=DEVICE))
        others.zero_grad()
        embedding.zero_grad()
        loss.backward()  # <- recommender
        others.step()
        embedding.step()  # <- recommender

    return step


@pair("small_copies")
def tabular_columns(fixed: bool) -> Step:
    """Sixty columns of a table, each sent by itself; fixed: one matrix."""
    rows, columns = 4096, 60
    frame = {f"c{i}": np.random.default_rng(i).normal(size=rows) for i in range(columns)}
    net = nn.Sequential(nn.Linear(columns, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU())
    model = nn.Sequential(net, nn.Linear(512, 1)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    matrix = torch.empty(rows, columns, pin_memory=CUDA)

    def step() -> None:
        if fixed:
            for i, column in enumerate(frame.values()):
                matrix[:, i] = torch.from_numpy(column)
            features = matrix.to(DEVICE, non_blocking=True)
        else:
            sent = []
            for column in frame.values():
                sent.append(torch.tensor(column).float().to(DEVICE))  # <- tabular_columns
            features = torch.stack(sent, 1)
        loss = model(features).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


@changes("launch_bound")
def token_by_token(change: str) -> Step:
    """Decoding with a static cache, launched kernel by kernel; fixed: a CUDA graph."""
    depth, batch, heads, length = 24 if CUDA else 2, 8, size(16), size(512)
    width = size(1024, 64)
    with torch.device(DEVICE):
        layers = nn.ModuleList(Layer(width, heads) for _ in range(depth)).to(BF16).eval()
    embedding = nn.Embedding(8192, width).to(DEVICE, BF16)
    caches = torch.zeros(depth, 2, batch, heads, length, width // heads, device=DEVICE, dtype=BF16)
    token = torch.zeros(batch, dtype=torch.long, device=DEVICE)
    place = torch.zeros(1, dtype=torch.long, device=DEVICE)
    places = torch.arange(length, device=DEVICE)

    def attended(layer: Layer, x: torch.Tensor, cache: torch.Tensor) -> torch.Tensor:
        q, k, v = layer.attention.qkv(layer.ln1(x)).view(batch, 3, heads, 1, -1).unbind(1)
        cache[0].index_copy_(2, place, k)
        cache[1].index_copy_(2, place, v)
        y = functional.scaled_dot_product_attention(
            q, cache[0], cache[1], attn_mask=(places <= place).view(1, 1, 1, -1)
        )
        return layer.attention.out(y.reshape(batch, width))

    @torch.no_grad()
    def forward() -> None:
        x = embedding(token)
        for layer, cache in zip(layers, caches, strict=True):
            x = x + attended(layer, x, cache)
            x = x + layer.mlp(layer.ln2(x))
        token.copy_((x @ embedding.weight.T).argmax(-1))
        place.copy_((place + 1) % length)

    run = graphed(forward) if change == "launch_bound" else forward

    def step() -> None:
        with nvprobe.step():
            run()  # <- token_by_token

    return step


@pair("implicit_sync")
def running_loss(fixed: bool) -> Step:
    """The loss of each micro-batch read, where the GPU is far behind: nothing to gain."""
    with torch.device(DEVICE):
        model = GPT(size(8192), size(1024), 8, size(16), size(1024)).to(BF16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA)
    ids = torch.randint(0, size(8192), (2, 8 if CUDA else 2, size(1024) + 1), device=DEVICE)

    def step() -> None:
        total = torch.zeros((), device=DEVICE) if fixed else 0.0
        for batch in ids:
            loss = model(batch[:, :-1], batch[:, 1:]) / len(ids)
            loss.backward()
            total += loss.detach() if fixed else loss.item()  # <- running_loss
        optimizer.step()
        optimizer.zero_grad()

    return step


class UNet(nn.Module):
    """Down, up, and across."""

    def __init__(self, width: int) -> None:
        super().__init__()

        def block(a: int, b: int) -> nn.Sequential:
            convolutions = nn.Conv2d(a, b, 3, 1, 1), nn.Conv2d(b, b, 3, 1, 1)
            return nn.Sequential(
                convolutions[0], nn.BatchNorm2d(b), nn.ReLU(),
                convolutions[1], nn.BatchNorm2d(b), nn.ReLU(),
            )  # fmt: skip

        self.down = nn.ModuleList((block(3, width), block(width, 2 * width)))
        self.middle = block(2 * width, 4 * width)
        self.up = nn.ModuleList((block(6 * width, 2 * width), block(3 * width, width)))
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Two logits a pixel."""
        kept = []
        for one in self.down:
            x = one(x)
            kept.append(x)
            x = functional.max_pool2d(x, 2)
        x = self.middle(x)
        for one in self.up:
            x = functional.interpolate(x, scale_factor=2.0)
            x = one(torch.cat((x, kept.pop()), 1))
        return self.head(x)


@pair("layout_conversion")
def segmentation(fixed: bool) -> Step:
    """A U-Net in mixed precision, channels first; fixed: channels last."""
    form = torch.channels_last if fixed else torch.contiguous_format
    model = UNet(size(64, 8)).to(DEVICE).to(memory_format=form)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    images = torch.randn(8, 3, size(256), size(256), device=DEVICE)
    masks = torch.randint(0, 2, (8, size(256), size(256)), device=DEVICE)

    def step() -> None:
        with torch.autocast(DEVICE, BF16):
            logits = model(images.contiguous(memory_format=form))  # <- segmentation
            loss = functional.cross_entropy(logits, masks)
        optimizer.zero_grad()
        loss.backward()  # <- segmentation
        optimizer.step()

    return step


@changes("implicit_sync", "launch_bound")
def logged_losses(change: str) -> Step:
    """Six losses logged in every step: every hundredth, or graphs before and after the log."""
    width = size(1536)
    trunk = nn.Sequential(
        *(part for _ in range(6) for part in (nn.Linear(width, width), nn.ReLU()))
    )
    model = nn.ModuleList((trunk, *(nn.Linear(width, 10) for _ in range(6)))).to(DEVICE, BF16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(size(8192), width, device=DEVICE, dtype=BF16)
    labels = torch.randint(0, 10, (6, size(8192)), device=DEVICE)
    log: list[dict[str, float]] = []
    turn = itertools.count()

    def forward(_: None) -> dict[str, torch.Tensor]:
        optimizer.zero_grad()
        hidden = trunk(x)
        return {
            f"task{i}": functional.cross_entropy(head(hidden), labels[i])
            for i, head in enumerate(list(model)[1:])
        }

    def update(losses: dict[str, torch.Tensor]) -> None:
        torch.stack(list(losses.values())).sum().backward()
        optimizer.step()

    if change == "launch_bound":
        forward, update = graphs(forward, update)

    def step() -> None:
        losses = forward(None)
        if change != "implicit_sync" or next(turn) % 100 == 0:
            log.append({name: loss.item() for name, loss in losses.items()})  # <- logged_losses
        update(losses)

    return step


@pair("evaluation_in_step")
def validated(fixed: bool) -> Step:
    """Validation after every step, to keep the best weights; fixed: after every tenth."""
    model = small_cnn(10).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=CUDA)
    images = torch.randn(size(256), 3, 64, 64, device=DEVICE)
    labels = torch.randint(0, 10, (size(256),), device=DEVICE)
    others = [torch.randn(size(512), 3, 64, 64, device=DEVICE) for _ in range(6)]
    truth = torch.randint(0, 10, (size(512),), device=DEVICE)
    best, turn = [0.0], itertools.count(1)

    @torch.no_grad()
    def validate() -> float:
        model.eval()
        right = sum((model(batch).argmax(-1) == truth).sum() for batch in others)
        model.train()
        return float(right) / (len(others) * len(truth))

    def step() -> None:
        optimizer.zero_grad()
        functional.cross_entropy(model(images), labels).backward()
        optimizer.step()
        if not fixed or next(turn) % 10 == 0:
            best[0] = max(best[0], validate())  # <- validated

    return step


@pair("launch_loop")
def adaptive_clipping(fixed: bool) -> Step:
    """Gradients clipped by each parameter's own norm, one by one; fixed: by foreach."""
    model = nn.Sequential(*(Layer(size(384, 32), 6 if CUDA else 2) for _ in range(12)))
    model.to(DEVICE, BF16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x = torch.randn(size(64), size(196), size(384, 32), device=DEVICE, dtype=BF16)
    parameters = list(model.parameters())

    def one_by_one() -> None:
        for p in parameters:
            limit = 0.01 * p.detach().norm().clamp(min=1e-3)  # <- adaptive_clipping
            norm = p.grad.norm()  # <- adaptive_clipping
            p.grad.mul_((limit / norm.clamp(min=1e-6)).clamp(max=1))  # <- adaptive_clipping

    def all_at_once() -> None:
        gradients = [p.grad for p in parameters]
        limits = torch.stack(torch._foreach_norm([p.detach() for p in parameters])).clamp(min=1e-3)
        norms = torch.stack(torch._foreach_norm(gradients)).clamp(min=1e-6)
        torch._foreach_mul_(gradients, (0.01 * limits / norms).clamp(max=1).unbind())

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        (all_at_once if fixed else one_by_one)()
        optimizer.step()

    return step


class Checked(nn.Module):
    """A layer that looks for overflows."""

    def __init__(self, inner: nn.Module, checks: bool) -> None:
        super().__init__()
        self.inner, self.checks = inner, checks

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The layer, and a look at what it makes."""
        y = self.inner(x)
        if self.checks and y.abs().max() > 1e4:  # <- compiled_encoder
            y = y.clamp(-1e4, 1e4)
        return y


@changes("graph_break", "launch_bound")
def compiled_encoder(change: str) -> Step:
    """An encoder compiled for inference that looks at its values: not, or with CUDA graphs."""
    looks = change != "graph_break"
    layers = [Checked(Layer(size(512), 8 if CUDA else 2, False), looks) for _ in range(6)]
    model = nn.Sequential(*layers).to(DEVICE, BF16).eval()
    replayed = change == "launch_bound" and CUDA
    compiled = torch.compile(model, mode="reduce-overhead" if replayed else None)
    x = torch.randn(8, size(128), size(512), device=DEVICE, dtype=BF16)

    @torch.inference_mode()
    def step() -> None:
        with nvprobe.step():
            for _ in range(2):
                compiled(x)

    return step


@pair("none")
def compiled_layers(fixed: bool) -> Step:
    """A GPT compiled layer by layer, fed ahead from pinned memory: nothing wrong with it."""
    with torch.device(DEVICE):
        model = GPT(size(8192), size(2048), 4, size(16), size(1024)).to(BF16)
    for layer in model.layers:
        layer.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA)
    ids = torch.randint(0, size(8192), (8, size(1024) + 1))
    ids = ids.pin_memory() if CUDA else ids

    def step() -> None:
        batch = ids.to(DEVICE, non_blocking=True)
        model(batch[:, :-1], batch[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


@pair("mask_select")
def contrastive(fixed: bool) -> Step:
    """SimCLR's loss with Boolean masks, as widely copied; fixed: with additive masks."""
    model = small_cnn(128).to(DEVICE, memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, fused=CUDA)
    count = size(512)
    images = torch.randn(2 * count, 3, 64, 64, device=DEVICE)
    images = images.contiguous(memory_format=torch.channels_last)
    order = torch.cat([torch.arange(count, device=DEVICE)] * 2)
    diagonal = torch.eye(2 * count, dtype=torch.bool, device=DEVICE)
    partner = (torch.arange(2 * count, device=DEVICE) + count) % (2 * count)

    def copied(similarity: torch.Tensor) -> torch.Tensor:
        labels = (order[None] == order[:, None]).float()
        labels = labels[~diagonal].view(2 * count, -1)  # <- contrastive
        similarity = similarity[~diagonal].view(2 * count, -1)  # <- contrastive
        positives = similarity[labels.bool()].view(2 * count, -1)  # <- contrastive
        negatives = similarity[~labels.bool()].view(2 * count, -1)  # <- contrastive
        logits = torch.cat([positives, negatives], 1) / 0.07
        zeros = torch.zeros(2 * count, dtype=torch.long, device=DEVICE)
        return functional.cross_entropy(logits, zeros)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast(DEVICE, BF16):
            features = functional.normalize(model(images).float())
            similarity = features @ features.T
        if fixed:
            masked = similarity.masked_fill(diagonal, -torch.inf) / 0.07
            loss = functional.cross_entropy(masked, partner)
        else:
            loss = copied(similarity)
        loss.backward()
        optimizer.step()

    return step


@changes("fp64_gemm", "launch_bound")
def physics_in_double(change: str) -> Step:
    """A small network in FP64 where launches take the time: in FP32, or as a CUDA graph."""
    kind = torch.float32 if change == "fp64_gemm" else torch.float64
    parts: list[nn.Module] = [nn.Linear(2, 64), nn.Tanh()]
    for _ in range(4):
        parts += [nn.Linear(64, 64), nn.Tanh()]
    model = nn.Sequential(*parts, nn.Linear(64, 1)).to(DEVICE, kind)  # <- physics_in_double
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, capturable=CUDA)
    points = torch.rand(2000, 2, device=DEVICE, dtype=kind, requires_grad=True)

    def step() -> None:
        u = model(points)
        (first,) = torch.autograd.grad(u.sum(), points, create_graph=True)
        (second,) = torch.autograd.grad(first[:, 0].sum(), points, create_graph=True)
        loss = (first[:, 1] - 0.01 * second[:, 0]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return graphed(step) if change == "launch_bound" else step


@changes("weight_casts", "launch_bound")
def mixed_micro_batches(change: str) -> Step:
    """Six micro-batches, each with its autocast: one around them all, or a CUDA graph."""
    with torch.device(DEVICE):
        model = GPT(size(4096), size(1024), 6, size(16), size(256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=CUDA, capturable=CUDA)
    ids = torch.randint(0, size(4096), (6, 4, size(256) + 1), device=DEVICE)

    def each(batch: torch.Tensor) -> None:
        (model(batch[:, :-1], batch[:, 1:]) / len(ids)).backward()

    def step() -> None:
        if change == "weight_casts":
            with torch.autocast(DEVICE, BF16):
                for batch in ids:
                    each(batch)
        else:
            for batch in ids:
                with torch.autocast(DEVICE, BF16):  # <- mixed_micro_batches
                    each(batch)  # <- mixed_micro_batches
        optimizer.step()
        optimizer.zero_grad()

    return graphed(step) if change == "launch_bound" else step


if __name__ == "__main__":
    main(__doc__)
