"""In-place writes that other frameworks got wrong: values are those of when an expression was built."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.base.errors import ArgumentError

DEVICES = ("CPU", "PYTHON")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("reader_first", [True, False])
@pytest.mark.parametrize("realized", [True, False])
def test_a_reader_sees_the_value_before_the_write(device: str, reader_first: bool, realized: bool) -> None:
    x = Tensor([1, 2], device=device)
    if realized:
        x.realize()
    r = x + 10
    x[:1] = 9
    first, second = (r, x) if reader_first else (x, r)
    first.realize(second)
    assert r.tolist() == [11, 12]
    assert x.tolist() == [9, 2]


@pytest.mark.parametrize("reader_first", [True, False])
def test_a_reader_realised_apart_from_the_write(device: str, reader_first: bool) -> None:
    x = Tensor([1, 2], device=device)
    r = x + 10
    x[:1] = 9
    first, second = (r, x) if reader_first else (x, r)
    first.realize()
    second.realize()
    assert r.tolist() == [11, 12]
    assert x.tolist() == [9, 2]


@pytest.mark.parametrize("realized", [True, False])
def test_multiplying_a_slice_in_place_multiplies_once(device: str, realized: bool) -> None:
    t = Tensor([1, 2, 3, 4], device=device)
    if realized:
        t.realize()
    t[:3] *= 2
    assert t.tolist() == [2, 4, 6, 4]
    for _ in range(3):
        t[:3] *= 2
    assert t.tolist() == [16, 32, 48, 4]


def test_multiplying_a_slice_of_a_lazy_value(device: str) -> None:
    t = Tensor([0, 1, 2, 3], device=device) + 1
    t[:3] *= 2
    assert t.tolist() == [2, 4, 6, 4]


def test_the_last_of_duplicate_indices_wins(device: str) -> None:
    t = Tensor([5, 6, 7], device=device)
    t[[1, 1]] = Tensor([3, 0], device=device)
    assert t.tolist() == [5, 0, 7]
    f = Tensor([5.0, 6.0, 7.0], device=device)
    f[[1, 1]] = Tensor([3.0, float("nan")], device=device)
    np.testing.assert_array_equal(f.numpy(), [5.0, np.nan, 7.0])
    m = Tensor.zeros(2, 3, dtype="int32", device=device).contiguous()
    m[[0, 1, 0], [2, 1, 2]] = Tensor([7, 8, 0], device=device)
    assert m.tolist() == [[0, 0, 0], [0, 8, 0]]


def test_a_write_that_reads_what_it_overwrites(device: str) -> None:
    a = Tensor(np.arange(9).reshape(3, 3), device=device)
    a.assign(a + a.T)
    assert a.tolist() == [[0, 4, 8], [4, 8, 12], [8, 12, 16]]
    b = Tensor(np.arange(6).reshape(3, 2), device=device)
    b.assign(b.flip(0))
    assert b.tolist() == [[4, 5], [2, 3], [0, 1]]
    c = Tensor(np.arange(8), device=device)
    c[1:6] = c[0:5]
    assert c.tolist() == [0, 0, 1, 2, 3, 4, 6, 7]
    d = Tensor(np.arange(8), device=device)
    d[0:5] = d[1:6]
    assert d.tolist() == [1, 2, 3, 4, 5, 5, 6, 7]


def test_gradient_through_a_strided_write(device: str) -> None:
    t = Tensor([1.0, 2.0, 3.0, 4.0, 5.0], device=device)
    v = Tensor([10.0, 20.0, 30.0], device=device)
    w = Tensor([1.0, 2.0, 3.0, 4.0, 5.0], device=device)
    y = t.contiguous()
    y[::2] = v
    dv, dt = (y * w).sum().gradient(v, t)
    assert dv.tolist() == [1.0, 3.0, 5.0]
    assert dt.tolist() == [0.0, 2.0, 0.0, 4.0, 0.0]


def test_writing_into_an_expanded_view_is_refused(device: str) -> None:
    base = Tensor([1.0], device=device)
    wide = base.expand(4)
    with pytest.raises(ArgumentError, match="contiguous"):
        wide[0] = 5.0
    assert wide.tolist() == [1.0] * 4
    copy = base.expand(4).contiguous()
    copy[0] = 5.0
    assert copy.tolist() == [5.0, 1.0, 1.0, 1.0]
    assert base.tolist() == [1.0]


def test_an_expression_of_other_bits_of_the_written_memory(device: str) -> None:
    x = Tensor(np.arange(4), device=device)
    y = x.bitcast("int32") * 3
    x[1:3] = 9
    x.realize()
    assert y.tolist() == [0, 0, 3, 0, 6, 0, 9, 0]
    assert x.tolist() == [0, 9, 9, 3]


def test_a_write_through_a_view_reaches_the_tensor(device: str) -> None:
    cache = Tensor.zeros(2, 4, device=device).contiguous().realize()
    cache.shrink((None, (1, 3))).assign(Tensor([[1.0, 2.0], [3.0, 4.0]], device=device)).realize()
    assert cache.tolist() == [[0, 1, 2, 0], [0, 3, 4, 0]]
    lazy = Tensor.zeros(4, device=device)
    lazy[1:3].assign(Tensor([5.0, 6.0], device=device))
    assert lazy.tolist() == [0, 5, 6, 0]
    row = cache[0]
    row += 10
    assert cache.tolist() == [[10, 11, 12, 10], [0, 3, 4, 0]]
    assert row.tolist() == [10, 11, 12, 10]


def test_a_view_keeps_what_it_showed(device: str) -> None:
    for realized in (True, False):
        x = Tensor([1, 2, 3, 4], device=device)
        if realized:
            x.realize()
        y = x[1:3]
        x[1] = 9
        x.realize()
        assert y.tolist() == [2, 3]


def test_writes_in_a_row_before_anything_is_computed(device: str) -> None:
    x = Tensor([1, 2, 3], device=device)
    seen = []
    for i in range(3):
        seen.append(x * 10)
        x[i] = i + 7
    x += 1
    assert [s.tolist() for s in seen] == [[10, 20, 30], [70, 20, 30], [70, 80, 30]]
    assert x.tolist() == [8, 9, 10]


def test_two_tensors_of_one_constant_do_not_share_writes(device: str) -> None:
    a, b = Tensor.zeros(3, device=device), Tensor.zeros(3, device=device)
    a.realize(b)
    a += 1
    a.realize()
    assert a.tolist() == [1, 1, 1]
    assert b.tolist() == [0, 0, 0]


def test_two_tensors_written_from_each_other() -> None:
    """Each write overwrites what the other one's expression reads: no order of fused kernels exists."""
    x, y = Tensor([1.0, 2.0]).realize(), Tensor([10.0, 20.0]).realize()
    from_x = (x * 3 + 1).exp2().log2() * 1.5
    from_y = (y * 2 + 1).sqrt() * 2
    x.assign(from_y)
    y.assign(from_x)
    Tensor.realize(x, y)
    np.testing.assert_allclose(x.numpy(), np.sqrt([21.0, 41.0]) * 2, rtol=1e-6)
    np.testing.assert_allclose(y.numpy(), [6.0, 10.5], rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "int32", "bool"])
