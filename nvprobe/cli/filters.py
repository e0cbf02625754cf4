"""Options that choose what of a capture counts; the same on every command."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from nvprobe.analysis.selection import Selection

F = TypeVar("F", bound=Callable[..., Any])

_UNITS = {"": 1, "ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_TIME = re.compile(r"(?P<number>-?\d+(?:\.\d+)?)\s*(?P<unit>ns|us|ms|s|)")


class Steps(click.ParamType):  # type: ignore[type-arg]
    """``FIRST:LAST`` (LAST excluded), or one step."""

    name = "steps"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int, int]:
        """First step and the one after the last."""
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"(\d*)(:?)(\d*)", str(value).strip())
        if match is None or str(value).strip() in ("", ":"):
            self.fail(f"{value!r}: give FIRST:LAST (LAST excluded), as in 10:15", param, ctx)
        first = int(match[1] or 0)
        from nvprobe.analysis.selection import NO_LAST_STEP

        last = int(match[3]) if match[3] else NO_LAST_STEP if match[2] else first + 1
        if last <= first:
            self.fail(f"{value!r}: no step lies between {first} and {last}", param, ctx)
        return first, last


class Window(click.ParamType):  # type: ignore[type-arg]
    """``BEGIN:END`` since the begin of the capture, either may be left out."""

    name = "time"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[int | None, int | None]:
        """Begin and end in ns."""
        if isinstance(value, tuple):
            return value
        begin, colon, end = str(value).partition(":")
        if not colon:
            self.fail(f"{value!r}: give BEGIN:END, as in 1.5s:2s or 200ms:", param, ctx)
        window = self._time(begin, param, ctx), self._time(end, param, ctx)
        if None not in window and window[1] <= window[0]:  # type: ignore[operator]
            self.fail(f"{value!r}: ends before it begins", param, ctx)
        return window

    def _time(self, text: str, param: Any, ctx: Any) -> int | None:
        if not text.strip():
            return None
        match = _TIME.fullmatch(text.strip())
        if match is None:
            self.fail(f"{text!r}: a number with ns, us, ms or s is needed", param, ctx)
        from decimal import Decimal

        return int(Decimal(match["number"]) * _UNITS[match["unit"]])


_OPTIONS = (
    click.option(
        "--process",
        "processes",
        type=int,
        multiple=True,
        metavar="PID",
        help="What this process did.",
    ),
    click.option(
        "--device", "devices", type=int, multiple=True, metavar="N", help="What ran on this GPU."
    ),
    click.option(
        "--thread",
        "threads",
        type=int,
        multiple=True,
        metavar="TID",
        help="What this thread did and launched.",
    ),
    click.option(
        "--domain",
        "domains",
        multiple=True,
        metavar="NAME",
        help='Ranges of this NVTX domain ("" for the default one).',
    ),
    click.option(
        "--range",
        "paths",
        multiple=True,
        metavar="PATH",
        help="What belongs to this path and below it (* and ? match anything).",
    ),
    click.option(
        "--steps", type=Steps(), metavar="FIRST:LAST", help="These steps (LAST excluded)."
    ),
    click.option(
        "--time",
        type=Window(),
        metavar="BEGIN:END",
        help="What was launched in this time of the capture, as in 1.5s:2s.",
    ),
    click.option(
        "--step-name",
        "step_names",
        multiple=True,
        metavar="REGEX",
        help="Ranges with such a name are the steps; groups (?P<iteration>...), phase, "
        "prefill_requests, ... become columns (docs/inference.md) (repeatable).",
    ),
)


stacks_option = click.option(
    "--python-stacks/--no-python-stacks",
    default=None,
    help="Read the Python frames of torch traces, for source lines (default: up to 1 GiB).",
)
"""What ``nvprobe.load`` takes by the same name."""


def _raise_limits(ctx: click.Context, _: click.Parameter, factor: float) -> None:
    """For as long as the command runs."""
    from nvprobe.limits import raised

    ctx.with_resource(raised(factor))


_limits_option = click.option(
    "--raise-limits",
    type=click.FloatRange(1),
    default=1.0,
    metavar="FACTOR",
    expose_value=False,
    callback=_raise_limits,
    help="Let an input ask for FACTOR times more than its size allows (docs/security.md).",
)


def filter_options(function: F) -> F:
    """``--process`` to ``--step-name``, for :func:`selection_of`, and ``--raise-limits``."""
    for option in reversed((*_OPTIONS, _limits_option)):
        function = option(function)
    return function


def selection_of(options: dict[str, Any]) -> Selection:
    """The selection that the options ask for; takes them out of ``options``."""
    from nvprobe.analysis.selection import Selection

    return Selection(
        processes=options.pop("processes"),
        devices=options.pop("devices"),
        threads=options.pop("threads"),
        domains=options.pop("domains"),
        ranges=options.pop("paths"),
        steps=options.pop("steps"),
        time=options.pop("time"),
        step_names=options.pop("step_names"),
        everything=options.get("everything", True),
    )
