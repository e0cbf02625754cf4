"""What CUDA, HIP and Intel runtime calls do, by their names."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from nvprobe.trace.cuda_calls import CallRole, roles_of_names
from tests.oracle_waits import call_role

CALLS = {
    CallRole.STREAM_SYNC: """cudaStreamSynchronize cuStreamSynchronize cudaStreamSynchronize_ptsz
        urQueueFinish""",
    CallRole.EVENT_SYNC: "cudaEventSynchronize cuEventSynchronize hipEventSynchronize",
    CallRole.DEVICE_SYNC: """cudaDeviceSynchronize cudaThreadSynchronize cuCtxSynchronize
        hipDeviceSynchronize cudaExecutionCtxSynchronize""",
    CallRole.BLOCKING_COPY: """cudaMemcpy cudaMemcpy2D cudaMemcpyToSymbol cuMemcpyHtoD_v2
        cuMemcpyDtoH_v2 hipMemcpyWithStream hipDrvMemcpy3D""",
    CallRole.BLOCKING_SET: "cudaMemset cuMemsetD8_v2",
    CallRole.COPY: """cudaMemcpyAsync cudaMemcpyAsync_ptsz cuMemcpyDtoHAsync_v2 cudaMemcpyBatchAsync
        hipMemcpyAsync cudaMemcpyPeerAsync urEnqueueUSMMemcpy hipDrvMemcpy3DAsync
        hipMemcpyDtoHAsync""",
    CallRole.SET: "cudaMemsetAsync cuMemsetD32Async",
    CallRole.PREFETCH: "cudaMemPrefetchAsync cudaMemDiscardAndPrefetchBatchAsync",
    CallRole.KERNEL_LAUNCH: """cudaLaunchKernel cudaLaunchKernelExC cuLaunchKernel cuLaunchKernelEx
        hipExtModuleLaunchKernel cudaLaunchCooperativeKernel urEnqueueKernelLaunchWithArgsExp
        hipHccModuleLaunchKernel hipDrvLaunchKernelEx hipExtLaunchKernel hipLaunchKernel_spt""",
    CallRole.GRAPH_LAUNCH: "cudaGraphLaunch cuGraphLaunch_ptsz hipGraphLaunch",
    CallRole.HOST_FUNCTION: "cudaLaunchHostFunc cuLaunchHostFunc cudaStreamAddCallback",
    CallRole.DEVICE_ALLOCATION: """cudaMalloc cudaMallocManaged cudaMalloc3DArray cudaMallocPitch
        cuMemAlloc_v2 cuMemAllocManaged cuMemCreate cuMemMap hipMalloc""",
    CallRole.DEVICE_FREE: "cudaFree cuMemFree_v2 cuMemRelease cuMemUnmap hipFree",
    CallRole.HOST_ALLOCATION: """cudaHostAlloc cudaFreeHost cudaMallocHost cuMemHostAlloc
        cudaHostRegister cuMemHostRegister_v2 cudaHostUnregister hipHostMalloc cuMemFreeHost""",
    CallRole.OTHER_ALLOCATION: """cudaMallocAsync cudaFreeAsync cuMemAllocAsync cuMemPoolTrimTo
        cuMemAddressReserve cuArrayCreate cudaMallocFromPoolAsync cudaMemPoolCreate
        cudaIpcOpenMemHandle cuMemExportToShareableHandle cuMulticastBindMem_v2
        cuLogicalEndpointCreate hipMemAddressReserve hipMemSetAccess hipArrayCreate
        hipExtMallocWithFlags hipFreeAsync""",
    CallRole.COMPILATION: """cuModuleLoadDataEx cuModuleLoadData cuLibraryLoadData cuLinkComplete
        hipModuleLoadData nvrtcCompileProgram cuModuleUnload cuModuleGetFunction cuLinkCreate_v2
        hipLinkAddData hiprtcLinkComplete __hipRegisterFatBinary __cudaRegisterFatBinary""",
    CallRole.CAPTURE_BEGIN: "cudaStreamBeginCapture cuStreamBeginRecaptureToGraph",
    CallRole.CAPTURE_END: "cudaStreamEndCapture",
    CallRole.WAIT_EVENT: "cudaStreamWaitEvent cuStreamWaitEvent cudaExecutionCtxWaitEvent",
    CallRole.GRAPH_BUILD: """cudaGraphDestroy cuGraphUpload cudaGraphKernelNodeSetParams
        cuGraphClone cudaGraphCreate cuGraphExecDestroy
        hipGraphAddKernelNode cudaUserObjectCreate""",
    CallRole.GRAPH_INSTANTIATION: """cudaGraphInstantiate cudaGraphInstantiateWithFlags
        cuGraphExecUpdate cuGraphInstantiateWithParams_ptsz hipGraphInstantiate""",
    CallRole.CONTEXT: """cuInit cuCtxCreate_v4 cuCtxDestroy cuDevicePrimaryCtxRetain cudaDeviceReset
        cudaInitDevice cudaExecutionCtxDestroy cuGreenCtxCreate
        cudaDeviceEnablePeerAccess hipDeviceReset""",
    CallRole.RESOURCE: """cudaStreamCreateWithPriority cuStreamDestroy_v2 cudaEventCreateWithFlags
        hipEventDestroy cudaIpcOpenEventHandle cuImportExternalSemaphore cuGreenCtxStreamCreate
        hipExtStreamCreateWithCUMask cudaExecutionCtxStreamCreate
        cudaCreateTextureObject hipDestroySurfaceObject""",
    CallRole.STREAM_ENTRY: """cudaEventRecord cuEventRecordWithFlags cuStreamWriteValue32_v2
        cuStreamBatchMemOp_v2 cudaSignalExternalSemaphoresAsync hipEventRecord""",
    CallRole.OTHER: """cudaEventQuery cudaStreamQuery cudaMemGetInfo cuMemGetInfo_v2 cudaGetDevice
        cudaStreamIsCapturing cuMemAdvise cudaFuncGetAttributes cuMemGetAllocationGranularity
        cudaOccupancyMaxActiveBlocksPerMultiprocessor cudaPeekAtLastError cuMemPoolSetAttribute
        zeCommandListAppendLaunchKernelWithArguments""",
}
COARSE = {
    "sync": "STREAM_SYNC EVENT_SYNC DEVICE_SYNC BLOCKING_COPY BLOCKING_SET",
    "copy": "COPY",
    "launch": "SET PREFETCH KERNEL_LAUNCH GRAPH_LAUNCH HOST_FUNCTION",
    "allocation": "DEVICE_ALLOCATION DEVICE_FREE HOST_ALLOCATION OTHER_ALLOCATION",
    "compilation": "COMPILATION",
}


@pytest.mark.parametrize("role", CALLS, ids=lambda role: role.name)
def test_calls(role: CallRole) -> None:
    names = CALLS[role].split()
    found = dict(zip(names, roles_of_names(pa.array(names)).tolist(), strict=True))
    assert found == dict.fromkeys(names, role)


@pytest.mark.parametrize("role", CALLS, ids=lambda role: role.name)
def test_the_oracle_of_waits_reads_names_alike(role: CallRole) -> None:
    wanted = next((one for one, roles in COARSE.items() if role.name in roles.split()), "other")
    assert {name: call_role(name) for name in CALLS[role].split()} == dict.fromkeys(
        CALLS[role].split(), wanted
    )


FOLDERS = ("/usr/local/cuda/include", *(f"{path}/nvidia/cu13/include" for path in sys.path))
QUICK = r"Get|Query|Set|Is[A-Z]|Can[A-Z]|ChannelDesc|Tex|Surf|EGL|GL|D3D|VDPAU|cu64|MultiKernel"


@pytest.mark.parametrize("api", ["driver", "runtime"])
def test_every_call_of_the_api_that_can_take_long_has_a_role(api: str) -> None:
    """By the list of all calls that CUPTI can trace, where a toolkit is installed."""
    headers = [Path(folder, f"cupti_{api}_cbid.h") for folder in FOLDERS]
    header = next((one for one in headers if one.exists()), None)
    if header is None:
        pytest.skip("no CUDA toolkit")
    found = re.findall(r"CBID_((?:cuda|cu)[A-Z]\w+?)(?:_v\d+)? ", header.read_text())
    roles = roles_of_names(pa.array(found))
    other = {n for n, role in zip(found, roles.tolist(), strict=True) if role == CallRole.OTHER}
    long = [n for n in other if re.search("Create|Alloc|Load|Instantiate|Destroy|Wait|Open", n)]
    assert [n for n in long if not re.search(QUICK, n)] == []
    assert len(found) > 300


def test_a_missing_name_is_other() -> None:
    assert roles_of_names(pa.array([None, ""], pa.string())).tolist() == [0, 0]
