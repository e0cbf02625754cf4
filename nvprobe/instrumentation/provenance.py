"""The kernel manifest: which modules and source lines each kernel of a compiled graph computes.

Inductor reports, once per kernel call it writes and in call order, which FX nodes the kernel stands
for (``set_kernel_post_grad_provenance_tracing``, torch 2.9 to 2.13; earlier versions have no such
place and get no manifest). The nodes carry the module stack and the user's line from Dynamo. The
record travels with the compiled graph through torch's caches.

Those caches look at the computation only: the same computation under other module names or lines
would be served with the old names. So under nvprobe the modules and lines are part of the key
(`_keyed`). A run without nvprobe has other keys, and so neither gives nor takes anything.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import re
from typing import TYPE_CHECKING, Any

from nvprobe.instrumentation.hooks import Hooks, around
from nvprobe.instrumentation.sources import short_path

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    Record = dict[str, Any]

log = logging.getLogger("nvprobe")
_hooks = Hooks("kernel manifest of compiled graphs")

FORMAT = 1
"""Changes with the shape of the record that is kept in torch's caches."""
_TRACING = "set_kernel_post_grad_provenance_tracing"
_IMPORTERS = ("debug", "codegen.triton", "codegen.cpp", "codegen.wrapper", "codegen.simd")
"""Modules of torch._inductor that hold the function by name, in one version or another."""
_KEY = "FxGraphHashDetails.__init__"
_RECORD = "_nvprobe_kernels"
_MANIFEST = "_nvprobe_manifest"

_FRAME = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+), in (?P<function>\S+)')
_ROOT = re.compile(r"^(?:[LG]\[['\"](?P<name>\w+)['\"]\])(?P<rest>.*)$")
_ITEM = re.compile(r"\[['\"]?([^\]'\"]+)['\"]?\]")
_NOISE = re.compile(r"\._(?:orig_mod|modules)\b|\.__closure__\[\d+\]\.cell_contents")


def install() -> None:
    """Record a manifest for graphs compiled from now on."""
    if not _hooks.begin():
        return
    for name in (*_IMPORTERS, "codegen.cpp_wrapper_cpu"):
        optional = name != "debug"
        _hooks.replace(f"torch._inductor.{name}", _TRACING, _recording, optional=optional)
    _hooks.replace("torch._inductor.output_code", "CompiledFxGraph.__init__", _keeping)
    _hooks.replace("torch._inductor.codecache", _KEY, _keyed)


def uninstall() -> None:
    """Record nothing for graphs compiled from now on."""
    _hooks.undo()


def manifest(graph: Any) -> list[Record] | None:
    """The kernel calls of a CompiledFxGraph in order, or None where none were recorded."""
    kernels: list[Record] | None = getattr(graph, _MANIFEST, None)
    return kernels


def _recording(original: Callable[..., Any]) -> Callable[..., Any]:
    if hasattr(original, "nvprobe_original"):  # imported by name after debug was changed
        raise LookupError("already recorded")

    @functools.wraps(original)
    def recording(
        node_schedule: Any, kernel_name: str, is_extern: bool = False, **more: Any
    ) -> Any:
        """The same, after the nodes of the kernel have been kept."""
        try:
            _record(node_schedule, kernel_name, is_extern)
        except Exception as error:
            log.debug("no provenance of kernel %s: %r", kernel_name, error)
        return original(node_schedule, kernel_name, is_extern, **more)

    recording.nvprobe_original = original  # type: ignore[attr-defined]
    return recording


def _record(node_schedule: Any, kernel_name: str, is_extern: bool) -> None:
    """Append one kernel call to the record of the graph that is being written."""
    from torch._inductor.virtualized import V

    nodes = [_node(node) for node in _origins(node_schedule, is_extern)]
    kernel = {
        "name": kernel_name,
        "kind": _kind(kernel_name, is_extern),
        "extern": is_extern,
        "nodes": nodes,
    }
    graph = V.graph
    while getattr(graph, "parent", None) is not None:  # a subgraph of a higher-order operator
        graph = graph.parent
    graph.__dict__.setdefault(_RECORD, []).append(kernel)


def _kind(kernel_name: str, is_extern: bool) -> str:
    """``extern`` for a call into a library (it launches one to several kernels)."""
    if is_extern:
        return "extern"
    return "cpp" if kernel_name.startswith("cpp_") else "triton"


