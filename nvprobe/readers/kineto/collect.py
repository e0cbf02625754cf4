"""Events of a torch trace become columns, one batch a kind and piece; objects do not outlive it."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import msgspec
import numpy as np

from nvprobe.readers.kineto.events import nanoseconds, nanoseconds_of_text
from nvprobe.readers.kineto.messages import message_columns
from nvprobe.trace import NO_NAME, Column

_FRAMES = "python_function"
_NO_CATEGORY = "(none)"

_KINDS = {
    "kernel": "ops",
    "Kernel": "ops",
    "gpu_memcpy": "ops",
    "Memcpy": "ops",
    "gpu_memset": "ops",
    "Memset": "ops",
    "cpu_op": "operators",
    "Operator": "operators",
    "user_annotation": "annotations",
    _FRAMES: "frames",
    "cuda_runtime": "calls",
    "cuda_driver": "calls",
    "Runtime": "calls",
    "xpu_runtime": "calls",
    "xpu_driver": "calls",
    "privateuse1_runtime": "calls",
    "privateuse1_driver": "calls",
    "cuda_sync": "syncs",
    "xpu_sync": "syncs",
    "overhead": "overheads",
    "Trace": "window",
}
"""What an event of each category becomes."""
COUNTERS = "cuda_profiler_range"
"""Hardware counters of a range of kernels, which the profiler records instead of the kernels."""
_NO_WORK = {"gpu_user_annotation", "cuda_event", "external_correlation", COUNTERS}
"""Categories that only point at the work of others: left out on purpose."""

_OP_KINDS = {"kernel": 0, "gpu_memcpy": 1, "memcpy": 1, "gpu_memset": 2, "memset": 2}
_SYNC_INTEGERS = ("device", "context", "stream", "correlation", "event")
_OP_INTEGERS = (*_SYNC_INTEGERS[:-1], "graph", "graph_node", "registers", "shared", "bytes")
_MEMORY_INTEGERS = ("reserved", "allocated", "change", "device_id", "device_type", "address")
_MODULE = "nn.Module: "
_DECISIVE = ("conv", "attention")
"""In names of operators whose work the values of their arguments decide, not shapes alone."""
_WINDOW_END = "Record Window End"


class Names(dict[Any, int]):
    """A growing string dictionary: ``names[text]`` is its row, new texts get the next one."""

    def __missing__(self, text: Any) -> int:
        row = self[text] = len(self)
        return row

    def rows(self, texts: list[Any]) -> Column:
        """int32 rows of many texts."""
        return np.array(list(map(self.__getitem__, texts)), np.int32)


class Collector:
    """Columns of everything a Trace has columns for; ``column(kind, name)`` joins the batches."""

    def __init__(self, *, python_stacks: bool, label: str | None = None) -> None:
        self.python_stacks = python_stacks
        self.label = label
        """Of a file of several merged ranks the one to collect: ``[TP01]``."""
        self.labels: set[str] = set()
        """All ranks that were merged into the file, as its process ids name them."""
        self.names = Names()
        self.json = Names()
        """Texts of shapes and types, as bytes of JSON."""
        self.thread_names: dict[int, str] = {}
        self.process_names: dict[int, str] = {}
        self.seen: Counter[str] = Counter()
        """Events with a duration, by category."""
        self._batches: dict[str, list[dict[str, Column]]] = defaultdict(list)
        self._readers = {
            "ops": self._ops,
            "operators": self._operators,
            "annotations": self._annotations,
            "modules": self._ranges,
            "frames": self._ranges,
            "calls": self._calls,
            "syncs": self._syncs,
            "overheads": self._ranges,
            "memory": self._memory,
            "flows": self._flows,
            "window": self._timed,
            "window_end": self._timed,
        }

    def add(self, events: list[Any], *, text_times: bool) -> None:
        """Collect one piece; raises :class:`InexactTimes` before anything of it is kept."""
        self._ns = nanoseconds_of_text if text_times else nanoseconds
        if self.label is not None:
            events = [event for event in events if _label(event.pid) == self.label]
        kinds, seen = self._sort(events)
        batches = {kind: self._readers[kind](chosen) for kind, chosen in kinds.items()}
        for kind, batch in batches.items():
            self._batches[kind].append(batch)
        self.seen += seen

    @property
    def timed(self) -> int:
        """Events with a duration and a category, as all of torch.profiler's have one."""
        return self.seen.total() - self.without_category

    @property
    def without_category(self) -> int:
        """Events with a duration that other programs wrote."""
        return self.seen[_NO_CATEGORY]

    @property
    def frames_seen(self) -> int:
        """Python frames of the file, whether or not they were asked for."""
        return self.seen[_FRAMES]

    @property
    def unknown(self) -> dict[str, int]:
        """Events of categories this loader has no table for, by category."""
        return {c: n for c, n in self.seen.items() if c not in _KINDS and c not in _NO_WORK}

    def rows(self, kind: str) -> int:
        """How many events of a kind there were."""
        return sum(len(batch["start"]) for batch in self._batches[kind])

    def columns(self, kind: str) -> dict[str, Column]:
        """All columns of a kind, the batches joined and let go."""
        batches = self._batches.pop(kind, [])
        if not batches:
            batches = [self._readers[kind]([])]
        out: dict[str, Column] = {}
        for name in list(batches[0]):
            out[name] = np.concatenate([batch.pop(name) for batch in batches])
        return out

    def _sort(self, events: list[Any]) -> tuple[dict[str, list[Any]], Counter[str]]:
        """Events by what they become; how many have a duration, by category."""
        by_category: dict[str, list[Any]] = defaultdict(list)
        for event in events:
            by_category[event.cat].append(event)
        kinds: dict[str, list[Any]] = defaultdict(list)
        seen: Counter[str] = Counter()
        for category, chosen in by_category.items():
            if category == "fwdbwd":
                kinds["flows"] += chosen
            elif category == "cpu_instant_event":
                kinds["memory"] += [event for event in chosen if event.name == "[memory]"]
            elif category:
                complete = [event for event in chosen if event.ph == "X"]
                seen[category] = len(complete)
                self._sort_complete(category, complete, kinds)
            else:
                self._describe([event for event in chosen if event.ph == "M"])
                seen[_NO_CATEGORY] = sum(event.ph == "X" for event in chosen)
                kinds["window_end"] += [event for event in chosen if event.name == _WINDOW_END]
        return kinds, +seen

    def _sort_complete(self, category: str, events: list[Any], kinds: dict[str, list[Any]]) -> None:
        kind = _KINDS.get(category)
        if kind is None:
            return
        if kind != "frames":
            kinds[kind] += events
            return
        kinds["modules"] += [event for event in events if event.name.startswith(_MODULE)]
        if self.python_stacks:
            kinds["frames"] += [e for e in events if not e.name.startswith(_MODULE)]

    def _describe(self, events: list[Any]) -> None:
        for event in events:
            self.labels |= {_label(event.pid)} - {""}
            if not event.args.name:
                continue
            if event.name == "thread_name":
                self.thread_names[_integer(event.tid)] = event.args.name
            elif event.name == "process_name":
                name = f"{self.label} {event.args.name}" if self.label else event.args.name
                self.process_names[_integer(event.pid)] = name

    def _timed(self, events: list[Any]) -> dict[str, Column]:
        start = self._ns([event.ts for event in events])
        return {"start": start, "end": start + nanoseconds([event.dur for event in events])}

    def _hosted(self, events: list[Any]) -> dict[str, Column]:
        return {
            **self._timed(events),
            "pid": _integers([event.pid for event in events]),
            "tid": _integers([event.tid for event in events]),
        }

    def _ranges(self, events: list[Any]) -> dict[str, Column]:
        names = self.names.rows([event.name.removeprefix(_MODULE) for event in events])
        return {**self._hosted(events), "name": names}

    def _annotations(self, events: list[Any]) -> dict[str, Column]:
        return {**self._ranges(events), "external": _external([event.args for event in events])}

    def _operators(self, events: list[Any]) -> dict[str, Column]:
        arguments = [event.args for event in events]
        return {
            **self._ranges(events),
            "sequence": _integers([a.sequence for a in arguments]),
            "forward_thread": _integers([a.forward_thread for a in arguments]),
            "external": _external(arguments),
            "shapes": self._json([a.shapes or a.shapes_2020 for a in arguments]),
            "types": self._json([a.types for a in arguments]),
            "arguments": self._json(list(map(_decisive_values, events))),
        }

    def _calls(self, events: list[Any]) -> dict[str, Column]:
        arguments = [event.args for event in events]
        return {
            **self._ranges(events),
            "correlation": _integers([a.correlation for a in arguments]),
            "external": _external(arguments),
        }

    def _ops(self, events: list[Any]) -> dict[str, Column]:
        arguments = [event.args for event in events]
        grid = _triples([a.grid for a in arguments])
        block = _triples([a.block for a in arguments])
        return {
            **self._timed(events),
            "name": self.names.rows([event.name for event in events]),
            "kind": np.array([_OP_KINDS[event.cat.lower()] for event in events], np.int8),
            "external": _external(arguments),
            **{name: _integers([getattr(a, name) for a in arguments]) for name in _OP_INTEGERS},
            "stream": _integers([a.stream if a.stream != -1 else a.queue for a in arguments]),
            **{f"grid_{axis}": grid[:, row] for row, axis in enumerate("xyz")},
            **{f"block_{axis}": block[:, row] for row, axis in enumerate("xyz")},
            **message_columns(arguments, self.names.rows),
        }

    def _syncs(self, events: list[Any]) -> dict[str, Column]:
        arguments = [event.args for event in events]
        kinds = [a.sync_kind or e.name for a, e in zip(arguments, events, strict=True)]
        return {
            **self._timed(events),
            "name": self.names.rows(kinds),
            **{name: _integers([getattr(a, name) for a in arguments]) for name in _SYNC_INTEGERS},
        }

    def _memory(self, events: list[Any]) -> dict[str, Column]:
        arguments = [event.args for event in events]
        return {
            **self._hosted(events),
            **{name: _integers([getattr(a, name) for a in arguments]) for name in _MEMORY_INTEGERS},
        }

    def _flows(self, events: list[Any]) -> dict[str, Column]:
        return {
            **self._hosted(events),
            "id": _integers([event.id for event in events]),
            "begins": np.array([event.ph == "s" for event in events], bool),
        }

    def _json(self, raws: list[msgspec.Raw]) -> Column:
        texts = map(bytes, raws)
        known = self.json
        return np.array([known[text] if text else NO_NAME for text in texts], np.int32)


