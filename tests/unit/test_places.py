"""Places: the lines at which ranges are opened and calls are made, as the sidecar tells them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

from tests.nvtx_recorder import ROOT
from tests.nvtx_recorder.with_torch import TorchPython

Row = dict[str, object]


def run(
    folder: Path, program: str, torch_python: TorchPython | None = None
) -> tuple[list[Row], list[str]]:
    """Run a program with a sidecar, all warnings errors; (its place rows, its lines)."""
    script = folder / "program.py"
    text = textwrap.dedent(program).lstrip("\n")
    kept = {key: value for key, value in os.environ.items() if "RANK" not in key}
    environment = {**kept, "PYTHONPATH": str(ROOT), "NVPROBE_SIDECAR": str(folder / "out")}
    if torch_python is not None:
        script.write_text(f"import warnings; warnings.simplefilter('error')\n{text}")
        done = torch_python.run(script, (), environment, timeout=240)
    else:
        script.write_text(text)
        done = subprocess.run(
            [sys.executable, "-W", "error", script.name],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=240,
        )
    assert done.returncode == 0, done.stderr
    return rows(folder / "out"), script.read_text().splitlines()


def rows(folder: Path) -> list[Row]:
    """Every place of every file, the last row of a position alone."""
    found: dict[tuple[object, ...], Row] = {}
    for file in sorted(folder.glob("*.jsonl")):
        for line in map(json.loads, file.read_text().splitlines()):
            if line["kind"] == "place":
                for values in line["rows"]:
                    row = dict(zip(line["columns"], values, strict=True))
                    found[file.name, row["name"], row["role"], row["source"], str(row["stack"])] = (
                        row
                    )
    return list(found.values())


def marked(found: list[Row], text: list[str]) -> dict[str, set[tuple[object, object]]]:
    """By the letter behind ``#`` of the line that a row names: (name, role)."""
    out: dict[str, set[tuple[object, object]]] = {}
    for row in found:
        file, _, number = str(row["source"]).rpartition(":")
        assert file == "program.py"
        letter = text[int(number) - 1].rpartition("# ")[2]
        out.setdefault(letter, set()).add((row["name"], row["role"]))
    return out


def test_a_range_is_entered_where_its_with_stands(tmp_path: Path):
    program = """
        import contextlib
        import nvprobe
        from nvprobe.instrumentation import sidecar

        def made(name):
            return nvprobe.range(name)

        @contextlib.contextmanager
        def helper(name):
            with nvprobe.range(name):
                yield

        def outer():
            with helper("helped"):  # B
                pass

        with nvprobe.range("early"):  # nobody writes yet
            pass
        sidecar.open()
        for _ in range(20):
            with made("made"):  # A
                pass
        with made("made"):  # A2
            pass
        outer()
        with helper("helped"):  # B2
            pass
        with contextlib.ExitStack() as stack:
            stack.enter_context(made("stacked"))  # C
    """
    found, text = run(tmp_path, program)
    assert marked(found, text) == {
        "A": {("made", "entered")},
        "A2": {("made", "entered")},
        "B": {("helped", "entered")},
        "B2": {("helped", "entered")},
        "C": {("stacked", "entered")},
    }
    assert [row["count"] for row in found if row["name"] == "made"] == [16, 1]
    assert {row["category"] for row in found} == {"user"}


def test_decorated_functions_are_known_by_their_definition(tmp_path: Path):
    program = """
        import nvprobe
        from nvprobe.instrumentation import sidecar

        @nvprobe.annotate  # A
        def work():
            pass

        sidecar.open()

        @nvprobe.annotate("named")  # B
        async def other():
            pass

        class Service:
            @nvprobe.range("method")  # C
            def method(self):
                pass
    """
    found, text = run(tmp_path, program)
    assert marked(found, text) == {
        "A": {("work", "defined")},
        "B": {("named", "defined")},
        "C": {("method", "defined")},
    }


def test_steps_and_the_loop_that_makes_them(tmp_path: Path):
    program = """
        import nvprobe
        from nvprobe.instrumentation import sidecar

        def batches():
            yield from nvprobe.steps(range(3))

        sidecar.open()
        for _ in batches():  # A
            pass
        for _ in nvprobe.steps([1]):  # B
            pass
        for _ in range(2):
            nvprobe.step()  # C
    """
    found, text = run(tmp_path, program)
    loop = {("step", "loop"), ("data", "loop")}
    assert marked(found, text) == {"A": loop, "B": loop, "C": {("step", "called")}}


def test_a_forked_child_tells_its_own_places(tmp_path: Path):
    program = """
        import os
        import nvprobe
        from nvprobe.instrumentation import sidecar

        @nvprobe.annotate
        def work():
            pass

        sidecar.open()

        def block():
            with nvprobe.range("both"):  # A
                pass

        block()
        child = os.fork()
        if not child:
            block()
            sidecar.close()
            os._exit(0)
        os.waitpid(child, 0)
    """
    found, _ = run(tmp_path, program)
    assert sorted(str(row["name"]) for row in found) == ["both", "both", "work", "work"]


def test_a_range_of_an_installed_package_knows_the_programs_line(tmp_path: Path):
    package = tmp_path / "site-packages" / "acme_loops"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "import nvprobe\n\ndef fit():\n    with nvprobe.range('inside'):\n        pass\n"
    )
    program = """
        import sys
        sys.path.insert(0, "site-packages")
        import acme_loops
        from nvprobe.instrumentation import sidecar

        sidecar.open()
        acme_loops.fit()
        sidecar.close()
    """
    (row,), _ = run(tmp_path, program)
    assert row["source"] == "acme_loops/__init__.py:4"
    assert row["stack"] == ["acme_loops/__init__.py:4", "program.py:7"]


def test_names_without_end_are_not_kept_without_end(tmp_path: Path):
    program = """
        import nvprobe
        from nvprobe.instrumentation import places, sidecar

        sidecar.open()
        for i in range(places.MOST + 50):
            with nvprobe.range(f"item {i}"):  # A
                pass
        assert len(places._places) == places.MOST
    """
    found, _ = run(tmp_path, program)
    assert len(found) == 4096


def test_without_a_sidecar_nothing_is_kept(tmp_path: Path):
    program = """
        import nvprobe
        from nvprobe.instrumentation import places

        with nvprobe.range("a"):
            pass
        assert not places._places
    """
    assert run(tmp_path, program.replace("NVPROBE", ""))[0] == []


def test_a_function_wrapped_around_itself_is_decorated_without_a_line(tmp_path: Path):
    program = """
        import nvprobe
        from nvprobe.instrumentation import sidecar

        sidecar.open()

        def work():
            return 3

        work.__wrapped__ = work
        assert nvprobe.annotate(work)() == 3
    """
    assert run(tmp_path, program)[0] == []
