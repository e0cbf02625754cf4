"""Filters on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from nvprobe.cli import cli, main
from nvprobe.cli.filters import Steps, Window
from nvprobe.cli.settings import Settings
from nvprobe.demo import unpacked


@pytest.mark.parametrize(
    ("text", "value"),
    [("10:15", (10, 15)), ("3", (3, 4)), (":2", (0, 2)), ("5:", (5, 2**62)), ("0:1", (0, 1))],
)
def test_steps_are_read(text: str, value: tuple[int, int]) -> None:
    assert Steps().convert(text, None, None) == value


@pytest.mark.parametrize("text", ["", ":", "a:b", "5:5", "7:3", "1:2:3", "-1:2"])
def test_no_steps_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Steps().convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.5s:2s", (1_500_000_000, 2_000_000_000)),
        ("200ms:", (200_000_000, None)),
        (":7us", (None, 7_000)),
        ("0:12345678901234567", (0, 12345678901234567)),
        ("-5ms:0.1us", (-5_000_000, 100)),
    ],
)
def test_times_are_read_to_the_nanosecond(text: str, value: tuple[int | None, ...]) -> None:
    assert Window().convert(text, None, None) == value


@pytest.mark.parametrize("text", ["5", "1s:1s", "2s:1s", "1h:2h", "x:", "1s:2s:3s"])
def test_no_times_are_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Window().convert(text, None, None)


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments), obj=Settings())


def test_the_ledger_says_what_is_outside(corpus: Path) -> None:
    path = str(corpus / "nsys/h200/eager.sqlite")
    whole = json.loads(_run("analyze", path, "--json").stdout)["ledger"]
    part = json.loads(_run("analyze", path, "--json", "--steps", "4:6").stdout)["ledger"]
    assert whole["outside"] is None
    assert part["outside"]["filters"] == ["steps 4:6"]
    assert part["ops"] + part["outside"]["ops"] == whole["ops"]
    assert part["gpu_ns"] + part["outside"]["gpu_ns"] == whole["gpu_ns"]
    text = _run("analyze", path, "--steps", "4:6").stdout
    assert "outside steps 4:6 and not counted" in " ".join(text.split())


def test_the_demo_takes_filters() -> None:
    """As every command that reads a capture; the others do not."""
    whole = json.loads(_run("demo", "--json").stdout)
    first = whole["steps"][0]["index"]
    part = json.loads(_run("demo", "--json", "--steps", f"{first}:{first + 1}").stdout)
    assert [step["index"] for step in part["steps"]] == [first]
    assert part["ledger"]["outside"]["filters"] == [f"steps {first}:{first + 1}"]
    assert part["ledger"]["ops"] + part["ledger"]["outside"]["ops"] == whole["ledger"]["ops"]
    for command in ("doctor", "cache"):
        assert "--thread" not in _run(command, "--help").stdout


def test_what_leaves_nothing_says_so() -> None:
    """The capture has GPU records and steps: it is the filter that has none."""
    for filters in (["--time", "100s:200s"], ["--range", "step/log"]):
        document = json.loads(_run("demo", "--json", *filters).stdout)
        (steps,) = [one for one in document["missing"] if one["what"] == "steps"]
        assert steps["why"] == "no range inside the filters marks one"
        assert steps["how"].startswith("take the filters off")
    text = " ".join(_run("demo", "--time", "100s:200s").stdout.split())
    assert "unclear: no GPU work lies inside the filters" in text
    assert "Ledger: no GPU ops; outside time 100s:200s and not counted: 668" in text


def test_open_ends_are_told_as_they_were_given() -> None:
    result = _run("demo", "--steps", "9:")
    assert "steps 9:: the capture has steps 4 to 7" in str(result.exception)
    outside = json.loads(_run("demo", "--json", "--steps", "6:").stdout)["ledger"]["outside"]
    assert outside["filters"] == ["steps 6:"]


def test_what_is_no_filter_reaches_the_selection_as_well(capsys, monkeypatch):
    from nvprobe.analysis import selection

    seen, select = [], selection.select

    def selecting(trace, chosen, rules):
        seen.append(chosen)
        return select(trace, chosen, rules)

    monkeypatch.setattr(selection, "select", selecting)
    with unpacked() as path:
        for options in (("--all",), ("--step-name", r"it (?P<iteration>\d+)")):
            with pytest.raises(SystemExit) as ended:
                main(["analyze", str(path), "--json", *options])
            assert ended.value.code == 0
    assert (
        r"--step-name 'it (?P<iteration>\\d+)': no range has such a name" in capsys.readouterr().err
    )
    assert [one.everything for one in seen] == [True, False]
    assert [one.step_names for one in seen] == [(), (r"it (?P<iteration>\d+)",)]
