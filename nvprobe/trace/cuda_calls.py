"""What a call of the CUDA runtime or driver does, by its name: the only table of call names.

The calls of HIP and of Intel's runtimes (Unified Runtime ``ur…``, Level Zero ``ze…``) stand beside
those of CUDA. A kernel on Intel carries the correlation id of its ``ur…`` call, so the ``ze…`` call
inside that one does not count as a launch.

To add a name: one line in ``ROLES``, one in tests/unit/test_cuda_calls.py.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import IntEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.trace import Column, Trace


class CallRole(IntEnum):
    """What a call does."""

    OTHER = 0
    """Asks or sets something: attributes, errors, the current device, occupancy."""
    KERNEL_LAUNCH = 1
    GRAPH_LAUNCH = 2
    """Launches a CUDA graph: a graph replay."""
    HOST_FUNCTION = 3
    """Puts a host function into a stream."""
    COPY = 4
    """An asynchronous copy: returns at once, unless it is seen to have waited for its own end."""
    SET = 5
    PREFETCH = 6
    BLOCKING_COPY = 7
    BLOCKING_SET = 8
    STREAM_SYNC = 9
    EVENT_SYNC = 10
    DEVICE_SYNC = 11
    """Waits for all streams of a device or context."""
    WAIT_EVENT = 12
    """Makes a stream wait for an event; the host goes on."""
    CAPTURE_BEGIN = 13
    CAPTURE_END = 14
    DEVICE_ALLOCATION = 15
    """Device memory from the driver: neither pinned host memory nor from a stream's pool."""
    DEVICE_FREE = 16
    HOST_ALLOCATION = 17
    """Allocates, frees or registers pinned host memory."""
    OTHER_ALLOCATION = 18
    """Memory pools, arrays, address ranges: may wait for the device, like all allocation."""
    COMPILATION = 19
    """Compiles, links, loads or unloads device code."""
    GRAPH_BUILD = 20
    """Builds, clones, changes, uploads or destroys a CUDA graph."""
    CONTEXT = 21
    """Creates, resets or destroys a context: the first of a process takes up to a second."""
    RESOURCE = 22
    """Creates or destroys streams, events and semaphores, or opens those of other processes."""
    STREAM_ENTRY = 23
    """Puts an event, or a value to write or to wait for, into a stream."""
    GRAPH_INSTANTIATION = 24
    """Instantiates a CUDA graph, or updates an instance from another graph."""


LAUNCHES = (CallRole.KERNEL_LAUNCH, CallRole.GRAPH_LAUNCH)
COPIES = (CallRole.COPY, CallRole.BLOCKING_COPY)
SETS = (CallRole.SET, CallRole.BLOCKING_SET)
LAUNCH_CALLS = (*LAUNCHES, CallRole.HOST_FUNCTION, CallRole.COPY, CallRole.SET, CallRole.PREFETCH)
"""Calls that enqueue work and return."""
SYNCS = (CallRole.STREAM_SYNC, CallRole.EVENT_SYNC, CallRole.DEVICE_SYNC,
         CallRole.BLOCKING_COPY, CallRole.BLOCKING_SET)  # fmt: skip
"""Calls that wait by definition."""
DEVICE_MEMORY = (CallRole.DEVICE_ALLOCATION, CallRole.DEVICE_FREE)
GRAPH_BUILDS = (CallRole.GRAPH_BUILD, CallRole.GRAPH_INSTANTIATION)
OTHER_CALLS = (*GRAPH_BUILDS, CallRole.OTHER, CallRole.WAIT_EVENT, CallRole.CAPTURE_BEGIN,
               CallRole.CAPTURE_END, CallRole.CONTEXT, CallRole.RESOURCE,
               CallRole.STREAM_ENTRY)  # fmt: skip
"""Calls that neither launch, wait, allocate nor compile."""
ALLOCATIONS = (*DEVICE_MEMORY, CallRole.HOST_ALLOCATION, CallRole.OTHER_ALLOCATION)

