"""Random numbers: distributions by Kolmogorov's and Smirnov's test and by moments, with fixed seeds; edges; dropout."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gradlet import Tensor, dtypes

COUNT = 20_000
# A right sampler exceeds this distance in one of a million runs; the seeds are fixed, so the tests do not flicker.
LIMIT = 2.7 / math.sqrt(COUNT)
Function = Callable[[Any], Any]


def normal_distribution(x: Any) -> Any:
    return np.vectorize(lambda v: 0.5 * math.erfc(-v / math.sqrt(2)))(x)


def distance(sample: Any, distribution: Function) -> float:
    """Largest distance between the sample's distribution function and the one it should have."""
    values = np.sort(np.asarray(sample, "float64"))
    expected = distribution(values)
    steps = np.arange(len(values) + 1) / len(values)
    return float(max((expected - steps[:-1]).max(), (steps[1:] - expected).max()))


CONTINUOUS: list[tuple[str, Callable[[Tensor], Tensor], Function]] = [
    ("rand", lambda x: x.rand_like(), lambda v: v),
    ("randn", lambda x: x.randn_like(), normal_distribution),
    ("uniform", lambda x: Tensor.uniform(*x.shape, low=-3, high=5, dtype=x.dtype), lambda v: (v + 3) / 8),
    ("normal", lambda x: Tensor.normal(*x.shape, mean=2, std=3, dtype=x.dtype),
     lambda v: normal_distribution((v - 2) / 3)),
    ("exponential", lambda x: x.exponential(2.5), lambda v: 1 - np.exp(-2.5 * v)),
    ("cauchy", lambda x: x.cauchy(1.0, 3.0), lambda v: 0.5 + np.arctan((v - 1) / 3) / math.pi),
    ("log_normal", lambda x: x.log_normal(0.5, 1.5), lambda v: normal_distribution((np.log(v) - 0.5) / 1.5)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", pytest.param("float64", marks=pytest.mark.slow)])
@pytest.mark.parametrize(("name", "sample", "distribution"), CONTINUOUS, ids=[row[0] for row in CONTINUOUS])
def test_distribution(name: str, sample: Callable[[Tensor], Tensor], distribution: Function, dtype: str) -> None:
    Tensor.manual_seed(11)
    drawn = sample(Tensor.zeros(COUNT, dtype=dtype))
    assert drawn.dtype.name == dtype
    assert distance(drawn.numpy(), distribution) < LIMIT
    # The test can tell: of a distribution a little off it finds the difference.
    assert distance(drawn.numpy() * 1.08 + 0.02, distribution) > LIMIT


@pytest.mark.parametrize("name", [row[0] for row in CONTINUOUS if row[0] != "uniform"])
def test_neighbours_are_independent(name: str) -> None:
    Tensor.manual_seed(3)
    drawn = next(row[1] for row in CONTINUOUS if row[0] == name)(Tensor.zeros(COUNT)).numpy()
    ranks = drawn.argsort().argsort() / COUNT - 0.5
    for step in (1, 2, 64):
        assert abs((ranks[step:] * ranks[:-step]).mean() * 12) < 5 / math.sqrt(COUNT)


@pytest.mark.parametrize("p", [0.5, 0.08])
def test_geometric(p: float) -> None:
    Tensor.manual_seed(5)
    for dtype in ("float32", "int64"):
        drawn = Tensor.zeros(COUNT, dtype=dtype).geometric(p)
        assert drawn.dtype.name == dtype
        values = drawn.numpy()
        assert values.min() == 1
        assert (values == np.round(values)).all()
        for k in range(1, 6):
            expected = p * (1 - p) ** (k - 1)
            assert abs((values == k).mean() - expected) < 5 * math.sqrt(expected / COUNT)
        assert abs(values.mean() - 1 / p) < 5 * math.sqrt(1 - p) / p / math.sqrt(COUNT)


def test_poisson() -> None:
    """Both ways, next to where they meet; the chances of every number by the law, and mean and variance."""
    Tensor.manual_seed(5)
    rates = np.array([0.0, 0.3, 4.0, 9.99, 10.0, 30.0, 1e6], "float32")
    drawn = Tensor(np.repeat(rates[:, None], COUNT, 1)).poisson()
    assert drawn.dtype is dtypes.float32
    for rate, values in zip(rates.tolist(), drawn.numpy().astype("float64"), strict=True):
        assert (values == np.round(values)).all()
        assert values.min() >= 0
        assert abs(values.mean() - rate) <= 5 * math.sqrt(rate / COUNT)
        assert abs(values.var() - rate) <= 5 * math.sqrt((2 * rate**2 + rate) / COUNT) + 1e-9
        if rate == 0 or rate > 100:
            continue
        for k in range(60):
            chance = math.exp(k * math.log(rate) - rate - math.lgamma(k + 1))
            assert abs((values == k).mean() - chance) < 5 * math.sqrt(chance / COUNT) + 3 / COUNT, (rate, k)
    assert np.isnan(Tensor([-1.0, math.nan, math.inf]).poisson().numpy()).all()
    large = Tensor.full((COUNT,), 1e6, dtype="float64").poisson().numpy()
    assert distance(large, lambda v: normal_distribution((v + 0.5 - 1e6) / 1e3)) < LIMIT


def test_bernoulli() -> None:
    Tensor.manual_seed(5)
    chances = Tensor([0.0, 1.0, 0.3, 1e-3]).reshape(4, 1).expand(4, COUNT)
    drawn = chances.bernoulli()
    assert drawn.dtype is dtypes.float32
    shares = drawn.numpy().mean(1)
    assert shares[0] == 0
    assert shares[1] == 1
    assert abs(shares[2] - 0.3) < 5 * math.sqrt(0.21 / COUNT)
    assert abs(shares[3] - 1e-3) < 5 * math.sqrt(1e-3 / COUNT)
    mixed = Tensor.zeros(COUNT, dtype="int32").bernoulli(0.25)
    assert mixed.dtype is dtypes.int32
    assert abs(mixed.numpy().mean() - 0.25) < 0.02
    assert Tensor([math.nan, -1.0, 2.0]).bernoulli().tolist() == [0, 0, 1]


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.slow)])
def test_support_of_narrow_floats(dtype: str) -> None:
    x = Tensor.zeros(2000, dtype=dtype)
    assert x.exponential().numpy().min() > 0
    assert x.geometric(0.5).numpy().min() == 1
    for drawn in (x.cauchy(), x.log_normal(0.0, 0.5), x.bernoulli(0.5)):
        assert drawn.dtype.name == dtype
        assert not np.isnan(drawn.numpy()).any()


