"""Where nvprobe keeps what it may need again, below one folder of the user's."""

from __future__ import annotations

import os
import stat
from pathlib import Path

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


def is_own(path: Path) -> bool:
    """Whether a file or folder is this user's, not a link, and nobody else can write it."""
    try:
        found = path.lstat()
    except OSError:
        return False
    plain = stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)
    return plain and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def make_own(folder: Path) -> bool:
    """Make a folder that only this user can enter; whether there is one now."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if is_own(folder):
            folder.chmod(0o700)
    except OSError:
        return False
    return is_own(folder)
