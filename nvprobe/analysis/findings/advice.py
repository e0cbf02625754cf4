"""Advice that fits the program: what cannot work is left out, and a trainer has arguments for it.

A rule's own advice is for a plain loop. Here it is exchanged, by the finding's id, where the
capture shows something that it does not hold for: sharding, collectives, gradient accumulation,
what is compiled already, and loops that belong to Hugging Face's Trainer or to Lightning.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from itertools import zip_longest

import numpy as np

from nvprobe.analysis.code_places import FROM, MADE_APART
from nvprobe.analysis.findings.model import Evidence, Finding
from nvprobe.analysis.findings.program import GENERATION, HUGGING_FACE, LIGHTNING, Program, program
from nvprobe.analysis.libraries import library_of
from nvprobe.attribution.kinds import compiled_graphs

_Advice = tuple[str, ...]
_TO_COMPILE = re.compile(r"torch\.compile [a-z]")
"""Words that say what compiling does; its options, such as modes, stay worth a try."""
_NON_BLOCKING = (
    'TrainingArguments(dataloader_pin_memory=True, accelerator_config={"non_blocking": True})'
)
_LOG_LESS = (
    "Trainer(log_every_n_steps=…, enable_progress_bar=False): log less often, and no values of "
    "tensors in the progress bar"
)


def fitting(evidence: Evidence, found: Sequence[Finding]) -> list[Finding]:
    """The findings with advice for this program."""
    found = [_of_compiled(evidence, one) for one in found]
    if not any(one.id in _FOR_ALL or one.id in _TRAINERS for one in found):
        return found
    known = program(evidence)
    return [dataclasses.replace(one, advice=advice_for(one, known)) for one in found]


def _of_compiled(evidence: Evidence, finding: Finding) -> Finding:
    """Without advice to compile where most of its ops are of compiled graphs, replayed or not."""
    others = tuple(line for line in finding.advice if not _TO_COMPILE.search(line))
    if finding.ops is None or others in ((), finding.advice):
        return finding
    paths, owner = evidence.attribution.paths, evidence.attribution.owner[finding.ops]
    compiled = np.append(paths.nearest(compiled_graphs(paths)) >= 0, False)[owner]
    mostly = 2 * np.count_nonzero(compiled) > len(owner)
    return dataclasses.replace(finding, advice=others) if mostly else finding


def advice_for(finding: Finding, known: Program) -> _Advice:
    """What to try; arguments of a trainer first, where the code is a library's."""
    advice = _FOR_ALL.get(finding.id, _as_it_is)(finding, known)
    of_trainer = _TRAINERS.get(finding.id, {}).get(known.trainer or "", ())
    if finding.id == "launch_bound" and known.trainer == GENERATION and known.replays:
        of_trainer = _REPLAYED_GENERATION
    lines = zip_longest(finding.sources, finding.roles)
    theirs = finding.id == "input_wait" or all(
        library_of(line) for line, role in lines if role != FROM
    )
    return of_trainer if of_trainer and theirs else advice


def _as_it_is(finding: Finding, known: Program) -> _Advice:
    return finding.advice


def _launches(finding: Finding, known: Program) -> _Advice:
    """Fewer, cheaper launches: a CUDA graph only where nothing is in its way."""
    graph = "capture the step in a CUDA graph (torch.cuda.CUDAGraph, make_graphed_callables)"
    larger = "fewer, larger micro-batches" if known.accumulates else "larger batches"
    if known.trains:
        larger += "; foreach or fused optimizers"
    return (_compiling(known), *([graph] if known.graphs else []), larger)


def _fusing(finding: Finding, known: Program) -> _Advice:
    """Optimizers only where something trains."""
    if known.trains:
        return finding.advice
    return (finding.advice[0], "fused versions of norms and activations")


def _compiling(known: Program) -> str:
    if known.sharding:
        if known.compiled:
            return "compile more of the step, such as torch.compile(optimizer.step)"
        return f"torch.compile of each block before {known.sharding}: fewer kernels"
    if not known.graphs or known.accumulates:
        why = (
            'not mode="reduce-overhead": a later micro-batch may overwrite gradients that an '
            "earlier one left in the graph's memory"
            if known.accumulates
            else "collectives stay outside of its CUDA graphs"
        )
        if known.compiled:
            return f"compile more of the step, such as torch.compile(optimizer.step) ({why})"
        return f"torch.compile: fewer kernels ({why})"
    if known.compiled and known.replays:
        return (
            "compile more of the step: kernels outside of its CUDA graphs are launched one by one"
        )
    if known.compiled:
        return (
            'mode="reduce-overhead" for what is compiled already replays it as a CUDA graph: clone '
            "what is kept of its outputs, as the next run overwrites them"
        )
    return 'torch.compile(mode="reduce-overhead"): fewer kernels, replayed as a CUDA graph'


def _communication(finding: Finding, known: Program) -> _Advice:
    """The knobs of what launches the collectives."""
    other_ranks = finding.advice[1]
    if known.sharding == "fully_shard":
        return (
            "prefetch: set_modules_to_forward_prefetch and set_modules_to_backward_prefetch of the "
            "sharded modules",
            other_ranks,
            "shard larger groups of layers; reshard_after_forward=False where memory allows",
        )
    if known.sharding:
        return (
            "FullyShardedDataParallel(forward_prefetch=True, backward_prefetch=BACKWARD_PRE)",
            other_ranks,
            "wrap larger groups of layers; ShardingStrategy.SHARD_GRAD_OP where memory allows",
        )
    if known.replicated and _reduces(finding):
        skipped = (
            "model.no_sync() around the forward and backward of all micro-batches but the last"
        )
        return (
            *([skipped] if known.accumulates else []),
            "DistributedDataParallel(bucket_cap_mb=…): smaller buckets start earlier, larger ones "
            "are fewer",
            "DistributedDataParallel(gradient_as_bucket_view=True) copies no gradients",
            other_ranks,
        )
    return finding.advice


