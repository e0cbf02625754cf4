"""Texts without what names a person, a machine or a folder, or opens a door.

One `Scrubber` serves all files of a copy: a name is replaced by the same one everywhere, and two
files of one name stay two (``utils.py``, ``utils~2.py``).
"""

from __future__ import annotations

import hashlib
import re
import secrets
import sys
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

from nvprobe.analysis.libraries import library_of
from nvprobe.attribution.names import STEP_WORDS
from nvprobe.launch.redaction import redacted, without_known_secrets

_PART = r"[^/\s\x00\"'`:,;()<>|=\\]"
_PATH = re.compile(rf"(?<![\w.~/-])(?:file:/*(?=/))?~?/(?:{_PART}+/)+{_PART}*")
_RELATIVE = re.compile(
    rf"(?<![\w./~-])(?:\.{{1,2}}/)?(?:{_PART}+/)+{_PART}+\.(?:py|pyx|so|cu|cpp)\b"
)
_ANY_PATH = re.compile(f"{_PATH.pattern}|{_RELATIVE.pattern}")
_WINDOWS = re.compile(r"(?<![\w])[A-Za-z]:\\(?:[^\\\s\"':;,()<>|]+\\)*([^\\\s\"':;,()<>|]*)")
_FIRST_FOLDERS = """
app apps bin builds code content data dev etc global gpfs home homes kaggle lib lib64 lustre media
mnt net nfs opt private proc project projects root run runs sbin scratch shared srv storage sys tmp
users usr var volumes work workspace workspaces
"""
_ROOTS = frozenset(_FIRST_FOLDERS.split())
"""First folders of absolute paths. Names of layers may begin with a slash, too."""
_FILE = re.compile(r"\.[A-Za-z][A-Za-z0-9]{0,5}\Z")
_PACKAGES = re.compile(r".*/(?:(?:site|dist)-packages|lib/python3(?:\.\d+)?)/(?=.)")
_INDUCTOR = re.compile(r"(?:^|/)[a-z2-7]{2}/c[a-z2-7]{50,}\.py$")
_HOME = re.compile(r"(?:/home|/homes|/Users|/users|\\Users)[/\\]([^/\\\s\"':,()]+)")
_ADDRESS = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
_ADDRESS_6 = re.compile(
    r"(?<![\w:])(?:(?:[0-9a-f]{1,4}:){7}[0-9a-f]{1,4}|(?:[0-9a-f]{2}:){5}[0-9a-f]{2}|"
    r"fe80::[0-9a-f:]{4,})(?![\w:])", re.IGNORECASE,
)  # fmt: skip
_MAIL = re.compile(r"[\w.+-]{1,64}@(?:[\w-]{1,63}\.){1,8}[a-z]{2,16}\b", re.IGNORECASE)
_LINK = re.compile(r"\b(?!file:)([a-z][a-z0-9+]{1,9})://[^\s\"'<>()]+", re.IGNORECASE)
_NUMBERED = re.compile(r"([\w.-]+\s?[=:#]\s?\d+(?![\w.]))")
"""``token=17`` is a count, not a secret."""
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=([^\0\n]*)")
_USERS = re.compile(r"\A(?:\w+_)?(?:USER|USERNAME|LOGNAME|ACCOUNT|LNAME)\Z")
_HOSTS = re.compile(
    r"\A\w*(?:HOST|HOSTNAME|NODENAME|NODELIST|NODE_LIST|MASTER_ADDR|SUBMIT_HOST|FQDN|HOSTS)\Z"
)
_SECRETS = re.compile(r"(?i)secret|passw|passphrase|credential|token|api_?key|auth|access_?key")
_NOBODYS_OWN = """
admin app cuda debian default docker gpu home host jovyan local localhost main nobody node nvidia
python python3 root runner server test torch ubuntu user users work
"""
_COMMON = frozenset(_NOBODYS_OWN.split())
_SHORTEST = 3
_WORD = re.compile(r"[^\W\d_]+")
_OF_EVERY_PROGRAM = """
accumulate all attn attention backward bwd call clear clip communication compile compute copy
compiled conv criterion cuda data dataloader decode decoder dim dtoh embed embedding encoder
enqueue eval evaluation exhausted fc ffn float forward fwd fn fp gather graph grad gradient head
htod i id idx in index init int item layer layers linear load loader log loop loss lr ln lnf m
mean memcpy memset micro mlp mm model module mse nccl nn norm nvprobe op optim optimizer out
output outputs pad phase post pre proj py q k v qkv reduce relu res resize s sampling scale
scatter scheduler seq set sizes softmax step sum sync t test to torch train training transformer
update val validation wait warmup weight zero
"""
_VOCABULARY = frozenset((*STEP_WORDS, *_OF_EVERY_PROGRAM.split()))
"""Words that say what every program has; ``--hash-names`` leaves them."""
_LIBRARY = re.compile(
    r"\A(?:aten|prims|torch|torchvision|inductor|cub|autograd|nccl|c10d|gloo|triton|nvprobe)\b|"
    r"Backward\d|\Anccl|\AOptimizer\.|\A(?:void |cu[A-Z]|cuda)|\AProfilerStep|\A## Call"
)


