"""Short names of kernels that tell them apart.

The name that profilers call short ends where the template arguments begin. Of CUTLASS and of
PyTorch's elementwise, reduction and foreach kernels that leaves the same word for hundreds of
kernels: what they compute is the first class or function among the template arguments that is not
itself a wrapper.
"""

from __future__ import annotations

import re

_GENERIC = re.compile(
    r"\w*elementwise_kernel\w*|distribution_\w+|reduce_kernel|multi_tensor_apply_kernel"
    r"|_kernel_agent|device_kernel|[Kk]ernel2?"
)
"""Kernels that say nothing without their arguments."""
_CUTLASS = re.compile(r"\b[Kk]ernel2?<(?P<of>\w+)>")
_PART = re.compile(r"(?P<of>[A-Za-z_]\w*)\s*[<(]")
_WRAPPER = re.compile(
    r"gpu_(index_)?kernel(_impl\w*)?|(A|B)?(Unary|Binary|Ternary|Pointwise)(Op\w*)?Functor"
    r"|func_wrapper_t|ReduceOp|\w*Metadata|enable_\w+|operator|lambda|array|Array|void|const"
)
"""Arguments that hold the one that says what is computed."""


def short_kernel_name(name: str, short: str) -> str:
    """``reduce_kernel<sum_functor>`` of a kernel's demangled name and the profiler's short one."""
    if not _GENERIC.fullmatch(short):
        return short
    arguments = name.partition(f"{short}<")[2]
    if wrapped := _CUTLASS.search(name):
        return wrapped["of"]
    found = (part["of"] for part in _PART.finditer(arguments))
    inner = next((part for part in found if not _WRAPPER.fullmatch(part)), None)
    return f"{short}<{inner}>" if inner else short