_API = r"^(?:cuda|hip(?:Drv|Ext|Hcc)?|cu)"
_CONTEXT = _API + r"(?:Green|Execution)?Ctx"
_WHAT = r"(?:3D|Array|Managed|MipmappedArray|Pitch)*$"

ROLES: tuple[tuple[CallRole, str], ...] = (
    (CallRole.COMPILATION, _API + r"(?:ModuleGetFunction|FuncLoad)"),
    (CallRole.OTHER, _API + r"\w*?(?:Get|Query|IsCapturing|CanAccess)(?:[A-Z_]|$)"),
    (CallRole.OTHER, _API + r"MemPoolSet"),
    (CallRole.DEVICE_SYNC, _API + r"(?:Device|Thread|(?:Execution)?Ctx)Synchronize"),
    (CallRole.EVENT_SYNC, _API + r"EventSynchronize|^urEventWait|^zeEventHostSynchronize"),
    (CallRole.STREAM_SYNC, _API + r"StreamSynchronize|^urQueueFinish|^zeCommandQueueSynchronize"),
    (CallRole.WAIT_EVENT, _API + r"(?:Stream|(?:Green|Execution)?Ctx)WaitEvent"),
    (CallRole.CAPTURE_BEGIN, _API + r"StreamBegin(?:C|Rec)apture"),
    (CallRole.CAPTURE_END, _API + r"StreamEndCapture"),
    (CallRole.COPY, _API + r"Memcpy\w*Async|^urEnqueue\w*Memcpy"),
    (CallRole.SET, _API + r"Memset\w*Async|^urEnqueue\w*Fill"),
    (CallRole.PREFETCH, _API + r"Mem(?:Batch|Discard|Prefetch)\w*Async"),
    (CallRole.BLOCKING_COPY, _API + r"Memcpy"),
    (CallRole.BLOCKING_SET, _API + r"Memset"),
    (CallRole.GRAPH_LAUNCH, _API + r"(?:Ext|Module)*Graph(?:Kernel)?Launch"),
    (CallRole.HOST_FUNCTION, _API + r"(?:LaunchHost|StreamAddCallback)"),
    (CallRole.KERNEL_LAUNCH, _API + r"(?:Ext|Module|Ctx)*Launch|^urEnqueueKernelLaunch"),
    (CallRole.DEVICE_ALLOCATION, _API + r"(?:Mem)?(?:Malloc|Alloc|Create|Map)" + _WHAT),
    (CallRole.DEVICE_FREE, _API + r"(?:Mem)?(?:Free|Release|Unmap)" + _WHAT),
    (CallRole.HOST_ALLOCATION, r"^(?:cuda|hip)(?:Host(?:Alloc|Malloc|Free)|MallocHost|FreeHost)"),
    (CallRole.HOST_ALLOCATION, _API + r"Mem(?:HostAlloc|AllocHost|FreeHost)"),
    (CallRole.HOST_ALLOCATION, _API + r"(?:Mem)?Host(?:Unr|R)egister"),
    (CallRole.OTHER_ALLOCATION, r"^(?:cuda|hip)(?:Malloc|Free|ExtMalloc)"),
    (CallRole.OTHER_ALLOCATION,
     r"^(?:cu|hip)(?:Mem|(?:Mipmapped)?Array)\w*(?:Alloc|Free|Create$|Destroy)"),
    (CallRole.OTHER_ALLOCATION, r"^(?:cu|hip)Mem(?:Map|Unmap|Release|SetAccess|AddressReserve)"),
    (CallRole.OTHER_ALLOCATION, _API + r"Mem(?:Pool|Export|Import)|^urUSM\w*(?:Alloc|Free)"),
    (CallRole.OTHER_ALLOCATION, _API + r"(?:(?:Mem)?Peer(?:Unr|R)egister|Ipc\w+MemHandle)"),
    (CallRole.OTHER_ALLOCATION, _API + r"(?:Multicast|LogicalEndpoint|DeviceGraphMemTrim)"),
    (CallRole.COMPILATION, r"^(?:nvrtcCompile|hiprtc(?:Compile|Link))|^nvJitLink(?:Complete|Add)"),
    (CallRole.COMPILATION, _API + r"(?:Module|Library)(?:Unl|L)oad|^(?:cu|hip)Link|^cuCompilePtx"),
    (CallRole.COMPILATION, r"^__(?:cuda|hip)(?:Init|Unr|R)|^zeModuleCreate"),
    (CallRole.COMPILATION, r"^urProgram(?:Build|Compile|Link)"),
    (CallRole.RESOURCE, _API + r"Graphics"),
    (CallRole.GRAPH_INSTANTIATION, _API + r"Graph(?:Instantiate|ExecUpdate)"),
    (CallRole.GRAPH_BUILD, _API + r"(?:Graph|UserObject)"),
    (CallRole.CONTEXT, _API + r"(?:Init(?:Device)?|ThreadExit|DeviceReset|DevicePrimaryCtx\w+)$"),
    (CallRole.CONTEXT, _CONTEXT + r"(?:At|De)?(?:Create|Destroy|tach)"),
    (CallRole.CONTEXT, _API + r"Device(?:Create|Destroy)"),
    (CallRole.CONTEXT, _API + r"(?:Ctx|Device)(?:En|Dis)ablePeerAccess|^cuCheckpointProcess"),
    (CallRole.STREAM_ENTRY, _API + r"(?:(?:Event|(?:Green|Execution)?Ctx)Record|StreamAttach)"),
    (CallRole.STREAM_ENTRY, _API + r"(?:Stream(?:Batch|Wait|Write)|(?:Signal|Wait)External)"),
    (CallRole.RESOURCE, _CONTEXT + r"StreamCreate"),
    (CallRole.RESOURCE, _API + r"(?:Stream|Event|Semaphore)(?:Create|Destroy)"),
    (CallRole.RESOURCE, _API + r"(?:ImportExternal|DestroyExternal|IpcOpenEvent)"),
    (CallRole.RESOURCE, _API + r"\w*(?:Tex|Surf)\w*(?:Create|Destroy)"),
    (CallRole.RESOURCE, _API + r"(?:Create|Destroy)(?:Texture|Surface)"),
    (CallRole.RESOURCE, r"^ur(?:Queue|Context|Event|Kernel)(?:Create|Release)"),
)  # fmt: skip
"""(role, pattern) of calls, read top down; what no pattern finds is ``OTHER``."""

