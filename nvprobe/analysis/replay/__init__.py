"""The step as a dependency model: replayed as it is, and with a change (docs/replay.md)."""
