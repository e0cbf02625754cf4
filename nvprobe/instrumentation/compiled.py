"""A range around each compiled graph and each compilation, and its kernel manifest.

``CompiledFxGraph.post_compile`` runs for every graph that torch.compile makes with inductor, cold
or from a cache, forward or backward, whichever way it was compiled; afterwards the graph's callable
is wrapped once. Nothing of this is seen by Dynamo: no graph break, no guard, no recompile.
Read in the sources of torch 2.6, 2.8, 2.9, 2.11 and 2.13; run on 2.11 and 2.13.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING, Any

from nvprobe.instrumentation import awake, breaks, emitter, provenance, sidecar, torch_hooks
from nvprobe.instrumentation.emitter import Category
from nvprobe.instrumentation.hooks import Hooks, around

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

log = logging.getLogger("nvprobe")
_hooks = Hooks("compiled-graph ranges")
before_call: Callable[[str], object] = emitter.nobody
"""Called with the id of each forward graph that is about to be called; `phases` sets it."""
graph_called: Callable[[str, Any], object] = emitter.nobody
"""Called with the id and the inputs of each forward graph while awake; set by `engine_runs`."""


def install() -> None:
    """Give graphs compiled from now on a range, a manifest, and their breaks a reason."""
    if not _hooks.begin():
        return
    _hooks.replace("torch._inductor.output_code", "CompiledFxGraph.post_compile", _post_compile)
    _hooks.replace(
        "torch._dynamo.callback", "CompilationCallbackHandler.install_callbacks", _compiling
    )
    provenance.install()
    breaks.install()


def uninstall() -> None:
    """Leave graphs compiled from now on alone; those wrapped already keep their ranges."""
    _hooks.undo()
    provenance.uninstall()
    breaks.uninstall()


@around
def _post_compile(original: Callable[..., Any], graph: Any, /, *args: Any, **kwargs: Any) -> Any:
    """The same; what it gives is called inside ranges from then on."""
    result = original(graph, *args, **kwargs)
    try:
        _instrument(graph)
    except Exception as error:
        log.debug("no range around a compiled graph: %r", error)
    return result


def _instrument(graph: Any) -> None:
    """Wrap the callable of one CompiledFxGraph and write its manifest."""
    call = graph.current_callable
    if call is None:
        return
    identity = torch_hooks.compile_id() or f"key {graph.cache_key[:8]}"
    backward = bool(graph.fx_kwargs.get("is_backward"))
    graph.current_callable = _ranged(call, identity, backward=backward)
    sidecar.write(
        "graph",
        compile_id=identity,
        phase="bwd" if backward else "fwd",
        graph_id=graph.fx_kwargs.get("graph_id"),
        devices=sorted(graph.device_types),
        kernels=provenance.manifest(graph),
    )


def _ranged(call: Callable[[Any], Any], identity: str, *, backward: bool) -> Callable[[Any], Any]:
    """A compiled graph's callable inside its range."""
    name = f"graph {identity} {'bwd' if backward else 'fwd'}"
    label = emitter.label(name, Category.GRAPH)

    def run_forward(inputs: Any) -> Any:
        """Call a forward graph inside its range."""
        try:
            before_call(identity)
        except Exception as error:
            log.debug("before a compiled graph: %r", error)
        if not awake.now:
            return call(inputs)
        graph_called(identity, inputs)
        emitter.push(label)
        try:
            return call(inputs)
        finally:
            emitter.pop()

    def run_backward(inputs: Any) -> Any:
        """Call a backward graph inside its range, which carries the node's sequence number."""
        if not awake.now:
            return call(inputs)
        emitter.push(_with_sequence(name) if emitter.listening() else label)
        try:
            return call(inputs)
        finally:
            emitter.pop()

    return run_backward if backward else run_forward


def _with_sequence(name: str) -> emitter.Label:
    """The backward range's label with the autograd sequence number of its node as payload.

    The number leads to the forward call, and so tells apart the blocks that share one graph.
    """
    return emitter.label(name, Category.GRAPH, torch_hooks.node_number())


def _compiling(original: Callable[..., Any]) -> Callable[..., Any]:
    """A range around each compilation, whatever set it off (frame, backward, CUDA graph).

    The context manager is wrapped rather than callbacks registered: callbacks are forgotten by
    ``torch.compiler.reset()`` and are called once for nested compilations. It takes
    ``(trigger, compile_id)`` from torch 2.8 on and nothing before.
    """

    @contextlib.contextmanager
    def install_callbacks(handler: Any, *args: Any, **kwargs: Any) -> Iterator[None]:
        """The same context, with a range of the compilation inside."""
        with original(handler, *args, **kwargs):
            emitter.push(emitter.label(_compile_name(args), Category.GRAPH))
            try:
                yield
            finally:
                emitter.pop()

    return install_callbacks


def _compile_name(args: tuple[Any, ...]) -> str:
    """``compile 0/1``, and after it what was compiled where that is not a frame's forward."""
    trigger = getattr(args[0], "name", "") if args else ""
    identity = args[1] if len(args) > 1 else torch_hooks.compile_id()
    what = {"LAZY_BACKWARD": " bwd", "CUDAGRAPH_RECORDING": " cudagraph"}.get(trigger, "")
    return f"compile {identity}{what}"
