#!/usr/bin/env python3
"""Small training loops with one planted cause each, and its fix: what savings are held against.

    python scripts/gpu/pair_programs.py NAME [--change KIND] [--steps 40]
    python scripts/gpu/pair_programs.py --measure [NAME ...]      a line of JSON for each pair

A function makes the step as it is, or fixed. ``NAME_hidden`` puts so much other work of the GPU
into each step that the fix is not worth making. ``scripts/gpu/pairs.py`` runs them all.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable

import torch
from pair_runner import BF16, CUDA, DEVICE, SCALE, Step, changes, graphed, graphs, main, pair
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import nvprobe


def counted(step: Step) -> Step:
    """Without an optimizer, by which nvprobe finds steps, a program says where they begin."""

    def one() -> None:
        with nvprobe.step():
            step()

    return one


class Block(nn.Module):
    """Norm, two products and an activation, added to what comes in."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One block."""
        return x + self.down(functional.gelu(self.up(self.norm(x))))


def blocks(count: int = 6, width: int = 768, **kind: object) -> nn.Module:
    layers = [Block(width // SCALE) for _ in range(max(count // SCALE, 1))]
    return nn.Sequential(*layers).to(DEVICE, **({"dtype": BF16} | kind))


def batch(rows: int = 4096, width: int = 768, dtype: torch.dtype = BF16) -> torch.Tensor:
    return torch.randn(rows // SCALE, width // SCALE, device=DEVICE, dtype=dtype)


def training(
    model: nn.Module, loss: Callable[[], torch.Tensor], after: Step | None = None, **options: object
) -> Step:
    """A step: loss, gradients, a fused optimizer, and what comes after."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **({"fused": True} | options))

    def step() -> None:
        loss().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if after is not None:
            after()

    return step


def simple(after: Step | None = None, rows: int = 4096, **options: object) -> Step:
    model, x = blocks(), batch(rows)
    return training(model, lambda: model(x).square().mean(), after, **options)


@pair("launch_loop")
def single_tensor_optimizer(fixed: bool) -> Step:
    return simple(fused=False, foreach=fixed)


@pair("launch_loop")
def average_of_weights(fixed: bool) -> Step:
    model, x = blocks(24), batch()
    live = [one.detach() for one in model.parameters()]
    slow = [one.clone() for one in live]

    def update() -> None:
        if fixed:
            torch._foreach_lerp_(slow, live, 0.001)
        else:
            for kept, now in zip(slow, live, strict=True):
                kept.mul_(0.999).add_(now * 0.001)

    return training(model, lambda: model(x).square().mean(), update)


@pair("repeated_module")
def recurrent_cell(fixed: bool) -> Step:
    width, turns = 512 // SCALE, 64 // SCALE
    x = torch.randn(turns, 64, width, device=DEVICE)
    model = nn.GRU(width, width).to(DEVICE) if fixed else nn.GRUCell(width, width).to(DEVICE)

    def loss() -> torch.Tensor:
        if fixed:
            return model(x)[0].square().mean()
        hidden = torch.zeros(64, width, device=DEVICE)
        outputs = []
        for row in x:
            hidden = model(row, hidden)
            outputs.append(hidden)
        return torch.stack(outputs).square().mean()

    return training(model, loss)


@pair("products_in_a_row")
def experts_one_by_one(fixed: bool) -> Step:
    experts, width = 64 // SCALE, 256
    weights = nn.Parameter(torch.randn(experts, width, width, device=DEVICE, dtype=BF16) / 16)
    x = torch.randn(experts, 64, width, device=DEVICE, dtype=BF16)
    model = nn.ParameterList([weights])

    def loss() -> torch.Tensor:
        if fixed:
            return torch.bmm(x, weights).square().mean()
        parts = [one @ weight for one, weight in zip(x, weights.unbind(), strict=True)]
        return torch.stack(parts).square().mean()

    return training(model, loss)


@pair("anomaly_mode")
def detect_anomaly(fixed: bool) -> Step:
    step = simple()

    def checked() -> None:
        with contextlib.nullcontext() if fixed else torch.autograd.detect_anomaly():
            step()

    return checked


@pair("optimizer_reads")
def step_counts_on_the_gpu(fixed: bool) -> Step:
    model, x = blocks(), batch()
    moved: list[bool] = []
    options = {"fused": True} if fixed else {"fused": False, "foreach": False}
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **options)

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if not fixed and not moved:
            for state in optimizer.state.values():
                state["step"] = state["step"].to(DEVICE)
            moved.append(True)

    return step


@pair("optimizer_casts")
def master_weights_one_by_one(fixed: bool) -> Step:
    model, x = blocks(24), batch()
    weights = [one.detach() for one in model.parameters()]
    masters = [one.float().requires_grad_() for one in weights]
    optimizer = torch.optim.AdamW(masters, lr=1e-4, fused=True)

    def update() -> None:
        gradients = [one.grad for one in model.parameters()]
        for master in masters:
            master.grad = torch.empty_like(master) if master.grad is None else master.grad
        targets = [master.grad for master in masters]
        if fixed:
            torch._foreach_copy_(targets, gradients)
        else:
            for target, gradient in zip(targets, gradients, strict=True):
                target.copy_(gradient)
        optimizer.step()
        with torch.no_grad():
            if fixed:
                torch._foreach_copy_(weights, masters)
            else:
                for weight, master in zip(weights, masters, strict=True):
                    weight.copy_(master)

    def step() -> None:
        model(x).square().mean().backward()
        with torch.cuda.nvtx.range("optimizer") if DEVICE == "cuda" else contextlib.nullcontext():
            update()
        model.zero_grad(set_to_none=True)

    return step


class Masked(nn.Module):
    """Adds a mask that it makes on the host in each call, or keeps on the GPU."""

    def __init__(self, fixed: bool, rows: int, width: int) -> None:
        super().__init__()
        self.body, self.fixed, self.shape = blocks(2), fixed, (rows, width)
        self.register_buffer("kept", torch.triu(torch.ones(rows, width)).to(DEVICE, BF16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The body of ``x`` and the mask."""
        mask = self.kept if self.fixed else torch.triu(torch.ones(self.shape)).to(x.device, x.dtype)
        return self.body(x + mask)


@pair("weight_casts")
def casts_in_each_micro_batch(fixed: bool) -> Step:
    """Eight small micro-batches; the fix casts the weights once for all of them."""
    model, x = blocks(12, 1536, dtype=torch.float32), batch(512, 1536, torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    cast = functools.partial(torch.autocast, DEVICE, dtype=BF16)

    def step() -> None:
        with cast() if fixed else contextlib.nullcontext():  # its end forgets the casts
            for _ in range(8):
                with cast():
                    loss = model(x).square().mean()
                with cast(enabled=False):
                    (loss / 8).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


@changes("host_tensors", "launch_bound")
def mask_made_on_the_host(change: str) -> Step:
    """A mask that is kept on the GPU, or all that follows its upload as a CUDA graph."""
    x = batch(2048)
    model = Masked(change == "host_tensors", *x.shape).to(DEVICE)
    if change != "launch_bound":
        return training(model, lambda: model(x).square().mean(), capturable=CUDA)
    mask = model.kept.clone()
    rest = graphed(training(model, lambda: model.body(x + mask).square().mean(), capturable=CUDA))

    def step() -> None:
        mask.copy_(torch.triu(torch.ones(model.shape)))
        rest()

    return step


@pair("large_download")
def outputs_on_the_host(fixed: bool) -> Step:
    model, x = blocks(), batch()
    kept: list[torch.Tensor] = []

    def loss() -> torch.Tensor:
        out = model(x)
        kept[:] = [out.detach().float().mean() if fixed else out.detach().float().cpu().mean()]
        return out.square().mean()

    return training(model, loss)


@pair("evaluation_in_step")
def evaluation_each_step(fixed: bool) -> Step:
    model, x = blocks(), batch()
    count = [0]

    def evaluate() -> None:
        count[0] += 1
        if fixed and count[0] % 20:
            return
        marked = torch.cuda.nvtx.range("evaluate") if DEVICE == "cuda" else contextlib.nullcontext()
        with marked, torch.no_grad():
            model(x).square().mean()

    return training(model, lambda: model(x).square().mean(), evaluate)


@pair("needless_checkpoints")
def checkpoints_of_a_small_model(fixed: bool) -> Step:
    model, x = blocks(), batch()

    def loss() -> torch.Tensor:
        out = x.detach().requires_grad_()
        for block in model:
            out = block(out) if fixed else checkpoint(block, out, use_reentrant=False)
        return out.square().mean()

    return training(model, loss)


@pair("tuning_in_steps")
def benchmark_of_new_shapes(fixed: bool) -> Step:
    model = nn.Sequential(*[nn.Conv2d(32, 32, 3, padding=1) for _ in range(4)]).to(DEVICE)
    sizes = iter(range(1_000_000))

    def loss() -> torch.Tensor:
        torch.backends.cudnn.benchmark = not fixed
        side = 16 + next(sizes) % (1 if DEVICE == "cpu" else 400)
        return model(torch.randn(4, 32, side, side, device=DEVICE)).square().mean()

    return training(model, loss)


@pair("unfused_compiled")
def compiled_by_the_eager_backend(fixed: bool) -> Step:
    model, x = blocks(), batch()

    def more(y: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            y = torch.sigmoid(y) * y + y.tanh()
        return model(y).square().mean()

    backend = "inductor" if fixed and DEVICE == "cuda" else "aot_eager"
    function = torch.compile(more, backend=backend)
    return training(model, lambda: function(x))


@pair("dense_embedding_gradient")
def large_table(fixed: bool) -> Step:
    table = nn.Embedding(400_000 // SCALE, 256, sparse=fixed).to(DEVICE)
    ids = torch.randint(0, 400_000 // SCALE, (32, 256), device=DEVICE)
    kind = torch.optim.SparseAdam if fixed else torch.optim.Adam
    optimizer = kind(list(table.parameters()), lr=1e-4)

    def step() -> None:
        table(ids).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


@pair("index_gradient")
def rows_by_index(fixed: bool) -> Step:
    model, table = blocks(2), nn.Parameter(batch(65536))
    ids = torch.randint(0, len(table), (65536 // SCALE,), device=DEVICE)
    both = nn.ModuleList([model, nn.ParameterList([table])])

    def loss() -> torch.Tensor:
        rows = table.index_select(0, ids) if fixed else table[ids]
        return model(rows[: 4096 // SCALE]).square().mean() + rows.square().mean()

    return training(both, loss)


@changes("zeroed_gradients", "launch_bound")
def zeros_in_gradients(change: str) -> Step:
    model, x = blocks(24), batch(512)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, capturable=CUDA)

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=change == "zeroed_gradients")

    return graphed(step) if change == "launch_bound" else step


@pair("strided_copy")
def permuted_and_contiguous(fixed: bool) -> Step:
    heads = 12
    model = blocks(2)
    x = torch.randn(16, 768 // SCALE * heads, 768 // SCALE, device=DEVICE, dtype=BF16)

    def loss() -> torch.Tensor:
        y = x
        for _ in range(8):
            y = y * 1.01 if fixed else y.transpose(1, 2).contiguous().transpose(1, 2).contiguous()
        return model(y[:, : 512 // SCALE]).square().mean()

    return training(model, loss)


@pair("concatenation")
def growing_cache(fixed: bool) -> Step:
    width, turns = 1024 // SCALE, 32
    parts = [torch.randn(64, 64, width, device=DEVICE, dtype=BF16) for _ in range(turns)]
    cache = torch.empty(64, 64 * turns, width, device=DEVICE, dtype=BF16)

    def step() -> None:
        grown = parts[0]
        for turn, part in enumerate(parts):
            if fixed:
                cache[:, 64 * turn : 64 * (turn + 1)] = part
                seen = cache[:, : 64 * (turn + 1)]
            else:
                grown = part if turn == 0 else torch.cat((grown, part), 1)
                seen = grown
            seen[:, -64:].sum()

    return counted(step)


@pair("repeated_tensor")
def repeated_keys(fixed: bool) -> Step:
    keys = torch.randn(16, 1, 2048 // SCALE, 128, device=DEVICE, dtype=BF16)
    queries = torch.randn(16, 16, 2048 // SCALE, 128, device=DEVICE, dtype=BF16)

    def step() -> None:
        for _ in range(8):
            k = keys.expand(-1, 16, -1, -1) if fixed else keys.repeat(1, 16, 1, 1)
            (queries * k).sum()

    return counted(step)


@pair("large_softmax_loss")
def large_vocabulary(fixed: bool) -> Step:
    head = nn.Linear(768 // SCALE, 50_304 // SCALE).to(DEVICE, BF16)
    x, target = batch(8192), torch.randint(0, 50_304 // SCALE, (8192 // SCALE,), device=DEVICE)

    def plain() -> torch.Tensor:
        return functional.cross_entropy(head(x).float(), target)

    loss = torch.compile(plain) if fixed and DEVICE == "cuda" else plain
    return training(head, loss)


@pair("unaligned_products")
def odd_vocabulary(fixed: bool) -> Step:
    count = 50_257 // SCALE
    head = nn.Linear(1024 // SCALE, count + (47 if fixed else 0)).to(
        DEVICE, BF16
    )  # <- odd_vocabulary
    x, target = batch(8192, 1024), torch.randint(0, count, (8192 // SCALE,), device=DEVICE)
    return training(head, lambda: functional.cross_entropy(head(x), target))


def attention(fixed: bool, dtype: torch.dtype, masked: bool) -> Step:
    model = nn.Linear(64, 64).to(DEVICE, dtype)
    rows = 1024 // SCALE
    x = torch.randn(8, 12, rows, 64, device=DEVICE, dtype=dtype)
    mask = torch.ones(rows, rows, device=DEVICE, dtype=torch.bool).tril()

    def loss() -> torch.Tensor:
        q = model(x)
        for _ in range(6):
            if masked and not fixed:
                q = functional.scaled_dot_product_attention(q, x, x, attn_mask=mask)
            else:
                small = q.to(BF16) if fixed else q
                k = x.to(small)
                q = functional.scaled_dot_product_attention(small, k, k, is_causal=True)
        return q.float().square().mean()

    return training(model, loss)


@pair("slow_attention")
def causal_mask(fixed: bool) -> Step:
    return attention(fixed, BF16, masked=True)


@pair("fp32_attention")
def attention_in_fp32(fixed: bool) -> Step:
    return attention(fixed, torch.float32, masked=False)


@pair("full_sort")
def sorted_for_the_largest(fixed: bool) -> Step:
    scores = torch.randn(512, 65536 // SCALE, device=DEVICE)

    def step() -> None:
        if fixed:
            scores.topk(8, dim=-1)
        else:
            scores.sort(dim=-1, descending=True)

    return counted(step)


@pair("grouped_convolution")
def depthwise(fixed: bool) -> Step:
    layout = torch.channels_last if fixed else torch.contiguous_format
    layers = [nn.Conv2d(256, 256, 7, padding=3, groups=256) for _ in range(6)]
    model = nn.Sequential(*layers).to(DEVICE, BF16, memory_format=layout)
    x = torch.randn(32 // SCALE, 256, 56, 56, device=DEVICE, dtype=BF16)
    x = x.contiguous(memory_format=layout)
    return training(model, lambda: model(x).square().mean())


@pair("pinned_allocation")
def pinned_each_step(fixed: bool) -> Step:
    model, rows = blocks(2), torch.randn(4096 // SCALE, 768 // SCALE)
    pinned = torch.empty_like(rows, pin_memory=DEVICE == "cuda")
    kept: list[torch.Tensor] = []

    def loss() -> torch.Tensor:
        if fixed or DEVICE == "cpu":
            pinned.copy_(rows)
            source = pinned
        else:
            more = 8 * (len(kept) % 1000)
            source = torch.cat((rows, rows[:more])).pin_memory()
            kept.append(source)  # another size each time, and none is freed
        return model(source.to(DEVICE, BF16, non_blocking=True)).square().mean()

    return training(model, loss)


@changes("implicit_sync", "launch_bound")
def loss_read_each_step(change: str) -> Step:
    """A loss that stays on the GPU, or graphs before and after it is read."""
    model, x = blocks(), batch(512)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True, capturable=CUDA)
    kept: list[object] = []

    def forward(_: None) -> torch.Tensor:
        return model(x).square().mean()

    def update(loss: torch.Tensor) -> None:
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    if change == "launch_bound":
        forward, update = graphs(forward, update)

    def step() -> None:
        loss = forward(None)
        kept[:] = [loss.detach() if change == "implicit_sync" else loss.item()]
        update(loss)

    return step


@pair("unfused_attention")
def attention_by_hand(fixed: bool) -> Step:
    model = nn.Linear(64, 64).to(DEVICE, BF16)
    x = torch.randn(8, 12, 1024 // SCALE, 64, device=DEVICE, dtype=BF16)

    def loss() -> torch.Tensor:
        q = model(x)
        for _ in range(4):
            if fixed:
                q = functional.scaled_dot_product_attention(q, x, x)
            else:
                q = (q @ x.transpose(-1, -2) / 8).softmax(-1) @ x
        return q.float().square().mean()

    return training(model, loss)


@pair("launch_bound")
def many_small_layers(fixed: bool) -> Step:
    layers = [nn.Linear(128, 128) for _ in range(100 // SCALE)]
    model, x = nn.Sequential(*layers).to(DEVICE), torch.randn(64, 128, device=DEVICE)
    captured = fixed and DEVICE == "cuda"
    forward = torch.cuda.make_graphed_callables(model, (x,)) if captured else model
    return training(model, lambda: forward(x).square().mean())


@pair("none")
def healthy(fixed: bool) -> Step:
    return simple(rows=16384)


if __name__ == "__main__":
    main(__doc__)
