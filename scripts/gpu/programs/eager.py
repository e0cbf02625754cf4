"""Eager training."""

from net import batches, timed, trainer, transformer

timed(batches(), trainer(transformer()))
