"""Finding and probing nsys, with stand-ins that answer, hang, fail and talk nonsense."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nvprobe import nsys as nsys_module
from nvprobe.errors import ToolError
from nvprobe.nsys import export, find_importer, find_nsys, import_qdstrm, parse_flags, probe

HELP = """usage: nsys profile [<args>] [application]

\t-b, --backtrace=

\t   Possible values are 'lbr' or 'none'.
\t   Note that -x is something else.

\t--cuda-graph-trace=

\t   Possible values are 'graph' or 'node'.

\t--nvtx-domain-[include|exclude]=

\t   Domains.
"""


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def fake(folder: Path, body: str, name: str = "nsys") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def good(folder: Path, version: str = "2025.3.1.90-abc") -> Path:
    help_file = folder / "help"
    path = fake(
        folder,
        f"""case "$1 $2" in
*--version*) echo "NVIDIA Nsight Systems version {version}" ;;
"profile --help") cat {help_file}; echo asked >> {folder}/asked ;;
*) echo "cannot: $*" >&2; exit 7 ;;
esac""",
    )
    help_file.write_text(HELP)
    return path


def test_probe_reads_version_and_flags(tmp_path: Path) -> None:
    found = probe(good(tmp_path))
    assert found.version == (2025, 3, 1, 90)
    assert found.version_text == "2025.3.1.90-abc"
    assert found.supports("--cuda-graph-trace", "node")
    assert not found.supports("--cuda-graph-trace", "nod")
    assert not found.supports("--python-sampling")


def test_flags_with_a_choice_in_their_name_are_expanded() -> None:
    assert set(parse_flags(HELP)) == {
        "--backtrace",
        "--cuda-graph-trace",
        "--nvtx-domain-include",
        "--nvtx-domain-exclude",
    }


def test_help_is_asked_once_per_path_and_version(tmp_path: Path) -> None:
    path = good(tmp_path)
    assert probe(path) == probe(path)
    assert (tmp_path / "asked").read_text().count("asked") == 1
    good(tmp_path, "2026.1.0")
    probe(path)
    assert (tmp_path / "asked").read_text().count("asked") == 2


def test_a_cache_that_cannot_be_written_or_read_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert probe(good(tmp_path)).supports("--backtrace")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other"))
    probe(good(tmp_path))
    for file in (tmp_path / "other" / "nvprobe").iterdir():
        file.write_text("[1")
    assert probe(good(tmp_path)).supports("--backtrace")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("echo hello", "is not Nsight Systems"),
        ("echo broken >&2; exit 3", "failed with code 3: broken"),
        ("printf '\\033[31mred\\n'; exit 1", "failed with code 1: [31mred"),
        ("exit 1", "it printed nothing"),
        ("exec sleep 60", "did not answer within 0.2 s"),
    ],
)
def test_other_programs_are_refused_in_one_line(
    tmp_path: Path, body: str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsys_module._ask, "__defaults__", (0.2 if "sleep" in body else 10.0,))
    with pytest.raises(ToolError) as caught:
        probe(fake(tmp_path, body))
    assert says in str(caught.value)
    assert "\x1b" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_not_executable(tmp_path: Path) -> None:
    path = tmp_path / "nsys"
    path.write_text("data")
    with pytest.raises(ToolError, match="cannot be run"):
        probe(path)


def test_path_comes_first_and_a_broken_one_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsys_module, "_INSTALL_FOLDERS", (str(tmp_path / "opt/*/nsys"),))
    monkeypatch.setattr(nsys_module.sys, "prefix", str(tmp_path / "nowhere"))
    fake(tmp_path / "bin", "exit 1")
    good(tmp_path / "opt/2024.9", "2024.9")
    newest = good(tmp_path / "opt/2024.10", "2024.10")
    assert find_nsys(environ={"PATH": str(tmp_path / "bin") + ":/bin"}).path == newest
    named = good(tmp_path / "mine", "2023.4")
    assert find_nsys(environ={"PATH": "", "NVPROBE_NSYS": str(named)}).path == named
    assert find_nsys(named, environ={"PATH": ""}).version == (2023, 4)


def test_a_named_nsys_that_fails_is_an_error_not_a_search(tmp_path: Path) -> None:
    broken = fake(tmp_path, "exit 1")
    with pytest.raises(ToolError, match="failed with code 1"):
        find_nsys(environ={"PATH": os.environ["PATH"], "NVPROBE_NSYS": str(broken)})


def test_nothing_found_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nsys_module, "_INSTALL_FOLDERS", ())
    monkeypatch.setattr(nsys_module.sys, "prefix", str(tmp_path))
    with pytest.raises(ToolError, match="set NVPROBE_NSYS"):
        find_nsys(environ={"PATH": ""})


def test_export_and_import_fail_with_the_last_line(tmp_path: Path) -> None:
    found = probe(good(tmp_path))
    with pytest.raises(ToolError, match=r"nsys export failed with code 7: cannot: export --type"):
        export(found, tmp_path / "a.nsys-rep", tmp_path / "a.sqlite")
    importer = fake(tmp_path / "x", "echo importing; echo no space left", "QdstrmImporter")
    with pytest.raises(ToolError, match=r"no report from a\.qdstrm: no space left"):
        import_qdstrm(importer, tmp_path / "a.qdstrm", tmp_path / "a.nsys-rep")


def test_importer_is_looked_for_beside_the_folder_of_nsys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(nsys_module, "_IMPORTER_FOLDERS", ())
    found = probe(good(tmp_path / "target-linux-x64"))
    assert find_importer(found) is None
    importer = fake(tmp_path / "host-linux-x64", "exit 0", "QdstrmImporter")
    assert find_importer(found) == importer