def _reduces(finding: Finding) -> bool:
    """Whether most of the communication is of gradients' kind: not that of sharded embeddings."""
    total, reduced = (finding.evidence.get(key) for key in ("communication_ns", "reduction_ns"))
    return 2 * float(reduced or 0) >= float(total or 0)


def _reads(finding: Finding, known: Program) -> _Advice:
    """A trainer's own reads; of what the user's code reads, the rule's advice."""
    for start, advice in _READS.items():
        if finding.sources and finding.sources[0].startswith(start):
            return (advice,)
    return finding.advice


_READS = {
    "transformers/trainer": "TrainingArguments(logging_nan_inf_filter=False) reads no loss in "
    "every step; larger logging_steps read it seldom",
    "accelerate/utils/operations": _NON_BLOCKING,
    "tqdm/": "set_postfix and write format what they are given at once, whatever mininterval says: "
    "give them values of tensors every hundredth step",
    **dict.fromkeys(
        ("logging/", "loguru/", "wandb/", "tensorboardX/", "rich/"),
        "log values of tensors every hundredth step, or those of the step before: what is logged "
        "is read at once",
    ),
    "pytorch_lightning/trainer/connectors/logger": _LOG_LESS,
    "lightning/pytorch/trainer/connectors/logger": _LOG_LESS,
}
"""By how the line begins that waits."""
_REPLAYED_GENERATION = (
    "a decode loop of your own around the compiled model: generate launches masks, logits and "
    "stopping criteria one by one around its CUDA graph",
    "larger batches: as many launches for more tokens",
)
"""Decoding with a static cache, which transformers compiles itself."""


def _input(finding: Finding, known: Program) -> _Advice:
    """Workers that are there and do not keep up."""
    if MADE_APART not in finding.roles:
        return finding.advice
    return (
        "more workers (DataLoader(num_workers=…, prefetch_factor=…)), or less work for each: those "
        "that are there do not keep up",
        "pin_memory=True with non_blocking copies; decode or augment on the GPU",
    )


_FOR_ALL: dict[str, Callable[[Finding, Program], _Advice]] = {
    "implicit_sync": _reads,
    "input_wait": _input,
    "launch_bound": _launches,
    "elementwise_chain": _fusing,
    "exposed_communication": _communication,
}
_TRAINERS: dict[str, dict[str, _Advice]] = {
    "launch_bound": {
        GENERATION: (
            'generate(cache_implementation="static"): a cache of fixed size, with which generate '
            "compiles the decode step and replays it as a CUDA graph",
            "larger batches",
        ),
        HUGGING_FACE: (
            "TrainingArguments(torch_compile=True): fewer kernels",
            'TrainingArguments(per_device_train_batch_size=…): larger batches; optim="adamw_torch_'
            'fused"',
        ),
        LIGHTNING: (
            "torch.compile(model) before Trainer.fit: fewer kernels",
            "larger batches in the DataLoader; fused=True for the optimizer of "
            "configure_optimizers",
        ),
    },
    "elementwise_chain": {
        HUGGING_FACE: (
            "TrainingArguments(torch_compile=True): Inductor fuses them into one kernel per chain",
            'TrainingArguments(optim="adamw_torch_fused") where they are the optimizer\'s',
        ),
        LIGHTNING: (
            "torch.compile(model) before Trainer.fit: Inductor fuses them, one kernel per chain",
            "fused=True for the optimizer of configure_optimizers, where they are the optimizer's",
        ),
    },
    "input_wait": {
        HUGGING_FACE: (
            "TrainingArguments(dataloader_num_workers=…, dataloader_persistent_workers=True, "
            "dataloader_prefetch_factor=…): prepare batches in worker processes",
        ),
    },
    "pageable_copy": {
        HUGGING_FACE: (_NON_BLOCKING,),
        LIGHTNING: (
            "DataLoader(pin_memory=True): Lightning copies with non_blocking=True by itself",
        ),
    },
    "fp32_gemm": {
        HUGGING_FACE: ("TrainingArguments(tf32=True), or bf16=True",),
        LIGHTNING: (
            'torch.set_float32_matmul_precision("high") before Trainer.fit: TF32',
            'Trainer(precision="bf16-mixed")',
        ),
    },
    "weight_casts": {
        HUGGING_FACE: (
            "TrainingArguments: a larger per_device_train_batch_size with fewer "
            "gradient_accumulation_steps casts them less often",
        ),
        LIGHTNING: (
            "larger batches with a smaller Trainer(accumulate_grad_batches=…) cast them less often",
            'Trainer(precision="bf16-true"): weights in bfloat16',
        ),
    },
    "allocator": {
        HUGGING_FACE: (
            "TrainingArguments(torch_empty_cache_steps=None): no empty_cache() in the loop",
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True where memory is fragmented (newer "
            "torch: PYTORCH_ALLOC_CONF)",
        ),
    },
}
"""Arguments for loops that are a library's; by finding and trainer."""
