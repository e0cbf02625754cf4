"""Which source files belong to a library that a program uses, rather than to the program."""

from __future__ import annotations

import sys
from pathlib import PurePosixPath

_LIBRARIES = frozenset(
    """
    accelerate apex composer datasets deepspeed diffusers fairscale fastai flash_attn ignite
    lightning lightning_fabric loguru megatron mmcv mmengine monai open_clip peft
    pytorch_lightning rich sentence_transformers tensorboardX timm torch torch_geometric
    torchaudio torchmetrics torchrec torchtune torchvision tqdm transformer_engine transformers
    triton trl ultralytics vllm wandb xformers
    """.split()  # noqa: SIM905 - forty lines otherwise
)
"""Packages that programs install. A sidecar names their files from the package on."""


def library_of(source: str) -> str | None:
    """The package that a line belongs to (``transformers/trainer.py:12``), None for the user's own.

    A package that is not known here, and not Python's own, counts as the user's.
    """
    parts = PurePosixPath(source).parts
    if len(parts) < 2:
        return None
    known = parts[0] in _LIBRARIES or parts[0] in sys.stdlib_module_names
    return parts[0] if known else None