_SUFFIX = r"(?:_v\d+)?(?:_pt(?:sz|ds))?$"


def roles_of_names(names: pa.Array) -> Column:
    """int8 :class:`CallRole` per name; ``_ptsz`` and ``_v2`` endings do not matter."""
    names = pc.replace_substring_regex(pc.fill_null(names, ""), _SUFFIX, "")
    role = np.zeros(len(names), np.int8)
    for value, pattern in reversed(ROLES):
        found = pc.match_substring_regex(names, pattern).to_numpy(zero_copy_only=False)
        role[np.asarray(found, bool)] = value
    return role


def call_roles(trace: Trace) -> Column:
    """int8 :class:`CallRole` of each call, by its name."""
    return by_name(trace, trace.calls.name, roles_of_names)


def calls_with(trace: Trace, roles: Collection[CallRole]) -> Column:
    """Bool per call: it has one of the roles."""

    def rule(names: pa.Array) -> Column:
        return np.isin(roles_of_names(names), list(roles))

    return by_name(trace, trace.calls.name, rule).view(bool)


def by_name(trace: Trace, names: Column, rule: Callable[[pa.Array], Column]) -> Column:
    """int8 answer of ``rule`` per row of a name column; each distinct name is asked about once."""
    used = np.zeros(len(trace.strings) + 1, bool)
    used[names] = True  # NO_NAME marks the spare last row
    rows = np.flatnonzero(used[:-1])
    table = np.zeros(len(trace.strings) + 1, np.int8)
    table[rows] = rule(trace.strings.take(pa.array(rows)))
    return table[names]
