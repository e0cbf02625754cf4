"""Captures damaged at random places: a report, or one line; never a traceback, nothing written."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

from nvprobe.cli import main
from nvprobe.demo import unpacked
from tests.unit.test_kineto import EVENTS, document


def damaged(rng: random.Random, data: bytes) -> bytes:
    """Cut, changed, blanked, filled, lengthened or shortened at a random place."""
    place, out = rng.randrange(len(data)), bytearray(data)
    how = rng.choice(("cut", "bytes", "zeros", "noise", "insert", "delete"))
    if how == "cut":
        del out[place:]
    elif how == "bytes":
        for _ in range(rng.choice((1, 1, 20))):
            out[rng.randrange(len(out))] = rng.randrange(256)
    elif how in ("zeros", "noise"):
        length = len(out[place : place + rng.choice((16, 512, 4096))])
        out[place : place + length] = bytes(length) if how == "zeros" else rng.randbytes(length)
    elif how == "insert":
        out[place:place] = rng.randbytes(rng.choice((1, 100)))
    else:
        del out[place : place + rng.choice((1, 300))]
    return bytes(out)


def holds(capsys: pytest.CaptureFixture[str], path: Path) -> None:
    """What every input must end with."""
    before = sorted(path.parent.iterdir())
    with pytest.raises(SystemExit) as exit_:
        main(["analyze", str(path), "--json"])
    out, err = capsys.readouterr()
    if exit_.value.code:
        assert (exit_.value.code, out) == (1, "")
        assert err.count("\n") == 1
        assert err.startswith(f"nvprobe: {path}")  # as it was typed
    else:
        assert json.loads(out)["schema"] == "nvprobe.analysis/2"
        assert err == ""
    assert sorted(path.parent.iterdir()) == before


@pytest.mark.parametrize("seed", range(16))
def test_exports(capsys: pytest.CaptureFixture[str], tmp_path: Path, seed: int) -> None:
    path = tmp_path / "report.sqlite"
    with unpacked() as shipped:
        path.write_bytes(damaged(random.Random(seed), shipped.read_bytes()))
    holds(capsys, path)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("packed", [False, True])
def test_torch_traces(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, seed: int, packed: bool
) -> None:
    text = document(*EVENTS * 8).encode()
    path = tmp_path / ("trace.json.gz" if packed else "trace.json")
    path.write_bytes(damaged(random.Random(seed), gzip.compress(text) if packed else text))
    holds(capsys, path)
