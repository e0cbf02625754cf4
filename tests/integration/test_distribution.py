"""What is released: the sdist and the wheel, their version, and the wheel where nothing else is."""

from __future__ import annotations

import email
import itertools
import json
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.slow

VERSION = "7.8.9"
LARGEST_WHEEL = 2_000_000
LARGEST_SDIST = 6_000_000  # with the pictures of docs/
KINDS = {".py", ".js", ".css", ".html", ".gz", ".typed"}
"""What the package consists of; another kind of file is added here on purpose."""
IN_SDIST = {"LICENSE", "README.md", "CHANGELOG.md", "pyproject.toml", ".gitignore"}

THIS = f"{sys.version_info.major}.{sys.version_info.minor}"

Release = dict[str, Path]


def run(*command: object, cwd: Path) -> str:
    """What a command prints, if it succeeds."""
    done = subprocess.run([str(one) for one in command], cwd=cwd, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def git(repository: Path, *arguments: str) -> str:
    """A git command by an author that any machine has."""
    author = ("-c", "user.name=nobody", "-c", "user.email=nobody@example.com")
    return run("git", *author, *arguments, cwd=repository)


def tracked(*folders: str) -> set[str]:
    """Files of the repository, new ones included."""
    listed = git(ROOT, "ls-files", "-co", "--exclude-standard", *folders).splitlines()
    return {file for file in listed if (ROOT / file).is_file()}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository of one commit with the files of this one, and caches that git ignores."""
    copy = tmp_path_factory.mktemp("repository")
    for file in tracked():
        (copy / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, copy / file)
    git(copy, "init", "-q")
    git(copy, "add", "--all")
    git(copy, "commit", "-q", "-m", "Everything")
    for folder in ("nvprobe/__pycache__", "nvprobe/trace/.mypy_cache", "docs/__pycache__"):
        (copy / folder).mkdir()
        (copy / folder / "kept.pyc").write_bytes(b"cache")
    return copy


@pytest.fixture(scope="module")
def release(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Release:
    """The sdist of a tag, and the wheel made from it."""
    git(repository, "tag", f"v{VERSION}")
    into = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "-o", into, repository, cwd=into)
    files = {"sdist": next(into.glob("*.tar.gz")), "wheel": next(into.glob("*.whl"))}
    assert files["sdist"].name == f"nvprobe-{VERSION}.tar.gz"
    assert files["wheel"].name == f"nvprobe-{VERSION}-py3-none-any.whl"
    return files


def metadata_of(release: Release) -> email.message.Message:
    """METADATA of the wheel."""
    with zipfile.ZipFile(release["wheel"]) as wheel:
        return email.message_from_bytes(wheel.read(f"nvprobe-{VERSION}.dist-info/METADATA"))


def test_the_wheel_holds_the_package_and_nothing_else(release: Release) -> None:
    names = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    described = {f"nvprobe-{VERSION}.dist-info/{name}" for name in names}
    with zipfile.ZipFile(release["wheel"]) as wheel:
        files = set(wheel.namelist())
    assert files - described == tracked("nvprobe") | {"nvprobe/_version.py"}
    assert described <= files
    assert {"nvprobe/py.typed", "nvprobe/report/page/page.html"} <= files
    assert {Path(file).suffix for file in files - described} - KINDS == set()
    assert release["wheel"].stat().st_size < LARGEST_WHEEL


def test_the_sdist_holds_the_package_and_its_documentation(release: Release) -> None:
    with tarfile.open(release["sdist"]) as sdist:
        files = {one.name.partition("/")[2] for one in sdist.getmembers() if one.isfile()}
    assert files == tracked("nvprobe", "docs") | IN_SDIST | {"PKG-INFO", "nvprobe/_version.py"}
    assert release["sdist"].stat().st_size < LARGEST_SDIST


def test_the_metadata_is_complete_and_its_links_work_elsewhere(release: Release) -> None:
    run(sys.executable, "-m", "twine", "check", "--strict", *release.values(), cwd=ROOT)
    metadata = metadata_of(release)
    assert metadata["Version"] == VERSION
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.10"
    assert set(metadata.get_all("Provides-Extra") or ()) >= {"torch", "cluster", "mcp", "dev"}
    targets = re.findall(r"\]\((.+?)\)", str(metadata.get_payload()))
    assert len(targets) > 10
    assert [target for target in targets if not target.startswith("https://")] == []


def test_the_version_is_that_of_the_tag_and_later_commits_are_counted(
    repository: Path, release: Release, tmp_path: Path
) -> None:
    def version(folder: Path) -> str:
        return run(sys.executable, "-m", "hatchling", "version", cwd=folder).strip()

    assert version(repository) == VERSION
    with tarfile.open(release["sdist"]) as sdist:
        sdist.extractall(tmp_path, filter="data")
    assert version(tmp_path / f"nvprobe-{VERSION}") == VERSION
    for name, commands in {"commits": ("commit",), "untagged": ()}.items():
        clone = tmp_path / name
        git(tmp_path, "clone", "-q", str(repository), name)
        for command in commands:
            git(clone, command, "-q", "--allow-empty", "-m", "One more")
    assert re.fullmatch(r"7\.8\.10\.dev1\+g\w+", version(tmp_path / "commits"))
    git(tmp_path / "untagged", "tag", "-d", f"v{VERSION}")
    assert re.fullmatch(r"0\.\d\.dev1\+g\w+", version(tmp_path / "untagged"))
    shutil.rmtree(tmp_path / "untagged" / ".git")  # what a zip file of the source has
    (tmp_path / "untagged" / ".git_archival.txt").unlink()
    assert version(tmp_path / "untagged") == "0.0.dev0"


def test_a_release_is_a_section_of_the_changelog_and_a_tag(
    repository: Path, tmp_path: Path
) -> None:
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(repository), "clone")
    for key in ("user.name", "user.email"):
        git(clone, "config", key, "nobody@example.com")
    before = (clone / "CHANGELOG.md").read_text("utf-8")
    run("scripts/release", "8.0.0rc1", cwd=clone)
    head, _, section = (clone / "CHANGELOG.md").read_text("utf-8").partition("## 8.0.0rc1 - 20")
    assert head == before[: before.index("## Unreleased")] + "## Unreleased\n\n"
    assert section.partition("\n")[2] == before.partition("## Unreleased\n")[2]
    assert git(clone, "describe").strip() == "v8.0.0rc1"
    again = subprocess.run(["scripts/release", "8.0.0rc1"], cwd=clone, capture_output=True)
    assert again.returncode == 1


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("citation-file-format", "CITATION.cff"),
        ("github-issue-config", ".github/ISSUE_TEMPLATE/config.yml"),
        ("github-issue-forms", ".github/ISSUE_TEMPLATE/[!c]*.yml"),
    ],
)
def test_what_the_repository_shows_is_valid(schema: str, files: str) -> None:
    paths = list(ROOT.glob(files))
    assert paths
    checker = (sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}")
    run(*checker, *paths, cwd=ROOT)


def pythons() -> dict[str, Path]:
    """Interpreters of this machine by version, those that pyenv keeps as well."""
    found = {}
    kept = (Path.home() / ".pyenv" / "versions").glob("3.*/bin/python")
    on_path = (shutil.which(f"python3.{minor}") for minor in range(10, 20))
    for place in itertools.chain(kept, filter(None, on_path), [sys.executable]):
        code = "import sys; print(*sys.version_info[:2], sep='.')"
        done = subprocess.run([place, "-c", code], capture_output=True, text=True)
        if done.returncode == 0:
            found[done.stdout.strip()] = Path(place)
    return found


def bare(release: Release, python: str, folder: Path, *, lowest: bool) -> Path:
    """The interpreter of an environment with the wheel and what it requires, nothing else."""
    found = pythons()
    if python not in found:
        pytest.skip(f"Python {python} is not installed here; there are {', '.join(found)}")
    uv = (sys.executable, "-m", "uv")
    run(*uv, "venv", "-q", "--python", found[python], folder, cwd=folder.parent)
    interpreter = folder / "bin" / "python"
    install = (*uv, "pip", "install", "-q", "--no-build", "--python", interpreter)
    if lowest:  # of what pyproject.toml requires; the wheel requires the same
        command = (*install, "--resolution", "lowest-direct", "-r", ROOT / "pyproject.toml")
        run(*command, cwd=folder)
    run(*install, release["wheel"], cwd=folder)
    return interpreter


USE = """
import nvprobe
from nvprobe.demo import unpacked
public = [getattr(nvprobe, name) for name in nvprobe.__all__]
with unpacked() as capture:
    results = nvprobe.analyze(capture, steps=(4, 6))
    print(len(results.idle), len(results.events("ops")), nvprobe.__version__)
    for kind in ("sqlite", "parquet", "csv", "json"):
        getattr(results, f"to_{kind}")(f"written.{kind}")
"""


@pytest.mark.parametrize(
    ("python", "lowest"),
    [("3.10", True), ("3.13", False), ("3.14", False), (THIS, False)],
)
def test_the_wheel_works_where_nothing_else_is_installed(
    release: Release, tmp_path: Path, python: str, lowest: bool
) -> None:
    interpreter = bare(release, python, tmp_path / "bare", lowest=lowest)
    nvprobe = interpreter.parent / "nvprobe"
    assert run(nvprobe, "--version", cwd=tmp_path) == f"nvprobe, version {VERSION}\n"
    document = json.loads(run(nvprobe, "demo", "--json", cwd=tmp_path))
    assert (document["nvprobe"], document["ledger"]["ops"]) == (VERSION, 668)
    run(nvprobe, "demo", "-o", "report.html", cwd=tmp_path)
    assert "</script>" in (tmp_path / "report.html").read_text("utf-8")
    idle, ops, version = run(interpreter, "-I", "-W", "error", "-c", USE, cwd=tmp_path).split()
    assert (int(idle) > 0, int(ops), version) == (True, 334, VERSION)
    assert (tmp_path / "written.sqlite").is_file()


def test_type_checkers_of_users_know_the_public_names(release: Release, tmp_path: Path) -> None:
    interpreter = bare(release, THIS, tmp_path / "bare", lowest=False)
    uv = (sys.executable, "-m", "uv", "pip", "install", "-q", "--python", interpreter)
    run(*uv, "pandas-stubs", cwd=tmp_path)
    shutil.copy(ROOT / "tests" / "user_program.py", tmp_path)
    checker = (sys.executable, "-m", "mypy", "--strict", "--python-executable", interpreter)
    run(*checker, "user_program.py", cwd=tmp_path)
