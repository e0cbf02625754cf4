"""The doctor: each thing that is missing has a state and a remedy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from nvprobe.errors import ToolError
from nvprobe.launch import doctor
from nvprobe.launch.doctor import Check, examine, is_usable, summary, to_json
from nvprobe.nsys import Nsys


def checks(monkeypatch: pytest.MonkeyPatch, nsys: Nsys | None, importer: Path | None = None):
    def find() -> Nsys:
        if nsys is None:
            raise ToolError("nsys was not found")
        return nsys

    monkeypatch.setattr(doctor, "find_nsys", find)
    monkeypatch.setattr(doctor, "find_importer", lambda _nsys: importer)
    return {check.name: check for check in examine()}


def made(version: tuple[int, ...]) -> Nsys:
    text = ".".join(map(str, version))
    return Nsys(Path("/x/nsys"), version, text, {"--capture-range": ""})


def test_without_nsys_torch_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    found = checks(monkeypatch, None)
    assert found["nsys"].state == "absent"
    assert "scripts/install-nsys" in (found["nsys"].remedy or "")
    assert is_usable(list(found.values())) == (found["torch"].state == "ok")


def test_the_last_line_says_what_a_launch_will_do(monkeypatch: pytest.MonkeyPatch) -> None:
    importer = Path("/x/QdstrmImporter")
    with_nsys = list(checks(monkeypatch, made((2025, 3)), importer).values())
    assert summary(with_nsys).startswith("nvprobe launch records with nsys here")
    monkeypatch.setattr(doctor, "find_spec", lambda _name: None)
    without = list(checks(monkeypatch, None).values())
    assert not is_usable(without)
    assert "install nsys or torch" in summary(without)


def test_a_missing_importer_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    found = checks(monkeypatch, made((2022, 4)))
    assert found["nsys importer"].state == "failed"
    assert "link" in (found["nsys importer"].remedy or "")


def test_old_nsys_and_new_nvtx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "version", lambda _name: "0.2.12")
    assert checks(monkeypatch, made((2023, 4)))["nvtx"].state == "warning"
    assert checks(monkeypatch, made((2025, 3)))["nvtx"].state == "ok"
    monkeypatch.setattr(doctor, "version", lambda _name: "0.2.11")
    assert checks(monkeypatch, made((2022, 4)))["nvtx"].state == "ok"


def test_a_full_disk_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 2**30

    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _folder: Usage)
    assert checks(monkeypatch, None)["disk space"].state == "warning"


def test_counters_kept_for_administrators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "cuda_present", lambda: True)
    monkeypatch.setattr(doctor.Path, "read_text", lambda *_: "RmProfilingAdminOnly: 1\nCapEff: 0")
    check = doctor._gpu_metrics()
    assert check.state == "warning"
    assert "SYS_ADMIN" in (check.remedy or "")


def test_every_trouble_has_a_remedy_or_is_harmless(monkeypatch: pytest.MonkeyPatch) -> None:
    for nsys in (None, made((2022, 4))):
        for check in checks(monkeypatch, nsys).values():
            assert check.found
            assert check.remedy or check.state in {"ok", "absent", "warning"}, check


def test_json(monkeypatch: pytest.MonkeyPatch) -> None:
    document = to_json([Check("nsys", "ok", "x"), Check("nsys importer", "ok", "y"),
                        Check("torch", "absent", "z")])  # fmt: skip
    assert json.loads(json.dumps(document))["usable"] is True
    assert document["checks"][0] == {"name": "nsys", "state": "ok", "found": "x", "remedy": None}
