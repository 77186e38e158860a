"""Division with remainder of floats: exact while the quotient is small, and right at infinities and zeros."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradlet import Tensor

PAIRS = (("floordiv", np.floor_divide), ("mod", np.remainder), ("fmod", np.fmod))


@pytest.mark.parametrize(("name", "reference"), PAIRS, ids=[name for name, _ in PAIRS])
def test_quotients_that_rounding_would_lift_to_the_next_integer(name: str, reference: Any) -> None:
    # In float32 1.0 / 0.1 rounds to 10.0, but ten times float32's 0.1 is more than 1.0: the quotient is 9.
    rng = np.random.default_rng(0)
    divisor = rng.uniform(0.05, 3, 4000).astype(np.float32) * rng.choice([-1, 1], 4000).astype(np.float32)
    value = np.concatenate([[1.0, -1.0], (divisor * rng.integers(-50, 50, 4000))[2:]]).astype(np.float32)
    divisor[:2] = 0.1
    result = getattr(Tensor(value), name)(Tensor(divisor)).numpy()
    np.testing.assert_array_equal(result, reference(value, divisor))
    assert result.dtype == np.float32


@pytest.mark.parametrize(("name", "reference"), PAIRS, ids=[name for name, _ in PAIRS])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_infinities_zeros_and_nan(name: str, reference: Any) -> None:
    value = np.array([5, -5, 5, -5, 0, 3, -3, 0, np.nan, np.inf], np.float32)
    divisor = np.array([np.inf, np.inf, -np.inf, -np.inf, np.inf, 0, 0, 0, 2, np.inf], np.float32)
    np.testing.assert_array_equal(getattr(Tensor(value), name)(Tensor(divisor)).numpy(), reference(value, divisor))


def test_the_type_is_the_common_one() -> None:
    assert (Tensor([7.0], dtype="float16") % 2).dtype.name == "float16"
    assert (Tensor([7]) // 2.5).dtype.name == "float32"
    assert (Tensor([7.0], dtype="float64") % Tensor([2.0])).dtype.name == "float64"
