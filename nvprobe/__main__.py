"""``python -m nvprobe``: the command line."""

from nvprobe.cli import main

main()
