"""What a user writes with the public names: mypy checks it against the installed wheel.

Each ``type: ignore`` must be needed: it marks a mistake that a type checker has to find.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from typing_extensions import assert_type

import nvprobe
from nvprobe.report.document import Document

nvprobe.instrument()
for batch in nvprobe.steps([1, 2]):
    assert_type(batch, int)
    with nvprobe.step(), nvprobe.window(), nvprobe.range("augment"):
        pass


@nvprobe.range("load")
def load(file: str) -> bytes:
    return Path(file).read_bytes()


@nvprobe.annotate
def forward(scale: float) -> list[float]:
    return [scale]


assert_type(load("a"), bytes)
assert_type(forward(1.0), list[float])
load(1)  # type: ignore[arg-type]

try:
    trace = nvprobe.load("report.sqlite", Path("trace.json.gz"))
except (nvprobe.InputError, nvprobe.ToolError, nvprobe.UsageError) as error:
    assert_type(str(error), str)
    same: nvprobe.NvprobeError = error
    raise same from error
assert_type(trace, nvprobe.Trace)
results = nvprobe.analyze(trace, steps=(4, 6), time=(0, None), ranges="step/*", devices=[0, 1])
assert_type(results, nvprobe.Results)
assert_type(results.analysis, nvprobe.Analysis)
assert_type(results.verdict, str)
assert_type(results.document, Document)
assert_type(results.idle, pd.DataFrame)
assert_type(results.table("paths"), pd.DataFrame)
assert_type(results.events("ops"), pd.DataFrame)
assert_type(results.to_json("report.json"), str)
assert_type(nvprobe.__version__, str)

nvprobe.analyze("report.sqlite", steps=4)  # type: ignore[arg-type]
nvprobe.analyze("report.sqlite", stepz=(4, 6))  # type: ignore[call-arg]
nvprobe.analyse("report.sqlite")  # type: ignore[attr-defined]
print(results.kernel)  # type: ignore[attr-defined]
