"""A small real capture: eager training of a 3-block transformer on one H200, nsys 2025.3."""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import resources
from pathlib import Path

__all__ = ["NAME", "unpacked"]

NAME = "h200_eager.sqlite"


@contextmanager
def unpacked() -> Iterator[Path]:
    """The capture as a file, for as long as the context lasts."""
    packed = resources.files(__package__).joinpath(f"{NAME}.gz").read_bytes()
    with tempfile.TemporaryDirectory(prefix="nvprobe-demo-") as folder:
        path = Path(folder) / NAME
        path.write_bytes(gzip.decompress(packed))
        yield path