SLOW_NARROW = [pytest.param(name, marks=pytest.mark.slow) for name in ("bfloat16", "float8_e5m2", "float8_e5m2fnuz")]


@pytest.mark.parametrize("dtype", ["float16", "float8_e4m3fn", *SLOW_NARROW])
def test_one_is_never_drawn(dtype: str) -> None:
    drawn = Tensor.rand(20_000, dtype=dtype).cast("float32").numpy()
    digits = getattr(dtypes, dtype).format.digits
    assert drawn.max() <= 1 - 2.0**-digits
    assert len(np.unique(drawn)) > 2 ** min(digits, 10) * 0.9
    assert np.isfinite(Tensor.randn(2000, dtype=dtype).cast("float32").numpy()).all()


def test_uniform_never_reaches_its_upper_end() -> None:
    """Rounding would: the type has few numbers between the ends."""
    Tensor.manual_seed(0)
    drawn = Tensor.uniform(20_000, low=1000, high=1001, dtype="float16").numpy()
    assert drawn.max() < 1001
    assert drawn.min() == 1000
    assert Tensor.uniform(3, low=2.5, high=2.5).tolist() == [2.5] * 3


def test_float64_has_53_bits() -> None:
    drawn = Tensor.rand(1000, dtype="float64").numpy()
    assert (drawn * 2.0**53 == np.round(drawn * 2.0**53)).all()
    assert (drawn * 2.0**40 != np.round(drawn * 2.0**40)).mean() > 0.99


# integers
@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        ("int64", -(2**63), 2**63), ("uint64", 0, 2**64), ("int64", -5, 2**40), ("int64", -(2**62), 2**62 + 3),
        ("uint8", 0, 256), ("int32", -(2**31), 2**31), ("uint64", 2**63, 2**64 - 1),
    ],
)  # fmt: skip
def test_integers_of_every_range(dtype: str, low: int, high: int) -> None:
    Tensor.manual_seed(9)
    drawn = Tensor.randint(COUNT, low=low, high=high, dtype=dtype)
    assert drawn.dtype.name == dtype
    values = [int(v) for v in drawn.numpy()]
    assert low <= min(values) <= max(values) < high
    # Exact arithmetic: the middles of equal chances.
    share = np.array([(v - low + 0.5) / (high - low) for v in values])
    assert distance(share, lambda v: v) < LIMIT + 0.5 / (high - low) + (0.005 if high - low <= 256 else 0)


