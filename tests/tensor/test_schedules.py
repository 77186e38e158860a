"""Schedules that somebody holds: printed, changed, run, and differentiated through."""

from __future__ import annotations

import numpy as np
import pytest

from gradlet import GlobalCounters, Tensor
from gradlet.base.errors import ArgumentError
from gradlet.optimize.opttext import parse_opts

X = np.random.default_rng(0).standard_normal((16, 24)).astype(np.float32)


def test_a_schedule_is_printed_and_run_as_it_is() -> None:
    x = Tensor(X)
    y = (x * 2).sum(1)
    plan = y.schedule()
    assert str(plan).startswith("0. ") and "384 float32" in str(plan) and "-> b" in str(plan)
    assert len(str(plan).splitlines()) == len(plan.calls)
    before = GlobalCounters.kernels
    assert not y.is_realized
    y.realize(schedule=plan)
    assert y.is_realized and GlobalCounters.kernels - before == len(plan.calls)
    np.testing.assert_allclose(y.numpy(), (X * 2).sum(1), rtol=1e-5)


@pytest.mark.parametrize("opts", ["", "SPLIT(range 0, 4)", "VECTORIZE(range 1, 8)"])
def test_opts_of_a_kernel_are_changed(opts: str) -> None:
    y = Tensor(X) * 2 + Tensor(X[:1])
    plan = y.schedule()
    changed = plan.with_opts(0, parse_opts(opts))
    assert "opts given" in str(changed) and "opts given" not in str(plan)
    assert changed.calls[0].ast is not plan.calls[0].ast
    y.realize(schedule=changed)
    np.testing.assert_allclose(y.numpy(), X * 2 + X[:1], rtol=1e-6)


def test_gradients_through_what_a_schedule_computed() -> None:
    """What was built on the value before goes on to know how it was made, and computes it no second time."""
    x = Tensor(X)
    y = (x * x).contiguous()
    loss = (y * 3).sum()
    y.realize(schedule=y.schedule())
    np.testing.assert_allclose(loss.gradient(x)[0].numpy(), 6 * X, rtol=1e-5)
    np.testing.assert_allclose(loss.item(), 3 * (X * X).sum(), rtol=1e-5)


def test_several_tensors_in_one_schedule() -> None:
    x = Tensor(X)
    y, z = x * 2, (x * 2).sum(1)
    y.realize(z, schedule=y.schedule(z))
    assert y.is_realized and z.is_realized
    np.testing.assert_allclose(z.numpy(), y.numpy().sum(1), rtol=1e-5)


def test_a_schedule_of_something_else_is_refused() -> None:
    x, other = Tensor(X) + 1, Tensor(X) - 1
    plan = x.schedule()
    with pytest.raises(ArgumentError, match="no schedule of these tensors"):
        other.realize(schedule=plan)
    x.realize()
    with pytest.raises(ArgumentError, match="ask for a new one"):
        x.realize(schedule=plan)
