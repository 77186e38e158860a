"""What tensors look like in print: everything that is known, and nothing is computed for it."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet import GlobalCounters, Tensor, Variable, jit

START = np.arange(6, dtype=np.float32).reshape(2, 3)


def test_values_that_are_there() -> None:
    assert repr(Tensor(START)) == "<Tensor shape (2, 3), dtypes.float32, CPU\n  [[0. 1. 2.]\n   [3. 4. 5.]]>"
    assert repr(Tensor(START).T[1]) == "<Tensor shape (2,), dtypes.float32, CPU\n  [1. 4.]>"
    assert repr(Tensor(True, device="PYTHON")) == "<Tensor shape (), dtypes.bool, PYTHON\n  True>"
    assert repr(Tensor([1.5], dtype="bfloat16")) == "<Tensor shape (1,), dtypes.bfloat16, CPU\n  [1.5]>"
    assert "[1.  0.5]" in repr(Tensor([1.0, 0.5], dtype="float8_e4m3fn"))
    assert repr(Tensor.zeros(0, 3)) == "<Tensor shape (0, 3), dtypes.float32, CPU\n  []>"


def test_nothing_is_computed() -> None:
    x = Tensor(START).realize()
    before = GlobalCounters.kernels
    for value in (x + 1, x.sum(), Tensor.ones(2), Tensor.rand(3), Tensor.empty(4), (x > 1).sum()):
        text = repr(value)
        assert text.endswith(", not computed>")
        assert str(value.shape) in text
        assert str(value.dtype) in text
    assert GlobalCounters.kernels == before
    y = x + 1
    y.realize()
    assert "[[1. 2. 3.]" in repr(y)


def test_large_tensors_are_abbreviated_as_numpy_does() -> None:
    for shape in ((2000,), (50, 60), (3, 20, 40), (1, 1001)):
        array = np.arange(int(np.prod(shape))).reshape(shape)
        shown = repr(Tensor(array)).partition("\n  ")[2][:-1].replace("\n  ", "\n")
        assert shown == np.array2string(array)
    array = np.arange(1000)
    assert "..." not in repr(Tensor(array))


def test_inside_a_jitted_function() -> None:
    seen = []

    @jit
    def step(x: Tensor) -> Tensor:
        y = x + 1
        seen.extend([repr(x), repr(y)])
        return y.realize()

    step(Tensor(START))
    assert seen[0] == seen[1] == "<Tensor shape (2, 3), dtypes.float32, CPU, inside a jitted function>"


def test_sizes_known_only_at_launch() -> None:
    n = Variable("n", 1, 6)
    assert repr(Tensor.arange(6)[: n.bind(3)]).startswith("<Tensor shape (n,), dtypes.int32")


def test_it_never_raises() -> None:
    assert repr(object.__new__(Tensor)).startswith("<Tensor whose value is not known: AttributeError")
    lost = Tensor(START)
    lost.invalidate("made inside f")
    assert repr(lost) == "<Tensor whose value is not known: JitError: made inside f>"
    assert str(Tensor(START, device="NULL")).startswith("<Tensor")


def test_long_lazy_values() -> None:
    x = Tensor([0.0])
    for _ in range(5000):
        x = x + 1
    assert repr(x).endswith("not computed>")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.0])
def test_special_numbers(value: float) -> None:
    assert str(np.array([value], np.float32)) in repr(Tensor([value]))
