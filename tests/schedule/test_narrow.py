"""What is kept for the backward pass of functions that are computed in float32: the 16 bits that they are made of."""

from __future__ import annotations

import pytest

from gradlet import Tensor, dtypes
from gradlet.graph.node import toposort
from gradlet.ops.op import Op
from gradlet.schedule.calls import KernelCall

DEVICE = "NULL:sm_90"  # whose products take factors of 16 bits
FUNCTIONS = {"gelu": lambda x: x.gelu(), "silu": lambda x: x.silu(), "quick_gelu": lambda x: x.quick_gelu()}


@pytest.mark.parametrize("dtype", [dtypes.bfloat16, dtypes.float16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_of_activations_are_kept_as_they_were_rounded(name, dtype):
    x, w, bias = (Tensor.empty(*shape, dtype=dtype, device=DEVICE) for shape in ((512, 256), (768, 256), (768,)))
    back = Tensor.empty(256, 768, dtype=dtype, device=DEVICE)
    hidden = FUNCTIONS[name](x @ w.transpose(0, 1) + bias)
    result = (hidden @ back.transpose(0, 1)).sum()
    plan = Tensor.schedule(result, *result.gradient(x, w, bias, back))
    large = [
        p.dtype
        for call in plan.calls
        if isinstance(call, KernelCall)
        for p, buffer in zip(sorted_params(call), call.buffers)
        if buffer.arg.size == 512 * 768
    ]
    assert large and set(large) == {dtype}


def sorted_params(call):
    return sorted((n for n in toposort((call.ast,)) if n.op is Op.PARAM), key=lambda n: n.arg.slot)
