"""Which Python frames are the user's."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pytest

from nvprobe.analysis.waiting.code_lines import NO_LINE, frame_labels
from tests.unit.analysis.scenes import CUSTOM, Scene

HASH = "y4mou5tert5rjeyuphggeivnxzuyszgrilm7sxlfl2koq7wa2a5"
USERS = {
    "train.py(50): step": "train.py:50 (step)",
    "transformers/models/qwen2/modeling_qwen2.py(218): forward": (
        "transformers/models/qwen2/modeling_qwen2.py:218 (forward)"
    ),
}
NOT_THE_USERS = [
    "torch/nn/modules/module.py(1): _call_impl",
    "/opt/venv/lib/python3.12/site-packages/torch/_ops.py(9): __call__",
    "triton/runtime/_allocation.py(29): set_allocator",
    "threading.py(3): run",
    "<frozen runpy>(8): _run_code",
    f"/tmp/torchinductor_someone/y4/c{HASH}.py(1335): call",
    f"/scratch/inductor-cache/y4/c{HASH}.py(1335): call",
    "<built-in method item of Tensor object at 0x7f>",
]


@pytest.mark.parametrize("name", [*USERS, *NOT_THE_USERS])
def test_frames_of_torch_and_of_generated_code_are_not_the_users(name: str) -> None:
    scene = Scene()
    scene.launch(CUSTOM, 1000)
    trace = dataclasses.replace(scene.trace(), strings=pa.array([name]))
    line, _, labels = frame_labels(trace, np.zeros(1, np.int64))
    assert (labels[int(line[0])].as_py() if line[0] != NO_LINE else None) == USERS.get(name)
