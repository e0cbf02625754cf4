"""Why Dynamo broke a graph or compiled a frame again, and how long compilations took.

Torch writes these facts into its structured log (``torch._logging.trace_structured``), which is
off unless somebody asks for a trace: then the text of most entries is not even made. So the
function is wrapped and only the few entries of interest are read, instead of adding a log handler
that would turn all of them on. The names of the entries are the same in torch 2.6 to 2.13.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import TYPE_CHECKING, Any

from nvprobe.errors import without_folders
from nvprobe.instrumentation import places, sidecar, torch_hooks
from nvprobe.instrumentation.hooks import Hooks, around
from nvprobe.instrumentation.sources import code_line, is_library, short_path

if TYPE_CHECKING:
    from collections.abc import Callable

log = logging.getLogger("nvprobe")
_hooks = Hooks("reasons of graph breaks and recompiles")

_FRAME = re.compile(r'^\s*File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>\S+)', re.M)
_BREAK_LINE = re.compile(r"^Graph break in user code at (?P<file>.+):(?P<line>\d+)$", re.M)
_BREAK_REASON = re.compile(
    r"^(?:Graph Break )?Reason: (?P<reason>.*?)(?=^User code traceback:|\Z)", re.M | re.S
)
_PLACE_IN_GUARD = re.compile(r"\s*# (?P<code>.*?)\s*# (?P<place>\S+:\d+ in \S+)")
REASON_LIMIT = 2000
"""Characters kept of one reason."""


def install() -> None:
    """Write a line per graph break, recompile and compilation into the sidecar from now on."""
    if not _hooks.begin():
        return
    _hooks.replace("torch._logging", "trace_structured", _trace_structured)
    for name in (
        "get_and_maybe_log_recompilation_reasons",
        "get_and_maybe_log_recompilation_reason",
    ):
        # plural from torch 2.7 on
        _hooks.replace("torch._dynamo.convert_frame", name, _recompiling, optional=True)


def uninstall() -> None:
    """Stop reading."""
    _hooks.undo()


@around
def _trace_structured(original: Callable[..., Any], /, name: str, *args: Any, **kwargs: Any) -> Any:
    """The same, after what it logs has been read."""
    if sidecar.is_open() and name in _READERS:
        try:
            _READERS[name](args[0] if args else kwargs.get("metadata_fn", dict), kwargs)
        except Exception as error:
            log.debug("torch's structured log entry %s is not understood: %r", name, error)
    return original(name, *args, **kwargs)


def _artifact(metadata: Callable[[], Any], entry: dict[str, Any]) -> None:
    if metadata().get("name") == "dynamo_graph_break_reason":
        _graph_break(entry["payload_fn"]())


def _graph_break(text: str) -> None:
    """One graph break from the text torch explains it with: user frames and reason inside."""
    head = text.partition("\nTraceback (most recent call last):")[0]
    frames = _users(list(_FRAME.finditer(head.rpartition("User code traceback:")[2] or head)))
    place = _BREAK_LINE.search(head)
    if frames and (place is None or is_library(place["file"])):
        place = frames[-1]
    found = _BREAK_REASON.search(head)
    reason = found["reason"] if found else head
    sidecar.write(
        "graph_break",
        compile_id=torch_hooks.compile_id(),
        reason=_clean(reason),
        source=place and f"{short_path(place['file'])}:{place['line']}",
        function=frames[-1]["function"] if frames else None,
        stack=[_shown(frame) for frame in reversed(frames)],
    )


def _users(frames: list[re.Match[str]]) -> list[re.Match[str]]:
    """The program's own frames of a traceback, or all where it has none."""
    return [one for one in frames if not is_library(one["file"])] or frames


def _shown(frame: re.Match[str]) -> str:
    return f"{short_path(frame['file'])}:{frame['line']} {frame['function']}"


def _clean(text: str) -> str:
    """A reason without folders of this machine and of bounded length."""
    text = without_folders(text.strip())
    return text if len(text) <= REASON_LIMIT else f"{text[:REASON_LIMIT]}…"


@around
def _recompiling(original: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """``(cache entries, frame, …) -> reasons``, called once per recompiled frame."""
    reasons = original(*args, **kwargs)
    try:
        _recompile(list(reasons), kwargs.get("frame", args[1]).f_code)
    except Exception as error:
        log.debug("no reason of a recompile: %r", error)
    return reasons


def _recompile(reasons: list[str], code: Any) -> None:
    source = code_line(code)
    places.site_behind(sys._getframe(), "torch.compile", source)
    sidecar.write(
        "recompile",
        compile_id=torch_hooks.compile_id(),
        source=source,
        function=code.co_name,
        reasons=[_reason(text) for text in reasons],
    )


def _reason(text: str) -> dict[str, Any]:
    """``0/1: guard  # code  # file:line in f`` plus a user stack, taken apart.

    ``failed`` is the earlier compilation whose guard did not hold; ``source`` the user's line the
    guard comes from, where torch knows it.
    """
    text, _, stack = text.partition("\nUser stack trace:")
    failed, colon, guard = text.partition(": ")
    if not colon or "/" not in failed:
        failed, guard = "", text
    frames = list(_FRAME.finditer(stack))
    place = _PLACE_IN_GUARD.search(guard)
    source = (
        _shown(frames[-1]) if frames else place["place"].replace(" in ", " ") if place else None
    )
    if source is not None:
        source = without_folders(source)
    return {
        "failed": failed or None,
        "guard": _clean(guard[: place.start()] if place else guard),
        "source": _shown(frames[-1]) if frames else source,
    }


def _compilation(metadata: Callable[[], Any], _entry: dict[str, Any]) -> None:
    """One compilation of a frame or of a backward graph, from torch's own metrics."""
    metrics = metadata()
    file, line = metrics.get("co_filename"), metrics.get("co_firstlineno")
    start, end = metrics.get("start_time_us"), metrics.get("end_time_us")
    sidecar.write(
        "compile_span",
        compile_id=metrics.get("compile_id") or torch_hooks.compile_id(),
        phase="bwd" if metrics.get("is_forward") is False else "fwd",
        function=metrics.get("co_name"),
        source=f"{short_path(file)}:{line}" if file else None,
        start_unix_ns=start and start * 1000,
        end_unix_ns=end and end * 1000,
        graph_ops=metrics.get("graph_op_count"),
        cache_hits=_total(metrics, "hit"),
        cache_misses=_total(metrics, "miss"),
        failed=_clean(metrics["fail_reason"]) if metrics.get("fail_reason") else None,
    )


def _total(metrics: dict[str, Any], outcome: str) -> int:
    names = (f"inductor_fx_local_cache_{outcome}_count", f"aotautograd_local_cache_{outcome}_count")
    return sum(metrics.get(name) or 0 for name in names)


_READERS: dict[str, Callable[[Callable[[], Any], dict[str, Any]], None]] = {
    "artifact": _artifact,
    "compilation_metrics": _compilation,
    "bwd_compilation_metrics": _compilation,
}
