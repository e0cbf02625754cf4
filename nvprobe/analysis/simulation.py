"""What if: the captured step with changes that the user asks for, and its critical path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

import numpy as np
import pyarrow.compute as pc

from nvprobe.analysis.completeness import lost_launches
from nvprobe.analysis.critical_time import OnPath, critical_time
from nvprobe.analysis.kernels.attributed import classify
from nvprobe.analysis.kernels.classes import Activity, Family, OpClasses
from nvprobe.analysis.kernels.occupancy import launch_fit
from nvprobe.analysis.replay import changes
from nvprobe.analysis.replay.costs import step_of
from nvprobe.analysis.replay.edits.batch import larger_batch
from nvprobe.analysis.replay.edits.launches import cuda_graph
from nvprobe.analysis.replay.edits.waits import overlap_upload, remove_sync
from nvprobe.analysis.replay.levels import Edit, Level, all_of, changed
from nvprobe.analysis.replay.model import Model
from nvprobe.analysis.replay.prepared import Replay, replay_of
from nvprobe.analysis.replay.sample import Sample
from nvprobe.analysis.replay.search import MODEL_ERROR, Saving, weigh
from nvprobe.analysis.steps import steps
from nvprobe.analysis.waiting.syncs import Syncs
from nvprobe.analysis.waiting.waits import waits
from nvprobe.attribution.model import Attribution, shown_path
from nvprobe.errors import UsageError
from nvprobe.trace import Column, OpKind

OPTIMIZER = r"(?i)^(optim(izer)?(_step)?|Optimizer\.(step|zero_grad).*|(## )?optimizer( ##)?)$"
"""Ranges whose work is that of the parameters, however many examples a step has."""


@dataclass(frozen=True, slots=True)
class Asked:
    """Changes, all made together. Paths may hold ``*`` and ``?`` and stand for what is below."""

    remove_sync: Sequence[str] = ()
    """Lines: ``train.py:31``."""
    cuda_graph: Sequence[str] = ()
    speed_up: Mapping[str, float] = field(default_factory=dict)
    """Kernel family or class of work: how many times faster."""
    overlap: Sequence[str] = ()
    drop: Sequence[str] = ()
    batch: float = 1.0
    """How many times as many examples are in a step."""

    def each(self) -> Iterator[Asked]:
        """One change after the other."""
        yield from (Asked(remove_sync=(line,)) for line in self.remove_sync)
        yield from (Asked(cuda_graph=(path,)) for path in self.cuda_graph)
        yield from (Asked(speed_up={name: times}) for name, times in self.speed_up.items())
        yield from (Asked(overlap=(path,)) for path in self.overlap)
        yield from (Asked(drop=(name,)) for name in self.drop)
        if self.batch != 1:
            yield Asked(batch=self.batch)


@dataclass(frozen=True, slots=True)
class Simulation:
    """A step as it is and as it would be, without the profiler."""

    step_ns: int
    saving: Saving
    calibration: str
    replay_error: float
    step_with_ns: tuple[int, int, int]
    """The step with the changes: at least, expected, at most."""
    before: tuple[OnPath, ...]
    after: tuple[OnPath, ...]


def simulate(attribution: Attribution, asked: Asked, process: int | None = None) -> Simulation:
    """Replay the captured steps of a process, by default the one with most, with changes.

    Raises UsageError where the capture has no steps to replay, a replay of it is not the captured
    step, or it has nothing of what a change names.
    """
    found = steps(attribution, lost_launches(attribution))
    waited = waits(attribution, found)
    by, good = replay_of(attribution, found, waited, process)
    if good is None:
        raise UsageError(
            "no replay: it needs three steps with GPU work, which the capture does not have"
        )
    if good.too_long:
        raise UsageError("no replay: the steps of the capture have too many calls that wait")
    if by is None:
        error = max(good.error, good.usual_error)
        raise UsageError(f"no replay: the replayed step is {error:.1%} off the captured one")
    few, model = by.sample, by.models[0]
    classes = classify(attribution)
    edit = edit_of(few, asked, waited.syncs)
    return Simulation(
        step_ns=by.step_ns,
        saving=weigh(by.models, edit),
        calibration=by.source,
        replay_error=good.error,
        step_with_ns=_steps_with(by, edit),
        before=critical_time(few, model, waited.syncs, classes),
        after=critical_time(few, changed(model, edit, Level.MID), waited.syncs, classes),
    )


def edit_of(few: Sample, asked: Asked, syncs: Syncs) -> Edit:
    """All changes, one after the other. Raises UsageError for what the steps do not have."""
    return all_of([
        *(remove_sync(few, _at_line(few, line, syncs)) for line in asked.remove_sync),
        *(cuda_graph(few, _launches_in(few, path)) for path in asked.cuda_graph),
        *(_faster(few, name, times) for name, times in asked.speed_up.items()),
        *(overlap_upload(few, _copies_in(few, path)) for path in asked.overlap),
        *(_without(few, path) for path in asked.drop),
        *([_batch(few, asked.batch)] if asked.batch != 1 else []),
    ])  # fmt: skip


def _steps_with(by: Replay, edit: Edit) -> tuple[int, int, int]:
    """(least, expected, most) over levels and calibrations, with the error of the model.

    Expected is the mean over the calibrations.
    """
    lengths = {
        level: [step_of(changed(model, edit, level)) for model in by.models] for level in Level
    }
    scale = by.step_ns / max(by.steps_ns[0], 1)
    all_ = [one for some in lengths.values() for one in some]
    mid = float(np.mean(lengths[Level.MID]))
    error = MODEL_ERROR * by.step_ns
    least, most = min(all_) * scale - error, max(all_) * scale + error
    return max(round(least), 0), round(mid * scale), round(most)


def _batch(few: Sample, times: float) -> Edit:
    """Ops of forward and backward passes and uploads grow; optimizers and collectives do not."""
    attribution, trace = few.attribution, few.attribution.trace
    if not len(trace.geometry) or (trace.ops.kind[few.op] == OpKind.GRAPH).any():
        raise UsageError("--batch: the capture has no sizes of launches, or graphs recorded whole")
    fit = launch_fit(trace)
    waves = np.full(len(trace.ops), np.nan)
    if fit is not None:
        waves[trace.geometry.op] = fit.waves
    fixed = _named(few, OPTIMIZER)[attribution.owner[few.op]]
    activity = classify(attribution).activity[few.op]
    growing = ~fixed & (activity != Activity.COMMUNICATION)
    return larger_batch(few, times, growing, waves[few.op])


def _named(few: Sample, pattern: str) -> Column:
    """Bool per path, the last one for none: a range of it is named so (RE2)."""
    paths = few.attribution.paths
    hit = pc.match_substring_regex(paths.names, pattern).to_numpy(zero_copy_only=False)
    return np.append(paths.nearest(np.asarray(hit, bool)[paths.name]) >= 0, False)


def _faster(few: Sample, name: str, times: float) -> Edit:
    classes = classify(few.attribution)
    ops = _of_class(classes, name)[few.op]
    if not ops.any():
        raise UsageError(f"--speed-up {name}: no op of the steps is of this class")

    def edit(model: Model, level: Level) -> None:
        changes.scale(model, ops, 1 / times)

    return edit


def _of_class(classes: OpClasses, name: str) -> Column:
    """Bool per op: of a kernel family or of a class of work."""
    for kind, column in ((Family, classes.family), (Activity, classes.activity)):
        if name.upper() in kind.__members__:
            return np.asarray(column == kind[name.upper()])
    known = sorted({one.label for one in (*Family, *Activity)})
    raise UsageError(f"--speed-up {name}: classes are {', '.join(known)}")


def _without(few: Sample, name: str) -> Edit:
    """Without a path, or without a kernel: then what the host does before its call may stay."""
    ops, paths = _of_kernel(few, name), _below(few, name)
    if not paths.any() and not ops.any():
        raise UsageError(
            f"--drop {name}: not a path of the capture (--show ranges lists them), nor a kernel of "
            "its steps"
        )
    if paths.any():
        events, ops = _events_in(few, paths), _ops_in(few, paths)
        launches = events
    else:
        events, launches = np.zeros((2, len(few.events)), bool)
        launches[few.model.ops.event[ops]] = True
        launches[few.model.ops.event[~ops]] = False  # a graph has other nodes
    if not (events.any() or ops.any()):
        raise UsageError(f"--drop {name}: nothing of the steps is in this path")

    def edit(model: Model, level: Level) -> None:
        changes.drop(model, launches if level == Level.HIGH else events)
        changes.drop_ops(model, ops)
        model.events.dur[launches] = 0

    return edit


def _of_kernel(few: Sample, pattern: str) -> Column:
    """Bool per op: a kernel whose short name matches."""
    trace = few.attribution.trace
    rows, code = np.unique(trace.ops.short_name[few.op], return_inverse=True)
    known = [fnmatchcase(text or "", pattern) for text in trace.texts(rows)]
    return np.asarray(np.array(known, bool)[code] & (trace.ops.kind[few.op] == OpKind.KERNEL))


def _at_line(few: Sample, line: str, syncs: Syncs) -> Column:
    """Bool per event: a synchronization at this line."""
    known = [str(label) for label in syncs.labels.to_pylist()]
    wanted = [label.split(" ")[0] == line or label.endswith("/" + line) for label in known]
    source = np.append(syncs.sites.source, -1)[np.append(syncs.site, -1)[few.events.waits]]
    events = np.append(np.array(wanted, bool), False)[source] & (few.events.waits >= 0)
    if not events.any():
        raise UsageError(f"--remove-sync {line}: nothing synchronizes there in the steps")
    return np.asarray(events)


def _below(few: Sample, pattern: str) -> Column:
    """Bool per path, the last one for none: it matches, or is below one that does."""
    paths = few.attribution.paths
    texts = paths.texts()
    own = [fnmatchcase(one, pattern) or fnmatchcase(shown_path(one), pattern) for one in texts]
    out = np.array([*own, False], bool)
    for depth in range(1, int(paths.depth.max(initial=0)) + 1):
        rows = np.flatnonzero(paths.depth == depth)
        out[rows] |= out[paths.parent[rows]]
    return out


def _matching(few: Sample, option: str, pattern: str) -> Column:
    """The same; UsageError where nothing matches."""
    out = _below(few, pattern)
    if not out.any():
        raise UsageError(
            f"{option} {pattern}: not a path of the capture (--show ranges lists them)"
        )
    return out


def _launches_in(few: Sample, pattern: str) -> Column:
    events = _events_in(few, _matching(few, "--cuda-graph", pattern))
    if not events.any():
        raise UsageError(f"--cuda-graph {pattern}: nothing is launched in this path")
    return events


def _copies_in(few: Sample, pattern: str) -> Column:
    ops = _ops_in(few, _matching(few, "--overlap", pattern))
    copies = ops & (few.attribution.trace.ops.kind[few.op] == OpKind.MEMCPY)
    if not copies.any():
        raise UsageError(f"--overlap {pattern}: nothing is copied in this path")
    return np.asarray(copies)


def _events_in(few: Sample, paths: Column) -> Column:
    """Bool per event: a call in these paths."""
    return np.asarray(paths[few.path] & (few.events.call >= 0))


def _ops_in(few: Sample, paths: Column) -> Column:
    """Bool per op of the sample: of these paths."""
    return np.asarray(paths[few.attribution.owner[few.op]])