def _origins(node_schedule: Any, is_extern: bool) -> list[Any]:
    """The FX nodes of a kernel call, each once; for a library call its own node first."""
    if is_extern:
        own = [node_schedule.origin_node] if node_schedule.origin_node is not None else []
        found: Iterable[Any] = [*own, *node_schedule.origins]
    else:
        irs = [getattr(scheduled, "node", None) for scheduled in node_schedule]
        found = [origin for ir in irs if ir is not None for origin in ir.origins]
    return list(dict.fromkeys(found))


def _node(node: Any) -> Record:
    """What one FX node says of itself."""
    meta = node.meta
    forward = meta.get("nn_module_stack")
    backward = meta.get("fwd_nn_module_stack")
    origin = meta.get("from_node")
    return {
        "fx": node.name,
        "op": str(meta.get("original_aten") or node.target),
        "module": _module(forward or backward),
        "src": _source(meta.get("stack_trace") or meta.get("fwd_stack_trace")),
        "bwd": bool(not forward and backward) or meta.get("partitioner_tag") == "is_backward",
        "seq_nr": meta.get("seq_nr"),
        "from_node": [origin[0].name] if origin else None,
    }


def _module(stack: Any) -> list[str] | None:
    """``[path, class]`` of the innermost module of a module stack, as Dynamo's source names it."""
    if not stack:
        return None
    path, kind = next(reversed(stack.values()))
    return [path, kind if isinstance(kind, str) else kind.__name__]


def _source(trace: str | None) -> str | None:
    """``train.py:27 forward`` of the innermost frame of a node's stack trace."""
    frames = list(_FRAME.finditer(trace or ""))
    if not frames:
        return None
    frame = frames[-1]
    return f"{short_path(frame['file'])}:{frame['line']} {frame['function']}"


@around
def _keeping(original: Callable[..., Any], compiled: Any, /, *args: Any, **kwargs: Any) -> None:
    """Move the record from the graph that was written to the compiled graph, which is pickled."""
    original(compiled, *args, **kwargs)
    try:
        graph = kwargs["graph"] if "graph" in kwargs else args[1]
        kernels = graph.__dict__.get(_RECORD)
        # Without a key of its own the record would be served to runs under other names.
        if kernels is not None and _KEY in _hooks.held:
            setattr(compiled, _MANIFEST, _relative(kernels))
    except Exception as error:
        log.debug("no kernel manifest: %r", error)


def _relative(kernels: list[Record]) -> list[Record]:
    """Module paths as users name them, relative to what was compiled.

    Dynamo's are expressions such as ``L['self'].blocks.0.fc1``. Where one variable holds all the
    modules its name says nothing; where several do (a compiled function over two models) it stays.
    """
    paths = {node["module"][0] for _, node in _nodes(kernels) if node["module"]}
    taken = {path: _apart(path) for path in paths}
    several = len({root for root, _ in taken.values()}) > 1
    for _, node in _nodes(kernels):
        if node["module"]:
            root, rest = taken[node["module"][0]]
            node["module"][0] = ".".join(filter(None, (root if several else "", rest)))
    return kernels


def _nodes(kernels: list[Record]) -> Iterator[tuple[Record, Record]]:
    return ((kernel, node) for kernel in kernels for node in kernel["nodes"])


def _apart(path: str) -> tuple[str, str]:
    """``("self", "blocks.0.fc1")`` of ``L['self']._modules['blocks'][0].fc1``."""
    path = _NOISE.sub("", path)
    match = _ROOT.match(path)
    root, rest = (match["name"], match["rest"]) if match else ("", path)
    rest = _ITEM.sub(r".\1", rest)
    return root, rest.strip(".")


@around
def _keyed(original: Callable[..., Any], key: Any, /, gm: Any, *args: Any, **kwargs: Any) -> None:
    """Make modules and lines part of the cache key: the object's attributes are what is hashed."""
    original(key, gm, *args, **kwargs)
    try:
        key.nvprobe_provenance = _digest(gm)
    except Exception as error:
        # Without the key a record could be served under other names: keep it apart.
        key.nvprobe_provenance = f"unknown {id(gm)}"
        log.debug("no digest of a graph's provenance: %r", error)


def _digest(gm: Any) -> str:
    """A digest of all that the manifest may say of a graph."""
    digest = hashlib.sha256(f"nvprobe manifest {FORMAT}".encode())
    for module in gm.modules() if gm is not None else ():
        for node in getattr(getattr(module, "graph", None), "nodes", ()):
            meta = node.meta
            stack = meta.get("nn_module_stack") or meta.get("fwd_nn_module_stack")
            trace = meta.get("stack_trace") or meta.get("fwd_stack_trace")
            digest.update(f"{node.name} {_module(stack)} {_source(trace)}\n".encode())
    return digest.hexdigest()
