"""One NVTX domain, ``nvprobe``, and the cheapest way to write ranges and marks into it.

Call the three verbs through the module (``emitter.push(label)``), never as imported names: `use`
rebinds them, so that the backend costs no test on the hot path. What they are bound to:

* ``nvtx`` with a tool attached: the nvtx package's own compiled methods, with prebuilt attributes;
* ``nvtx`` without a tool (or without the package), and ``off``: a function that does nothing;
* ``record_function``: scopes of torch.profiler, which cannot see NVTX. They are written only while
  a profiler runs: a scope costs microseconds.

The backend is read once from ``NVPROBE_EMITTER``. NVTX decides at the process's first NVTX call
whether a tool listens, and that does not change afterwards, so neither does what a label is.
"""

from __future__ import annotations

import enum
import logging
import os
import sys
import threading
from typing import TYPE_CHECKING, Any, Literal, NewType, cast, get_args

from nvprobe.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("nvprobe")

DOMAIN = "nvprobe"
CACHED_LABELS = 65_536
"""Labels kept for reuse; names made without end (``f"item {i}"``) are built anew beyond that."""

Backend = Literal["nvtx", "record_function", "off"]
Label = NewType("Label", object)
"""A name, category and payload made ready for `push` and `mark`; opaque, valid for any backend."""


class Category(enum.Enum):
    """What a range or mark is; the value is the NVTX category's name, which analyses read."""

    STEP = "step"
    PHASE = "phase"
    MODULE = "module"
    GRAPH = "graph"
    CUDAGRAPH = "cudagraph"
    COLLECTIVE = "collective"
    USER = "user"
    SYNC = "sync"


_COLORS = {
    Category.STEP: 0xFF7F7F7F,
    Category.PHASE: 0xFF1F77B4,
    Category.MODULE: 0xFF2CA02C,
    Category.GRAPH: 0xFF9467BD,
    Category.CUDAGRAPH: 0xFF8C564B,
    Category.COLLECTIVE: 0xFFFF7F0E,
    Category.USER: 0xFF17BECF,
    Category.SYNC: 0xFFD62728,
}


class _Plain:
    """A label where no NVTX tool listens: what `record_function` needs, nothing else."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


def _domain() -> Any:
    """The nvtx domain, or None where the package is missing or no tool listens."""
    try:
        import nvtx

        attached = bool(os.environ.get("NVTX_INJECTION64_PATH"))
        domain = nvtx.get_domain(DOMAIN)
        if not hasattr(domain, "push_range"):
            return _OlderDomain(domain) if attached else None
        if domain.get_event_attributes("nvprobe", None, Category.USER.value, None) is None:
            return _unasked_domain() if attached else None
    except Exception as error:  # a broken or very old nvtx must not stop the user's program
        log.debug("no NVTX ranges: %s", error)
        return None
    return domain


class _OlderDomain:
    """What nvtx 0.2.12 made of a domain, for the functions of older versions (0.2.11)."""

    def __init__(self, domain: Any) -> None:
        from nvtx._lib import lib

        handle = domain.handle
        self.get_event_attributes = domain.get_event_attributes
        self.push_range = lambda attributes: lib.push_range(attributes, handle)
        self.pop_range = lambda: lib.pop_range(handle)
        self.mark = lambda attributes: lib.mark(attributes, handle)
        self.start_range = lambda attributes: lib.start_range(attributes, handle)
        self.end_range = lib.end_range


def _unasked_domain() -> Any:
    """The domain where a tool is attached that does not say so.

    nvtx 0.2.12 and newer ask the tool whether a domain is enabled; nsys before 2024 does not know
    the question, and nvtx takes that for a no and drops every range. The tool listens all the
    same: built past the question, the domain's ranges are recorded (nvtx 0.2.17, nsys 2022.4).
    """
    from nvtx._lib import lib

    domain = object.__new__(lib.Domain)
    domain.handle = lib.DomainHandle(DOMAIN)
    domain.__init__(DOMAIN)
    return domain


def domain() -> Any:
    """The nvtx package's own domain object, or None where nobody listens."""
    return _live


_live: Any = _domain()
_labels: dict[tuple[str, Category], Label] = {}
_open_scopes = threading.local()


def encodable(name: str) -> str:
    """A name that can be written: half of a surrogate pair is in no encoding."""
    return name if name.isascii() else name.encode(errors="replace").decode()


def _build(name: str, category: Category, payload: int | float | None) -> Label:
    name = encodable(name)
    if _live is None:
        return Label(_Plain(name))
    color = _COLORS[category]
    return Label(_live.get_event_attributes(name, color, category.value, payload))


def label(name: str, category: Category, payload: int | float | None = None) -> Label:
    """Make a label ready: the name registered, the attributes built.

    Without a payload the same arguments give the same object. With one a new label is built on
    each call (about a microsecond), because payloads are indices that seldom repeat.

    Args:
        name: What the timeline shows; NUL ends it.
        category: Its kind.
        payload: An integer (64 bits) or float to carry along, such as a step's index.

    """
    if payload is not None:
        return _build(name, category, payload)
    key = (name, category)
    made = _labels.get(key)
    if made is None:
        made = _build(name, category, None)
        if len(_labels) < CACHED_LABELS:
            _labels[key] = made
    return made


