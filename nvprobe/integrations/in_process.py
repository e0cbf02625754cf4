"""Record a block of this process with torch.profiler, and analyze it on the spot."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nvprobe.api import Results
    from nvprobe.instrumentation.emitter import Backend


class Recording:
    """What a block of `record` did; complete after the block."""

    def __init__(self) -> None:
        self.gpu = False
        """Whether this process can use a GPU."""
        self._results: Results | None = None

    @property
    def results(self) -> Results:
        """The analysis. Raises RuntimeError inside the block."""
        if self._results is None:
            raise RuntimeError("the analysis is there after the recorded block")
        return self._results

    @property
    def graph_breaks(self) -> int:
        """Places at which torch.compile ended a graph while it compiled in the block."""
        breaks = self.results.analysis.attribution.trace.sidecar.breaks
        return len({(one.source, one.reason) for one in breaks})

    @property
    def recompilations(self) -> int:
        """Compilations in the block of what had been compiled before."""
        return len(self.results.analysis.attribution.trace.sidecar.recompiles)

    @property
    def operators(self) -> int:
        """PyTorch operators that the program called itself, not one another."""
        operators = self.results.document.operators or ()
        outermost = (
            one for one in operators if "aten::" not in (one.path or "").rpartition("/")[0]
        )
        return sum(one.calls for one in outermost if one.name.startswith("aten::"))

    @property
    def launches(self) -> int:
        """Kernels, copies and sets on the GPU."""
        return self.results.document.ledger.ops

    @property
    def syncs(self) -> int:
        """Calls in which the host waited for the GPU."""
        return sum(one.count for one in self.results.document.syncs or ())

    @property
    def gpu_ms(self) -> float:
        """Time in which the GPU was busy; of several, of the busiest."""
        return max((one.busy_ns for one in self.results.document.devices), default=0) / 1e6


@contextlib.contextmanager
def record() -> Iterator[Recording]:
    """Record what runs inside, with ranges for modules and phases.

    Raises RuntimeError where another torch.profiler is running. An exception of the block passes
    through, and nothing is analyzed then.
    """
    import torch

    from nvprobe.instrumentation import awake

    recording = Recording()
    recording.gpu = torch.cuda.is_available()
    if torch.autograd._profiler_enabled():
        raise RuntimeError("another profiler is running: nvprobe cannot record beside it")
    with tempfile.TemporaryDirectory(prefix="nvprobe-") as folder:
        with (
            instrumented(folder, "record_function"),
            _profiler(torch, recording.gpu) as profiler,
        ):
            awake.wake()
            yield recording
            if recording.gpu:
                torch.cuda.synchronize()
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        recording._results = _analyze(trace)


@contextlib.contextmanager
def instrumented(folder: str | os.PathLike[str], backend: Backend | None) -> Iterator[None]:
    """Instrument the program, asleep, with a sidecar in ``folder``; then it is as it was before.

    ``backend`` is where ranges go, None for where they go already.
    """
    from nvprobe.instrumentation import awake, emitter, instrument, sidecar

    before, ours = emitter.backend(), emitter.silent() or not instrument.is_on()
    try:
        if ours:  # no tool listens to what the program has
            instrument.remove()
        emitter.use(backend or before)
        sidecar.open(folder)
        awake.sleep()
        instrument.instrument(children=False)
        yield
    finally:
        awake.sleep()
        sidecar.close()
        if ours:
            instrument.remove()
        emitter.use(before)


def _profiler(torch: Any, gpu: bool) -> Any:
    kinds = torch.profiler.ProfilerActivity
    return torch.profiler.profile(activities=[kinds.CPU, *([kinds.CUDA] if gpu else [])])


def _analyze(trace: Path) -> Results:
    from nvprobe.api import analyze

    results = analyze(trace, *sorted(trace.parent.glob("sidecar.*")))
    _ = results.document  # the files are gone after this
    return results
