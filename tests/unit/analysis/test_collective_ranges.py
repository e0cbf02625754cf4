"""What the range of a collective launches communicates, whatever it is called. Values by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from nvprobe.analysis import analyze
from nvprobe.attribution import attribute
from nvprobe.report.document import to_dict
from tests.unit.analysis.scenes import ADD, BF16_GEMM, CUSTOM, Scene

US = 1_000


def launching(*kernels: tuple[str, int]) -> Callable[[Scene], Callable[[], None]]:
    """What launches kernels of so many µs."""

    def of(scene: Scene) -> Callable[[], None]:
        def body() -> None:
            for name, length in kernels:
                scene.launch(name, length * US)

        return body

    return of


def document(*ranges: tuple[str, Callable[[Scene], Callable[[], None]]]) -> dict[str, Any]:
    """The analysis of some ranges, one inside ``step`` after the other."""
    scene = Scene()

    def step() -> None:
        for name, body in ranges:
            scene.inside(name, body(scene))

    scene.inside("step 0", step)
    return to_dict(analyze(attribute(scene.trace())))


def families(found: dict[str, Any]) -> dict[str, str]:
    """Class of each kernel, by its name."""
    return {row["name"]: row["family"] for row in found["kernels"]}


def test_nccls_own_ranges_decide_whatever_the_kernel() -> None:
    found = document(
        ("nccl:all_reduce", launching(("zz_1stage<bf16>", 30), (ADD, 5))),
        ("forward", launching((BF16_GEMM, 50))),
    )
    assert found["overlap"]["classes"] == {"communication": 35 * US, "compute": 50 * US}
    assert found["overlap"]["exposed_comm_ns"] == 35 * US
    assert families(found)["zz_1stage<bf16>"] == "communication"
    assert {row["name"]: row["gpu_ns"] for row in found["collectives"]} == {
        "zz_1stage<bf16>": 30 * US, ADD: 5 * US,
    }  # fmt: skip


def test_a_range_that_is_only_called_so_decides_over_unknown_names_alone() -> None:
    found = document(
        ("all_to_all_single", launching((CUSTOM, 20), (ADD, 7), (BF16_GEMM, 9))),
    )
    assert found["overlap"]["classes"] == {"communication": 20 * US, "compute": 16 * US}


def test_products_and_what_operators_inside_launch_stay_compute() -> None:
    def inside(scene: Scene) -> Callable[[], None]:
        def body() -> None:
            scene.launch(BF16_GEMM, 40 * US)
            scene.inside("aten::cat", lambda: scene.launch(CUSTOM, 6 * US) and None)
            scene.launch("quiet_push(int*)", 8 * US)

        return body

    found = document(("nccl:all_gather", inside))
    assert found["overlap"]["classes"] == {"communication": 8 * US, "compute": 46 * US}


def test_a_kernel_used_in_both_is_what_most_of_its_time_is() -> None:
    both = document(
        ("nccl:all_reduce", launching((CUSTOM, 30))),
        ("forward", launching((CUSTOM, 10))),
    )
    assert both["overlap"]["classes"] == {"communication": 30 * US, "compute": 10 * US}
    assert families(both) == {CUSTOM: "communication"}
    rarely = document(
        ("nccl:all_reduce", launching((CUSTOM, 10))),
        ("forward", launching((CUSTOM, 30))),
    )
    assert families(rarely) == {CUSTOM: "custom"}


def test_exchanges_of_expert_parallelism_are_all_to_all() -> None:
    names = (
        "moeA2ADispatchKernel<int>", "void deep_ep::intranode::combine<8>(int)",
        "mori::moe::EpCombineIntraNodeKernel", "a2a_prepare(int)", "all2all_vdev",
    )  # fmt: skip
    found = document(("forward", launching(*((name, 5) for name in names))))
    assert {row["collective"] for row in found["collectives"]} == {"all_to_all"}
    assert len(found["collectives"]) == len(names)


def test_longer_names_are_no_collectives() -> None:
    found = document(("reduce_scatter_indices", launching((CUSTOM, 20))))
    assert found["overlap"]["classes"] == {"compute": 20 * US}
