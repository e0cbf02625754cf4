"""Replacing functions in other packages: now, after their import, and back again."""

from __future__ import annotations

import importlib
import logging
import sys
from pathlib import Path

import pytest

from nvprobe.instrumentation.hooks import Hooks, after_import


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A package that nobody has imported yet; ``name.part`` has a function and a class."""
    name = "hooked_package"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("def top(): return 'top'\n")
    (tmp_path / name / "part.py").write_text(
        "def f(x): return x\nclass C:\n    def method(self): return 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    for module in [one for one in sys.modules if one.startswith(name)]:
        del sys.modules[module]


def doubled(original):
    return lambda *args: 2 * original(*args)


def test_a_module_is_changed_right_after_its_import_and_not_imported_for_it(package: str):
    hooks = Hooks("test")
    assert hooks.begin()
    assert not hooks.begin()
    hooks.replace(f"{package}.part", "f", doubled)
    hooks.replace(f"{package}.part", "C.method", doubled)
    assert package not in sys.modules
    part = importlib.import_module(f"{package}.part")
    assert (part.f(3), part.C().method()) == (6, 2)
    assert part.__spec__.loader.get_source(part.__name__)
    hooks.undo()
    assert (part.f(3), part.C().method()) == (3, 1)


def test_an_imported_module_is_changed_at_once_and_put_back(package: str):
    part = importlib.import_module(f"{package}.part")
    original = part.f
    hooks = Hooks("test")
    hooks.begin()
    hooks.replace(part.__name__, "f", doubled)
    assert part.f(1) == 2
    hooks.undo()
    assert part.f is original
    hooks.undo()


def test_undone_before_the_import_nothing_is_changed(package: str):
    hooks = Hooks("test")
    hooks.begin()
    hooks.replace(f"{package}.part", "f", doubled)
    hooks.undo()
    assert importlib.import_module(f"{package}.part").f(1) == 1


def test_what_somebody_replaced_later_stays(package: str):
    part = importlib.import_module(f"{package}.part")
    hooks = Hooks("test")
    hooks.begin()
    hooks.replace(part.__name__, "f", doubled)
    part.f = theirs = lambda x: -x
    hooks.undo()
    assert part.f is theirs


def test_a_missing_name_is_one_debug_line(package: str, caplog: pytest.LogCaptureFixture):
    importlib.import_module(f"{package}.part")
    hooks = Hooks("ranges of something")
    hooks.begin()
    with caplog.at_level(logging.DEBUG, logger="nvprobe"):
        hooks.replace(f"{package}.part", "C.gone", doubled)
        hooks.replace(f"{package}.part", "never_there", doubled, optional=True)
    assert [record.getMessage() for record in caplog.records] == [
        "no ranges of something: hooked_package.part.C.gone: KeyError('gone')"
    ]


def test_several_changes_of_one_module_all_happen(package: str):
    seen = []
    after_import(f"{package}.part", lambda module: seen.append((1, module.__name__)))
    after_import(f"{package}.part", lambda module: seen.append((2, module.f(5))))
    importlib.import_module(package)
    assert seen == []
    importlib.import_module(f"{package}.part")
    assert seen == [(1, f"{package}.part"), (2, 5)]


def test_an_import_that_fails_is_tried_again(package: str, tmp_path: Path):
    seen = []
    broken = tmp_path / package / "broken.py"
    broken.write_text("raise ValueError('no')\n")
    after_import(f"{package}.broken", seen.append)
    with pytest.raises(ValueError, match="no"):
        importlib.import_module(f"{package}.broken")
    assert seen == []
    broken.write_text("value = 12345\n")
    importlib.invalidate_caches()
    importlib.import_module(f"{package}.broken")
    assert [module.value for module in seen] == [12345]
