"""Where nvprobe keeps what it may need again, below one folder of the user's."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["cache_folder"]

_OFF = frozenset({"0", "off", "no", "false"})


def cache_folder() -> Path | None:
    """The folder; ``None`` where the user switched it off (``NVPROBE_CACHE=off``)."""
    wanted = os.environ.get("NVPROBE_CACHE", "").strip()
    if wanted.lower() in _OFF:
        return None
    if wanted:
        return Path(wanted)
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    except RuntimeError:  # no home at all
        return None
    return Path(home) / "nvprobe"
