"""Attention as one kernel of a GPU, run lane by lane on the CPU, against float64."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradlet import Tensor, dtypes
from gradlet.codegen.pipeline import lower
from gradlet.graph.bounds import bounds
from gradlet.ops.op import AxisKind, Op
from gradlet.ops.opt import OptKind
from gradlet.optimize import lanes
from gradlet.optimize.mixturetiles import mixture_tile
from gradlet.render import cuda
from gradlet.target.target import SM_90, Target
from tests.device.cuda import emulate
from tests.device.cuda.attention_cases import Array, Case, drawing, mask_of, numbers

if emulate.COMPILER is None:
    pytest.skip("no C++ compiler", allow_module_level=True)


@pytest.fixture(autouse=True, scope="module")
def _only_here() -> Iterator[None]:
    """Other tests see the devices that users see."""
    yield
    emulate.unregister()


QUICK = {
    "odd lengths, causal": Case(1, 1, 150, 141, causal=True),
    "few rows, repeated heads": Case(4, 2, 40, 70, dtype="float16"),
}
SLOW = {
    "whole blocks": Case(1, 1, 128, 128),
    "several blocks, causal": Case(2, 2, 256, 256, causal=True),
    "more keys than queries": Case(1, 1, 200, 300),
    "more keys than queries, causal": Case(1, 1, 200, 300, causal=True),
    "more queries than keys, causal": Case(2, 1, 300, 200, causal=True, dtype="float16"),
    "wide": Case(1, 1, 130, 130, 128, 128, causal=True),
    "wide values": Case(1, 1, 64, 128, 64, 128, causal=True, scale=6.0),
    "narrow values": Case(1, 1, 129, 257, 128, 64, batch=2, dtype="float16"),
    "repeated heads, causal": Case(4, 2, 70, 140, causal=True),
    "hidden by large numbers": Case(1, 1, 100, 150, mask="large"),
    "a mask that is added": Case(2, 2, 150, 141, mask="added"),
    "rows that see nothing": Case(1, 1, 100, 150, mask="hidden"),
    "a window": Case(1, 1, 400, 400, mask="window"),
    "widest, causal": Case(1, 1, 130, 150, 256, 256, causal=True),
    "wide keys": Case(1, 1, 64, 141, 192, 128),
    "192 wide, causal": Case(1, 1, 150, 150, 192, 192, causal=True, dtype="float16"),
    "widest values, a window": Case(1, 1, 130, 130, 64, 256, mask="window"),
    "widest keys, a mask that is added": Case(1, 1, 130, 200, 256, 64, mask="added"),
    "few queries": Case(2, 2, 33, 96),
    "extreme scores": Case(1, 1, 70, 70, scale=60.0),
}


def reference(q: Array, k: Array, v: Array, mask: Array | None, causal: bool) -> Array:
    scores = q.astype(np.float64) @ k.astype(np.float64).swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if causal:
        mask = np.tril(np.ones(scores.shape[-2:], bool))
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores.astype(np.float32) + mask
    scores = scores.astype(np.float64)
    top = scores.max(-1, keepdims=True)
    power = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = power.sum(-1, keepdims=True)
    return power / np.where(total == 0, 1, total) @ v.astype(np.float64)


def attention(case: Case, target: Target = SM_90) -> tuple[Array, Array]:
    """What the one kernel computes, and what it is to be."""
    device, rng = emulate.register(target), drawing(case)
    q = numbers(case, rng, case.batch, case.heads, case.queries, case.depth)
    k = numbers(case, rng, case.batch, case.of_keys, case.keys, case.depth)
    v = numbers(case._replace(scale=1.0), rng, case.batch, case.of_keys, case.keys, case.columns)
    mask = mask_of(case, rng)
    tensors = [Tensor(a, device=device).cast(case.dtype).realize() for a in (q, k, v)]
    how: dict[str, Any] = {"is_causal": case.causal, "enable_gqa": case.heads != case.of_keys}
    if mask is not None:
        how["attn_mask"] = Tensor(mask, device=device).realize()
    out = tensors[0].scaled_dot_product_attention(*tensors[1:], **how)
    (call,) = out.schedule().calls
    program = lower(call.ast, target)
    assert any(o.kind is OptKind.ROTATE for o in program.opts) and program.grid <= target.cores
    repeats = case.heads // case.of_keys
    wanted = reference(q, np.repeat(k, repeats, 1), np.repeat(v, repeats, 1), mask, case.causal)
    return out.cast(dtypes.float32).numpy(), wanted


def check(case: Case, target: Target = SM_90) -> None:
    """Weights are rounded to 16 bits before they multiply values, and so is the result."""
    found, wanted = attention(case, target)
    bits = 2.0**-7 if case.dtype == "bfloat16" else 2.0**-9
    np.testing.assert_allclose(found, wanted, rtol=bits, atol=bits)


@pytest.mark.parametrize("name", QUICK)
def test_attention_is_what_float64_says(name: str) -> None:
    check(QUICK[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_more_attention(name: str) -> None:
    check(SLOW[name])


@pytest.mark.parametrize("causal", [False, True])
def test_workgroups_take_blocks_until_none_is_left(causal: bool) -> None:
    """Six and eight blocks for two workgroups; the second kernel finds the counter as the first one did."""
    few = replace(SM_90, name="sm_90_few", cores=2)
    for case in (Case(3, 3, 150, 140, causal=causal), Case(4, 2, 260, 141, causal=causal)):
        check(case, few)
        check(case, few)


@pytest.mark.parametrize("columns", [64, 128])
def test_results_are_stored_as_boxes(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the last query is another head, whose rows stay as they are."""
    monkeypatch.setattr(lanes, "mixture_tile", partial(mixture_tile, boxes=1))
    q, k, v = (Tensor.empty(2, 150, n, dtype="bfloat16", device="NULL:sm_90") for n in (64, 64, columns))
    (call,) = q.scaled_dot_product_attention(k, v).schedule().calls
    assert sum(n.op is Op.STORE_BOX for n in lower(call.ast, SM_90).uops) == columns // 64
    check(Case(3, 3, 150, 70, columns=columns, causal=True), replace(SM_90, name="sm_90_boxes", cores=2))


