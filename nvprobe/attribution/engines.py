"""Names that inference engines give their ranges: numbers leave the name and become columns.

``execute_context_1(512)_generation_3(3)`` is call after call of one range, ``execute``, with 1
request of 512 tokens to prefill and 3 requests to decode. ``FORMS`` is the table of known names;
docs/inference.md shows it to users. Names are parsed with Arrow's regular expressions, all of
them at once: a server's capture has as many distinct names as iterations.

To add a form: one line in ``FORMS``, one line in tests/unit/attribution/test_engines.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nvprobe.errors import UsageError
from nvprobe.trace import Column, Table, column

UNKNOWN = -1


class StepPhase(IntEnum):
    """What a step of an inference program does."""

    UNKNOWN = 0
    PREFILL = 1
    DECODE = 2
    MIXED = 3
    """Prefill of some requests and decode of others."""
    VERIFY = 4
    """The target model checks what a draft model proposed."""
    DRAFT = 5
    IDLE = 6
    """An iteration without requests, which the ranks of a job run together."""
    DENOISE = 7


class Role(IntEnum):
    """What a range with a known name is."""

    STEP = 0
    """A step, whatever else the capture marks."""
    CALL = 1
    """A step where nothing else marks one: a call of a compiled program."""
    MODULE = 2
    PART = 3
    """Part of a step, or of the start of a server."""


@dataclass(frozen=True, slots=True)
class Batches(Table):
    """What a step works on, by its name; -1 where it does not."""

    phase: Column = column("i1")
    """:class:`StepPhase`."""
    iteration: Column = column("i8")
    prefill_requests: Column = column("i8")
    prefill_tokens: Column = column("i8")
    decode_requests: Column = column("i8")
    decode_tokens: Column = column("i8")
    kv_tokens: Column = column("i8")
    """Tokens in the KV cache of all requests."""
    padded_requests: Column = column("i8")
    """Requests that the CUDA graph computes: the batch and its padding."""


@dataclass(frozen=True, slots=True)
class Form:
    """A kind of name."""

    engine: str
    begins: str
    """Regular expression of how it begins; cheap, because every name is searched for it."""
    pattern: str
    """Regular expression (RE2) of all of it; groups are columns of `Batches`, or ``name``,
    ``phase``, ``requests`` and ``tokens``."""
    name: str
    """Clean name, or what stands in front of the group ``name``."""
    role: Role = Role.STEP


_N = r"\d{1,18}"
_DETAIL = rf"\(sq(?P<%s_tokens>{_N})sk(?P<%s_kv>{_N})(?:sqsq{_N})?(?:sqsk{_N})?\)"

FORMS: tuple[Form, ...] = (
    Form(
        "vLLM",
        "execute_context_",
        rf"execute_context_(?P<prefill_requests>{_N})\((?P<prefill_tokens>{_N})\)"
        rf"_generation_(?P<decode_requests>{_N})\((?P<decode_tokens>{_N})\)",
        "execute",
    ),
    Form(
        "vLLM with details",
        r"execute_\d",
        rf"execute_{_N}_context_(?P<prefill_requests>{_N}){_DETAIL % ('prefill', 'prefill')}"
        rf"_generation_(?P<decode_requests>{_N}){_DETAIL % ('decode', 'decode')}",
        "execute",
    ),
    Form(
        "vLLM to 0.12",
        "execute_new_",
        rf"execute_new_(?P<prefill_requests>{_N})_cached_(?P<decode_requests>{_N})",
        "execute",
    ),
    Form(
        "vLLM",
        r"capture_\d",
        rf"capture_(?P<tokens>{_N})_(?:FULL|PIECEWISE)",
        "capture",
        Role.PART,
    ),
    Form(  # empty, after the module: a call of it would count twice
        "vLLM, SGLang",
        r"\{'Module': '",
        r"(?s)\{'Module': '[^']+', .*'Outputs': .*",
        "outputs",
        Role.PART,
    ),
    Form(
        "vLLM, SGLang",
        r"\{'Module': '",
        r"(?s)\{'Module': '(?P<name>[^']+)'.*",
        "",
        Role.MODULE,
    ),
    Form(
        "SGLang",
        r"step\[",
        rf"step\[(?P<phase>[A-Z_]+)(?: raw_bs=(?P<requests_unpadded>{_N}))?"
        rf"(?: bs=(?P<requests>{_N}))?(?: toks=(?P<tokens>{_N}))?(?: topk={_N})?"
        rf"(?:\]? c_sq=(?P<prefill_tokens>{_N}))?(?:[^=]*\]? g_sq=(?P<decode_tokens>{_N}))?"
        rf"(?:.*?forward_id=(?P<iteration>{_N}))?.*",
        "step",
    ),
    Form(
        "TensorRT-LLM",
        r"\[Executor\] _forward_step",
        rf"\[Executor\] _forward_step(?: (?P<iteration>{_N}))?: (?P<prefill_requests>{_N}) ctx "
        rf"reqs(?:, (?P<prefill_tokens>{_N}) ctx tokens)?, (?P<decode_requests>{_N}) gen reqs",
        "[Executor] _forward_step",
    ),
    Form(
        "ATOM, nvprobe",
        r"(?:prefill|decode)\[bs=",
        rf"(?P<name>prefill|decode)\[bs=(?P<requests>{_N})(?:/(?P<padded_requests>{_N}))? "
        rf"tok=(?P<tokens>{_N}).*",
        "",
    ),
    Form(
        "nvprobe",
        r"iteration\[",
        rf"iteration\[prefill=(?P<prefill_requests>{_N})/(?P<prefill_tokens>{_N}) "
        rf"decode=(?P<decode_requests>{_N})/(?P<decode_tokens>{_N})\]",
        "iteration",
    ),
    Form(
        "JAX",
        r"(?:TSL:)?XlaModule:#",
        r"(?:TSL:)?XlaModule:#(?:[^#]*,)?hlo_module=(?P<name>[^,#]+)[^#]*#",
        "XlaModule:",
        Role.CALL,
    ),
    Form(
        "JAX",
        r"(?:TSL:)?Thunk:#",
        r"(?:TSL:)?Thunk:#(?:[^#]*,)?hlo_op=(?P<name>[^,#]+)[^#]*#",
        "Thunk:",
        Role.PART,
    ),
)
"""Known names; the first that matches a whole name decides."""

_WORDS = {
    "EXTEND": StepPhase.PREFILL,
    "PREFILL": StepPhase.PREFILL,
    "SPLIT_PREFILL": StepPhase.PREFILL,
    "CONTEXT": StepPhase.PREFILL,
    "DECODE": StepPhase.DECODE,
    "GENERATION": StepPhase.DECODE,
    "MIXED": StepPhase.MIXED,
    "VERIFY": StepPhase.VERIFY,
    "TARGET_VERIFY": StepPhase.VERIFY,
    "DRAFT": StepPhase.DRAFT,
    "DRAFT_EXTEND": StepPhase.DRAFT,
    "DRAFT_EXTEND_V2": StepPhase.DRAFT,
    "DRAFT_LOOP": StepPhase.DRAFT,
    "IDLE": StepPhase.IDLE,
    "DENOISE": StepPhase.DENOISE,
}
"""What engines call a phase."""


@dataclass(frozen=True, slots=True)
class Parsed:
    """The names among some texts that have a known form."""

    row: Column
    """int64 row of the texts, ascending."""
    names: pa.StringArray
    """Clean names, aligned with ``row``."""
    role: Column
    """int8 :class:`Role`, aligned with ``row``."""
    batches: Batches


def parse(texts: pa.StringArray, rules: Sequence[str] = ()) -> Parsed:
    """The texts that are names of ``FORMS`` or of the user's ``rules`` (``--step-name``).

    Raises UsageError for a rule that is not a regular expression with groups that mean something.
    """
    mine = [_own(rule) for rule in rules]
    open_rows = np.arange(len(texts)) if mine else _candidates(texts)
    found: list[tuple[Column, pa.StringArray, Column, Batches]] = []
    for form in (*mine, *FORMS):
        if not len(open_rows):
            break
        some = texts if len(open_rows) == len(texts) else texts.take(pa.array(open_rows))
        fields = _fields(some, form, from_user=form in mine)
        hit = np.flatnonzero(fields.is_valid().to_numpy(zero_copy_only=False))
        if not len(hit):
            continue
        fields = fields if len(hit) == len(fields) else fields.take(pa.array(hit))
        found.append((open_rows[hit], *_columns(fields, form)))
        open_rows = np.delete(open_rows, hit)
    return _joined(found)


def unmatched(texts: pa.StringArray, rules: Sequence[str]) -> list[str]:
    """The user's rules that match none of the texts."""
    return [
        rule
        for rule in rules
        if not pc.any(_fields(texts, _own(rule), from_user=True).is_valid()).as_py()
    ]


