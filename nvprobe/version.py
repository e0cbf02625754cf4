"""The version: that of the git tag a package was built from, as its build wrote it."""

try:
    from nvprobe._version import __version__
except ModuleNotFoundError:  # a checkout on the path, neither built nor installed
    __version__ = "0.0.dev0"

__all__ = ["__version__"]
