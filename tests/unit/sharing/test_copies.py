"""Redacted copies: nothing planted is in any byte, and the analysis is the same."""

from __future__ import annotations

import gzip
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from nvprobe.analysis import analyze
from nvprobe.attribution import attribute
from nvprobe.cli import main
from nvprobe.errors import InputError, UsageError
from nvprobe.instrumentation.objects import COLUMNS
from nvprobe.merging.load import load
from nvprobe.report.document import document, encode, plain
from nvprobe.sharing.copies import redact
from nvprobe.sharing.lines import redact_sidecar
from nvprobe.sharing.texts import Scrubber

SECRETS = ("zebra-unicorn-4242", "quagga-tapir-7171", "okapi-dugong-9393", "anoa-kudu-5151")
"""In the environment, on the command line, in paths, and as host and user."""
IN_ENVIRONMENT, IN_ARGUMENT, IN_PATH, IN_PEOPLE = SECRETS
NAMED_ANEW = {"sources", "warnings", "verdict", "nvprobe", "missing"}
NUMBERED_ANEW = {"process", "processes", "id"}


def numbers(value: Any) -> Any:
    """An analysis without its texts and their order."""
    if isinstance(value, dict):
        dropped = NAMED_ANEW | NUMBERED_ANEW
        return {key: numbers(one) for key, one in value.items() if key not in dropped}
    if isinstance(value, list):
        return sorted((numbers(one) for one in value), key=lambda one: json.dumps(one))
    return "" if isinstance(value, str) else value


def analysis(path: Path) -> dict[str, Any]:
    return plain(document(analyze(attribute(load(path)))))


def everything_in(path: Path) -> bytes:
    """All bytes of a file or folder, names of files included; packed ones unpacked as well."""
    if path.is_dir():
        return b"\n".join(one.name.encode() + everything_in(one) for one in path.iterdir())
    data = path.read_bytes()
    if path.suffix == ".gz":
        data += gzip.decompress(data)
    if path.suffix == ".parquet":
        data += str(pq.read_table(path).to_pydict()).encode()
    return data


def clean(path: Path) -> None:
    data = everything_in(path)
    assert [secret for secret in SECRETS if secret.encode() in data] == []


def plant_in_export(file: Path) -> None:
    """Secrets where nsys puts them, in the middle of a real export."""
    with closing(sqlite3.connect(file)) as db, db:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master")}
        people = f"USER={IN_PEOPLE}\0HOSTNAME={IN_PEOPLE}.corp\0MY_SECRET={IN_ENVIRONMENT}"
        texts = [people, f"python3 /{IN_PATH}/train.py --key {IN_ARGUMENT}", IN_ARGUMENT]
        if "StringIds" in tables:
            top = db.execute("SELECT max(id) FROM StringIds").fetchone()[0] or 0
            rows = [(top + n + 1, text) for n, text in enumerate(texts)]
            db.executemany("INSERT INTO StringIds (id, value) VALUES (?, ?)", rows)
        if "ThreadNames" in tables:
            db.execute("UPDATE ThreadNames SET nameId = ? WHERE rowid = 1", (top + 2,))
        if "PROCESSES" in tables:
            db.execute("UPDATE PROCESSES SET name = ?", (texts[1],))
        if "DIAGNOSTIC_EVENT" in tables:
            text = f"/home/{IN_PEOPLE}/{IN_PATH}/out.log of {IN_PEOPLE}"
            db.execute("UPDATE DIAGNOSTIC_EVENT SET text = ? WHERE rowid = 1", (text,))
        db.execute("CREATE TABLE unknown_to_all (value TEXT)")
        db.execute("INSERT INTO unknown_to_all VALUES (?)", (IN_ARGUMENT,))
        db.execute("CREATE TABLE IF NOT EXISTS META_DATA_CAPTURE (name TEXT, value TEXT)")
        db.execute("INSERT INTO META_DATA_CAPTURE VALUES ('PROCESS_0:ARGUMENTS', ?)", (texts[1],))


