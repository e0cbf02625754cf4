"""The names that hooks of inference replace stand in the sources of the installed packages.

Sources are read, not imported: vLLM and SGLang cannot be imported without a GPU. Packages that are
not installed are skipped; `nvprobe.instrumentation.inference.KNOWN` has the versions read.
"""

from __future__ import annotations

import ast
from importlib.util import find_spec
from pathlib import Path

import pytest

from nvprobe.instrumentation.inference import HOOKS, KNOWN, OPTIONAL


def source(module: str) -> Path:
    package, *parts = module.split(".")
    found = find_spec(package)
    if found is None or found.origin is None:
        pytest.skip(f"{package} is not installed")
    path = Path(found.origin).parent.joinpath(*parts)
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@pytest.mark.parametrize(("module", "name"), [*HOOKS, *OPTIONAL])
def test_a_hooked_name_is_in_the_source(module: str, name: str) -> None:
    owner, function = name.split(".")
    tree = ast.parse(source(module).read_text("utf-8"))
    (found,) = [
        one for one in ast.walk(tree) if isinstance(one, ast.ClassDef) and one.name == owner
    ]
    defined = (ast.FunctionDef, ast.AsyncFunctionDef)
    assert function in {one.name for one in found.body if isinstance(one, defined)}


def test_every_hooked_package_has_the_versions_that_were_read() -> None:
    assert {module.split(".")[0] for module, _ in HOOKS} == set(KNOWN)
