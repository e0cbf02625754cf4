"""The page's JavaScript keeps the types that its comments declare."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from nvprobe.report.page.assemble import SCRIPTS
from tests.conftest import ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not shutil.which("tsc"), reason="no tsc (apt-get install node-typescript)"),
]

NEWER = """declare class DecompressionStream {
    constructor(format: string);
    readable: ReadableStream;
    writable: WritableStream;
}"""
"""What browsers have since 2023, and Debian's compiler does not know of."""


def test_types_of_the_javascript(tmp_path: Path) -> None:
    folder = ROOT / "nvprobe" / "report" / "page"
    (tmp_path / "newer.d.ts").write_text(NEWER)
    options = {
        "allowJs": True,
        "checkJs": True,
        "noEmit": True,
        "strict": True,
        "target": "es2022",
        "lib": ["es2022", "dom", "dom.iterable"],
        "types": [],
    }
    files = ["newer.d.ts", *(str(folder / name) for name in SCRIPTS)]
    (tmp_path / "tsconfig.json").write_text(
        json.dumps({"compilerOptions": options, "files": files})
    )
    done = subprocess.run(["tsc", "-p", tmp_path], capture_output=True, text=True, check=False)
    assert not done.stdout
