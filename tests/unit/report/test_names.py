"""Names cut to a width, and tables that keep their numbers beside their names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from nvprobe.report.console.names import apart
from nvprobe.report.console.tables import names, numbers, table

LAYERS = [f"step/forward/model/h.{number}/attn/c_attn" for number in (0, 1, 10)]
GEMMS = [
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize128x128x8_stage3_ffma_aligna4_kernel__5x_cublas",
    "sm80_xmma_gemm_f32f32_f32f32_f32_tn_n_tilesize64x64x8_stage3_ffma_aligna4_kernel__5x_cublas",
]


def test_a_path_loses_names_from_its_middle():
    [cut] = apart(["step/forward/GPT2LMHeadModel/transformer/attention"], 30)
    assert cut == "step/…/transformer/attention"


@pytest.mark.parametrize("texts", [LAYERS, GEMMS])
@pytest.mark.parametrize("width", [16, 20, 24, 40])
def test_what_tells_two_names_apart_stays(texts, width):
    cut = apart(texts, width)
    assert len(set(cut)) == len(texts)
    assert max(map(cell_len, cut)) <= width


@given(
    st.lists(st.text(st.characters(codec="utf-8", exclude_categories=["C"]), max_size=60)),
    st.integers(12, 50),
)
def test_no_cut_is_wider_than_asked_for(texts, width):
    assert all(cell_len(cut) <= width for cut in apart(texts, width))


@given(st.lists(st.text("ab/.", min_size=1, max_size=9)))
def test_what_fits_is_not_cut(texts):
    assert apart(texts, 9) == texts


def test_a_slash_inside_a_name_is_no_border():
    assert apart(["step/graph 0\\/0 bwd", "step"], 40) == ["step/graph 0:0 bwd", "step"]


def test_numbers_stand_beside_their_names_on_a_wide_terminal():
    lines = table(200, names("Path", ["step", "eval"]), numbers("GPU", ["1 ms", "20 ms"])).plain
    assert lines.splitlines() == ["Path    GPU", "step   1 ms", "eval  20 ms"]


def test_a_narrow_table_leaves_out_what_matters_least():
    wide = names("Path", ["step/forward/attention"]), numbers("GPU", ["1.00 ms"])
    ranked = numbers("Calls", ["1,000,000"], 1), numbers("Ops", ["2,000,000"], 2)
    assert table(80, *wide, *ranked).plain.splitlines()[0].split() == [
        "Path",
        "GPU",
        "Calls",
        "Ops",
    ]
    assert table(40, *wide, *ranked).plain.splitlines()[0].split() == ["Path", "GPU", "Calls"]
    assert table(28, *wide, *ranked).plain.splitlines() == [
        "Path                     GPU", "step/…/attention     1.00 ms",
    ]  # fmt: skip