def test_high_half_of_a_product_is_exact() -> None:
    from gradlet.ops.random import _high_half

    words = [0, 1, 2**32 - 1, 0x89ABCDEF]
    first = Tensor([a for a in words for _ in words], dtype="uint64")
    second = Tensor(words * len(words), dtype="uint64")
    for span in (2**32 + 1, 2**63, 2**64 - 1, 2**64, 0x123456789ABCDEF1):
        expected = [((a << 32 | b) * span) >> 64 for a in words for b in words]
        assert _high_half(first, second, span).tolist() == expected


def test_integers_as_floats() -> None:
    assert Tensor.randint(5, low=3, high=4, dtype="float32").tolist() == [3.0] * 5
    like = Tensor.zeros(4, dtype="uint8").randint_like(7, 8)
    assert like.dtype is dtypes.uint8
    assert like.tolist() == [7] * 4


def test_permutations() -> None:
    Tensor.manual_seed(2)
    first, second = Tensor.randperm(1000).tolist(), Tensor.randperm(1000).tolist()
    assert sorted(first) == sorted(second) == list(range(1000))
    assert first != second
    places = np.array([Tensor.randperm(4).tolist().index(0) for _ in range(60)])
    assert (np.bincount(places, minlength=4) > 5).all()
    assert Tensor.randperm(0).tolist() == []


# drawing by weights
def test_drawing_without_replacement() -> None:
    """The first number drawn follows the weights, the second one the weights of those that are left."""
    Tensor.manual_seed(4)
    weights = np.array([0.1, 0.0, 0.6, 0.3], "float32")
    rows = Tensor(np.tile(weights, (COUNT, 1)))
    drawn = rows.multinomial(2)
    assert drawn.dtype is dtypes.int32
    first, second = drawn.numpy().T
    assert (first != second).all()
    np.testing.assert_allclose(np.bincount(first, minlength=4) / COUNT, weights, atol=0.02)
    after = np.bincount(second[first == 2], minlength=4) / (first == 2).sum()
    np.testing.assert_allclose(after, [0.25, 0, 0, 0.75], atol=0.02)
    every = Tensor.ones(5).multinomial(5).tolist()
    assert sorted(every) == [0, 1, 2, 3, 4]


def test_drawing_where_nothing_can_be_drawn() -> None:
    rows = Tensor([[math.nan, 1, 1], [0, 0, 0], [-1, 1, 1], [math.inf, 1, 1]])
    assert rows.multinomial(2).tolist() == [[3, 3]] * 4
    assert rows.multinomial(2, replacement=True).tolist() == [[3, 3]] * 4
    assert Tensor([0.0, 2.0, 0.0]).multinomial(2).tolist() == [1, 3]


def test_drawing_from_many_half_weights() -> None:
    """The running sum is carried in float32: in float16 it would stop at 2048."""
    Tensor.manual_seed(1)
    drawn = Tensor.ones(4096, dtype="float16").multinomial(2000, replacement=True).numpy()
    assert drawn.max() > 4000


# tensors as parameters, writing in place
def test_normal_of_tensors() -> None:
    Tensor.manual_seed(6)
    mean, std = Tensor([[0.0], [100.0]]), Tensor([1.0, 0.0, 5.0])
    drawn = Tensor.normal(mean=mean, std=std)
    by_mean, by_std = drawn.sum().gradient(mean, std)
    Tensor.realize(drawn, by_mean, by_std)
    assert drawn.shape == (2, 3)
    assert drawn.numpy()[1, 1] == 100
    assert by_mean.numpy().tolist() == [[3], [3]]
    noise = (drawn.numpy() - mean.numpy())[:, [0, 2]] / std.numpy()[[0, 2]]
    np.testing.assert_allclose(by_std.numpy()[[0, 2]], noise.sum(0), rtol=1e-4, atol=1e-4)
    many = Tensor.normal(COUNT, 2, mean=Tensor([5.0, -5.0]), std=2).numpy()
    assert distance(many[:, 1], lambda v: normal_distribution((v + 5) / 2)) < LIMIT


def test_writing_in_place() -> None:
    x = Tensor.zeros(3, 4, dtype="float64").contiguous().realize()
    for write in (
        lambda t: t.normal_(7.0, 0.1), lambda t: t.uniform_(7.0, 8.0), lambda t: t.exponential_(),
        lambda t: t.cauchy_(), lambda t: t.geometric_(0.5), lambda t: t.log_normal_(), lambda t: t.bernoulli_(1.0),
    ):  # fmt: skip
        before = x.tolist()
        assert write(x) is x
        assert x.shape == (3, 4)
        assert x.dtype is dtypes.float64
        assert x.tolist() != before
    assert x.tolist() == [[1.0] * 4] * 3
    row = x[1]
    row.uniform_(5.0, 6.0)
    assert (x.numpy()[1] >= 5).all()
    assert x.numpy()[0].tolist() == [1.0] * 4
    assert Tensor.zeros(2).contiguous().bernoulli_(Tensor([0.0, 1.0])).tolist() == [0, 1]


