"""The gradient of attention as two kernels of a GPU, run lane by lane on the CPU, against float64."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gradlet import Tensor, dtypes
from gradlet.codegen.pipeline import lower
from gradlet.ops.opt import OptKind
from gradlet.render import cuda
from gradlet.target.target import SM_90
from tests.device.cuda import emulate
from tests.device.cuda.attention_cases import Array, Case, drawing, mask_of, numbers

if emulate.COMPILER is None:
    pytest.skip("no C++ compiler", allow_module_level=True)

KINDS = [OptKind.ROTATE, OptKind.FEED, OptKind.FEED]


@pytest.fixture(autouse=True, scope="module")
def _only_here() -> Iterator[None]:
    """Other tests see the devices that users see."""
    yield
    emulate.unregister()


QUICK = {
    "odd lengths, causal": Case(1, 1, 40, 66, causal=True),
    "hidden by large numbers": Case(1, 1, 40, 66, mask="large"),
    "hidden by the lowest number": Case(1, 1, 40, 66, mask="lowest"),
}
SLOW = {
    "whole blocks, causal": Case(1, 1, 128, 128, causal=True),
    "one block": Case(1, 1, 64, 64, causal=True),
    "several blocks": Case(2, 2, 200, 136),
    "repeated heads": Case(4, 2, 40, 130, causal=True, dtype="float16"),
    "more queries than keys, causal": Case(1, 1, 200, 96, causal=True),
    "wide": Case(1, 1, 70, 130, 128, 128, causal=True),
    "wide values": Case(1, 1, 64, 140, 64, 128, dtype="float16"),
    "narrow values": Case(1, 1, 130, 150, 128, 64, causal=True),
    "a mask that is added": Case(1, 1, 70, 80, mask="added"),
    "rows that see nothing": Case(1, 1, 70, 80, mask="hidden"),
    "a window": Case(1, 1, 260, 260, mask="window"),
    "large scores": Case(1, 1, 70, 70, scale=8.0),
}


def reference(q: Array, k: Array, v: Array, slope: Array, mask: Array | None) -> list[Array]:
    """The result, and the gradients of queries, keys and values: by the formula, for all pairs, in float64."""
    q, k, v, slope = (x.astype(np.float64) for x in (q, k, v, slope))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores.astype(np.float32) + mask
    scores = scores.astype(np.float64)
    top = scores.max(-1, keepdims=True)
    power = np.exp(scores - np.where(np.isfinite(top), top, 0))
    total = power.sum(-1, keepdims=True)
    weights = power / np.where(total == 0, 1, total)
    slopes = slope @ v.swapaxes(-1, -2)
    slopes = weights * (slopes - (slopes * weights).sum(-1, keepdims=True)) / np.sqrt(q.shape[-1])
    return [weights @ v, slopes @ k, slopes.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ slope]


def check(case: Case) -> None:
    """Weights and their gradients are rounded to 16 bits before they multiply, and so are results."""
    device, rng = emulate.register(), drawing(case)
    arrays = [
        numbers(case, rng, 1, case.heads, case.queries, case.depth),
        numbers(case, rng, 1, case.of_keys, case.keys, case.depth),
        *[numbers(case._replace(scale=1.0), rng, 1, heads, rows, case.columns) for heads, rows in
          ((case.of_keys, case.keys), (case.heads, case.queries))],
    ]  # fmt: skip
    mask = np.tri(case.queries, case.keys, dtype=bool) if case.causal else mask_of(case, rng)
    groups = case.heads // case.of_keys
    q, k, v, slope = (Tensor(a, device=device).cast(case.dtype).realize() for a in arrays)
    how: dict[str, Any] = {"is_causal": case.causal, "enable_gqa": groups > 1}
    if mask is not None and not case.causal:
        how["attn_mask"] = Tensor(mask, device=device).realize()
    out = q.scaled_dot_product_attention(k, v, **how)
    found = [out, *out.gradient(q, k, v, gradient=slope)]
    calls = found[0].schedule(*found[1:]).calls
    kinds = [o.kind for c in calls for o in lower(c.ast, SM_90).opts if o.kind in KINDS]
    assert sorted(kinds) == KINDS and len(calls) == (4 if groups == 1 else 6)
    found[0].realize(*found[1:])
    repeated = [np.repeat(x, groups, 1) for x in arrays[1:3]]
    wanted = reference(arrays[0], *repeated, arrays[3], mask)
    wanted[2:] = [w.reshape(1, case.of_keys, groups, *w.shape[2:]).sum(2) for w in wanted[2:]]
    bits = 2.0**-7 if case.dtype == "bfloat16" else 2.0**-9
    bits *= 2 if case.scale > 1 else 1  # nearly all of the slope is the mean that is subtracted from it
    for mine, exact in zip(found, wanted, strict=True):
        error = np.abs(mine.cast(dtypes.float32).numpy() - exact)
        assert np.sqrt((error**2).mean()) < bits * np.sqrt((exact**2).mean())
        assert error.max() < 2 * bits * np.abs(exact).max()


@pytest.mark.parametrize("name", QUICK)
def test_gradients_are_what_float64_says(name: str) -> None:
    check(QUICK[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_more_gradients(name: str) -> None:
    check(SLOW[name])


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("depth, columns", [(64, 64), (64, 128), (128, 64), (128, 128)])
def test_registers_hold_all_of_it_and_units_run_on(depth: int, columns: int, causal: bool, tmp_path: Path) -> None:
    shapes = ((1024, depth), (1024, depth), (1024, columns), (1024, columns))
    q, k, v, slope = (Tensor.empty(2, *shape, dtype="bfloat16", device="NULL:sm_90") for shape in shapes)
    out = q.scaled_dot_product_attention(k, v, is_causal=causal)
    slopes = out.gradient(q, k, v, gradient=slope)
    programs = [lower(call.ast, SM_90) for call in out.schedule(*slopes).calls]
    programs = [p for p in programs if any(o.kind is OptKind.FEED for o in p.opts)]
    assert len(programs) == 2
    for program in programs:
        (tmp_path / "kernel.cu").write_text(cuda.render(program, SM_90))
        command = ["nvcc", "-cubin", "-arch=sm_90a", "--fmad=false", "-std=c++17", "-w", "-Xptxas", "-v", "kernel.cu"]
        said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stderr
        assert "0 bytes spill stores, 0 bytes spill loads" in said and "0 bytes stack frame" in said
        assert "(C75" not in said  # units that wait for each other
