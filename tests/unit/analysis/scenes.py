"""Small traces with one thing going on, for rules: a loop of steps that a function fills."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from nvprobe.analysis import Analysis, analyze
from nvprobe.attribution import attribute
from nvprobe.trace import (
    NO_NAME,
    Calls,
    Devices,
    Geometry,
    OpKind,
    Ops,
    Processes,
    ProfilingCost,
    Ranges,
    RecordCosts,
    Source,
    StepTime,
    Threads,
    Trace,
)

H200 = {
    "id": 0, "sm_count": 132, "clock_hz": 1_980_000_000, "memory_bytes": 150 << 30,
    "bandwidth_bytes_s": 4_814_304_000_000, "l2_bytes": 62_914_560, "compute_major": 9,
    "compute_minor": 0, "max_warps_per_sm": 64, "max_blocks_per_sm": 32,
    "max_registers_per_sm": 65536, "max_shared_per_sm": 233_472,
}  # fmt: skip
FP32_GEMM = (
    "sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize128x64x8_stage3_warpsize2x2x1_ffma_cublas"
)
FP32_CONVOLUTION = "void implicit_convolve_sgemm<float, float, 1024, 5, 5>(int)"
BF16_GEMM = "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN"
ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>(int)"
SOFTMAX = "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10>(float*)"
ALL_REDUCE = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
CUSTOM = "my_kernel(float*)"


@dataclass
class Scene:
    """What happens, written down call by call on one host thread with a clock of its own."""

    now: int = 1000
    gpu_free: dict[int, int] = field(default_factory=dict)
    ranges: list[tuple[int, int, str]] = field(default_factory=list)
    calls: list[tuple[int, int, str]] = field(default_factory=list)
    ops: list[dict[str, int | str]] = field(default_factory=list)

    def host(self, ns: int) -> None:
        """Python runs."""
        self.now += ns

    def inside(self, name: str, body: Callable[[], None]) -> None:
        """A range around what ``body`` does."""
        row = len(self.ranges)
        self.ranges.append((self.now, self.now, name))
        body()
        self.ranges[row] = (self.ranges[row][0], self.now, name)

    def launch(self, name: str, ns: int, cost: int = 5_000, stream: int = 7, **more: int) -> int:
        """Launch a kernel: it runs after the work of its stream. Gives its end."""
        return self._start(OpKind.KERNEL, name, ns, cost, "cudaLaunchKernel", stream, **more)

    def upload(self, ns: int, *, pageable: bool, stream: int = 7) -> int:
        """Copy to the device; from pageable memory the call lasts until the copy has ended."""
        kind = {"copy_kind": 1, "source_memory": 1 if pageable else 2, "bytes": ns * 10}
        end = self._start(
            OpKind.MEMCPY, "Memcpy HtoD", ns, 5_000, "cudaMemcpyAsync", stream, **kind
        )
        if pageable:
            self._wait(end, "cudaMemcpyAsync", len(self.calls) - 1)
        return end

    def fill(self, ns: int) -> int:
        """Set memory to zero."""
        return self._start(OpKind.MEMSET, "Memset", ns, 5_000, "cudaMemsetAsync", 7)

    def item(self) -> None:
        """Read a number: a copy to the host and a wait for it."""
        end = self._start(
            OpKind.MEMCPY, "Memcpy DtoH", 1_000, 5_000, "cudaMemcpyAsync", 7, copy_kind=2, bytes=4
        )
        begin = self.now
        self.now = max(self.now, end) + 3_000
        self.calls.append((begin, self.now, "cudaStreamSynchronize"))

    def call(self, name: str, ns: int) -> None:
        """Any other CUDA call."""
        self.calls.append((self.now, self.now + ns, name))
        self.now += ns

    def replay(self, nodes: int, ns: int, gap: int) -> None:
        """Launch a CUDA graph of equal nodes with a gap between each two."""
        self.call("cudaGraphLaunch", 10_000)
        start = max(self.now, self.gpu_free.get(7, 0))
        for node in range(nodes):
            begin = start + node * (ns + gap)
            self._note(OpKind.KERNEL, ADD, begin, begin + ns, 7, node=node + 1)

    def wait_stream(self, stream: int, awaited: int) -> None:
        """What ``stream`` does next starts no earlier than what ``awaited`` was given."""
        ends = self.gpu_free.get(stream, 0), self.gpu_free.get(awaited, 0)
        self.gpu_free[stream] = max(ends)
        self.call("cudaStreamWaitEvent", 1_000)

    def _wait(self, end: int, name: str, row: int) -> None:
        self.now = max(self.now, end) + 1_000
        self.calls[row] = (self.calls[row][0], self.now, name)

    def _start(
        self, kind: OpKind, name: str, ns: int, cost: int, call: str, stream: int, **more: int
    ) -> int:
        self.calls.append((self.now, self.now + cost, call))
        self.now += cost
        start = max(self.now + 1_000, self.gpu_free.get(stream, 0) + 500)
        self._note(kind, name, start, start + ns, stream, **more)
        return start + ns

    def _note(
        self, kind: OpKind, name: str, start: int, end: int, stream: int, **more: int
    ) -> None:
        """Write an op down, as of the last call."""
        call = len(self.calls) - 1
        self.ops.append(
            {"kind": kind, "name": name, "call": call, "start": start, "end": end,
             "stream": stream, "copy_kind": -1, "source_memory": -1, "bytes": -1,
             "grid": 132 * 16, "node": 0, **more}
        )  # fmt: skip
        self.gpu_free[stream] = end

    def trace(self) -> Trace:
        """The tables."""
        names = [*(r[2] for r in self.ranges), *(c[2] for c in self.calls),
                 *(str(o["name"]) for o in self.ops), "python3", "NVIDIA H200"]  # fmt: skip
        strings = list(dict.fromkeys(names))
        row = {name: i for i, name in enumerate(strings)}
        end = max([self.now, *(int(o["end"]) for o in self.ops)]) + 1
        return Trace(
            pa.array(strings), (Source("nsys-sqlite", "scene", None, None, {}),),
            Processes(key=[1], pid=[100], name=[row["python3"]], rank=[-1]),
            Threads(process=[0], tid=[100], name=[row["python3"]]),
            Devices(**{k: np.array([v]) for k, v in {**H200, "name": row["NVIDIA H200"]}.items()}),
            calls=self._calls(row), ops=self._ops(row), geometry=self._geometry(),
            ranges=self._ranges(row), end_ns=end,
        )  # fmt: skip

    def _calls(self, row: dict[str, int]) -> Calls:
        n = len(self.calls)
        start, end, name = zip(*self.calls, strict=True) if n else ((), (), ())
        zero = np.zeros(n, np.int64)
        return Calls(zero, zero, np.arange(n) + 1, start, end, [row[one] for one in name])

    def _ops(self, row: dict[str, int]) -> Ops:
        zero = np.zeros(len(self.ops), np.int64)

        def of(key: str) -> list[int]:
            return [int(one[key]) for one in self.ops]

        name = [row[str(one["name"])] for one in self.ops]
        return Ops(
            kind=of("kind"), process=zero, device=zero, context=zero, stream=of("stream"),
            correlation=np.array(of("call")) + 1, start=of("start"), end=of("end"),
            name=name, short_name=name,
            graph_node=of("node"), bytes=of("bytes"), copy_kind=of("copy_kind"),
            source_memory=of("source_memory"), target_memory=zero - 1,
        )  # fmt: skip

    def _geometry(self) -> Geometry:
        rows = [i for i, one in enumerate(self.ops) if one["kind"] == OpKind.KERNEL]
        one = np.ones(len(rows), np.int64)
        grid = [int(self.ops[i]["grid"]) for i in rows]
        return Geometry(rows, grid, one, one, one * 128, one, one, one * 32, one * 0, one * 0)

    def _ranges(self, row: dict[str, int]) -> Ranges:
        n = len(self.ranges)
        start, end, name = zip(*self.ranges, strict=True) if n else ((), (), ())
        zero = np.zeros(n, np.int64)
        return Ranges(zero, zero, start, end, [row[one] for one in name], zero + NO_NAME,
                      zero + NO_NAME, zero)  # fmt: skip


def loop(body: Callable[[Scene], None], steps: int = 4) -> Scene:
    """A scene of several steps."""
    scene = Scene()
    for index in range(steps):
        scene.inside(f"step {index}", lambda: body(scene))
    return scene


def unprofiled(scene: Scene) -> ProfilingCost:
    """No profiler slows a scene: its records cost nothing, and its steps last what they last."""
    steps = [end - begin for begin, end, name in scene.ranges if name.startswith("step ")]
    busy = sum(int(one["end"]) - int(one["start"]) for one in scene.ops)
    step = StepTime(int(max(np.median(steps), busy / len(steps))), None, len(steps), 1)
    return ProfilingCost("nsys", step, None, RecordCosts("measured", *[0.0] * 7), None)


def analysis_of(scene: Scene, **changes: object) -> Analysis:
    """The whole analysis of a scene."""
    return analyze(attribute(dataclasses.replace(scene.trace(), **changes)))
