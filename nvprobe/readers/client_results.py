"""What a client measured of each request: the JSON of ``vllm bench serve --save-detailed``.

``start_times`` are readings of Python's ``perf_counter`` in seconds, on Linux the machine's
monotonic clock, ``ttfts`` the times to the first token, ``itls`` a list per request of the times
from one answer to the next. A request that failed has no time to a first token.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from nvprobe import limits
from nvprobe.errors import InputError
from nvprobe.readers.input_errors import base_name, shown, too_much, unusable
from nvprobe.trace import Column

_AGAIN = "give the file of vllm bench serve --save-result --save-detailed"
_LONGEST_S = 1e9
"""No reading of the clock and no latency is longer, in seconds: 30 years."""


@dataclass(frozen=True, slots=True)
class ClientResults:
    """The requests that were answered."""

    file: str
    start: Column
    """int64 ns of the client's monotonic clock, per request."""
    first: Column
    """int64 ns from there to the first token."""
    request: Column
    """int64 request per gap between tokens."""
    gap: Column
    """int64 ns of each gap, in order."""


class _Detailed(msgspec.Struct):
    start_times: list[float]
    ttfts: list[float]
    itls: list[list[float]]


def load_client_results(path: str | Path) -> ClientResults:
    """Read a file. Raises InputError where it is another one, or without details."""
    path = Path(path)
    try:
        if path.stat().st_size > limits.record_bytes():
            raise too_much(path, "client results of that size")
        found = msgspec.json.decode(path.read_bytes(), type=_Detailed)
    except OSError as error:
        raise InputError(
            f"{shown(path)}: cannot be read: {error.strerror}; check the path"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise unusable(path, "no start_times, ttfts and itls of requests in it", _AGAIN) from None
    if not len(found.start_times) == len(found.ttfts) == len(found.itls):
        raise unusable(path, "start_times, ttfts and itls differ in length", _AGAIN)
    answered = [row for row, first in enumerate(found.ttfts) if first > 0]
    lengths = [len(found.itls[row]) for row in answered]
    return ClientResults(
        file=base_name(path),
        start=_ns(path, [found.start_times[row] for row in answered]),
        first=_ns(path, [found.ttfts[row] for row in answered]),
        request=np.repeat(np.arange(len(answered)), lengths),
        gap=_ns(path, [gap for row in answered for gap in found.itls[row]]),
    )


def _ns(path: Path, seconds: list[float]) -> Column:
    values = np.array(seconds, np.float64)
    if not ((values >= 0) & (values < _LONGEST_S)).all():
        raise unusable(path, "times that no clock has", _AGAIN)
    return np.rint(values * 1e9).astype(np.int64)
