"""Every kernel name of the corpus was gone through by hand: what no rule knows is listed here."""

from __future__ import annotations

import gzip
import json
import re
import sqlite3
from pathlib import Path

import pyarrow as pa
import pytest

from nvprobe.analysis.kernels.classes import Family, classify_names

# Kernels that belong to no family (hand-written, or helpers of libraries that advise nothing).
CUSTOM = {
    "Kernel", "cudapy::__main__::matmul$241", "initialize_boundaries", "jacobi_kernel", "saxpy",
    "cudf::detail::valid_if_n_kernel", "fbgemm_gpu::_offsets_range_cuda_kernel", "init_hashtbl",
    "kernel_v_v", "thrust::cuda_cub::core::_kernel_agent",
}  # fmt: skip


def _nsys_names(path: Path) -> set[str]:
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    connection.text_factory = lambda raw: raw.decode("utf8", "replace")
    found = connection.execute("SELECT name FROM sqlite_master WHERE name LIKE '%KIND_KERNEL%'")
    names: set[str] = set()
    for (table,) in found.fetchall():
        query = f"SELECT s.value FROM {table} k JOIN StringIds s ON s.id = k.demangledName"
        names.update(row[0] for row in connection.execute(query))
    return names


def _torch_names(path: Path) -> set[str]:
    text = gzip.decompress(path.read_bytes()).decode("utf8", "replace")
    events = json.loads(text, strict=False)
    events = events["traceEvents"] if isinstance(events, dict) else events
    return {e["name"] for e in events if str(e.get("cat", "")).lower() == "kernel"}


@pytest.fixture(scope="module")
def names(corpus: Path) -> list[str]:
    found: set[str] = set()
    for path in corpus.glob("nsys/*/*.sqlite"):
        found |= _nsys_names(path)
    for path in corpus.glob("kineto/[hp]*/*.json.gz"):
        found |= _torch_names(path)
    return sorted(found)


def test_no_rule_knows_only_these(names: list[str]) -> None:
    families = classify_names(pa.array(names)).family
    unknown = {n for n, f in zip(names, families, strict=True) if f == Family.CUSTOM}
    heads = {re.sub(r"^void ", "", n).split("<")[0].split("(")[0] for n in unknown}
    assert heads == CUSTOM


def test_communication_is_communication_and_nothing_else(names: list[str]) -> None:
    families = classify_names(pa.array(names)).family
    communication = {n for n, f in zip(names, families, strict=True) if f == Family.COMMUNICATION}
    expected = {n for n in names if re.search("nccl|all_reduce|cross_device", n, re.IGNORECASE)}
    assert communication == expected
    assert len(communication) == 6
