"""The quantities of paths as docs/attribution.md defines them: instant by instant, no numpy."""

from __future__ import annotations

from collections import defaultdict

from nvprobe.trace import Trace
from tests.oracle import OPTIMIZER, Oracle

Path = tuple[str, ...]


class AnalysisOracle:
    """Quantities per path of a small trace whose times are small non-negative integers."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.oracle = Oracle(trace)
        self.until = max([trace.end_ns, *(r[2] for r in self.oracle.ranges)])
        self.own = {r[3]: self.oracle.own_path(r[3]) for r in self.oracle.ranges}
        self.owners = [self.oracle.owner(op) for op in range(len(trace.ops))]

    def folded(self, r: tuple) -> bool:
        """A twin that stands for its parent; instants never fold."""
        if r[2] <= r[1]:
            return False
        above = self.around(r)
        return self.oracle.names(above) == self.oracle.names([*above, r])

    def interval(self, op: int) -> tuple[int, int] | None:
        """Start and end of an op, None where they are impossible."""
        start, end = int(self.trace.ops.start[op]), int(self.trace.ops.end[op])
        return (start, end) if end >= start and start and end else None

    def by_prefix(self) -> dict[Path, list[int]]:
        """Ops of each path, inclusive."""
        out: dict[Path, list[int]] = defaultdict(list)
        for op, (path, _) in enumerate(self.owners):
            for depth in range(1, len(path or ()) + 1):
                out[path[:depth]].append(op)
        return out

    def calls(self) -> dict[Path, int]:
        out: dict[Path, int] = defaultdict(int)
        for r in self.oracle.ranges:
            out[self.own[r[3]]] += not self.folded(r)
        return out

    def wall(self) -> dict[Path, int]:
        out: dict[Path, int] = defaultdict(int)
        for r in self.oracle.ranges:
            out[self.own[r[3]]] += 0 if self.folded(r) else len(self.instants(r))
        return out

    def instants(self, r: tuple) -> set[int]:
        """When a range was open; an optimizer's step not while its closure's work was."""
        out = set(range(r[1], r[2]))
        if not OPTIMIZER.match(r[4]):
            return out
        for x in self.oracle.ranges:
            if x[0] == r[0] and x[3] != r[3] and self.oracle.closure_work(x):
                around = self.around(x)
                while around and self.step(around[-1]):
                    if around.pop()[3] == r[3]:
                        out -= set(range(x[1], x[2]))
        return out

    @staticmethod
    def step(r: tuple) -> bool:
        """Whether a range is an optimizer's step."""
        return OPTIMIZER.match(r[4]) is not None

    def around(self, r: tuple) -> list[tuple]:
        """The ranges around one, outermost first."""
        above = [x for x in self.oracle.open_ranges(r[0], r[1]) if x[3] != r[3]]
        if r[2] <= r[1]:
            return above
        return [x for x in above if (x[1], x[1] - x[2], x[3]) < (r[1], r[1] - r[2], r[3])]

    def self_wall(self) -> dict[Path, int]:
        out: dict[Path, int] = defaultdict(int)
        for thread in range(len(self.oracle.process)):
            for instant in range(self.until):
                chain = self.oracle.open_ranges(thread, instant)
                if chain:
                    out[self.own[chain[-1][3]]] += 1
        return out

    def gpu(self, ops: list[int]) -> int:
        return sum(end - start for start, end in filter(None, map(self.interval, ops)))

    def busy(self, ops: list[int]) -> int:
        covered = {
            (int(self.trace.ops.device[op]), instant)
            for op in ops
            if (times := self.interval(op))
            for instant in range(*times)
        }
        return len(covered)

    def span(self, ops: list[int]) -> int:
        times = [t for t in map(self.interval, ops) if t]
        return max(e for _, e in times) - min(s for s, _ in times) if times else 0

    def call_of(self, op: int) -> tuple[int, int, int] | None:
        ops = self.trace.ops
        key = (int(ops.process[op]), int(ops.correlation[op]))
        return self.oracle.calls.get(key) if key[1] > 0 else None

    def spans(self) -> dict[Path, int]:
        """First op start to last op end of each instance, summed by path."""
        mine: dict[int, list[int]] = defaultdict(list)
        for op in range(len(self.trace.ops)):
            call = self.call_of(op)
            if not call:
                continue
            threads = {call[1]}
            if call[1] in self.oracle.autograd:
                threads.add(self.oracle.initiator(call[1]))
            for thread in threads - {None}:
                for r in self.oracle.open_ranges(thread, call[2]):
                    path, own = self.owners[op][0] or (), self.own[r[3]]
                    if not self.step(r) or path[: len(own)] == own:
                        mine[r[3]].append(op)
        out: dict[Path, int] = defaultdict(int)
        for r in self.oracle.ranges:
            out[self.own[r[3]]] += 0 if self.folded(r) else self.span(mine[r[3]])
        return out

    def replays(self) -> dict[Path, list[list[int]]]:
        """Ops of each graph launch, by path, for the ops that have a captured path."""
        out: dict[Path, dict[int, list[int]]] = defaultdict(lambda: defaultdict(list))
        for op, (path, method) in enumerate(self.owners):
            if method == "graph_capture":
                call = self.call_of(op)
                for depth in range(1, len(path) + 1):
                    out[path[:depth]][call[0] if call else -1].append(op)
        return {path: list(launches.values()) for path, launches in out.items()}
