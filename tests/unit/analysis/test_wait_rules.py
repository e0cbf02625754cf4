"""The table that says what a thread does inside a range, by the range's name."""

from __future__ import annotations

import pyarrow as pa
import pytest

from nvprobe.attribution.kinds import RangeRole, range_roles

RANGES = {
    RangeRole.NO_WORK: [
        "scheduler.recv_requests",
        "scheduler.idle",
        "_fetch_new_requests",
        "wait_for_requests",
    ],
    RangeRole.INPUT: [
        "data",
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__",
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
        "[pl][profile][_TrainingEpochLoop].train_dataloader_next",
        "## wait_for_batch ##",
        "## data_load ##",
        "next_batch",
        "get_batches",
        "load_data",
        "load_data (train)",
        "data_iterator",
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
        "All2All_Pooled_ReqBackward",
        "KJTAllToAllSplitsAwaitable wait()",
        "alltoall_fwd_single",
        "all_gather_into_tensor_coalesced",
        "FSDP::all_gather",
    ],
    RangeRole.COMPILATION: [
        "compile",
        "compilation",
        "compile_fx",
        "torch.compile",
        "autotune",
        "jit compile",
        "triton.compile",
        "compile_fx.<locals>.fw_compiler_base",
    ],
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
        "get_batch_size",
        "get_next_batch_to_run",
        "load_input_embedding",
        "read_database",
        "data_timestep",
        "batch_iteration",
        "dataloader_workers_shutdown",
        "data_loader_config",
        "all_reduce_fusion_pass",
        "AllReduceFusion",
        "all_gather_benchmark",
        "FSDP::all_gather_copy_out (3)",
        "jit_compiled_step",
        "benchmark_all_configs_report",
    ],
}


@pytest.mark.parametrize("role", RANGES, ids=lambda role: role.name)
def test_ranges(role: RangeRole) -> None:
    names = RANGES[role]
    found = dict(zip(names, range_roles(pa.array(names)).tolist(), strict=True))
    assert found == dict.fromkeys(names, role)