class Scrubber:
    """Replaces what must not be handed on; counts what it replaced."""

    def __init__(self, *, hash_names: bool = False) -> None:
        self.found: Counter[str] = Counter()
        """How many distinct texts held something of each kind."""
        self._words: dict[str, str] = {}
        self._pattern: re.Pattern[str] | None = None
        self._files: dict[str, str] = {}
        self._taken: dict[str, list[str]] = {}
        self._key = secrets.token_bytes(16) if hash_names else b""
        self._memo: dict[tuple[str, bool], str] = {}

    @property
    def hashes(self) -> bool:
        """Whether names are hashed."""
        return bool(self._key)

    def learn(self, texts: Iterable[str]) -> None:
        """Note users, hosts and secrets that environments and paths name."""
        for text in texts:
            for user in _HOME.findall(text):
                self._note(user, "user")
            for name, value in _VARIABLE.findall(text):
                if _USERS.match(name):
                    self._note(value, "user")
                elif _HOSTS.match(name):
                    self.host(value)
                elif _SECRETS.search(name) and len(value) >= 8:
                    self._note(value, "***")

    def host(self, name: str) -> None:
        """Note a host, with and without its domain."""
        for one in re.split(r"[,\s]+", name):
            self._note(one, "host")
            self._note(one.partition(".")[0], "host")

    def _note(self, word: str, instead: str) -> None:
        word = word.strip()
        if len(word) >= _SHORTEST and word.lower() not in _COMMON and not word.isdigit():
            self._words.setdefault(word, instead)
            self._pattern = None
            self._memo.clear()

    def text(self, text: str) -> str:
        """Any text: a message, a thread, a frame."""
        return self._cleaned(text, named=False)

    def name(self, text: str) -> str:
        """The name of a range, module or line; a hash of it where that was asked for."""
        clean = self._cleaned(text, named=True)
        return self._hashed(clean) if self._key and not _LIBRARY.search(clean) else clean

    def kernel(self, text: str) -> str:
        """The name of a kernel, a call or a library's event: users, hosts and paths alone."""
        clean = self._known_words(self._paths(text, named=True))
        self.found["paths"] += clean != text
        return clean

    def kernel_or_frame(self, text: str) -> str:
        """The name of an event of a torch trace that the program did not give."""
        return self._cleaned(text, named=True) if "/" in text else self.kernel(text)

    def program(self, text: str) -> str:
        """A process or thread by its command line: the program alone."""
        first = re.split(r"\s+(?=-|/|~|\.|\w+=|\S*\.py\b)", text.strip(), maxsplit=1)[0]
        last = re.split(r"[/\\]", first.partition("\0")[0])[-1]
        if last != text:
            self.found["command lines"] += 1
        return self.text(last)

    def value(self, value: Any, *, named: bool = False) -> Any:
        """A decoded JSON value with all of its texts, keys of objects excepted."""
        if isinstance(value, str):
            return self.name(value) if named else self.text(value)
        if isinstance(value, list):
            return [self.value(one, named=named) for one in value]
        if isinstance(value, dict):
            return {self.text(key): self.value(one, named=named) for key, one in value.items()}
        return value

    def blob(self, data: bytes) -> bytes:
        """Bytes of a known layout: what is private is overwritten, the length stays."""
        text = data.decode("latin-1")
        clean = self._known_words(text, keep_length=True)
        for pattern in (_PATH, _MAIL, _LINK):
            clean = pattern.sub(lambda found: "*" * len(found[0]), clean)
        return clean.encode("latin-1")

    def _cleaned(self, text: str, *, named: bool) -> str:
        key = text, named
        if key not in self._memo:
            self._memo[key] = self._clean(text, named)
        return self._memo[key]

    def _clean(self, text: str, named: bool) -> str:
        before = text
        text = self._replaced("links", _LINK, r"\1://", text)
        text = self._replaced("mail addresses", _MAIL, "user@host", text)
        paths = self._paths(text, named)
        self.found["paths"] += paths != text
        words = self._known_words(paths)
        self.found["users, hosts and secrets of environments"] += words != paths
        text = self._replaced("addresses", _ADDRESS, _no_address, words)
        text = self._replaced("addresses", _ADDRESS_6, "::", text)
        if text == before and not _may_hold_secret(text):
            return text
        parts = _NUMBERED.split(text)
        star = without_known_secrets if named else redacted
        clean = "".join(part if row % 2 else star(part) for row, part in enumerate(parts))
        self.found["secrets by their look"] += clean != text
        return clean

    def _replaced(self, kind: str, pattern: re.Pattern[str], instead: Any, text: str) -> str:
        clean = pattern.sub(instead, text)
        self.found[kind] += clean != text
        return clean

    def _paths(self, text: str, named: bool) -> str:
        if "\\" in text:
            text = _WINDOWS.sub(lambda found: self._file(found[0].replace("\\", "/")), text)
        if "/" not in text:
            return text
        return _ANY_PATH.sub(lambda found: self._absolute(found[0], named), text)

    def _absolute(self, path: str, named: bool) -> str:
        if not path.startswith(("/", "~", "file:")):
            return self._file(path)
        parts = path.removeprefix("file:").lstrip("~/").split("/")
        if named and parts[0].lower() not in _ROOTS and not _FILE.search(path):
            return path  # a layer: /encoder/layer.0/MatMul
        return self._file(path)

    def _file(self, path: str) -> str:
        """The file of a path, without its folders but for those inside an installed package."""
        inside = _PACKAGES.sub("", path)
        if inside != path or library_of(path) is not None:
            return inside
        if path not in self._files:
            self._files[path] = _generated(path) or self._new_name(path.rstrip("/"))
        return self._files[path]

    def _new_name(self, path: str) -> str:
        """The last name of a path, numbered where another file has it already."""
        name = PurePosixPath(path).name
        if PurePosixPath(name).stem in sys.stdlib_module_names:
            name = f"program/{name}"  # or it would pass for Python's own
        others = self._taken.setdefault(name, [])
        for number, other in enumerate(others):
            if f"/{path}".endswith(f"/{other}") or f"/{other}".endswith(f"/{path}"):
                return _numbered(name, number)
        others.append(path)
        return _numbered(name, len(others) - 1)

    def _known_words(self, text: str, *, keep_length: bool = False) -> str:
        if not self._words:
            return text
        if self._pattern is None:
            ordered = sorted(self._words, key=len, reverse=True)
            self._pattern = re.compile(
                rf"(?<![A-Za-z0-9])(?:{'|'.join(map(re.escape, ordered))})(?![A-Za-z0-9])"
            )
        if keep_length:
            return self._pattern.sub(lambda found: "*" * len(found[0]), text)
        return self._pattern.sub(lambda found: self._words[found[0]], text)

    def _hashed(self, text: str) -> str:
        """Every word that not all programs have as a short hash; digits and marks stay."""
        self.found["names hashed"] += 1
        return _WORD.sub(lambda found: self._hash(found[0]), text)

    def _hash(self, word: str) -> str:
        if word.lower() in _VOCABULARY:
            return word
        digest = hashlib.blake2b(word.encode(), key=self._key, digest_size=8).hexdigest()
        return "".join(chr(ord("a") + int(digit, 16)) for digit in digest[:8])


def _numbered(name: str, number: int) -> str:
    """``utils.py``, ``utils~2.py``."""
    stem, dot, suffix = name.partition(".")
    return f"{stem}~{number + 1}{dot}{suffix}" if number else name


def _generated(path: str) -> str | None:
    """The name of a file that Inductor wrote, by which it is known as such."""
    found = _INDUCTOR.search(path)
    return found and found[0].lstrip("/")


@lru_cache(maxsize=1)
def _suspect() -> re.Pattern[str]:
    return re.compile(r"[A-Za-z0-9+_-]{20,}|[:=@]|\b(?:sk|pk|hf|gh[opsur]|AKIA|eyJ)|(?i:bearer)")


def _may_hold_secret(text: str) -> bool:
    return _suspect().search(text) is not None


def _no_address(found: re.Match[str]) -> str:
    """An IPv4 address; four numbers of a version that cannot be one stay."""
    return "0.0.0.0" if all(int(part) < 256 for part in found[0].split(".")) else found[0]  # noqa: S104
