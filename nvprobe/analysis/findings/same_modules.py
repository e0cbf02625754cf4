"""Whether the calls below one path are calls of one module: by its objects, or by its gradients.

A path names a class where no path of the model leads to a module. The sidecar knows the objects
(docs/sidecar.md, ``object``). Where it has none, in a torch trace of somebody else for one, the
rules look for what only a module that is used again does.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa

from nvprobe.analysis.findings.model import Evidence
from nvprobe.analysis.findings.program import program
from nvprobe.analysis.findings.sampled import BACKWARD, Sampled
from nvprobe.attribution.model import Kind, PathTable
from nvprobe.attribution.names import clean_names
from nvprobe.trace import Column
from nvprobe.trace.sidecar import ModuleObject

FORWARD_PHASE, EVALUATION_PHASE = "forward", "evaluation"
"""Calls of models, where nvprobe gave the phases; it cannot know what the second are for."""
CELL_KERNELS, CELL_CALLS = 16, 16
"""A cell launches few kernels in a call, and is called often; a layer of a model neither."""
SUMS = 2
"""Gradients summed for each call: of a weight and a bias. What is used once has none, but a
residual connection has one."""


class ModuleObjects:
    """The module objects behind paths."""

    def __init__(self, paths: PathTable, objects: Iterable[ModuleObject]) -> None:
        self.paths = paths
        rows = list(objects)
        clean = clean_names(pa.array([one.name for one in rows], pa.string()))
        names = clean.names.take(pa.array(clean.code)).to_pylist()
        self._named: dict[str, list[ModuleObject]] = defaultdict(list)
        for one, name in zip(rows, names, strict=True):
            self._named[name].append(one)

    def of(self, path: int) -> list[ModuleObject]:
        """Those that open the last range of a path: of the root around it, where it has one."""
        found = self._named.get(_name(self.paths, path), [])
        around = {_name(self.paths, one) for one in _above(self.paths, path)}
        return [one for one in found if one.root in around] or found

    def count(self, path: int) -> int:
        """How many there are in a process, at most; 0 where nothing is known."""
        found = {(one.process, one.object) for one in self.of(path)}
        return max(Counter(process for process, _ in found).values(), default=0)

    def train_too(self, paths: Iterable[int]) -> bool | None:
        """Whether a model called in one of the paths trains and is evaluated as well.

        None where no mode is known.
        """
        modes: dict[tuple[int, int], set[bool]] = defaultdict(set)
        for path in paths:
            for one in self.of(path):
                if one.trains is not None:
                    modes[one.process, one.object].add(one.trains)
        return any(len(seen) == 2 for seen in modes.values()) if modes else None


def module_objects(evidence: Evidence) -> ModuleObjects:
    """Those of a capture."""
    return ModuleObjects(evidence.attribution.paths, evidence.trace.sidecar.objects)


def looks_like_a_cell(steps: Sampled, launches: float, calls: float) -> bool:
    """Whether a module with so many launches and calls per step is one that is used again.

    That is seen in training alone: each further use of a weight is a sum of gradients.
    """
    least = CELL_CALLS * program(steps.evidence).passes
    if launches > CELL_KERNELS * calls or calls < least:
        return False
    backward = steps.on_autograd | steps.below(BACKWARD)
    sums = steps.kernels(r"CUDAFunctor_add|AddFunctor") & steps.started_by(backward)
    return bool(np.count_nonzero(sums) >= SUMS * (calls - 1) * steps.sample.steps)


def evaluations(evidence: Evidence, ranges: Column) -> Iterator[int]:
    """The paths of evaluations among ``ranges``.

    What the program itself calls so is one. A phase is, where its model also trains: a teacher, or
    a target network, never does, and its output is needed. Without objects a model is known by the
    paths of its modules.
    """
    paths, objects = evidence.attribution.paths, module_objects(evidence)
    forward = _are_named(paths, FORWARD_PHASE)
    model, phase = _models(paths, forward | ranges)
    parts = _parts(paths, model)
    training = {parts[one] for one in parts if forward[phase[one]]}
    called: dict[int, list[int]] = defaultdict(list)
    for one in parts:
        called[int(phase[one])].append(one)
    for path in np.flatnonzero(ranges).tolist():
        if _name(paths, path) == EVALUATION_PHASE and path in called:
            known = objects.train_too(called[path])
            if known is None:
                known = all(parts[one] in training for one in called[path])
            if not known:
                continue
        yield path


def _models(paths: PathTable, phases: Column) -> tuple[Column, Column]:
    """Per path the outermost module around it in its phase, and the phase; -1 for none."""
    module, model = paths.kind == Kind.MODULE, np.full(len(paths.kind), -1)
    phase = paths.nearest(phases)
    for rows in paths.levels():
        around = np.append(model, -1)[paths.parent[rows]]
        own = np.where(module[rows], rows, -1)
        model[rows] = np.where((around < 0) | phases[rows], own, around)
    model[(phase < 0) | phases] = -1
    return model, phase


def _parts(paths: PathTable, model: Column) -> dict[int, frozenset[str]]:
    """By model the names of the modules in it, its own included."""
    found: dict[int, set[str]] = defaultdict(set)
    for row in np.flatnonzero((model >= 0) & (paths.kind == Kind.MODULE)).tolist():
        found[int(model[row])].add(_name(paths, row))
    return {one: frozenset(names) for one, names in found.items()}


def _are_named(paths: PathTable, name: str) -> Column:
    names = np.array(paths.names.to_pylist(), object)
    return np.asarray(names[paths.name] == name, bool)


def _name(paths: PathTable, path: int) -> str:
    return str(paths.names[int(paths.name[path])].as_py())


def _above(paths: PathTable, path: int) -> Iterator[int]:
    while (path := int(paths.parent[path])) >= 0:
        yield path


def outermost(paths: PathTable, rows: Sequence[int] | Column) -> Column:
    """Of some paths those that lie in none of the others."""
    marked = np.zeros(len(paths.parent), bool)
    marked[rows] = True
    above = np.append(paths.nearest(marked), -1)[paths.parent]
    return np.flatnonzero(marked & (above < 0))
