"""``nvprobe redact``."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import click

from nvprobe.cli.files import deliver, in_words, spare_inputs
from nvprobe.cli.settings import Settings, common_options


@click.command("redact")
@click.argument("source", metavar="INPUT", type=click.Path(readable=False, path_type=Path))
@click.argument("target", metavar="OUTPUT", type=click.Path(path_type=Path))
@click.option(
    "--hash-names",
    is_flag=True,
    help="Names of ranges, modules and files as hashes, but words that all programs have.",
)
@common_options
@click.pass_obj
def command(settings: Settings, /, source: Path, target: Path, hash_names: bool) -> None:
    """Write a copy that is safe to share, and list what is not in it.

    INPUT is an export of nsys (.sqlite, _pqtdir), a torch trace, a sidecar, an analysis in JSON, or
    a run folder. The copy has no environments, command lines, hosts, users, folders, addresses, nor
    processes that were not profiled, and gives the same analysis. Names of ranges stay unless
    hashed. A .nsys-rep cannot be redacted: share a copy of its export.
    """
    from nvprobe.readers.sniff import sniff
    from nvprobe.sharing.copies import redact

    spare_inputs(target, [str(source)])
    if not source.exists():
        sniff(source)  # says so
    found = redact(source, target, hash_names=hash_names)
    if settings.as_json:
        document = {"schema": "nvprobe.redact/1", "output": str(target), **asdict(found)}
        deliver(settings, json.dumps(document, indent=1))
        return
    lines = [
        *(f"replaced {kind}: {count:,}" for kind, count in found.replaced.items()),
        *(f"left out {what}: {why}" for what, why in found.left_out.items()),
    ]
    settings.note(in_words_each(lines) or "nothing had to be replaced or left out")
    settings.note(f"Wrote {in_words(target)}")
    settings.note(f"next: nvprobe analyze {in_words(target)}; names of ranges are still in it"
                  if not hash_names else f"next: nvprobe analyze {in_words(target)}")  # fmt: skip


def in_words_each(lines: list[str]) -> str:
    """Lines free of what drives a terminal."""
    return "\n".join(in_words(line) for line in lines)