def plant_in_trace(file: Path, target: Path) -> None:
    """Secrets around and in the events of a torch trace."""
    packed = file.suffix == ".gz"
    trace = json.loads(gzip.decompress(file.read_bytes()) if packed else file.read_bytes())
    if isinstance(trace, list):
        trace = {"traceEvents": trace}
    trace["traceName"] = f"/home/{IN_PEOPLE}/{IN_PATH}/{IN_ARGUMENT}.json"
    trace["my metadata"] = IN_ENVIRONMENT
    first = next(event for event in trace["traceEvents"] if event.get("ph") == "X")
    args = first.setdefault("args", {})
    args["Call stack"] = f"/home/{IN_PEOPLE}/{IN_PATH}/train.py(3): f"
    trace["traceEvents"].append(
        {"ph": "M", "name": "process_name", "pid": first["pid"], "tid": 0, "ts": 0,
         "args": {"name": f"python3 /{IN_PATH}/train.py --key {IN_ARGUMENT}"}}
    )  # fmt: skip
    target.write_text(json.dumps(trace))


def test_nothing_planted_is_in_any_copy(corpus: Path, tmp_path: Path) -> None:
    for name in ("nsys/h200/eager", "nsys/public/2022.1_dlprof", "nsys/public/2020_numba_jit"):
        given, copy = tmp_path / "given.sqlite", tmp_path / "copy.sqlite"
        shutil.copy(corpus / f"{name}.sqlite", given)
        given.chmod(0o600)
        before = numbers(analysis(given))
        plant_in_export(given)
        redact(given, copy)
        clean(copy)
        assert numbers(analysis(copy)) == before
        given.unlink()
        copy.unlink()


def test_deleted_rows_leave_no_bytes(corpus: Path, tmp_path: Path) -> None:
    given, copy = tmp_path / "given.sqlite", tmp_path / "copy.sqlite"
    shutil.copy(corpus / "nsys" / "h200" / "eager.sqlite", given)
    given.chmod(0o600)
    with closing(sqlite3.connect(given)) as db, db:
        db.execute("PRAGMA secure_delete = OFF")
        db.execute("CREATE TABLE gone (value TEXT)")
        db.executemany("INSERT INTO gone VALUES (?)", [(IN_ENVIRONMENT * 20,)] * 500)
        db.commit()
        db.execute("DELETE FROM gone")
    assert IN_ENVIRONMENT.encode() in given.read_bytes()
    redact(given, copy)
    clean(copy)


def test_a_columnar_export(corpus: Path, tmp_path: Path) -> None:
    given = corpus / "nsys" / "h200" / "gpu_metrics_pqtdir"
    copy = tmp_path / "copy_pqtdir"
    redact(given, copy)
    assert numbers(analysis(copy)) == numbers(analysis(given))
    assert not list(copy.glob("META_DATA_CAPTURE*"))


@pytest.mark.parametrize("name", ["h200/compile", "h200/eager", "public/vllm_graph_replay"])
def test_a_torch_trace_loses_what_stands_around_its_events(
    corpus: Path, tmp_path: Path, name: str
) -> None:
    given, copy = tmp_path / "given.json", tmp_path / "copy.json.gz"
    source = corpus / "kineto" / f"{name}.json.gz"
    plant_in_trace(source, given)
    found = redact(given, copy)
    clean(copy)
    assert numbers(analysis(copy)) == numbers(analysis(given))
    assert {"copy.json.gz: my metadata", "copy.json.gz: traceName"} <= found.left_out.keys()


