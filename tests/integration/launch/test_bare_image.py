"""Training images: whatever the analysis needs may be missing, the capture works and says so."""

from __future__ import annotations

import json

import pytest

from nvprobe.nsys import Nsys
from tests.integration.launch.conftest import Launcher

pytestmark = pytest.mark.slow

BLOCKED = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""
ANALYSIS = ("pandas", "pyarrow", "adbc_driver_sqlite", "adbc_driver_manager")
PROGRAM = """
    import sys, nvprobe
    for i in nvprobe.steps(range(6)):
        with nvprobe.range("work"):
            pass
    print("ran")
    sys.exit(5)
"""


def block(launch: Launcher, *names: str) -> None:
    """Make modules impossible to import, for nvprobe and for the program."""
    folder = launch.folder / "blocks"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(BLOCKED.format(blocked=set(names)))
    launch.environ["PYTHONPATH"] = f"{folder}:{launch.environ['PYTHONPATH']}"


def about(err: str, words: str) -> str:
    """The one line of nvprobe's that holds ``words``."""
    assert "Traceback" not in err, err
    (line,) = [line for line in err.splitlines() if words in line]
    return line


@pytest.mark.nsys
@pytest.mark.parametrize("missing", [ANALYSIS, (*ANALYSIS, "numpy", "msgspec", "rich", "torch")])
def test_without_the_libraries_of_the_analysis(
    launch: Launcher, nsys: Nsys, missing: tuple[str, ...]
) -> None:
    block(launch, *missing)
    result = launch("--steps", "2:4", launch.script(PROGRAM), analyze=True)
    assert (result.code, result.out) == (5, "ran\n"), result.err
    line = about(result.err, "not analyzed")
    named = [name for name in missing if name not in ("torch", "adbc_driver_manager")]
    assert all(name in line for name in named), line
    assert "nvprobe analyze" in line
    assert result.ranges().count("work") == 2
    assert not (result.folder / "analysis.json").exists()
    launch.environ["PYTHONPATH"] = launch.environ["PYTHONPATH"].partition(":")[2]
    del launch.environ["NVPROBE_NSYS"]
    elsewhere = launch.run_nvprobe("analyze", "run", "--json")
    assert json.loads(elsewhere.stdout)["steps"][0]["index"] == 2


@pytest.mark.nsys
@pytest.mark.parametrize("window", [(), ("--steps", "2:4")], ids=["whole run", "steps"])
def test_without_nvtx(launch: Launcher, nsys: Nsys, window: tuple[str, ...]) -> None:
    block(launch, "nvtx")
    result = launch(*window, launch.script(PROGRAM), analyze=True)
    assert (result.code, result.out) == (5, "ran\n"), result.err
    assert "pip install nvtx" in about(result.err, "has no nvtx package")


def test_without_torch_and_nsys(launch: Launcher) -> None:
    fake = launch.folder / launch.script("#!/bin/sh\nexit 1\n", "nsys")
    fake.chmod(0o755)
    launch.environ["NVPROBE_NSYS"] = str(fake)
    block(launch, "torch")
    result = launch(launch.script(PROGRAM), analyze=True)
    assert (result.code, result.out) == (5, "ran\n"), result.err
    about(result.err, "did not import torch")


def test_an_analysis_whose_library_is_broken_names_it(launch: Launcher) -> None:
    """Found, but it cannot be imported: a numpy that does not fit, say."""
    block(launch, "adbc_driver_sqlite")
    done = launch.run_nvprobe("demo")
    assert done.returncode == 1
    assert "adbc_driver_sqlite" in about(done.stderr, "nvprobe:")
    assert "defect" not in done.stderr
