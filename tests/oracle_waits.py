"""Idle causes and synchronizing calls as docs/attribution.md defines them: plain Python, slow.

Every gap is cut at every instant at which anything begins or ends, and each bit is judged on its
own by looking at everything that is open there. The fast path must agree to the nanosecond.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict

import pyarrow as pa

from nvprobe.attribution import Kind, attribute
from nvprobe.attribution.kinds import RangeRole, range_roles
from nvprobe.trace import OpKind, Trace
from tests.oracle import Oracle

RANGE_CAUSES = {
    RangeRole.COMPILATION: "compilation",
    RangeRole.COLLECTIVE: "collective",
    RangeRole.INPUT: "input",
    RangeRole.NO_WORK: "no_work",
}
ORDER = [
    "sync",
    "allocation",
    "compilation",
    "collective",
    "input",
    "no_work",
    "launch_call",
    "other_call",
    "host",
]


def call_role(name: str) -> str:
    """What a call does to its thread, in plain words; by names, without the product's table."""
    name = re.sub(r"(_v\d+)?(_pt(sz|ds))?$", "", name)
    if name.startswith(("nvrtcCompile", "hiprtcCompile", "nvJitLinkComplete", "nvJitLinkAddData")):
        return "compilation"
    if re.match("hiprtcLink|__(cuda|hip)(Init|Reg|Unreg)", name):
        return "compilation"
    if name.startswith(("ur", "ze")):
        if name.startswith("zeCommandListAppend"):
            return "other"
        kinds = {"Finish": "sync", "Wait": "sync", "Memcpy": "copy", "Launch": "launch"}
        return next((kind for word, kind in kinds.items() if word in name), "other")
    api = next((api for api in ("cuda", "hip", "cu") if name.startswith(api)), None)
    rest = "" if api is None else name[len(api) :]
    if api == "hip":
        rest = re.sub("^(Drv|Ext|Hcc)", "", rest)
    blocking = "Async" not in rest
    if re.match("(Stream|Event|Device|(Execution)?Ctx|Thread)Synchronize", rest):
        return "sync"
    if rest.startswith(("Memcpy", "Memset")):
        return "sync" if blocking else "copy" if rest.startswith("Memcpy") else "launch"
    if rest.startswith(("Launch", "GraphLaunch", "ModuleLaunch", "ExtLaunch", "ExtModuleLaunch")):
        return "launch"
    if rest.startswith(("MemPrefetch", "MemDiscard", "MemBatch", "StreamAddCallback")):
        return "launch"
    loads = ("ModuleLoad", "LibraryLoad", "ModuleUnload", "LibraryUnload", "Link", "CompilePtx")
    if rest.startswith((*loads, "ModuleGetFunction", "FuncLoad")):
        return "compilation"
    return "allocation" if _allocates(api, rest) else "other"


def _allocates(api: str | None, rest: str) -> bool:
    if "Get" in rest or rest.startswith("MemPoolSet"):
        return False
    if rest.startswith(
        (
            "MemPool",
            "MemExport",
            "MemImport",
            "Multicast",
            "LogicalEndpoint",
            "PeerReg",
            "PeerUnreg",
        )
    ):
        return True
    if re.match("MemPeer|DeviceGraphMemTrim|Ipc[A-Za-z]*MemHandle|MemHostAlloc", rest):
        return True
    runtime = ("Malloc", "Free", "HostAlloc", "HostMalloc", "HostFree", "ExtMalloc")
    if rest.startswith((*runtime, "HostRegister", "HostUnregister", "MemPoolTrim")):
        return True
    if api == "cuda" or not rest.startswith(("Mem", "Array", "Mipmapped")):
        return False
    driver = ("Alloc", "Free", "Destroy", "Map", "Unmap", "Release", "SetAccess", "AddressReserve")
    registers = rest.startswith(("MemHostRegister", "MemHostUnregister"))
    return registers or rest.endswith("Create") or any(word in rest for word in driver)


class Union:
    """The union of some intervals, and how much of it lies between two instants."""

    def __init__(self, intervals: list[tuple[int, int]]) -> None:
        self.parts: list[list[int]] = []
        for start, end in sorted(i for i in intervals if i[1] > i[0]):
            if self.parts and start <= self.parts[-1][1]:
                self.parts[-1][1] = max(end, self.parts[-1][1])
            else:
                self.parts.append([start, end])

    def between(self, start: int, end: int) -> int:
        first = max(bisect_left(self.parts, [start]) - 1, 0)
        total = 0
        for s, e in self.parts[first:]:
            if s >= end:
                break
            total += max(0, min(e, end) - max(s, start))
        return total