# the same numbers again
SEEDED: list[Callable[[str], Tensor]] = [
    lambda device: Tensor.randn(20, device=device),
    lambda device: Tensor.rand(20, dtype="float64", device=device),
    lambda device: Tensor.randint(20, low=-(2**60), high=2**61, dtype="int64", device=device),
    lambda device: Tensor.zeros(20, device=device).cauchy(),
    lambda device: Tensor.zeros(20, device=device).exponential(),
    lambda device: Tensor.zeros(20, device=device).geometric(0.3),
    lambda device: Tensor.ones(30, device=device).multinomial(20),
    lambda device: Tensor.ones(20, device=device).dropout(0.5, training=True),
    lambda device: Tensor.randperm(20, device=device),
]


@pytest.mark.parametrize("make", SEEDED)
def test_a_seed_gives_the_same_numbers_on_every_device(make: Callable[[str], Tensor]) -> None:
    found = []
    for device in ("CPU", "PYTHON", "CPU"):
        Tensor.manual_seed(123)
        found.append(make(device).numpy())
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
    np.testing.assert_array_equal(found[0], found[2])
    assert not np.array_equal(found[0], make("CPU").numpy())


# dropout
def test_dropout_drops_and_scales() -> None:
    Tensor.manual_seed(8)
    x = Tensor(np.linspace(1, 2, COUNT, dtype="float32"))
    dropped = x.dropout(0.3, training=True)
    kept = dropped.numpy() != 0
    assert abs(kept.mean() - 0.7) < 0.02
    np.testing.assert_allclose(dropped.numpy()[kept], x.numpy()[kept] / 0.7, rtol=1e-6)
    assert x.dropout(0.3) is x
    assert x.dropout(0.0, training=True) is x
    with Tensor.train():
        assert x.dropout(0.3, training=False) is x
    assert Tensor([math.inf, math.nan]).dropout(0.999999, training=True).tolist() == [0, 0]


def test_gradient_of_dropout_has_its_mask() -> None:
    x = Tensor.ones(100).contiguous().realize()
    dropped = x.dropout(0.5, training=True)
    gradient = dropped.sum().gradient(x)[0]
    Tensor.realize(dropped, gradient)
    assert dropped.tolist() == gradient.tolist()
    mask = Tensor(dropped.numpy() != 0)
    assert Tensor.ones(100).native_dropout_backward(mask, 2.0).tolist() == gradient.tolist()


@pytest.mark.parametrize(
    ("name", "shape", "axes"),
    [
        ("dropout1d", (40, 50, 3), 2), ("dropout1d", (500, 3), 1), ("dropout2d", (40, 50, 3, 2), 2),
        ("dropout2d", (40, 50, 3), 2), ("dropout3d", (40, 50, 2, 2, 2), 2), ("dropout3d", (500, 2, 2, 2), 1),
        ("feature_alpha_dropout", (40, 50, 3), 2),
    ],
)  # fmt: skip
def test_channels_are_dropped_whole(name: str, shape: tuple[int, ...], axes: int) -> None:
    Tensor.manual_seed(8)
    dropped = getattr(Tensor.ones(*shape), name)(0.4, training=True).numpy()
    channels = dropped.reshape(math.prod(shape[:axes]), -1)
    assert (channels == channels[:, :1]).all()
    values, counts = np.unique(channels[:, 0], return_counts=True)
    assert len(values) == 2
    assert abs(counts[1] / counts.sum() - 0.6) < 0.09


def test_alpha_dropout_keeps_mean_and_variance() -> None:
    Tensor.manual_seed(8)
    dropped = Tensor.randn(COUNT).alpha_dropout(0.3, training=True).numpy()
    assert abs(dropped.mean()) < 0.05
    assert abs(dropped.std() - 1) < 0.05
    values, counts = np.unique(dropped, return_counts=True)
    assert abs(counts.max() / COUNT - 0.3) < 0.02
    assert values[counts.argmax()] < -0.9
    assert Tensor.ones(3).alpha_dropout(1.0, training=True).tolist() == [0, 0, 0]