def name_of(label: Label) -> str:
    """The text a label was made with."""
    plain: Any = label
    return str(plain.name if isinstance(label, _Plain) else plain.message.string)


def is_known(name: str, category: Category) -> bool:
    """Whether a label of that name and category was made (without a payload)."""
    return (name, category) in _labels


def nothing(label: Label | None = None) -> None:
    """Stand in for `push`, `pop` and `mark` where nobody listens."""


def nobody(*_given: object) -> None:
    """Stand in for a listener."""


def _scopes() -> list[tuple[str | None, Any]]:
    """The name and the scope of each range that is open on this thread."""
    try:
        stack: list[tuple[str | None, Any]] = _open_scopes.stack
    except AttributeError:
        stack = _open_scopes.stack = []
    return stack


def _open_scope(label: Label) -> None:
    """Open a torch.profiler scope; None on the stack keeps the balance where there is none.

    There is none while no profiler runs, and for a phase directly inside the program's own range of
    its name: a profiler's trace has no categories by which reports could fold the two.
    """
    stack = _scopes()
    name = scope = None
    if _profiling() and not _traced():
        name = name_of(label)
        if not (stack and stack[-1][0] == name and _is_phase(label, name)):
            from torch.profiler import record_function

            scope = record_function(name)
            _unseen(scope.__enter__)
    stack.append((name, scope))


def _is_phase(label: Label, name: str) -> bool:
    return _labels.get((name, Category.PHASE)) is label


def _close_scope() -> None:
    stack = _scopes()
    _, scope = stack.pop() if stack else (None, None)
    if scope is not None:
        _unseen(scope.__exit__, None, None, None)


def _unseen(begin_or_end: Callable[..., object], *error: None) -> None:
    """Open or close a scope past what the program has around operators: it is none of them.

    A mode would print or count it, ``make_fx`` and ``torch.jit.trace`` take it into their graphs.
    (Names of torch 2.6 to 2.13.)
    """
    from torch import _C

    if not _C._len_torch_function_stack() and not _C._len_torch_dispatch_stack():
        begin_or_end(*error)
        return
    from torch.utils._python_dispatch import _disable_current_modes

    with _C.DisableTorchFunction(), _disable_current_modes():
        begin_or_end(*error)


def _mark_scope(label: Label) -> None:
    _open_scope(label)
    _close_scope()


muted = False
"""Whether the profiler that runs is the program's own, and none of nvprobe's scopes are in it."""


def _profiling() -> bool:
    """Whether a torch profiler runs for us (`_is_profiler_enabled`: torch 2.2 to 2.13)."""
    profiler = sys.modules.get("torch.autograd.profiler")
    if profiler is None:  # importing it here would bring torch into a program that has none
        return False
    return not muted and bool(getattr(profiler, "_is_profiler_enabled", True))


def _traced() -> bool:
    """Whether ``torch.jit.trace`` would take a scope into its graph."""
    from torch import _C

    return _C._get_tracing_state() is not None


push: Callable[[Label], object] = nothing
"""Open a range on this thread."""
pop: Callable[[], object] = nothing
"""Close the innermost open range of this thread."""
mark: Callable[[Label], object] = nothing
"""Write an instant."""
own_push: Callable[[Label], object] = nothing
"""The backend's own `push`, whatever stands around it; for who keeps its own account of ranges."""
own_pop: Callable[[], object] = nothing
_backend: Backend = "off"


def use(backend: Backend) -> None:
    """Send ranges and marks to another backend; call it where no range is open.

    Raises:
        UsageError: The name is none of ``nvtx``, ``record_function``, ``off``.

    """
    global push, pop, mark, own_push, own_pop, _backend
    if backend not in get_args(Backend):
        raise UsageError(f"emitter {backend!r}: use nvtx, record_function or off")
    _backend = backend
    push = pop = mark = nothing
    if backend == "record_function":
        push, pop, mark = _open_scope, _close_scope, _mark_scope
    elif backend == "nvtx" and _live is not None:
        push, pop, mark = _live.push_range, _live.pop_range, _live.mark
    own_push, own_pop = push, pop


def backend() -> Backend:
    """Where ranges and marks go."""
    return _backend


def listening() -> bool:
    """Whether what is written now reaches a tool: an NVTX listener or a running torch profiler."""
    if _backend == "nvtx":
        return _live is not None
    return _backend == "record_function" and _profiling()


def silent() -> bool:
    """Whether nothing written can ever reach a tool in this process."""
    return _backend == "off" or (_backend == "nvtx" and _live is None)


def _chosen() -> Backend:
    """The backend named by the environment; an unknown name must not stop the user's program."""
    chosen = os.environ.get("NVPROBE_EMITTER", "nvtx")
    if chosen in get_args(Backend):
        return cast("Backend", chosen)
    log.warning("NVPROBE_EMITTER=%s is unknown (nvtx, record_function, off): nvtx is used", chosen)
    return "nvtx"


use(_chosen())
