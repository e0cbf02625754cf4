"""Training under torch.compile with CUDA graphs."""

import torch
from net import batches, timed, trainer, transformer

timed(batches(), trainer(torch.compile(transformer(), mode="reduce-overhead")))