def _own(rule: str) -> Form:
    """The user's own form: a step."""
    return Form("--step-name", "", f"(?:{rule})", "" if "(?P<name>" in rule else "step")


def _candidates(texts: pa.StringArray) -> Column:
    """Rows of the texts that begin like a known form: one cheap search of every text."""
    begins = "|".join(form.begins for form in FORMS)
    hit = pc.match_substring_regex(texts, f"^(?:{begins})").fill_null(False)
    return np.flatnonzero(hit.to_numpy(zero_copy_only=False))


def _fields(texts: pa.StringArray, form: Form, *, from_user: bool) -> pa.StructArray:
    whole = f"(?P<whole_name>{form.pattern})" if from_user else form.pattern
    try:
        found = pc.extract_regex(texts, f"^{whole}$")
    except pa.ArrowInvalid as error:
        if not from_user:
            raise
        why = str(error).splitlines()[0].removesuffix(f": ^{whole}$")
        raise UsageError(f"--step-name {form.pattern[3:-1]!r}: {why}") from error
    names = {field.name for field in found.type} - {"whole_name"}
    unknown = names - _GROUPS
    if from_user and unknown:
        raise UsageError(
            f"--step-name: (?P<{min(unknown)}>…) means nothing; groups are "
            f"{', '.join(sorted(_GROUPS))}"
        )
    return found


