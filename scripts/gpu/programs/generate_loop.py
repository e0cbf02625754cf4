"""transformers ``generate``, eager or with a static cache and CUDA graphs (``--fixed``).

    generate_loop.py [--fixed] [--plain]

Four requests of 40 tokens each; ``--plain`` prints ``{"step_ns": …}``, a token of the last three.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

REQUESTS, TOKENS = 4, 40


def model(fixed: bool) -> torch.nn.Module:
    """A small model; a static cache is for models that have one (Llama)."""
    if fixed:
        config = LlamaConfig(
            vocab_size=8000, hidden_size=768, intermediate_size=3072, num_hidden_layers=12,
            num_attention_heads=12, max_position_embeddings=512,
        )  # fmt: skip
        return LlamaForCausalLM(config)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=8000, n_positions=512, n_embd=768, n_layer=12, n_head=12)
    )


def main() -> None:
    """Generate, and time it where asked for."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fixed", action="store_true")
    parser.add_argument("--plain", action="store_true")
    given = parser.parse_args()
    net = model(given.fixed).to("cuda", torch.bfloat16).eval()
    options = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False}
    if given.fixed:
        options["cache_implementation"] = "static"
        net.forward = torch.compile(net.forward, mode="reduce-overhead", fullgraph=True)
    x = torch.randint(0, 8000, (4, 64), device="cuda")
    begin = 0
    with torch.inference_mode():
        for request in range(REQUESTS):
            if request == 1:
                torch.cuda.synchronize()
                begin = time.perf_counter_ns()
            net.generate(x, attention_mask=torch.ones_like(x), pad_token_id=0, **options)
        torch.cuda.synchronize()
    if given.plain:
        spent = time.perf_counter_ns() - begin
        print(json.dumps({"step_ns": spent // ((REQUESTS - 1) * TOKENS)}))


if __name__ == "__main__":
    main()