def _decisive_values(event: Any) -> msgspec.Raw:
    name = event.name
    return event.args.values if any(part in name for part in _DECISIVE) else msgspec.Raw()


def _external(arguments: list[Any]) -> Column:
    return _integers([a.external if a.external != -1 else a.external_2020 for a in arguments])


def _integers(values: list[Any]) -> Column:
    """Integers, int32 where all fit; what is text becomes its number, what does not fit -1."""
    try:
        wide = np.array(values, np.int64)
    except (OverflowError, ValueError):
        wide = np.array([_integer(value) for value in values], np.int64)
    narrow = wide.astype(np.int32)
    return narrow if (narrow == wide).all() else wide


def _integer(value: Any) -> int:
    """A thread or process id; a text that is not a number gets a number of its own, below -1."""
    if isinstance(value, str):
        digits = value.rpartition(" ")[2]
        return int(digits) if digits.isascii() and digits.isdigit() and len(digits) < 19 else -2
    return int(value) if -(1 << 63) <= value < 1 << 63 else -1


def _label(pid: int | str) -> str:
    """``[TP01]`` of the process id ``[TP01] 84``: a rank that was merged into the file."""
    label, _, _ = pid.partition(" ") if isinstance(pid, str) else ("", "", "")
    return label if label.startswith("[") and label.endswith("]") else ""


def _triples(values: list[Any]) -> Column:
    """int32 of shape (n, 3) from ``[x, y, z]``; 0 where a source gives no geometry."""
    unknown = [0, 0, 0]
    good = [v if type(v) is list and len(v) == 3 else unknown for v in values]
    return np.array(good, np.int64).reshape(-1, 3).clip(0, 2**31 - 1).astype(np.int32)
