"""Words and spellings of docs/glossary.md in the pages, American in code; named files exist."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

WORDS = {
    r"\brooms?\b": "package or module",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"(?<!cannot )(?<!\.)\b(tells?|telling|told)\b(?! (\w+ ){0,3}apart)": "report, record or show",
    r"\b(bears?|borne)\b": "accept or handle",
    r"\bwhose turn\b|\b(takes?|taking) turns\b": "which thread launches next; alternate",
    r"(?<!there )\b(is|are|was|were) no (?!longer\b|more\b|less\b|other\b)": "is not a",
    r"(^|[.;|] )of (it|them), ": "put the noun first",
    r"\b(lay|lays|laid|lie|lies) over\b": "align with",
    r"\bin vain\b|\bkin\b|\bwhilst\b": "plain words",
    r"\b(kernels|syncs|times|bytes|[mµn]s|rows) a (step|call|kernel|second)\b"
    r"|\b(launches|the GPU|calls) a (step|second)\b|[}'] a step\b": "per",
}
"""Regular expression of each word that pages and code do not use, and what they write instead."""

SPELLINGS = {
    r"\banaly(se|sed|sing|sers?)\b": "analyze",
    r"\b(\w*synchron|\w*initial|recogn|normal|optim|summar|serial|organ|minim|maxim|vector|quant)"
    r"is(e|ed|es|ing|ations?|ers?)\b": "-ize",
    r"\bper cent\b|\d %(?=[\s.,;:)`|]|$)": "percent or 5%",
    r"\b(colour(s|ed|ing)?|behaviours?|favour\w*|labelled|labelling|artefacts?)\b": "American",
    r"\bneighbour\w*": "neighbor",
}
"""The same for spellings, in the code as well."""

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").rglob("*.md")),
]
MODULES = sorted((ROOT / "nvprobe").rglob("*.py"))
NAMED_FILE = re.compile(r"(?<![\w/.])(?:docs|tests|scripts|examples|nvprobe)/[\w./-]*\w")
NAMED_MODULE = re.compile(r"`~?(nvprobe(?!\.py\b)(?:\.\w+)+)`")


def lines(*paths: Path) -> Iterator[tuple[Path, int, str]]:
    """Every line of some files, else of the product and its documentation."""
    for path in paths or [*MODULES, *PAGES]:
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            yield path, number, line


@pytest.mark.parametrize("word", WORDS)
def test_words_that_nobody_uses(word: str) -> None:
    found = matches(word, *MODULES, *PAGES)
    assert not found, f"write {WORDS[word]!r}:\n" + "\n".join(found)


@pytest.mark.parametrize("word", SPELLINGS)
def test_spelling_is_american(word: str) -> None:
    found = matches(word)
    assert not found, f"write {SPELLINGS[word]!r}:\n" + "\n".join(found)


def matches(word: str, *paths: Path) -> list[str]:
    """The lines that hold a word."""
    pattern = re.compile(word, re.IGNORECASE)
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path, number, line in lines(*paths)
        if pattern.search(line)
    ]


def test_named_files_exist() -> None:
    absent = [
        f"{path.relative_to(ROOT)}:{number}: {name}"
        for path, number, line in lines()
        for name in NAMED_FILE.findall(line)
        if not list(ROOT.glob(f"{name}*")) and not (path.parent / name).exists()
    ]
    assert not absent


def test_named_modules_and_functions_exist() -> None:
    absent = [
        f"{path.relative_to(ROOT)}:{number}: {name}"
        for path, number, line in lines()
        for name in NAMED_MODULE.findall(line)
        if not exists(name)
    ]
    assert not absent


def exists(name: str) -> bool:
    """Whether a dotted name is a module, or an attribute of one."""
    words = name.split(".")
    for length in range(len(words), 0, -1):
        try:
            found: object = importlib.import_module(".".join(words[:length]))
        except ModuleNotFoundError:
            continue
        for word in words[length:]:
            if not hasattr(found, word):
                return False
            found = getattr(found, word)
        return True
    return False