_NUMBERS = tuple(spec.name for spec in Batches.column_schemas() if spec.name != "phase")
_GROUPS = {*_NUMBERS, "name", "phase", "requests", "tokens"}
"""Groups that a user's rule may have."""


def _columns(fields: pa.StructArray, form: Form) -> tuple[pa.StringArray, Column, Batches]:
    """(clean name, role, columns) of names of one form."""
    size = len(fields)
    groups = {field.name: fields.field(position) for position, field in enumerate(fields.type)}
    name = pa.array([form.name] * size, pa.string())
    if "name" in groups:
        name = pc.binary_join_element_wise(name, groups["name"], "")
    values = {
        group: _number(texts, form)
        for group, texts in groups.items()
        if group not in ("name", "phase", "whole_name")
    }
    phase_names = groups.get("phase", name)
    phase = _phases(phase_names, values, size)
    prefill = np.isin(phase, (StepPhase.PREFILL,))
    for what in ("requests", "tokens"):
        if what not in values:
            continue
        for side, mine in ((f"prefill_{what}", prefill), (f"decode_{what}", ~prefill)):
            already = values.get(side, np.full(size, UNKNOWN))
            values[side] = np.where(mine & (already < 0), values[what], already)
    if "requests_unpadded" in values:
        padded = values["requests_unpadded"] >= 0
        values["padded_requests"] = np.where(padded, values["requests"], UNKNOWN)
        values["decode_requests"] = np.where(
            padded, values["requests_unpadded"], values["decode_requests"]
        )
    if "prefill_kv" in values:
        values["kv_tokens"] = values["prefill_kv"] + values["decode_kv"]
    given = {key: values.get(key, np.full(size, UNKNOWN)) for key in _NUMBERS}
    return name, np.full(size, form.role, np.int8), Batches(phase=phase, **given)


def _number(texts: pa.StringArray, form: Form) -> Column:
    """int64 of a group; -1 where it is empty."""
    if pc.any(pc.equal(texts, "")).as_py():
        texts = pc.if_else(pc.equal(texts, ""), str(UNKNOWN), texts)
    try:
        return texts.cast(pa.int64()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid as error:
        raise UsageError(f"--step-name {form.pattern[3:-1]!r}: {error}") from error


def _phases(names: pa.StringArray, values: dict[str, Column], size: int) -> Column:
    """What each name calls its phase, else by whether it has requests to prefill and to decode."""
    coded = pc.utf8_upper(names).dictionary_encode()
    words = [_WORDS.get(word, StepPhase.UNKNOWN) for word in coded.dictionary.to_pylist()]
    phase = np.array([*words, StepPhase.UNKNOWN], np.int8)[coded.indices.to_numpy()]
    if {"prefill_requests", "decode_requests"} <= values.keys():
        prefill, decode = values["prefill_requests"] > 0, values["decode_requests"] > 0
        by_count = np.select(
            [prefill & decode, prefill, decode],
            [StepPhase.MIXED, StepPhase.PREFILL, StepPhase.DECODE],
            StepPhase.IDLE,
        )
        phase = np.where(phase == StepPhase.UNKNOWN, by_count, phase).astype(np.int8)
    return phase


def _joined(found: list[tuple[Column, pa.StringArray, Column, Batches]]) -> Parsed:
    """All forms together, in the order of the texts."""
    if not found:
        none = np.empty(0, np.int64)
        return Parsed(none, pa.array([], pa.string()), none, Batches.empty())
    if len(found) == 1:
        return Parsed(*found[0])
    rows = np.concatenate([one[0] for one in found])
    order = np.argsort(rows, kind="stable")
    names = pa.concat_arrays([one[1] for one in found]).take(pa.array(order))
    role = np.concatenate([one[2] for one in found])[order]
    batches = Batches.joined([one[3].columns() for one in found]).take(order)
    return Parsed(rows[order], names, role, batches)