@pytest.mark.parametrize("length", [5000, 8192])
def test_no_block_behind_the_diagonal_is_brought(length: int) -> None:
    """Two loops, one in each role, run as often as the block of queries says, and compare in blocks of the diagonal."""
    q, k, v = (Tensor.empty(length, 64, dtype="bfloat16", device="NULL:sm_90") for _ in range(3))
    (call,) = q.scaled_dot_product_attention(k, v, is_causal=True).schedule().calls
    program = lower(call.ast, SM_90)
    loops = [n for n in program.uops if n.op is Op.RANGE and n.arg.kind is AxisKind.LOOP]
    counts = [n for n in loops if bounds(n.src[0])[1] == -(-length // 128) - 1]
    guards = [n for n in loops if bounds(n.src[0]) == (0, 1)]
    assert len(counts) == 2 and all(n.src[0].op is not Op.CONST for n in counts)
    assert len(guards) == 3  # two parts that mask, one that scales


def test_values_that_are_hidden_do_not_matter() -> None:
    """What lies behind the last key is another head, and may be anything."""
    case = Case(2, 2, 40, 70)
    device, rng = emulate.register(), drawing(case)
    q, k, v = (numbers(case, rng, 1, 2, n, 64) for n in (40, 70, 70))
    k[:, 1], v[:, 1] = np.nan, np.nan
    tensors = [Tensor(a, device=device).cast(case.dtype).realize() for a in (q, k, v)]
    found = tensors[0].scaled_dot_product_attention(*tensors[1:]).cast(dtypes.float32).numpy()
    np.testing.assert_allclose(found[:, 0], reference(q, k, v, None, False)[:, 0], rtol=2.0**-7, atol=2.0**-7)
    assert np.isnan(found[:, 1]).all()


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("depth, columns", [(64, 64), (64, 128), (128, 64), (128, 128), (192, 128), (256, 256)])
def test_registers_hold_all_of_it_and_units_run_on(depth: int, columns: int, causal: bool, tmp_path: Path) -> None:
    q, k, v = (Tensor.empty(20, 1000, n, dtype="bfloat16", device="NULL:sm_90") for n in (depth, depth, columns))
    (call,) = q.scaled_dot_product_attention(k, v, is_causal=causal).schedule().calls
    (tmp_path / "kernel.cu").write_text(cuda.render(lower(call.ast, SM_90), SM_90))
    command = ["nvcc", "-cubin", "-arch=sm_90a", "--fmad=false", "-std=c++17", "-w", "-Xptxas", "-v", "kernel.cu"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stderr
    assert "0 bytes spill stores, 0 bytes spill loads" in said and "0 bytes stack frame" in said
    assert "(C75" not in said  # units that wait for each other


def test_warps_that_differ_wait_for_units_at_the_same_place() -> None:
    """`wgmma.wait_group` is for all warps of a warpgroup: it stands before the condition in which they differ."""
    q, k, v = (Tensor.empty(2, 512, 64, dtype="bfloat16", device="NULL:sm_90") for _ in range(3))
    (call,) = q.scaled_dot_product_attention(k, v, is_causal=True).schedule().calls
    lines = [line.strip() for line in cuda.render(lower(call.ast, SM_90), SM_90).splitlines()]
    voted = [i for i, line in enumerate(lines) if "= any_lane(" in line]
    assert voted
    for place in voted:
        opened = next(i for i in range(place, len(lines)) if lines[i].startswith("if ("))
        assert any(line.startswith("wait_for_units<0>") for line in lines[place:opened])
        inside = lines[opened + 1 : lines.index("}", opened)]
        assert inside and not any("wait_for" in line for line in inside)
