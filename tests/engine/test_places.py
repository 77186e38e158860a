"""What a program computes on its way lies where the program runs, also when nothing but constants goes into it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.schedule.calls import KernelCall

OTHER = "PYTHON"  # not the default device

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sort": lambda x: x.sort(descending=True)[0],
    "gather": lambda x: x.gather(1, Tensor([[2, 0], [1, 1], [0, 3]], device=OTHER)),
    "rows": lambda x: x[Tensor([2, 0, 2], device=OTHER)],
    "scatter": lambda x: Tensor.zeros(3, 5, device=OTHER).scatter(1, Tensor([[4], [0], [2]], device=OTHER), x[:, :1]),
    "scatter into zeros of nowhere": lambda x: (x * 0 + 1).scatter_add(
        1, Tensor([[0, 1], [1, 1], [3, 2]], device=OTHER), x[:, :2]
    ),
    "largest": lambda x: x.topk(2)[0],
    "cummax": lambda x: x.cummax(1)[0],
    "pooling": lambda x: x.reshape(1, 1, 3, 4).max_pool2d(2, stride=1),
    "joined with zeros": lambda x: x.cat(x.zeros_like(), dim=1).contiguous(),
    "padded": lambda x: x.pad((1, 1, 1, 1), value=2.0).contiguous(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_results_and_gradients_are_computed_in_one_place(name: str) -> None:
    data = np.random.default_rng(3).standard_normal((3, 4)).astype(np.float32)
    x = Tensor(data, device=OTHER).realize()
    result = FUNCTIONS[name](x)
    weights = Tensor(np.arange(result.numel(), dtype=np.float32).reshape(result.shape), device=OTHER).realize()
    (gradient,) = (result * weights).sum().gradient(x)
    for lazy in (result, gradient):
        for call in lazy.schedule().calls:
            assert isinstance(call, KernelCall)
            assert {call.device, *[buffer.arg.device for buffer in call.buffers]} == {OTHER}


def test_constants_written_into_constants_stay_where_they_are() -> None:
    x = Tensor([5, 6, 7, 8], device=OTHER).realize()
    kept = x * 3
    x[:] = 1
    both = kept + x
    x[1:3] += 4
    for lazy in (x, both):
        for call in lazy.schedule().calls:
            assert isinstance(call, KernelCall)
            assert {call.device, *[buffer.arg.device for buffer in call.buffers]} == {OTHER}
    assert x.tolist() == [1, 5, 5, 1] and both.tolist() == [16, 19, 22, 25]
