"""The program that ``nvprobe doctor --measure`` runs with and without a profiler: hot loops.

    python -m nvprobe.launch.loops RESULT [--torch-profiler]

Each loop does one thing again and again; what it takes longer under a profiler is what recording
that thing costs. Writes ``{loop: ns an iteration}`` as JSON into the file RESULT. Loops whose name
begins with ``instrumented`` run last, after `nvprobe.instrument`.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from nvprobe.instrumentation import emitter
from nvprobe.instrumentation.instrument import instrument

REPEATS, ITERATIONS = 9, 1_000
MODULES = 50
GRAPH_NODES, GRAPH_REPLAYS = 1_000, 5


def main(words: list[str]) -> None:
    """Measure all loops and write the result."""
    import torch

    recorded = _torch_profiler(torch) if "--torch-profiler" in words else contextlib.nullcontext()
    with recorded:
        result = measure(torch)
    Path(words[0]).write_text(json.dumps(result), "utf-8")


@contextlib.contextmanager
def _torch_profiler(torch: Any) -> Iterator[None]:
    """Record as the torch backend does; what was recorded is dropped."""
    kinds = torch.profiler.ProfilerActivity
    activities = [kinds.CPU, *([kinds.CUDA] if torch.cuda.is_available() else [])]
    with torch.profiler.profile(activities=activities, record_shapes=True):
        yield


def measure(torch: Any) -> dict[str, float]:
    """Median nanoseconds of an iteration of each loop; those on the GPU only where there is one."""
    cuda = torch.cuda.is_available()
    on_host, one = torch.zeros(1), torch.ones(1)
    label = emitter.label("range", emitter.Category.USER)
    loops: dict[str, Callable[[], object]] = {
        "operator": lambda: on_host.add_(one),  # of a number: five operators
        "range": lambda: (emitter.push(label), emitter.pop()),
    }
    if cuda:
        on_gpu = torch.zeros(1, device="cuda")
        loops["call"] = torch.cuda.is_current_stream_capturing
        loops["launch"] = lambda: on_gpu.add_(1)
        loops["item"] = on_gpu.item
    found = {name: _nanoseconds(torch, loop) for name, loop in loops.items()}
    found["module"] = _nanoseconds(torch, _modules(torch), MODULES)
    if cuda:
        found["graph_node"] = _nanoseconds(torch, _graph(torch), GRAPH_NODES, GRAPH_REPLAYS)
    instrument(children=False)
    found["instrumented_module"] = _nanoseconds(torch, _modules(torch), MODULES)
    if cuda:
        found["instrumented_item"] = _nanoseconds(torch, loops["item"])
    return found


def _modules(torch: Any) -> Callable[[], object]:
    model = torch.nn.Sequential(*(torch.nn.Identity() for _ in range(MODULES)))
    given = torch.zeros(1)
    return lambda: model(given)


def _graph(torch: Any) -> Callable[[], object]:
    """The replay of a CUDA graph of small kernels, each of which waits for the one before."""
    on_gpu = torch.zeros(1, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(GRAPH_NODES):
            on_gpu.add_(1)
    replay: Callable[[], object] = graph.replay
    return replay


def _nanoseconds(
    torch: Any, loop: Callable[[], object], things: int = 1, iterations: int | None = None
) -> float:
    """Median over repeats of the time of one of the ``things`` that an iteration does.

    From one idle GPU to the next: a loop that the GPU paces is measured on the GPU.
    """
    count = iterations or ITERATIONS // things
    wait = torch.cuda.synchronize if torch.cuda.is_available() else emitter.nothing
    times = []
    for _ in range(REPEATS + 1):  # the first one warms up
        wait()
        begin = time.perf_counter_ns()
        for _ in range(count):
            loop()
        wait()
        times.append((time.perf_counter_ns() - begin) / (count * things))
    return statistics.median(times[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
