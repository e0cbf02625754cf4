"""The pytest plugin: ``@pytest.mark.nvprobe(max_graph_breaks=0, …)`` and ``nvprobe_record``.

A marked test is recorded with torch.profiler and fails where it does more than its limits allow.
What needs a GPU is not checked without one: a test with no other limit is skipped, else the summary
says so. Nothing but pytest is imported until a test asks for nvprobe.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from nvprobe.integrations.in_process import Recording

ON_CPU = {
    "max_graph_breaks": ("graph_breaks", "graph breaks"),
    "max_recompilations": ("recompilations", "recompilations"),
    "max_operators": ("operators", "operators"),
}
ON_GPU = {
    "max_launches": ("launches", "launches"),
    "max_syncs": ("syncs", "synchronizations"),
    "max_gpu_ms": ("gpu_ms", "ms of GPU time"),
}
_MARK = (
    "nvprobe(max_graph_breaks, max_recompilations, max_operators, max_launches, max_syncs, "
    "max_gpu_ms): record the test with torch.profiler; it fails where it does more"
)
_PROPERTY = "nvprobe"


def pytest_configure(config: pytest.Config) -> None:
    """Register the mark."""
    config.addinivalue_line("markers", _MARK)


@pytest.fixture
def nvprobe_record() -> Callable[[], AbstractContextManager[Recording]]:
    """What records a block: its ``results`` and counts are there afterwards."""
    pytest.importorskip("torch")
    from nvprobe.integrations.in_process import record

    return record


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Record a marked test and hold it against its limits."""
    mark = item.get_closest_marker("nvprobe")
    if mark is None:
        return (yield)
    limits = _limits(mark)
    pytest.importorskip("torch")
    from nvprobe.integrations.in_process import record

    with record() as recording:
        result = yield
    unchecked = [name for name in limits if name in ON_GPU and not recording.gpu]
    checked = {name: most for name, most in limits.items() if name not in unchecked}
    lines = [_line(recording, name, most) for name, most in checked.items()]
    if unchecked:
        lines.append(f"{', '.join(unchecked)}: not checked, there is no GPU")
    item.user_properties.append((_PROPERTY, "; ".join(lines)))
    failed = [name for name, most in checked.items() if _found(recording, name) > most]
    if failed:
        text = "\n".join(_explanation(recording, name, limits[name]) for name in failed)
        pytest.fail(text, pytrace=False)
    if unchecked and not checked:
        pytest.skip(lines[-1])
    return result


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """A line for each test that was recorded; with pytest-xdist from every worker."""
    reports = [one for some in terminalreporter.stats.values() for one in some]
    found = [
        (report.nodeid, text)
        for report in reports
        if getattr(report, "when", None) == "call"
        for name, text in report.user_properties
        if name == _PROPERTY
    ]
    if found:
        terminalreporter.section("nvprobe")
        for node, text in found:
            terminalreporter.write_line(f"{node}: {text}")


def _limits(mark: pytest.Mark) -> dict[str, float]:
    """The limits of a mark; what is not one fails the test."""
    known = {**ON_CPU, **ON_GPU}
    for name, most in mark.kwargs.items():
        if name not in known or not isinstance(most, int | float) or isinstance(most, bool):
            text = f"@pytest.mark.nvprobe: {name}={most!r}; give numbers for {', '.join(known)}"
            pytest.fail(text, pytrace=False)
    if mark.args:
        text = "@pytest.mark.nvprobe takes limits by name, such as max_syncs=0"
        pytest.fail(text, pytrace=False)
    return dict(mark.kwargs)


def _found(recording: Recording, name: str) -> float:
    found: float = getattr(recording, {**ON_CPU, **ON_GPU}[name][0])
    return found


def _line(recording: Recording, name: str, most: float) -> str:
    return f"{_found(recording, name):g} {({**ON_CPU, **ON_GPU})[name][1]} (at most {most:g})"


def _explanation(recording: Recording, name: str, most: float) -> str:
    """Why a test fails, with the places that are known."""
    trace = recording.results.analysis.attribution.trace
    places: list[str] = []
    if name == "max_graph_breaks":
        graphs = recording.results.document.compiled_graphs or ()
        places = [f"{one.break_source}: {one.break_reason}" for one in graphs if one.break_reason]
    elif name == "max_recompilations":
        places = [f"{one.source}: {'; '.join(one.guards)}" for one in trace.sidecar.recompiles]
    elif name == "max_syncs":
        syncs = recording.results.document.syncs or ()
        places = [f"{one.source or one.path}: {one.call}, {one.count} times" for one in syncs]
    shown = "".join(f"\n  {place}" for place in dict.fromkeys(places))
    return f"nvprobe: {_line(recording, name, most)}{shown}"
