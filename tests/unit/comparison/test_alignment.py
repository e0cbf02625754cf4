"""Paths of two runs: matched by name, else by place and work."""

from __future__ import annotations

from nvprobe.comparison.alignment import PathWork, above, align


def tree(*paths: str, gpu_ns: float = 100.0) -> dict[str, PathWork]:
    return {path: PathWork("module", 2, 2 + len(above(path)), gpu_ns) for path in paths}


def test_a_renamed_path_is_known_by_its_work_and_so_is_what_is_below() -> None:
    before = tree("step", "step/forward", "step/forward/head")
    after = {path.replace("forward", "fwd"): work for path, work in before.items()}
    found = align(before, after)
    assert found.renamed == [("step/forward", "step/fwd")]
    assert found.names["step/fwd/head"] == "step/forward/head"
    assert not found.gone
    assert not found.new


def test_layers_are_matched_in_order() -> None:
    before = tree("step", *(f"step/h.{n}" for n in range(3)))
    after = tree("step", *(f"step/blocks.{n}" for n in range(3)))
    assert align(before, after).renamed == [(f"step/h.{n}", f"step/blocks.{n}") for n in range(3)]


def test_other_work_is_another_path() -> None:
    found = align(tree("step", "step/a"), {**tree("step"), **tree("step/b", gpu_ns=400)})
    assert found.gone == ["step/a"]
    assert found.new == ["step/b"]
    assert found.common("step/b") == "step"


def test_a_name_with_a_slash_is_one_name() -> None:
    assert above(r"step/graph 0\/0 fwd") == "step"
    assert above("step") == ""
