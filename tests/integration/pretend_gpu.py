"""Run examples on a CPU along the lines they take on a GPU: ``python pretend_gpu.py SCRIPT …``.

What has no meaning on a CPU gets a stand-in: the device (compares equal to ``cuda`` and is the CPU
to torch), streams and their events (torch's own Python methods over nothing), pinned memory, the
profiler's window. Sizes and types stay those of the CPU. Lines are the program's; times mean
nothing.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import torch

from nvprobe.instrumentation.instrument import instrument


class Device(str):
    """``cpu`` for torch, ``cuda`` for who asks."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return other == "cuda"

    def __ne__(self, other: object) -> bool:
        return other != "cuda"

    __hash__ = str.__hash__


class Stream(torch.cuda.Stream):  # type: ignore[misc]
    """A stream that orders nothing; number 0 is the default one."""

    made = 0

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        return object.__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.number, Stream.made = Stream.made, Stream.made + 1

    @property
    def cuda_stream(self) -> int:
        return self.number

    def wait_event(self, event: Any) -> None:
        """Nothing to wait for."""

    def record_event(self, event: Any = None) -> None:
        """Nothing to record."""


def prepare(folder: Path) -> None:
    """Put the stand-ins where the examples look for them."""
    default = Stream()
    torch.cuda.Stream = Stream
    torch.cuda.current_stream = lambda device=None: default
    torch.cuda.profiler.start = torch.cuda.profiler.stop = lambda: None
    torch.Tensor.pin_memory = lambda self, device=None: self
    sys.path.insert(0, str(folder))
    import common

    chosen = common.options

    def options(*args: Any, **kwargs: Any) -> Any:
        made = chosen(*args, **kwargs)
        return made._replace(device=Device("cpu"))

    common.options = options
    common.Options.size = lambda self, large, small: small
    common.Options.dtype = torch.float32
    common.Options.backend = "eager"


if __name__ == "__main__":
    instrument()
    scripts = sys.argv[1:]
    prepare(Path(scripts[0]).resolve().parent)
    for script in scripts:
        sys.argv = [script, "--steps", "3"]
        runpy.run_path(script, run_name="__main__")
