"""``nvprobe trigger``: open or close the window of a launch that runs in another shell."""

from __future__ import annotations

import json
import time
from pathlib import Path

from nvprobe.errors import UsageError
from nvprobe.launch.control import STATE, TRIGGER

_PATIENCE_S = 60.0


def trigger(folder: Path) -> str:
    """Ask for the next state of the run's window; returns it when it has come.

    Raises:
        UsageError: no launch with ``--trigger`` runs there, or it does not answer.

    """
    before = _state(folder)
    (folder / TRIGGER).touch(0o600)
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline:
        now = _state(folder)
        if now != before:
            return now
        time.sleep(0.05)
    raise UsageError(f"{folder}: the launch has not answered for {_PATIENCE_S:g} s")


def _state(folder: Path) -> str:
    try:
        state = str(json.loads((folder / STATE).read_text("utf-8"))["state"])
    except (OSError, ValueError, KeyError) as error:
        raise UsageError(
            f"{folder}: no launch waits for a trigger there (nvprobe launch --trigger)"
        ) from error
    return state
