"""Padding, graphs of thousands of nodes, and repeated elements, where other frameworks went wrong."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

from gradlet import Tensor, jit
from gradlet.base.errors import ArgumentError

DEVICES = ("CPU", "PYTHON")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_circular_padding_with_negative_numbers_crops_and_then_wraps(device: str) -> None:
    x = Tensor([0, 1, 2, 3, 4], device=device)
    assert x.pad((-2, 2), mode="circular").tolist() == [2, 3, 4, 2, 3]
    assert x.pad((2, -1), mode="circular").tolist() == [2, 3, 0, 1, 2, 3]
    assert x.pad((-1, -1), mode="circular").tolist() == [1, 2, 3]
    grid = Tensor(np.arange(12).reshape(3, 4), device=device)
    assert grid.pad((-1, 1, 1, 0), mode="circular").tolist() == [
        [9, 10, 11, 9],
        [1, 2, 3, 1],
        [5, 6, 7, 5],
        [9, 10, 11, 9],
    ]


def test_a_deep_graph_is_pickled_and_copied() -> None:
    x = Tensor([1.0, 2.0]).realize()
    y = x
    for _ in range(2000):
        y = y + 1
    assert copy.deepcopy(y).tolist() == [2001.0, 2002.0]
    assert pickle.loads(pickle.dumps(y)).tolist() == [2001.0, 2002.0]


def test_a_deep_chain_of_views_and_writes() -> None:
    x = Tensor(np.arange(12.0, dtype=np.float32)).realize()
    y = x
    for _ in range(20):
        y = y.reshape(3, 4).permute(1, 0).reshape(12)
    for position in range(100):
        y[position % 12] = float(position)
    expected = x.numpy()
    for _ in range(20):
        expected = expected.reshape(3, 4).T.reshape(12)
    for position in range(100):
        expected[position % 12] = position
    assert y.tolist() == expected.tolist()


def test_a_kernel_that_reads_300_arrays(device: str) -> None:
    parts = [Tensor([float(i)], device=device).realize() for i in range(300)]
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    joined = Tensor.cat(*parts)
    total.realize(joined)
    assert total.item() == sum(range(300))
    assert joined.tolist() == [float(i) for i in range(300)]


def test_writing_into_repeated_elements_is_refused_in_a_jitted_function_too() -> None:
    @jit
    def write(x: Tensor) -> Tensor:
        wide = x.expand(4)
        wide[0] = 5.0
        return wide.realize()

    @jit
    def write_copy(x: Tensor) -> Tensor:
        wide = x.expand(4).contiguous()
        wide[0] = 5.0
        return wide.realize()

    for _ in range(3):
        with pytest.raises(ArgumentError, match="several elements of this expanded view share one place"):
            write(Tensor([1.0]).realize())
        base = Tensor([1.0]).realize()
        assert write_copy(base).tolist() == [5.0, 1.0, 1.0, 1.0]
        assert base.tolist() == [1.0]


def test_a_part_that_is_assigned_and_read_again_in_one_expression(device: str) -> None:
    x = Tensor([1.0, 2.0, 3.0, 4.0], device=device).realize()
    y = x[1:3]
    x[1:3] = x[0:2] + y
    assert x.tolist() == [1.0, 3.0, 5.0, 4.0]
    assert y.tolist() == [2.0, 3.0]
    y[0] = 7.0  # the view writes into x beside what x holds by now
    assert x.tolist() == [1.0, 7.0, 5.0, 4.0]
    assert y.tolist() == [7.0, 5.0]


def test_an_index_list_through_a_view_keeps_what_was_written_beside_it(device: str) -> None:
    x = Tensor([1.0, 2.0, 3.0], device=device).realize()
    y = x[0:2]
    x[1] = 9.0
    y[[0]] = 7.0
    assert x.tolist() == [7.0, 9.0, 3.0]
