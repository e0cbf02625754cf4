"""Attribution as docs/attribution.md defines it: plain Python, slow and obvious, no numpy.

Takes a Trace, turns its columns into lists, and answers one question at a time by looking at
every range. The fast path must agree with it op by op.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from nvprobe.trace import OPEN, OpKind, RangeSource, Trace

STEP_WORDS = """step iter iteration batch microbatch epoch request replay decode prefill token
    generate rollout episode frame round profilerstep""".split()  # noqa: SIM905


OPTIMIZER = re.compile(r"(?i)^optim(izer)?$|(?:^|.*[^a-z])optimizer[._]step(#.*)?$")
PARTS = """data dataload dataloader dataloading data_load data_loader data_loading forward loss
    backward eval evaluation""".split()  # noqa: SIM905


def clean(text: str) -> tuple[str, int, bool]:
    """(name without folders, index or -1, whether it carries an op_id)."""
    name, index, twin = _clean(text)
    name = re.sub(r"(?<![\w./~-])/(?:home|homes|Users)/[^/\s:\"',()]+(?=$|[\s:\"',()])", "~", name)
    roots = "home|homes|Users|root|tmp|var|mnt|data|scratch|work|workspace"
    return re.sub(rf"(?<![\w./~-])/(?:{roots})/(?:[^/\s:\"',()]+/)*", "", name), index, twin


def clean_all(texts: Iterable[str]) -> dict[str, tuple[str, int, bool]]:
    """What `clean` says of each, but with masks for steps that have numbers in their middle."""
    out = {text: clean(text) for text in texts}
    alike: dict[str, dict[str, tuple[int, ...]]] = {}
    for text, (name, index, _) in out.items():
        found = [one for word in STEP_WORDS for one in re.finditer(
            rf"(?i)(?<![a-z]){word}[ #=:_/\-]+(\d{{1,18}})(?![\w.])", name)]  # fmt: skip
        if found:
            ordered = [int(one[1]) for one in sorted(found, key=lambda one: one.start(1))]
            ends = index if re.split(r"[^A-Za-z]", name)[-1].lower() in STEP_WORDS else -1
            numbers = (ordered[0], ordered[-1], ends)
            alike.setdefault(re.sub(r"\d+", "#", name), {})[text] = numbers
    for mask, numbers in alike.items():
        if len(numbers) < 5 or len(set(numbers.values())) < len(numbers):
            continue
        first, last, ends = zip(*numbers.values(), strict=True)
        varying = max((ends, last, first), key=lambda column: len(set(column)))
        for text, number in zip(numbers, varying, strict=True):
            out[text] = mask, number, out[text][2]
    return out


def _clean(text: str) -> tuple[str, int, bool]:
    cut = re.search(r", (stashed )?(seq|op_id|sizes|input_op_ids|trace_id|thread_id) = ", text)
    twin = re.search(r", op_id = (\d+)", text) is not None
    if cut:
        text = text[: cut.start()]
    number = re.fullmatch(r"(?s)(.*?)[ #=:_/\-.]+(\d{1,18})(/\d+)?\s*", text)
    for candidate in [number] if number else []:
        # the greedy name may itself end in digits and a slash: "Epoch 1/10"
        slash = re.fullmatch(r"(?s)(.*?)[ #=:_/\-.]+(\d{1,18})/(\d+)\s*", text)
        for found in (slash, candidate):
            if found and re.split(r"[^A-Za-z]", found[1])[-1].lower() in STEP_WORDS:
                return found[1], int(found[2]), twin
    other = re.fullmatch(r"(?s)(.*[^\s#=])\s*[#=]\s*(\d{1,18})\s*", text)
    if other:
        return other[1], int(other[2]), twin
    return text if text.strip() else "(no name)", -1, twin


class Oracle:
    """All answers about one trace."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.strings = trace.strings.to_pylist()
        self.ranges = []
        names = clean_all({self._text(name) for name in trace.ranges.name.tolist()})
        r = trace.ranges
        for row, (t, s, e, n) in enumerate(
            zip(
                r.thread.tolist(),
                r.start.tolist(),
                r.end.tolist(),
                r.name.tolist(),
                strict=True,
            )
        ):
            end = max(trace.end_ns, s) if e == OPEN else e
            self.ranges.append((t, s, end, row, *names[self._text(n)]))
        self.ranges = [self._automatic(r) for r in self.ranges]
        self._by_thread()
        self.ranges = self._vain_waits_renamed()
        self._by_thread()
        self.process = trace.threads.process.tolist()
        self.calls = self._calls()
        self.autograd, self.initiating = self._threads()

    def _text(self, name: int) -> str:
        return self.strings[name] if name >= 0 else "(unnamed)"

    def _by_thread(self) -> None:
        self.on_thread: dict[int, list[tuple]] = {}
        for r in self.ranges:
            self.on_thread.setdefault(r[0], []).append(r)

    def _automatic(self, r: tuple) -> tuple:
        """A phase that nvprobe found folds like an operator's twin."""
        domain, category = (
            self.trace.text(int(column[r[3]]))
            for column in (self.trace.ranges.domain, self.trace.ranges.category)
        )
        return (*r[:6], r[6] or (domain == "nvprobe" and category == "phase"))

    def _vain_waits_renamed(self) -> list[tuple]:
        """A step around ``data exhausted`` is no step but takes that name; the mark folds."""
        vain, marks = set(), set()
        names = {r[4] for r in self.ranges}
        for r in self.ranges:
            if r[4] == "data exhausted" and "step" in names:
                marks.add(r[3])
                around = [x for x in self.open_ranges(r[0], r[1]) if x[3] != r[3]]
                if around and around[-1][4] == "step":
                    vain.add(around[-1][3])
        return [
            (*r[:4], "data exhausted" if r[3] in vain else r[4], r[5], r[6] or r[3] in marks)
            for r in self.ranges
        ]

    def _calls(self) -> dict[tuple[int, int], tuple[int, int, int]]:
        """(process, correlation) -> row, thread, start of the call that starts first."""
        out: dict[tuple[int, int], tuple[tuple[int, int, int], tuple[int, int, int]]] = {}
        c = self.trace.calls
        if c is None:
            return {}
        for row in range(len(c)):
            key = (int(c.process[row]), int(c.correlation[row]))
            rank = (int(c.start[row]), int(c.start[row]) - int(c.end[row]), row)
            if key[1] > 0 and (key not in out or rank < out[key][0]):
                out[key] = (rank, (row, int(c.thread[row]), int(c.start[row])))
        return {key: value for key, (_, value) in out.items()}

    def _threads(self) -> tuple[set[int], dict[int, int]]:
        initiating = {}
        tid, pid = self.trace.threads.tid.tolist(), self.trace.processes.pid.tolist()
        for process in range(len(pid)):
            ranked = []
            for thread in range(len(tid)):
                mine = [(s, e) for t, s, e, *_ in self.ranges if t == thread]
                if self.process[thread] == process and mine:
                    covered, reach = 0, -(2**70)
                    for s, e in sorted(mine):
                        covered += max(0, e - max(s, reach))
                        reach = max(reach, e)
                    ranked.append((tid[thread] != pid[process], -covered, tid[thread], thread))
            if ranked:
                initiating[process] = min(ranked)[3]
        autograd = set()
        for thread in range(len(tid)):
            name = self.trace.text(int(self.trace.threads.name[thread])) or ""
            runs = any(
                t == thread
                and re.search(r"^(autograd::engine::|torch::autograd::)|Backward\d", name_)
                for t, _, _, _, name_, _, _ in self.ranges
            )
            is_initiating = thread in initiating.values()
            if (name.startswith("pt_autograd_") or runs) and not is_initiating:
                autograd.add(thread)
        return autograd, initiating

    def open_ranges(self, thread: int, time: int) -> list[tuple]:
        """Ranges of the thread open at an instant, in path order."""
        found = [r for r in self.on_thread.get(thread, []) if r[1] <= time < r[2]]
        return sorted(found, key=lambda r: (r[1], r[1] - r[2], r[3]))

    def names(self, ranges: list[tuple]) -> tuple[str, ...]:
        """Names of a chain of ranges, twins folded; a closure's work is beside the optimizer's."""
        out: list[str] = []
        before = None
        for r in ranges:
            if not (r[6] and before == r[4]):
                if self.closure_work(r):
                    out = self.outside(out)
                out.append(r[4])
            before = r[4]
        return tuple(out)

    @staticmethod
    def outside(names: list[str]) -> list[str]:
        """The names without the optimizers' steps they end in."""
        while names and OPTIMIZER.match(names[-1]):
            names = names[:-1]
        return names

    def closure_work(self, r: tuple) -> bool:
        """A part of a step that no optimizer does, or a module."""
        source = int(self.trace.ranges.source[r[3]])
        category = self.trace.text(int(self.trace.ranges.category[r[3]]))
        domain = self.trace.text(int(self.trace.ranges.domain[r[3]]))
        module = source == RangeSource.MODULE or (domain == "nvprobe" and category == "module")
        return bool(module or r[4].lower() in PARTS or r[4].startswith(("fwd:", "nn.Module: ")))

    def leading(self, ranges: list[tuple]) -> tuple[str, ...]:
        """What stands before an autograd thread's own path: closures' work, where there is any."""
        names = list(self.names(ranges))
        return tuple(self.outside(names) or names)

    def initiator(self, thread: int) -> int | None:
        return self.initiating.get(self.process[thread])

    def at(self, thread: int, time: int) -> tuple[str, ...]:
        """Rules 1 and 2."""
        own = self.names(self.open_ranges(thread, time))
        if thread not in self.autograd:
            return own
        first = self.initiator(thread)
        return (self.leading(self.open_ranges(first, time)) if first is not None else ()) + own

    def opened_since(self, thread: int, time: int, begin: int) -> tuple[str, ...]:
        """Rule 3: what was opened inside the capture and is open at a node's creation."""
        threads = [thread]
        if thread in self.autograd:
            threads = [t for t in (self.initiator(thread), thread) if t is not None]
        out: tuple[str, ...] = ()
        for t in threads:
            chain = [r for r in self.open_ranges(t, time) if r[1] > begin]
            out += self.names(chain) if t == thread else self.leading(chain)
        return out

    def captured(self, process: int, node: int) -> tuple[str, ...]:
        g = self.trace.graph_nodes
        if g is None or node == 0:
            return ()
        rows: dict[tuple[int, int], int] = {}  # a clone's row that tells its origin, else the first
        for row in sorted(range(len(g)), key=lambda r: (g.origin[r] == 0, g.time[r], r)):
            rows.setdefault((int(g.process[row]), int(g.node[row])), row)
        row = rows.get((process, node))
        if row is None:
            return ()
        for _ in range(64):
            above = rows.get((process, int(g.origin[row]))) if int(g.origin[row]) else None
            if above is None or above == row:
                break
            row = above
        begins = [
            int(s)
            for p, s, n in zip(
                self.trace.calls.process, self.trace.calls.start, self.trace.calls.name, strict=True
            )
            if p == process
            and re.match(r"cu(da)?StreamBeginCapture", self.strings[n])
            and s <= g.time[row]
        ]
        if not begins:
            return ()
        return self.opened_since(int(g.thread[row]), int(g.time[row]), max(begins))

    def owner(self, op: int) -> tuple[tuple[str, ...] | None, str]:
        """(path or None, method or reason) of one op."""
        ops = self.trace.ops
        process, correlation = int(ops.process[op]), int(ops.correlation[op])
        call = self.calls.get((process, correlation)) if correlation > 0 else None
        path: tuple[str, ...] = self.at(call[1], call[2]) if call else ()
        method = "launch"
        if call and call[1] in self.autograd and not self.open_ranges(call[1], call[2]):
            method = "inherited"
        if call and any(self._repeated(r) for r in self.open_ranges(call[1], call[2])):
            method = "repeated"
        graph = int(ops.graph_node[op]) != 0 or int(ops.kind[op]) == OpKind.GRAPH
        if call:
            name = self.strings[int(self.trace.calls.name[call[0]])]
            graph = graph or re.match(r"cu(da)?GraphLaunch", name) is not None
        if graph:
            inside = self.captured(process, int(ops.graph_node[op]))
            path, method = path + inside, "graph_capture" if inside else "graph_launch"
        if path:
            return path, method
        if call:
            return None, "opaque_graph" if graph else "no_range_open"
        if correlation <= 0 and int(ops.copy_kind[op]) in (11, 12):
            return None, "unified_memory"
        smallest = min((c for p, c in self.calls if p == process), default=None)
        if smallest is not None and 0 < correlation < smallest:
            return None, "launched_before_window"
        return None, "no_launch_record"

    def _repeated(self, r: tuple) -> bool:
        """A node that was recorded in an equal run of the autograd engine only."""
        return int(self.trace.ranges.source[r[3]]) == RangeSource.REPEATED

    def own_path(self, row: int) -> tuple[str, ...]:
        """The path of a range at its start, itself last."""
        me = self.ranges[row]
        chain = [
            r
            for r in self.open_ranges(me[0], me[1])
            if (r[1], r[1] - r[2], r[3]) < (me[1], me[1] - me[2], me[3]) and r[3] != row
        ]
        if me[2] > me[1]:
            own = self.names([*chain, me])
        else:  # instants never fold
            around = list(self.names(chain))
            own = (*(self.outside(around) if self.closure_work(me) else around), me[4])
        if me[0] in self.autograd:
            first = self.initiator(me[0])
            if first is not None:
                return self.leading(self.open_ranges(first, me[1])) + own
        return own
