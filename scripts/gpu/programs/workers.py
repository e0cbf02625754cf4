"""Eager training fed by DataLoader workers, from pinned memory."""

import torch
from net import BATCH, DEVICE, LENGTH, MEASURED, WARMUP, WIDTH, timed, trainer, transformer
from torch.utils.data import DataLoader, Dataset


class Made(Dataset):
    """Samples made when asked for."""

    def __len__(self) -> int:
        return BATCH * (WARMUP + MEASURED)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.randn(LENGTH, WIDTH), index % 10


if __name__ == "__main__":
    loader = DataLoader(Made(), batch_size=BATCH, num_workers=4, pin_memory=DEVICE == "cuda")
    timed(loader, trainer(transformer()))
