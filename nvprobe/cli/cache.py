"""``nvprobe cache``."""

from __future__ import annotations

import click

from nvprobe.cli.settings import Settings, common_options


@click.command("cache")
@click.option("--clear", is_flag=True, help="Remove everything that is kept.")
@common_options
@click.pass_obj
def command(settings: Settings, /, clear: bool) -> None:
    """Show, or clear, what is kept so that a second command on the same input starts at once.

    Kept are exports of reports (.nsys-rep) and the columns of large inputs; an entry is used only
    while its input is unchanged. NVPROBE_CACHE names the folder ("off" keeps nothing),
    NVPROBE_CACHE_SIZE how much it may hold.
    """
    from nvprobe.readers import cache

    if clear:
        freed = cache.clear()
        settings.note(f"Freed {freed / 2**20:,.1f} MiB")
    if settings.as_json:
        click.echo(_json())
    elif not clear:
        _show()


def _json() -> str:
    import msgspec

    from nvprobe.cache_folder import cache_folder
    from nvprobe.readers import cache
    from nvprobe.readers.input_errors import base_name

    folder = cache_folder()
    rows = [
        {
            "kind": entry.kind,
            "name": base_name(entry.name),
            "bytes": entry.bytes,
            "used": entry.used,
        }
        for entry in cache.entries()
    ]
    answer = {
        "schema": "nvprobe.cache/1",
        "folder": None if folder is None else str(folder),
        "limit_bytes": cache.limit_bytes(),
        "entries": rows,
    }
    return msgspec.json.format(msgspec.json.encode(answer), indent=2).decode()


def _show() -> None:
    import time

    from nvprobe.cache_folder import cache_folder
    from nvprobe.readers import cache
    from nvprobe.readers.input_errors import printable

    folder, rows = cache_folder(), cache.entries()
    if folder is None:
        click.echo("Nothing is kept: NVPROBE_CACHE switches it off.")
        return
    for entry in rows:
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used))
        click.echo(
            f"{entry.bytes / 2**20:10,.1f} MiB  {entry.kind:6}  {used}  {printable(entry.name)}"
        )
    total = sum(entry.bytes for entry in rows)
    entries = "1 entry" if len(rows) == 1 else f"{len(rows)} entries"
    click.echo(
        f"{total / 2**20:10,.1f} MiB of {cache.limit_bytes() / 2**20:,.0f} MiB in {entries}, "
        f"in {printable(str(folder), 4096)}"
    )
