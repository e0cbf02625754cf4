"""transformers ``generate``, eager or with a static cache and CUDA graphs (``--fixed``).

    generate_loop.py [--fixed] [--plain]

Four requests of 16 tokens each. ``--plain`` times a token of the last three, both ways, and prints
``{"step_ns": …, "fixed_step_ns": …}``.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

REQUESTS, TOKENS = 4, 16
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def model() -> Any:
    """A small model with a static cache to choose."""
    width, layers = (512, 4) if DEVICE == "cuda" else (64, 2)
    config = LlamaConfig(
        vocab_size=8000, hidden_size=width, intermediate_size=4 * width, num_hidden_layers=layers,
        num_attention_heads=8, max_position_embeddings=256,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(DEVICE, torch.bfloat16).eval()


def generate(net: Any, fixed: bool) -> int:
    """Generate for all requests; ns for a token of the last three."""
    options: dict[str, Any] = {
        "max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 0,
    }  # fmt: skip
    if fixed:  # generate compiles its decode step by itself where the cache is static
        options["cache_implementation"] = "static"
    x = torch.randint(1, 8000, (4, 64), device=DEVICE)
    begin = 0
    for request in range(REQUESTS):
        if request == 1:
            wait()
            begin = time.perf_counter_ns()
        net.generate(x, attention_mask=torch.ones_like(x), **options)
    wait()
    return (time.perf_counter_ns() - begin) // ((REQUESTS - 1) * TOKENS)


def wait() -> None:
    """Wait for the GPU."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def main() -> None:
    """Generate, and time it where asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--plain", action="store_true")
    given = parser.parse_args()
    with torch.inference_mode():
        if given.plain:
            times = {"step_ns": generate(model(), False), "fixed_step_ns": generate(model(), True)}
            print(json.dumps(times))
        else:
            generate(model(), given.fixed)


if __name__ == "__main__":
    main()
