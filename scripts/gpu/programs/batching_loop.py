"""Continuous batching of transformers: prompts of many lengths, read in pieces, decoded together.

    batching_loop.py [--asynchronous]

``--asynchronous``: one batch is prepared while another runs, and decoding replays CUDA graphs.
Prints ``{"prompt_tokens": …, "requests": …, "generated": …}``.
"""

from __future__ import annotations

import argparse
import inspect
import json
from typing import Any

import torch
from generate_loop import model
from transformers.generation import ContinuousBatchingConfig, GenerationConfig

REQUESTS, TOKENS = 24, 48


def options(asynchronous: bool) -> Any:
    """What this version of transformers has of the options."""
    wanted = {
        "page_size": 16, "num_blocks": 512, "max_batch_tokens": 128, "allow_block_sharing": False,
        "use_async_batching": asynchronous, "use_cuda_graph": asynchronous,
        "auto_switch_to_flash": False,
    }  # fmt: skip
    known = inspect.signature(ContinuousBatchingConfig).parameters
    return ContinuousBatchingConfig(**{key: wanted[key] for key in wanted if key in known})


def main() -> None:
    """Generate for all requests."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--asynchronous", action="store_true")
    given = parser.parse_args()
    net = model()
    net.set_attn_implementation("sdpa")
    prompts = [[7 + one] * (8 + 5 * one) for one in range(REQUESTS)]
    config = GenerationConfig(max_new_tokens=TOKENS, eos_token_id=-1, do_sample=False)
    with torch.no_grad():  # the loop's own thread could not write to inference tensors
        made = net.generate_batch(
            inputs=prompts, generation_config=config, progress_bar=False,
            continuous_batching_config=options(given.asynchronous),
        )  # fmt: skip
    found = {
        "prompt_tokens": sum(map(len, prompts)),
        "requests": len(made),
        "generated": sum(len(one.generated_tokens) for one in made.values()),
    }
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
