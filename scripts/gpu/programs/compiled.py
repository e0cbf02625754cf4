"""Training under torch.compile."""

import torch
from net import batches, timed, trainer, transformer

timed(batches(), trainer(torch.compile(transformer())))
