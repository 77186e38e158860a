"""Element-wise functions at edges where other frameworks gave NaN, or values that were not exact."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gradlet import Tensor

DEVICES = ("CPU", "PYTHON")
LOW = -math.inf
SATURATING = (
    "sigmoid", "tanh", "gelu", "silu", "mish", "softplus", "logsigmoid", "elu", "selu", "celu", "erf", "atan", "asinh",
    "softsign", "hardswish", "hardsigmoid", "quick_gelu", "tanhshrink", "relu6",
)  # fmt: skip


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("name", SATURATING)
def test_first_and_second_gradients_of_saturated_values_are_finite(device: str, name: str) -> None:
    x = Tensor([-1e30, -100.0, -20.0, 0.0, 20.0, 100.0, 1e18], device=device)
    (first,) = getattr(x, name)().sum().gradient(x)
    assert np.isfinite(first.numpy()).all()
    if name == "relu6":  # piecewise linear: its gradient depends on nothing
        return
    (second,) = getattr(x, name)().sum().gradient(x)[0].sum()._gradients([x], None)
    assert second is None or np.isfinite(second.numpy()).all()


def test_gelu_with_erf_far_out(device: str) -> None:
    x = Tensor([-100.0, 100.0], device=device)
    value = x.gelu("none")
    assert value.tolist() == [0.0, 100.0]
    assert x.gelu("none").sum().gradient(x)[0].tolist() == [0.0, 1.0]


def test_sums_of_powers_beside_infinities(device: str) -> None:
    x, y = Tensor([LOW, LOW, 0.0, math.inf], device=device), Tensor([LOW, 0.0, LOW, math.inf], device=device)
    assert x.logaddexp(y).tolist() == [LOW, 0.0, 0.0, math.inf]
    assert x.logaddexp2(y).tolist() == [LOW, 0.0, 0.0, math.inf]
    # Documented choice: equal infinities share the gradient.
    dx, dy = x.logaddexp(y).sum().gradient(x, y)
    assert dx.tolist() == [0.5, 0.0, 1.0, 0.5]
    assert dy.tolist() == [0.5, 1.0, 0.0, 0.5]


def test_length_of_nothing_and_of_the_largest_numbers(device: str) -> None:
    x = Tensor([0.0, 3e38, 3.0], device=device)
    length = x.hypot(Tensor([0.0, 1e38, 4.0], device=device))
    np.testing.assert_allclose(length.numpy(), [0.0, math.hypot(3e38, 1e38), 5.0], rtol=1e-6)


def test_a_limit_from_below_after_a_square_root(device: str) -> None:
    # Documented: the root's slope at 0 is infinite, and infinity times 0 is NaN, as in torch; select the input.
    x = Tensor([0.0, 3.0], device=device)
    (safe,) = x.eq(0).where(1.0, x * x).sqrt().clamp(min_=1e-3).sum().gradient(x)
    assert safe.tolist() == [0.0, 1.0]


def test_sine_and_cosine_of_large_arguments(device: str) -> None:
    values = [1e6, 1e10, 1e20, 3e38]
    x = Tensor(values, device=device)
    exact = np.array(values, np.float32).astype(np.float64)
    for name, function in (("sin", math.sin), ("cos", math.cos), ("tan", math.tan)):
        np.testing.assert_allclose(getattr(x, name)().numpy(), [function(v) for v in exact], rtol=4e-7)


def test_cosine_beside_its_zero(device: str) -> None:
    # By a half-angle formula the relative error here would be 100 %.
    assert Tensor([1.5707964], device=device).cos().item() == pytest.approx(-4.371139e-08, rel=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_functions_of_narrow_floats_are_rounded_once(device: str, dtype: str) -> None:
    values = np.linspace(-4, 4, 257)
    x = Tensor(values.astype(np.float32), device=device).cast(dtype)
    for name in ("gelu", "mish", "silu", "selu", "tanh", "sigmoid", "hardswish", "softsign"):
        narrow = getattr(x, name)()
        wide = getattr(x.cast("float32"), name)().cast(dtype)
        assert narrow.cast("float32").tolist() == wide.cast("float32").tolist(), name


def test_powers_of_ten_have_whole_logarithms(device: str) -> None:
    assert Tensor([10.0**n for n in range(11)], device=device).log10().tolist() == [float(n) for n in range(11)]


def test_not_a_number_passes_limits_on_either_side(device: str) -> None:
    x = Tensor([math.nan, 1.0], device=device)
    assert np.isnan(x.clamp(0.0, 2.0).numpy()).tolist() == [True, False]
    assert np.isnan(x.clamp(math.nan).numpy()).tolist() == [True, True]
    assert np.isnan(x.relu().numpy()).tolist() == [True, False]


def test_integers_are_compared_exactly(device: str) -> None:
    assert Tensor([2**30], device=device).isclose(Tensor([2**30 + 1], device=device), rtol=0.0).tolist() == [False]
