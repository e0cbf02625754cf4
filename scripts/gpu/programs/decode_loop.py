"""Inference loops with one planted cause each, and the same without it (``--fixed``).

    decode_loop.py PLANT [--fixed] [--steps 120] [--plain]

``read_back``: a token read to the host in each step; ``prefill``: prompts read between decode
steps, whole instead of in chunks (its times are the 95th percentile: what a token waits);
``beyond``: batches beyond the captured CUDA graphs; ``host``: Python work between the steps;
``denoise``: a denoising loop whose scheduler reads a value;
``compiled``: a compiled decode function as gpt-fast has it, without CUDA graphs, and no marks.
``--plain`` times both loops without any profiler, in turns, and prints
``{"step_ns": median, "fixed_step_ns": median}``.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32
WIDTH, LAYERS, VOCABULARY = (1024, 12, 16000) if DEVICE == "cuda" else (64, 2, 500)
"""Small where it is only tried."""
CONTEXT = 512
PROMPT, CHUNK = 480, 48


class Block(nn.Module):
    """A transformer layer with a static KV cache."""

    def __init__(self, batch: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        shape = (batch, 16, CONTEXT, WIDTH // 16)
        self.register_buffer("keys", torch.zeros(shape), persistent=False)
        self.register_buffer("values", torch.zeros(shape), persistent=False)

    def forward(self, x: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        """Attend to the cache, of which the tokens of ``x`` fill the rows ``place``."""
        batch, length, _ = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(batch, length, 3, 16, -1).permute(2, 0, 3, 1, 4)
        self.keys[:batch, :, place], self.values[:batch, :, place] = k, v
        seen = torch.arange(CONTEXT, device=x.device) <= place[:, None]
        attended = nn.functional.scaled_dot_product_attention(
            q, self.keys[:batch], self.values[:batch], attn_mask=seen
        )
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.mlp(self.norms[1](x))


class Decoder(nn.Module):
    """A small decoder-only model."""

    def __init__(self, batch: int, layers: int = LAYERS) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(batch) for _ in range(layers))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        """The next token of each request."""
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, place)
        return self.head(x[:, -1]).argmax(-1, keepdim=True)


class Replayed:
    """A forward pass per shape of tokens (requests, length) as a CUDA graph."""

    def __init__(self, model: Decoder, shapes: list[tuple[int, int]]) -> None:
        self.model, self.graphs = model, {}
        for shape in shapes if DEVICE == "cuda" else []:
            tokens = torch.zeros(shape, dtype=torch.long, device=DEVICE)
            place = torch.zeros(shape[1], dtype=torch.long, device=DEVICE)
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                for _ in range(2):
                    model(tokens, place)
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                out = model(tokens, place)
            self.graphs[shape] = graph, tokens, place, out

    def __call__(self, tokens: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        """Replay the graph of this shape, or run the model where there is none."""
        found = self.graphs.get(tuple(tokens.shape))
        if found is None:
            return self.model(tokens, place)
        graph, own_tokens, own_place, out = found
        own_tokens.copy_(tokens)
        own_place.copy_(place)
        graph.replay()
        return out


def busy(ns: int) -> None:
    """Python runs for a while, as a detokenizer or a scheduler does."""
    until = time.perf_counter_ns() + ns
    while time.perf_counter_ns() < until:
        pass


def decode(plant: str, fixed: bool) -> Callable[[int], None]:
    """One turn of a decode loop with the plant, or without it."""
    batch = 16 if plant == "beyond" else 8
    model = Decoder(batch).to(DEVICE, DTYPE).eval()
    shapes = [(8, 1)]
    if plant == "beyond" and fixed:
        shapes.append((16, 1))
    if plant == "prefill":
        shapes.append((8, CHUNK if fixed else PROMPT))
    step = Replayed(model, shapes)
    tokens = torch.zeros(batch, 1, dtype=torch.long, device=DEVICE)
    prompt = torch.zeros(8, PROMPT, dtype=torch.long, device=DEVICE)
    places = torch.arange(CONTEXT, device=DEVICE)

    def turn(number: int) -> None:
        nonlocal tokens
        place = places[number % 400 : number % 400 + 1]
        size = batch if plant != "beyond" or number % 2 else 8
        if plant == "prefill" and not fixed and number % 10 == 5:
            step(prompt, places[:PROMPT])
        elif plant == "prefill" and fixed:  # the same prompts in pieces, one a step
            part = number % 10 * CHUNK
            step(prompt[:, part : part + CHUNK], places[part : part + CHUNK])
        made = step(tokens[:size], place)
        tokens[:size] = made
        if plant == "read_back" and not fixed and int(made[0]) < 0:
            raise AssertionError
        if plant == "host" and not fixed:
            busy(2_000_000)

    return turn


def compiled(fixed: bool) -> Callable[[int], None]:
    """One turn of a loop around a compiled function that decodes one token."""
    model = Decoder(8, layers=min(4, LAYERS)).to(DEVICE, DTYPE).eval()
    tokens = torch.zeros(8, 1, dtype=torch.long, device=DEVICE)
    places = torch.arange(CONTEXT, device=DEVICE)

    def decode_one_token(tokens: torch.Tensor, place: torch.Tensor) -> torch.Tensor:
        return model(tokens, place)

    mode = "reduce-overhead" if fixed and DEVICE == "cuda" else "default"
    decode_one = torch.compile(decode_one_token, mode=mode, fullgraph=True)

    def turn(number: int) -> None:
        nonlocal tokens
        tokens = decode_one(tokens, places[number % 400 : number % 400 + 1].clone()).clone()

    return turn


def denoise(fixed: bool) -> Callable[[int], None]:
    """One step of a denoising loop on images."""
    width = 256 if DEVICE == "cuda" else 8
    layers = [nn.Conv2d(width, width, 3, padding=1) for _ in range(16)]
    net = nn.Sequential(
        nn.Conv2d(4, width, 3, padding=1), *layers, nn.Conv2d(width, 4, 3, padding=1)
    )
    net = net.to(DEVICE, DTYPE).eval()
    latents = torch.randn(4, 4, 64, 64, device=DEVICE, dtype=DTYPE)
    sigmas = torch.linspace(1, 0.01, 50, device=DEVICE, dtype=DTYPE)

    def turn(number: int) -> None:
        nonlocal latents
        noise = net(latents)
        sigma = sigmas[number % 50]
        if not fixed and sigma.item() < 0:  # as schedulers that look up their time step
            raise AssertionError
        busy(400_000)  # callbacks and progress bars: the GPU goes on meanwhile, unless awaited
        latents = latents - 0.01 * sigma * noise

    return turn


PLANTS = ("read_back", "prefill", "beyond", "host", "denoise", "compiled")


def loop(plant: str, fixed: bool) -> Callable[[int], None]:
    """One turn of a loop with the plant, or without it."""
    if plant == "compiled":
        return compiled(fixed)
    return denoise(fixed) if plant == "denoise" else decode(plant, fixed)


def main() -> None:
    """Run the loop, marking steps as engines name theirs where requests are batched."""
    parser = argparse.ArgumentParser()
    parser.add_argument("plant", choices=PLANTS)
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--steps", type=int, default=120)
    given = parser.parse_args()
    torch.manual_seed(0)
    without = torch.no_grad if given.plant == "compiled" else torch.inference_mode  # as gpt-fast
    with without():
        if given.plain:
            turns = [loop(given.plant, fixed) for fixed in (False, True)]
            times = waits(turns) if given.plant == "prefill" else timed(turns, given.steps)
            print(json.dumps(dict(zip(("step_ns", "fixed_step_ns"), times, strict=True))))
        elif given.plant == "compiled":
            turn = loop(given.plant, given.fixed)
            for number in range(given.steps):
                turn(number)
        else:
            profiled(loop(given.plant, given.fixed), given)


def timed(turns: list[Callable[[int], None]], steps: int) -> list[int]:
    """Mean step of blocks of ten, the GPU awaited at their ends; the median of these."""
    blocks: list[list[int]] = [[] for _ in turns]
    for block in range(steps // 10):
        for turn, times in zip(turns, blocks, strict=True):
            begin = time.perf_counter_ns()
            for number in range(block * 10, block * 10 + 10):
                turn(number)
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            times.append((time.perf_counter_ns() - begin) // 10)
    return [int(statistics.median(times[2:])) for times in blocks]


def waits(turns: list[Callable[[int], None]]) -> list[int]:
    """The 95th percentile of 100 steps, the GPU awaited after each."""
    found = []
    for turn in turns:
        times = []
        for number in range(120):
            begin = time.perf_counter_ns()
            turn(number)
            if DEVICE == "cuda":
                torch.cuda.synchronize()
            times.append(time.perf_counter_ns() - begin)
        found.append(statistics.quantiles(times[20:], n=20)[18])
    return [int(one) for one in found]


def profiled(turn: Callable[[int], None], given: argparse.Namespace) -> None:
    """The loop with a range per iteration, named as vLLM names its own, inside nvprobe's step."""
    import nvprobe

    for number in range(given.steps):
        with nvprobe.step():
            if given.plant == "denoise":
                with nvprobe.range("denoise"):
                    turn(number)
                continue
            prefill = planned(given, number)
            batch = 16 if given.plant == "beyond" and number % 2 else 8
            with nvprobe.range(
                f"execute_context_{int(prefill > 0)}({prefill})_generation_{batch}({batch})"
            ):
                turn(number)


def planned(given: argparse.Namespace, number: int) -> int:
    """Prompt tokens of an iteration."""
    if given.plant != "prefill":
        return 0
    if given.fixed:
        return 8 * CHUNK
    return 8 * PROMPT if number % 10 == 5 else 0


if __name__ == "__main__":
    main()
