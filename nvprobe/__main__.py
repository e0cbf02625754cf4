"""``python -m nvprobe``, or this file by its path: the command line."""

import os
import sys


def _leave_only_libraries_on_the_path() -> None:
    """Import from no folder that happens to be first: the working directory, or this one."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - nothing is imported yet
    first = os.path.abspath(sys.path[0] if sys.path else here)  # noqa: PTH100
    if first in (here, os.path.abspath(".")):  # noqa: PTH100
        del sys.path[:1]
    root = os.path.dirname(here)  # noqa: PTH120
    sys.path.insert(0, root)
    import nvprobe  # noqa: F401 - this one, whatever else is installed

    del sys.path[0]
    if root not in sys.path:
        sys.path.append(root)


if __name__ == "__main__":
    _leave_only_libraries_on_the_path()

    from nvprobe.cli import main

    main()
