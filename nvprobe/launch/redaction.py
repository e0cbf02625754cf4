"""Star out what looks like a secret in a command, by the name it is given or by its own look.

Rather one word too many than one secret in a file that is handed on.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence

_STARS = "***"
_NAME = r"(?:(?i:secret|passw|passphrase|credential)|(?i:key|token|auth|pwd)(?![a-z]))"
_SECRET_NAME = re.compile(_NAME)
_NAMED = re.compile(
    rf"""((?:\w{{0,40}}{_NAME}\w{{0,40}})["']?\s{{0,3}}[:=]\s{{0,3}}["']?)([^\s"',;&}}]{{1,4096}})"""
)
"""``{"api_key": "…"}``, ``?token=…``, ``user=ann;password=…`` inside a word."""
_BY_LOOK = re.compile(
    r"\b(?:sk|pk|rk|hf|r8|npm|glpat|nvapi|pypi|dop_v1|shpat|xox[abeoprs]|gh[opsur]|github_pat)"
    r"[-_][A-Za-z0-9_-]{8,}"  # API keys of OpenAI, Anthropic, Stripe, Hugging Face, GitHub, Slack
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{12,}"  # Amazon
    r"|\bAIza[\w-]{20,}"  # Google
    r"|\beyJ[\w-]{8,}\.[\w-]+(?:\.[\w-]*)?"  # JSON web tokens
    r"|\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b"  # keys of many services
    r"|\b[0-9a-fA-F]{32,}\b"  # digests
    r"|-----BEGIN[^-]{0,40}PRIVATE KEY-----[^-]*(?:-----END[^-]{0,40}-----)?"
)
_SCHEME = re.compile(r"(?i)\b(bearer|basic|digest)(\s+|=|:\s*)[^\s\"',;]+")
_BEFORE_HOST = re.compile(r"""(://|\A|(?<=[\s"'=,]))[^\s"'/@:]{0,256}:[^\s"'@]{1,256}@""")
_LONG = re.compile(r"[A-Za-z0-9+_-]{20,}={0,2}")
_SHORTEST_RANDOM = 20
_LEAST_CHANGES, _LEAST_ENTROPY = 0.25, 3.0
"""Random texts and digits change class at 4 of 10 places, names of files and models at one or two.
Entropy in bits per character."""


def redacted(text: str) -> str:
    """``text`` with keys, tokens, passwords of URLs and long random strings as ``***``."""
    return _LONG.sub(
        lambda found: _STARS if _is_random(found[0]) else found[0], without_known_secrets(text)
    )


def without_known_secrets(text: str) -> str:
    """The same, but long random strings stay: names of kernels and compiled graphs are some."""
    text = _BEFORE_HOST.sub(rf"\1{_STARS}@", text)
    text = _SCHEME.sub(rf"\1\2{_STARS}", text)
    text = _NAMED.sub(rf"\1{_STARS}", text)
    return _BY_LOOK.sub(_STARS, text)


def redacted_words(words: Sequence[str]) -> list[str]:
    """A command with the values of options such as ``--api-key`` starred out, too."""
    clean = []
    hide = False
    for word in words:
        option, equals, value = word.partition("=")
        if hide and not word.startswith("-"):
            clean.append(_STARS)
        elif equals and option and _SECRET_NAME.search(option):
            clean.append(f"{option}={_STARS}" if value else word)
        else:
            clean.append(redacted(word))
        named = word.startswith("-") and not equals and _SECRET_NAME.search(word) is not None
        hide = named or word.lower() in ("bearer", "basic")
    return clean


def _is_random(word: str) -> bool:
    """Whether letters and digits follow one another as if by chance."""
    body = re.sub(r"[-_=]", "", word)
    if len(body) < _SHORTEST_RANDOM or 8 * (len(word) - len(body)) > len(word):
        return False
    kinds = ["d" if c.isdigit() else "u" if c.isupper() else "l" for c in body]
    pairs = zip(kinds, kinds[1:], strict=False)  # a capital begins a word: that is not a change
    changes = sum(a != b and (a, b) != ("u", "l") for a, b in pairs)
    entropy = -sum(n / len(body) * math.log2(n / len(body)) for n in Counter(body).values())
    return changes >= _LEAST_CHANGES * len(body) and entropy >= _LEAST_ENTROPY
