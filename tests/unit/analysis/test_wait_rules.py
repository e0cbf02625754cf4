"""The tables that tell from a name what a call or a range does to its thread."""

from __future__ import annotations

import pyarrow as pa
import pytest

from nvprobe.analysis.waiting.rules import (
    CallRole,
    RangeRole,
    call_roles,
    range_roles,
    wait_for_device,
)

CALLS = {
    CallRole.SYNC: """cudaStreamSynchronize cudaDeviceSynchronize cudaEventSynchronize
        cudaThreadSynchronize cuCtxSynchronize cuStreamSynchronize cuEventSynchronize
        cudaStreamSynchronize_ptsz hipDeviceSynchronize cudaMemcpy cudaMemcpy2D cudaMemcpyToSymbol
        cuMemcpyHtoD_v2 cuMemcpyDtoH_v2 cudaMemset cuMemsetD8_v2 hipMemcpyWithStream""",
    CallRole.COPY: """cudaMemcpyAsync cudaMemcpyAsync_ptsz cuMemcpyDtoHAsync_v2 cudaMemcpyBatchAsync
        hipMemcpyAsync cudaMemcpyPeerAsync""",
    CallRole.LAUNCH: """cudaLaunchKernel cudaLaunchKernelExC cuLaunchKernel cuLaunchKernelEx
        cudaGraphLaunch hipExtModuleLaunchKernel hipGraphLaunch cudaLaunchHostFunc
        cudaMemsetAsync cuMemsetD32Async cudaMemPrefetchAsync""",
    CallRole.ALLOCATION: """cudaMalloc cudaFree cudaMallocAsync cudaMallocManaged cudaHostAlloc
        cudaFreeHost cudaMallocHost cuMemAlloc_v2 cuMemFree_v2 cuMemHostAlloc cuMemCreate cuMemMap
        cudaHostRegister cuMemHostRegister_v2 cudaHostUnregister hipMalloc hipHostMalloc""",
    CallRole.COMPILATION: """cuModuleLoadDataEx cuModuleLoadData cuLibraryLoadData cuLinkComplete
        hipModuleLoadData nvrtcCompileProgram""",
    CallRole.CAPTURE_BEGIN: "cudaStreamBeginCapture",
    CallRole.CAPTURE_END: "cudaStreamEndCapture",
    CallRole.OTHER: """cudaStreamWaitEvent cudaEventQuery cudaStreamQuery cudaEventRecord
        cudaMemGetInfo cuMemGetInfo_v2 cudaGetDevice cudaStreamIsCapturing cuMemAdvise
        cudaFuncGetAttributes cudaGraphInstantiateWithFlags cuModuleUnload""",
}

RANGES = {
    RangeRole.INPUT: [
        "data",
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
        "[pl][profile][_TrainingEpochLoop].train_dataloader_next",
        "## wait_for_batch ##",
        "## data_load ##",
        "next_batch",
        "load_data",
        "dataloader",
    ],
    RangeRole.COLLECTIVE: [
        "nccl:all_reduce",
        "gloo:all_reduce",
        "ncclSend",
        "c10d::alltoall_base_",
        "record_param_comms",
        "## all2all_data:kjt splits ##",
        "AllToAll4D",
        "## KJTAllToAllTensorsAwaitable wait() ##",
        "## SplitsAllToAllAwaitable wait() ##",
        "barrier",
        "FSDP::all_gather",
    ],
    RangeRole.COMPILATION: ["compile", "compilation", "compile_fx", "torch.compile", "autotune"],
    RangeRole.OTHER: [
        "data_parallel",
        "database",
        "data_augment",
        "batch",
        "batch_norm",
        "compiled_step",
        "Torch-Compiled Region: 0/0",
        "CompiledFunction",
        "DistributedDataParallel.forward",
        "forward",
        "to_device",
        "## copy_batch_to_gpu ##",
        "input_projection",
        "overall_reduce",
    ],
}


@pytest.mark.parametrize("role", CALLS, ids=lambda role: role.name)
def test_calls(role: CallRole) -> None:
    names = CALLS[role].split()
    found = dict(zip(names, call_roles(pa.array(names)).tolist(), strict=True))
    assert found == dict.fromkeys(names, role)


@pytest.mark.parametrize("role", RANGES, ids=lambda role: role.name)
def test_ranges(role: RangeRole) -> None:
    names = RANGES[role]
    found = dict(zip(names, range_roles(pa.array(names)).tolist(), strict=True))
    assert found == dict.fromkeys(names, role)


def test_an_unknown_name_is_judged_too() -> None:
    assert call_roles(pa.array([None, ""], pa.string())).tolist() == [0, 0]


def test_waiting_for_the_whole_device() -> None:
    names = ["cudaDeviceSynchronize", "cuCtxSynchronize", "cudaStreamSynchronize", "cudaMemcpy"]
    assert wait_for_device(pa.array(names)).tolist() == [1, 1, 0, 0]