def test_a_constant_written_over_everything_stays_on_the_device(dtype: str) -> None:
    for x in (Tensor.full((3,), 1, dtype=dtype, device="PYTHON"), Tensor([1, 0, 1], "PYTHON", dtype) == 0):
        x[:] = 1
        x.realize()
        assert x.device == "PYTHON"
        assert x.tolist() == [1, 1, 1]


def test_constants_in_memory_of_one_device_beside_work_on_another() -> None:
    """Both are small enough to start with others, but not with each other."""
    a = Tensor(np.arange(24).reshape(4, 6), device="PYTHON").realize()
    b = Tensor(np.arange(24).reshape(4, 6), device="CPU").realize()
    a[:] = 2
    b[1] = 5
    Tensor.realize(a, b, a.full_like(3).contiguous())
    assert a.device == "PYTHON" and a.tolist() == [[2] * 6] * 4
    assert b.tolist()[1] == [5] * 6


def test_a_lazy_value_that_simplifies_to_one_that_was_computed(device: str) -> None:
    """It is known by another name, so its writes are what it gets from the first one."""
    x = Tensor([1, 2, 3, 4], device=device).realize()
    x.assign(x.flip(0) + 1)
    before = x * 3
    x[2] = 7
    first = before + x
    second = first + 0
    del x, before
    assert second.tolist() == [20, 16, 16, 8]
    assert first.tolist() == [20, 16, 16, 8]


def test_a_constant_that_is_kept_and_also_written_into(device: str) -> None:
    x = Tensor([5, 6, 7, 8], device=device).realize()
    before = x * 3
    x[:] = 1
    both = before + x
    x[1:3] += 4
    x.realize()
    assert x.tolist() == [1, 5, 5, 1]
    assert both.tolist() == [16, 19, 22, 25]


def test_writing_through_a_computed_view_of_a_lazy_value(device: str) -> None:
    base = Tensor([[1, 2], [3, 4]], device=device) * 3
    turned = base.T
    turned.realize()
    base[0] = 7
    turned[1, 1] = 5
    assert base.tolist() == [[7, 7], [9, 5]]
    assert turned.tolist() == [[7, 9], [7, 5]]


def test_a_value_that_is_found_to_be_constant_stays_on_its_device() -> None:
    x = Tensor([3, 4], device="PYTHON").realize()
    zero = x.floordiv(0).cast("float32")
    above = (zero > -1).ne(0)
    above.realize(zero)
    assert above.device == zero.device == "PYTHON"
    assert (x + above).tolist() == [4, 5]
    assert x.masked_select(above).tolist() == [3, 4]
    zero += 1
    assert (zero + x).tolist() == [4, 5]
