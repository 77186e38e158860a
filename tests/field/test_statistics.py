"""Statistics, order and selection that other frameworks got wrong."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from gradlet import Tensor, jit

DEVICES = ("CPU", "PYTHON")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("name", ["amax", "amin", "max", "min", "median", "nanmedian"])
def test_counts_of_ties_in_half_do_not_overflow(name: str) -> None:
    x = Tensor(np.ones(70000, np.float16))
    (gradient,) = getattr(x, name)().gradient(x)
    np.testing.assert_array_equal(gradient.numpy(), np.full(70000, np.float16(1 / 70000)))


def test_counts_in_half_do_not_overflow(device: str) -> None:
    x = Tensor(np.full(70000, 0.5, np.float16), device=device)
    everything = Tensor(np.ones(70000, bool), device=device)
    for mean in (x.mean(), x.nanmean(), x.masked_mean(everything)):
        assert mean.dtype.name == "float16" and mean.item() == 0.5
    assert x.std().item() == x.masked_var(everything).item() == 0.0
    assert x.count_nonzero().item() == x.bucketize(x[:1]).eq(0).sum().item() == 70000


def test_gradients_beside_infinities_in_log_sum_exp(device: str) -> None:
    low = -math.inf
    x = Tensor([[low, 0.0, 0.0], [low, low, 1.0]], device=device)
    assert x.logsumexp(1).sum().gradient(x)[0].tolist() == [[0.0, 0.5, 0.5], [0.0, 0.0, 1.0]]
    assert x.masked_logsumexp(x > low, 1).sum().gradient(x)[0].tolist() == [[0.0, 0.5, 0.5], [0.0, 0.0, 1.0]]
    # Documented: the slope of a logarithm of nothing is not a number, as in torch.
    nothing = Tensor([low, low], device=device)
    assert nothing.logsumexp().item() == low and nothing.masked_logsumexp(nothing > low).item() == low
    assert all(math.isnan(v) for v in nothing.logsumexp().gradient(nothing)[0].tolist() + nothing.softmax().tolist())


def test_selecting_from_nothing_and_nothing_from_something(device: str) -> None:
    empty, some = Tensor([], device=device), Tensor([1.0, 2.0], device=device)
    assert empty.masked_select(empty > 0).tolist() == some.masked_select(some > 5).tolist() == []
    assert empty.nonzero().shape == (some > 5).nonzero().shape == (0, 1)
    assert (
        empty.nonzero(size=2, fill_value=-1).tolist()
        == (some > 5).nonzero(size=2, fill_value=-1).tolist()
        == [[-1]] * 2
    )
    assert empty.masked_select(empty > 0, size=2, fill_value=9).tolist() == [9.0, 9.0]
    assert empty.unique().shape == (0,) and empty.sort()[1].shape == (0,)


def test_reducing_no_axes_and_an_axis_that_is_not_there(device: str) -> None:
    zero = Tensor(2.0, device=device)
    assert zero.sum(()).item() == zero.amax(()).item() == zero.count_nonzero(()).item() * 2 == 2.0
    for reduce in (zero.amax, zero.count_nonzero, zero.nansum, zero.argmax, zero.std, zero.median):
        with pytest.raises(IndexError, match="axis 1 is out of range"):
            reduce(1)


def test_places_of_extremes_are_the_first_of_ties_and_the_first_nan(device: str) -> None:
    nan = math.nan
    x = Tensor([[1.0, 3.0, 3.0, 1.0], [1.0, nan, 9.0, nan]], device=device)
    assert x.argmax(1).tolist() == x.max_with_indices(1)[1].tolist() == [1, 1]
    assert x.argmin(1).tolist() == x.min_with_indices(1)[1].tolist() == [0, 1]
    assert x.cummax(1)[1].tolist() == [[0, 1, 2, 2], [0, 1, 1, 3]]


CHAINS: dict[str, Callable[[Tensor], Tensor]] = {
    "multinomial": lambda p: p.multinomial(6, replacement=True),
    "cumsum": lambda p: p.cumsum(),
    "cumsum of a sort": lambda p: p.sort()[0].cumsum(),
    "argmax": lambda p: p.argmax(),
    "median": lambda p: p.median(),
    "mode": lambda p: p.mode()[1],
    "searchsorted": lambda p: p.cumsum().searchsorted(p),
    "unique": lambda p: p.unique(return_inverse=True)[1],
    "nonzero": lambda p: (p > 0.2).nonzero(),
}


@pytest.mark.parametrize("name", CHAINS)
def test_results_do_not_depend_on_what_was_computed_before(device: str, name: str) -> None:
    numbers = np.random.default_rng(0).random(50).astype(np.float32)

    def results(early: bool) -> list[float]:
        Tensor.manual_seed(7)
        p = Tensor(numbers, device=device) * 0.5 + 0.1
        if early:
            p.realize()
        found = CHAINS[name](p)
        if early:
            found.realize()
        return (found + 0).tolist()

    assert results(True) == results(False)


def test_selection_of_a_known_size_works_in_a_jitted_function() -> None:
    @jit
    def chosen(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        positive = x > 0
        return (
            x.masked_select(positive, size=4, fill_value=-9),
            positive.nonzero(size=3, fill_value=-1),
            x.cast("int32").bincount(size=4),
        )

    for seed in range(4):
        values = np.random.default_rng(seed).integers(-3, 4, 6).astype(np.float32)
        selected, places, counts = chosen(Tensor(values).realize())
        wanted = values[values > 0][:4]
        assert selected.tolist() == [*wanted.tolist(), *[-9.0] * (4 - len(wanted))]
        found = np.flatnonzero(values > 0)[:3]
        assert places.flatten().tolist() == [*found.tolist(), *[-1] * (3 - len(found))]
        assert counts.tolist() == np.bincount(values[values >= 0].astype(int), minlength=4).tolist()