def test_a_run_folder(corpus: Path, tmp_path: Path) -> None:
    given, copy = tmp_path / "given", tmp_path / "copy"
    shutil.copytree(corpus / "runs" / "nano", given)
    for path in (given, *given.iterdir()):
        path.chmod(0o700)
    plant_in_export(given / "report.sqlite")
    run = json.loads((given / "run.json").read_text())
    run |= {"command": ["train.py", IN_ARGUMENT], "extra": IN_ENVIRONMENT}
    run["notes"].append(f"/{IN_PATH}/x/train.py failed for {IN_PEOPLE}")
    (given / "run.json").write_text(json.dumps(run))
    (sidecar,) = given.glob("sidecar.*")
    with sidecar.open("a") as lines:
        header = {"kind": "header", "node": IN_PEOPLE, "program": IN_ARGUMENT}
        place = {"kind": "place", "name": "x", "source": f"/{IN_PATH}/x/train.py:3"}
        lines.writelines(json.dumps(one) + "\n" for one in (header, place))
        lines.write(f"damaged {IN_ENVIRONMENT}\n")
    (given / "report.nsys-rep").write_text(IN_ENVIRONMENT)
    (given / "nsys.log").write_text(IN_ARGUMENT)
    (given / f"{IN_ARGUMENT}.txt").write_text("mine")
    (given / "analysis.json").write_text(
        encode(document(analyze(attribute(load(given))))).replace(
            "nano.py", f"/{IN_PATH}/n/nano.py"
        )
    )
    before = numbers(analysis(given))
    found = redact(given, copy)
    clean(copy)
    assert numbers(analysis(copy)) == before
    assert sorted(path.name for path in copy.iterdir()) == sorted(
        ["analysis.json", "report.sqlite", "run.json", sidecar.name]
    )
    assert "cannot be taken out" in found.left_out["report.nsys-rep"]
    assert {"nsys.log", "run.json: command", "run.json: extra"} <= found.left_out.keys()
    kept = json.loads((copy / "run.json").read_text())
    assert kept["overhead"] == run["overhead"]
    assert copy.stat().st_mode & 0o777 == 0o700


def test_hashed_names_in_a_run(corpus: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    given = corpus / "runs" / "nano"
    redact(given, copy, hash_names=True)
    data = everything_in(copy)
    assert b"nano.py" not in data
    assert b"GPT" not in data
    before, after = analysis(given), analysis(copy)
    for key in ("ledger", "devices", "steps", "kernels"):
        assert numbers(after[key]) == numbers(before[key])
    assert len(after["ranges"]) == len(before["ranges"])


def test_hashed_names_of_objects_are_those_of_their_roots(tmp_path: Path) -> None:
    given, copy = tmp_path / "sidecar.0.7.jsonl", tmp_path / "copy.jsonl"
    rows = [["MyModel", None, 0, True], ["cell", "MyModel", 1, None]]
    line = {"kind": "object", "columns": COLUMNS, "rows": rows}
    given.write_text(json.dumps(line) + "\n")
    redact_sidecar(given, copy, Scrubber(hash_names=True))
    model, cell = json.loads(copy.read_text())["rows"]
    assert model[0] == cell[1] != "MyModel"
    assert [model[1:], cell[2:]] == [[None, 0, True], [1, None]]


def test_a_folder_of_ranks(corpus: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    redact(corpus / "runs" / "ddp", copy)
    for rank in ("rank0", "rank1"):
        assert numbers(analysis(copy / rank)) == numbers(analysis(corpus / "runs" / "ddp" / rank))


def test_a_report_is_refused(tmp_path: Path) -> None:
    report = tmp_path / "r.nsys-rep"
    report.write_bytes(b"NVIDIA Tegra Profiler Report")
    with pytest.raises(InputError, match=r"cannot be shared: .* nsys export --type sqlite"):
        redact(report, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


def test_a_copy_is_whole_or_not_there(corpus: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.sqlite"
    broken.write_bytes((corpus / "nsys" / "h200" / "eager.sqlite").read_bytes()[:150_000])
    copy = tmp_path / "copy.sqlite"
    with pytest.raises(InputError):
        redact(broken, copy)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.sqlite"]
    copy.write_text("mine")
    with pytest.raises(UsageError, match="exists already"):
        redact(corpus / "nsys" / "h200" / "eager.sqlite", copy)
    assert copy.read_text() == "mine"


def test_the_command_lists_what_it_did(capsys, corpus: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.sqlite"
    with pytest.raises(SystemExit) as ended:
        main(["redact", str(corpus / "cases" / "n25.sqlite"), str(copy)])
    assert ended.value.code == 0
    out = capsys.readouterr().err
    assert "replaced paths: " in out
    assert "left out copy.sqlite: table TARGET_INFO_SYSTEM_ENV" in out
    assert copy.stat().st_mode & 0o777 == 0o600
