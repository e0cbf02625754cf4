"""Thin layers over nvprobe's public names for the tools that people already run."""