class _PathsByThread(Oracle):
    """The oracle of paths, looking only at the ranges of the thread asked about."""

    def __init__(self, trace: Trace) -> None:
        super().__init__(trace)
        self.by_thread: dict[int, list[tuple]] = defaultdict(list)
        for row in self.ranges:
            self.by_thread[row[0]].append(row)

    def open_ranges(self, thread: int, time: int) -> list[tuple]:
        found = [r for r in self.by_thread[thread] if r[1] <= time < r[2]]
        return sorted(found, key=lambda r: (r[1], r[1] - r[2], r[3]))


class WaitOracle:
    """All waits of one trace. ``steps``: (process, start, end), in order."""

    def __init__(self, trace: Trace, steps: list[tuple[int, int, int]]) -> None:
        self.trace, self.steps = trace, steps
        self.paths = _PathsByThread(trace)
        self.by_thread = self.paths.by_thread
        self.launched = self._launched()
        self.kinds = attribute(trace).tree.kind.tolist()
        self.ops = self._ops()
        self.calls = self._calls()
        self.devices = sorted({op["device"] for op in self.ops})
        self.busy = {
            d: Union([(o["start"], o["end"]) for o in self.ops if o["device"] == d])
            for d in self.devices
        }
        self.own_ops = defaultdict(list)
        for op in self.ops:
            if op["call"] is not None:
                self.own_ops[op["call"]].append(op)
        self.waits = self._waits()
        self.kernels = [
            {"call": call[0]}
            for row, kind in enumerate(self.trace.ops.kind.tolist())
            if kind == OpKind.KERNEL
            and (correlation := int(self.trace.ops.correlation[row])) > 0
            and (call := self.paths.calls.get((int(self.trace.ops.process[row]), correlation)))
        ]
        self.activities = self._activities()
        self.frames = self._frames()

    def _ops(self) -> list[dict]:
        o = self.trace.ops
        out = []
        names = ("process", "device", "stream", "correlation", "start", "end")
        for row in range(len(o) if o is not None else 0):
            op = {name: int(getattr(o, name)[row]) for name in names} | {"row": row}
            if op["start"] and op["end"] and op["end"] >= op["start"]:
                call = self.paths.calls.get((op["process"], op["correlation"]))
                op["call"] = call[0] if call and op["correlation"] > 0 else None
                op["direct"] = {int(o.source_memory[row]), int(o.target_memory[row])} <= {2, 3, 4}
                out.append(op)
        return out

    def _calls(self) -> list[dict]:
        c = self.trace.calls
        if c is None:
            return []
        names = self.trace.strings.to_pylist()
        columns = (c.process, c.thread, c.correlation, c.start, c.end, c.name)
        return [
            {
                "row": row,
                "process": p,
                "thread": t,
                "correlation": i,
                "start": s,
                "end": e,
                "role": call_role(names[n]),
                "whole": bool(re.match("(cuda|hip|cu)(Device|Ctx|Thread)Sync", names[n])),
            }
            for row, (p, t, i, s, e, n) in enumerate(
                zip(*(x.tolist() for x in columns), strict=True)
            )
        ]

    # synchronizing calls

    def _waits(self) -> list[dict]:
        found = [call for call in self.calls if self.waited(call)]
        found.sort(key=lambda c: (c["thread"], c["start"], -c["end"], c["row"]))
        out: list[dict] = []
        reach: dict[int, int] = {}
        for call in found:
            begin = max(call["start"], reach.get(call["thread"], call["start"]))
            reach[call["thread"]] = max(call["end"], reach.get(call["thread"], call["end"]))
            if call["end"] > begin or call["start"] == begin == call["end"]:
                device, stream = self.awaited(call)
                busy = (
                    self.busy[device].between(call["start"], call["end"])
                    if device in self.busy
                    else 0
                )
                out.append(
                    call | {"begin": begin, "device": device, "stream": stream, "busy": busy}
                )
        return out

    def waited(self, call: dict) -> bool:
        if call["role"] == "sync":
            return True
        mine = self.own_ops[call["row"]]
        if call["role"] == "copy":
            staged = [op for op in mine if not op["direct"]]
            return bool(staged) and all(call["end"] >= op["end"] for op in staged)
        if call["role"] != "allocation":
            return False
        device, _ = self.awaited(call)
        if device not in self.busy:
            return False
        worked = self.busy[device].between(call["start"], call["end"])
        still = self.busy[device].between(call["end"], call["end"] + 1)
        length = call["end"] - call["start"]
        return length > 0 and not still and 2 * worked >= length

    def awaited(self, call: dict) -> tuple[int, int]:
        """(device, stream or -1)."""
        everything = self.trace.ops
        own = self.launched.get(call["row"])
        if own:
            return int(everything.device[own[-1]]), int(everything.stream[own[-1]])
        device, stream = -1, -1
        s = self.trace.syncs
        if s is not None:
            for row in range(len(s)):
                if (int(s.process[row]), int(s.correlation[row])) == (
                    call["process"],
                    call["correlation"],
                ):
                    device, stream = int(s.device[row]), int(s.stream[row])
                    break
        stream = -1 if call["whole"] else stream
        if device >= 0:
            return device, stream
        if everything is None or not len(everything):
            return -1, stream
        before = [
            (self.calls[own_call]["start"], ops)
            for own_call, ops in self.launched.items()
            if self.calls[own_call]["thread"] == call["thread"]
            and self.calls[own_call]["start"] <= call["start"]
        ]
        if before:
            last = max(start for start, _ in before)
            row = max(row for start, rows in before for row in rows if start == last)
            return int(everything.device[row]), stream
        mine = [
            int(everything.device[r])
            for r in range(len(everything))
            if everything.process[r] == call["process"]
        ]
        return min(mine, default=-1), stream

    def _frames(self) -> list[tuple]:
        """(thread, start, end, label or None if not the user's, row) of every Python frame."""
        f, out = self.trace.frames, []
        for row in range(len(f) if f is not None else 0):
            text = self.trace.text(int(f.name[row])) or ""
            found = re.fullmatch(r"(.+)\((\d+)\): (.+)", text)
            theirs = found and not re.match(r"torch/|contextlib\.py|<", text)
            label = f"{found[1]}:{found[2]} ({found[3]})" if theirs else None
            out.append((int(f.thread[row]), int(f.start[row]), int(f.end[row]), label, row))
        return out

    def _launched(self) -> dict[int, list[int]]:
        """Call row -> rows of all its ops, also those with impossible times."""
        out = defaultdict(list)
        o = self.trace.ops
        columns = (o.process.tolist(), o.correlation.tolist()) if o is not None else ([], [])
        for row, (p, c) in enumerate(zip(*columns, strict=True)):
            call = self.paths.calls.get((p, c)) if c > 0 else None
            if call:
                out[call[0]].append(row)
        return out

    def awaited_op(self, wait: dict) -> int:
        """Row of the last op to end inside on the awaited stream, or device; -1."""
        inside = [
            op
            for op in self.ops
            if op["device"] == wait["device"]
            and (
                wait["stream"] < 0
                or (op["stream"], op["process"]) == (wait["stream"], wait["process"])
            )
            and wait["start"] <= op["end"] <= wait["end"]
        ]
        return max(inside, key=lambda op: (op["end"], op["row"]))["row"] if inside else -1

    # idle

    def _activities(self) -> dict[int, list[tuple[int, int, str]]]:
        """Per thread: (start, end, cause) of everything it can be inside of."""
        out = defaultdict(list)
        for wait in self.waits:
            out[wait["thread"]].append((wait["begin"], wait["end"], "sync"))
        named = {"allocation": "allocation", "compilation": "compilation",
                 "launch": "launch_call", "copy": "launch_call"}  # fmt: skip
        for call in self.calls:
            out[call["thread"]].append((call["start"], call["end"], "other_call"))
            if call["role"] in named:
                out[call["thread"]].append((call["start"], call["end"], named[call["role"]]))
            if self.launched.get(call["row"]):
                out[call["thread"]].append((call["start"], call["end"], "launch_call"))
        names = sorted({row[4] for row in self.paths.ranges})
        roles = dict(zip(names, range_roles(pa.array(names, pa.string())).tolist(), strict=True))
        for thread, start, end, row, name, *_ in self.paths.ranges:
            role = RangeRole(roles[name])
            if self.kinds[row] == Kind.COLLECTIVE:
                role = RangeRole.COLLECTIVE
            if role == RangeRole.INPUT and self._launches_a_kernel(thread, start, end):
                continue  # what launches kernels does not wait for data
            if role == RangeRole.NO_WORK and end - start < 1_000_000:
                continue  # a look for requests, not a wait
            if role != RangeRole.OTHER and self.kinds[row] != Kind.STEP:
                out[thread].append((start, end, RANGE_CAUSES[role]))
        return out

    def _launches_a_kernel(self, thread: int, start: int, end: int) -> bool:
        """Whether a call of a kernel starts inside, on the thread itself."""
        return any(
            call["thread"] == thread and start <= call["start"] < end
            for call in self.calls
            for op in self.kernels
            if op["call"] == call["row"]
        )

    def gaps(self) -> list[dict]:
        """Every gap with the op that ended it."""
        out = []
        for device in self.devices:
            mine = sorted((o for o in self.ops if o["device"] == device), key=lambda o: o["start"])
            reach = mine[0]["end"]
            for op in mine:
                if op["start"] > reach:
                    first = min(
                        (o for o in mine if o["start"] == op["start"]),
                        key=lambda o: (o["stream"], o["row"]),
                    )
                    out.append({"device": device, "start": reach, "end": op["start"], "op": first})
                reach = max(reach, op["end"])
        return out

    def step(self, process: int, time: int) -> int:
        rows = [n for n, (p, s, e) in enumerate(self.steps) if p == process and s <= time < e]
        return rows[-1] if rows else -1

    def line(self, thread: int, time: int) -> str | None:
        """The innermost user's frame of the thread, else of the one that it follows."""
        here = [f for f in self.frames if f[0] == thread and f[1] <= time < f[2]]
        users = [f for f in sorted(here, key=lambda f: (f[1], -f[2], f[4])) if f[3]]
        if users:
            return users[-1][3]
        leader = self.paths.initiator(thread) if thread in self.paths.autograd else None
        return self.line(leader, time) if leader is not None else None

    def charge(self, gap: dict) -> tuple[Counter, Counter]:
        """((step, (path, line), cause) -> ns, call row of a wait -> bubble ns) of one gap."""
        call = self.calls[gap["op"]["call"]] if gap["op"]["call"] is not None else None
        thread = call["thread"] if call else None
        queued = min(max(call["end"], gap["start"]), gap["end"]) if call else gap["start"]
        followers = (thread, self.paths.initiator(thread)) if thread is not None else ()
        frames = {x for f in self.frames if f[0] in followers for x in f[1:3]}
        cuts = {gap["start"], queued} | frames | {t for _, *se in self.steps for t in se}
        threads = {thread, self.paths.initiator(thread)} if thread is not None else set()
        for t in threads:
            cuts |= {x for r in self.by_thread[t] for x in (r[1], r[2])}
        near = []
        if thread is not None:
            near = [
                a for a in self.activities[thread] if a[1] >= gap["start"] and a[0] < gap["end"]
            ]
        cuts |= {x for a in near for x in (a[0], a[1])}
        cuts = sorted(t for t in cuts if gap["start"] <= t < gap["end"])
        ended = [
            w for w in self.waits if w["thread"] == thread and gap["start"] <= w["end"] < gap["end"]
        ]
        last = max(ended, key=lambda w: (w["end"], w["begin"]), default=None)
        owed = last["busy"] if last else 0
        charges, bubbles = Counter(), Counter()
        for start, end in zip(cuts, [*cuts[1:], gap["end"]], strict=True):
            step = self.step(gap["op"]["process"], start)
            path = self.paths.at(thread, start) if thread is not None else ()
            path = (path, self.line(thread, start) if thread is not None else None)
            if thread is None or start >= queued:
                cause = "unknown" if thread is None else "device_wait"
                charges[step, path, cause] += end - start
                continue
            inside = {a[2] for a in near if a[0] <= start < a[1]}
            cause = next((c for c in ORDER if c in inside), "host")
            if cause == "sync":
                own = next(
                    w
                    for w in self.waits
                    if w["thread"] == thread and w["begin"] <= start < w["end"]
                )
                bubbles[own["row"]] += end - start
            late = 0
            if last and start >= last["end"] and cause in ("launch_call", "other_call", "host"):
                late = min(owed, end - start)
                owed -= late
                bubbles[last["row"]] += late
            charges[step, path, "sync"] += late
            charges[step, path, cause] += end - start - late
        return +charges, +bubbles

    # host time between launches

    def host(self) -> tuple[Counter, Counter]:
        """(path -> host ns, path -> launching calls) over all lines of launches."""
        ns, launches = Counter(), Counter()
        lines = defaultdict(list)
        for row in self.launched:
            call = self.calls[row]
            thread = call["thread"]
            leader = self.paths.initiator(thread) if thread in self.paths.autograd else None
            lines[thread if leader is None else leader].append(call)
            launches[self.paths.at(thread, call["start"])] += 1
        for calls in lines.values():
            calls.sort(key=lambda c: (c["start"], c["row"]))
            reach = calls[0]["start"]
            for call in calls:
                if call["start"] > reach:
                    self._between(call["thread"], reach, call["start"], ns)
                reach = max(reach, call["end"])
        return +ns, launches

    def _between(self, thread: int, start: int, end: int, ns: Counter) -> None:
        threads = {thread, self.paths.initiator(thread)}
        cuts = {x for t in threads for r in self.by_thread[t] for x in (r[1], r[2])}
        cuts |= {x for a in self.activities[thread] for x in (a[0], a[1])} | {start}
        cuts = sorted(t for t in cuts if start <= t < end)
        for low, high in zip(cuts, [*cuts[1:], end], strict=True):
            if not any(a[0] <= low < a[1] for a in self.activities[thread]):
                ns[self.paths.at(thread, low)] += high - low
