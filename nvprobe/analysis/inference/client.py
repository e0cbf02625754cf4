"""The latencies that a client measured, split by what the server did meanwhile.

A client does not say in which step its request was computed. Of the time to a first token, what
lies before the last step with a prefill that had ended by then is the queue; what is after that,
and all time between two tokens, is in steps with a prefill, in other steps, or between steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nvprobe.analysis.model import Steps
from nvprobe.attribution.engines import StepPhase
from nvprobe.readers.client_results import ClientResults
from nvprobe.trace import Column, Trace

FIRST, BETWEEN = "first_token", "between_tokens"


@dataclass(frozen=True, slots=True)
class Latency:
    """One kind of latency, of all that lie in the window; the four parts add up to the total."""

    kind: str
    count: int
    left_out: int
    """Outside of the window, or no step explains them."""
    p50_ns: int
    p90_ns: int
    p99_ns: int
    total_ns: int
    queue_ns: int
    prefill_ns: int
    decode_ns: int
    gaps_ns: int


def client_latencies(
    trace: Trace, steps: Steps, leading: Column, client: ClientResults
) -> list[Latency]:
    """Both kinds; ``leading`` are rows of the steps of the process that computes.

    Empty where no sidecar joins the client's clock with the trace's.
    """
    shifts = sorted(trace.sidecar.monotonic)
    if not shifts:
        return []
    rows = np.flatnonzero((steps.ops > 0) & (steps.process == steps.process[leading[0]]))
    rows = rows[np.argsort(steps.start[rows], kind="stable")]
    server = _Server.of(steps, rows)
    begin = client.start + shifts[len(shifts) // 2]
    token = begin + client.first
    first = server.first_tokens(begin, token)
    passed = np.cumsum(client.gap)
    before = np.searchsorted(client.request, client.request)  # first gap of the same request
    since = passed - client.gap - (passed - client.gap)[before] if len(passed) else passed
    low = token[client.request] + since
    between = server.parts(low, low, low + client.gap)
    return [
        _latency(FIRST, begin, token, first, trace),
        _latency(BETWEEN, low, low + client.gap, between, trace),
    ]


@dataclass(frozen=True, slots=True)
class _Server:
    """Steps of one process in order of time, none in another."""

    start: Column
    end: Column
    prefill: Column
    """Bool: it computes a prefill."""

    @staticmethod
    def of(steps: Steps, rows: Column) -> _Server:
        start, end = steps.start[rows], steps.end[rows]
        end = np.minimum(end, np.append(start[1:], end[-1:]))
        return _Server(start, end, np.isin(steps.phase[rows], (StepPhase.PREFILL, StepPhase.MIXED)))

    def first_tokens(self, begin: Column, token: Column) -> Column:
        """Parts from each begin to its first token; -1 where no prefill ended in between."""
        start, end = self.start[self.prefill], self.end[self.prefill]
        at = np.searchsorted(end, token, side="right") - 1
        served = np.append(start, -1)[at]
        known = (at >= 0) & (served >= begin)
        return np.where(known, self.parts(begin, np.where(known, served, begin), token), -1)

    def parts(self, begin: Column, served: Column, end: Column) -> Column:
        """(queue, prefill, decode, gaps) ns of each stretch, of shape (4, stretches)."""
        prefill, decode = (
            self._inside(end, chosen) - self._inside(served, chosen)
            for chosen in (self.prefill, ~self.prefill)
        )
        return np.stack((served - begin, prefill, decode, end - served - prefill - decode))

    def _inside(self, time: Column, chosen: Column) -> Column:
        """ns of chosen steps before each instant."""
        start, end = self.start[chosen], self.end[chosen]
        total = np.concatenate(([0], np.cumsum(end - start)))
        at = np.searchsorted(start, time, side="right")
        last = np.append(end, 0)[at - 1]
        return total[at] - np.where(at > 0, np.maximum(last - time, 0), 0)


def _latency(kind: str, begin: Column, end: Column, parts: Column, trace: Trace) -> Latency:
    inside = (begin >= trace.start_ns) & (end <= trace.end_ns) & (parts >= 0).all(axis=0)
    length, own = (end - begin)[inside], parts[:, inside]
    count = len(length)
    quantiles = np.percentile(length, (50, 90, 99), method="higher") if count else (0, 0, 0)
    p50, p90, p99 = (int(one) for one in quantiles)
    queue, prefill, decode, gaps = (int(one) for one in own.sum(axis=1))
    return Latency(
        kind, count, len(begin) - count, p50, p90, p99, int(length.sum()), queue, prefill, decode,
        gaps,
    )  # fmt: skip
