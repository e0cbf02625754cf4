"""torch without a GPU whose CUDA bindings do nothing: for programs that capture and replay graphs.

What is replaced is what the C++ of a CUDA build defines, before ``torch.cuda`` is imported.
Everything above it is torch's own, and so is the order of its calls: ``torch.cuda.graph``,
``CUDAGraph``, ``Stream``, ``stream``, ``synchronize``, lazy initialization. There is one device on
which nothing can be put: tensors are on the CPU, work is done at once, and a replay does none.
Optimizers are told that nothing is being captured, as theirs are parameters on the CPU.

To be imported before torch, for its effect; `calls` lists what CUDA would have been told.
"""

from __future__ import annotations

import sys
import types
from typing import Any

__all__ = ["calls"]

calls: list[str] = []
_current = [0]
"""Stack of one: the id of the current stream."""
_ids = iter(range(1, 1000))


def _told(name: str, answer: Any = None) -> Any:
    def binding(*_args: Any, **_keywords: Any) -> Any:
        calls.append(name)
        return answer

    return binding


class _Graph:
    """``torch._C._CUDAGraph``."""

    def __new__(cls, keep_graph: bool = False) -> _Graph:
        return object.__new__(cls)

    def __init__(self, keep_graph: bool = False) -> None:
        self.captured = False

    def capture_begin(self, pool: Any = None, capture_error_mode: str = "global") -> None:
        assert _current[-1] != 0, "CUDA captures no work of the default stream"
        calls.append("capture_begin")

    def capture_end(self) -> None:
        self.captured = True
        calls.append("capture_end")

    def replay(self) -> None:
        assert self.captured
        calls.append("replay")

    def pool(self) -> tuple[int, int]:
        return (0, 1)


class _Stream:
    """``torch._C._CudaStreamBase``."""

    def __new__(cls, priority: int = 0, stream_id: int | None = None, **_keywords: Any) -> _Stream:
        made = object.__new__(cls)
        made.stream_id = next(_ids) if stream_id is None else stream_id  # type: ignore[attr-defined]
        return made

    def __init__(self, *_arguments: Any, **_keywords: Any) -> None:
        self.device, self.device_index, self.device_type = "cuda:0", 0, 1

    synchronize = _told("stream_synchronize")


class _Event:
    """``torch._C._CudaEventBase``."""

    def __new__(cls, *_arguments: Any, **_keywords: Any) -> _Event:
        return object.__new__(cls)

    def __init__(self, *_arguments: Any, **_keywords: Any) -> None:
        pass

    record = _told("event_record")
    wait = _told("event_wait")
    synchronize = _told("event_synchronize")


def _set_stream(stream_id: int, device_index: int, device_type: int) -> None:
    _current[-1] = stream_id


def _initialise() -> None:
    """What the C++ puts into ``torch.cuda`` when CUDA is first used."""
    torch = sys.modules["torch"]
    device = types.SimpleNamespace(name="stand-in", major=9, minor=0)
    torch.cuda._get_device_properties = lambda _device: device
    torch.cuda.default_generators = (torch.Generator(),)
    calls.append("init")


def _replace_bindings(binding: Any) -> None:
    """Give ``torch._C`` what a CUDA build defines, as far as graphs and streams need it."""
    binding._CUDAGraph, binding._CudaStreamBase, binding._CudaEventBase = _Graph, _Stream, _Event
    binding._graph_pool_handle = lambda: (0, 1)
    binding._cuda_isCurrentStreamCapturing = lambda: False
    binding._has_cuda = True
    binding._cuda_getDeviceCount = lambda: 1
    binding._cuda_init = _initialise
    binding._cuda_isInBadFork = lambda: False
    binding._cuda_getArchFlags = lambda: None
    binding._cuda_getDevice = lambda: 0
    binding._cuda_exchangeDevice = binding._cuda_maybeExchangeDevice = lambda device: 0
    binding._cuda_getCurrentRawStream = lambda device: 0
    binding._cuda_setStream = _set_stream
    binding._cuda_getCurrentStream = lambda device: (_current[-1], 0, 1)
    binding._cuda_synchronize = _told("synchronize")
    binding._cuda_emptyCache = _told("empty_cache")
    binding._host_emptyCache = _told("host_empty_cache")
    binding._cuda_set_sync_debug_mode = _told("set_sync_debug_mode")
    binding._cuda_get_sync_debug_mode = lambda: 0
    binding._cudart = types.SimpleNamespace(
        cudaProfilerStart=_told("profiler_start", 0), cudaProfilerStop=_told("profiler_stop", 0)
    )


class _BeforeTorchCuda:
    """A finder that finds nothing, and sees ``torch.cuda`` being looked for."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> None:
        if name == "torch.cuda":
            _replace_bindings(sys.modules["torch._C"])


assert "torch" not in sys.modules, "to be imported before torch"
sys.meta_path.insert(0, _BeforeTorchCuda)  # type: ignore[arg-type]
