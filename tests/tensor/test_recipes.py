"""Recipes: the nodes that a function would make, whatever the operands, made with fewer steps."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from gradlet import Tensor, nn
from gradlet.base.errors import DeviceError, DTypeError, GradletError, ShapeError
from gradlet.tensor import recipes
from gradlet.tensor.recipes import composed


@pytest.fixture(autouse=True)
def no_recipes() -> Iterator[None]:
    recipes._recipes.clear()
    yield
    recipes._recipes.clear()


def leaf(*shape: int, dtype: str = "float32", device: str | None = None) -> Tensor:
    return Tensor.empty(*shape, dtype=dtype, device=device)


def kept() -> int:
    return sum(recipe is not None for recipe in recipes._recipes.values())


def random_convolution(rng: random.Random) -> tuple[tuple[int, ...], tuple[int, ...], bool, dict[str, object]]:
    spatial, groups = rng.randint(1, 3), rng.choice((1, 1, 2, 3))
    kernel = tuple(rng.randint(1, 3) for _ in range(spatial))
    sizes = tuple(rng.randint(5, 9) for _ in range(spatial))
    inputs, outputs = groups * rng.randint(1, 2), groups * rng.randint(1, 3)
    options: dict[str, object] = {"groups": groups}
    for name in ("stride", "dilation", "padding"):
        options[name] = rng.choice((1, 2, tuple(rng.randint(1, 2) for _ in range(spatial))))
    batch = (rng.randint(1, 3),) if rng.random() < 0.8 else ()
    return (*batch, inputs, *sizes), (outputs, inputs // groups, *kernel), rng.random() < 0.5, options


@pytest.mark.parametrize("seed", range(25))
def test_convolutions_are_the_same_nodes(seed: int) -> None:
    rng = random.Random(seed)
    x_shape, w_shape, has_bias, options = random_convolution(rng)
    dtypes = [rng.choice(("float32", "float32", "float16", "int32", "bfloat16")) for _ in range(3)]

    def operands() -> tuple[Tensor, Tensor, Tensor | None]:
        bias = leaf(w_shape[0], dtype=dtypes[2]) if has_bias else None
        return leaf(*x_shape, dtype=dtypes[0]), leaf(*w_shape, dtype=dtypes[1]), bias

    first = operands()
    first[0].conv2d(*first[1:], **options)  # type: ignore[arg-type]
    assert kept() >= 1
    x, w, bias = operands()
    if rng.random() < 0.5:
        x, w = x * 2, w.flip(0)
    by_recipe = x.conv2d(w, bias, **options)  # type: ignore[arg-type]
    recipes._recipes.clear()
    plain = x.conv2d(w, bias, **options)  # type: ignore[arg-type]
    assert by_recipe.uop is plain.uop and by_recipe.device == plain.device
    assert by_recipe.uop.shape == plain.shape


def test_a_recipe_is_followed_without_the_function() -> None:
    calls = []

    def function(x: Tensor, y: Tensor | None, factor: float) -> Tensor:
        calls.append(factor)
        total = x if y is None else x + y
        return (total * factor).relu()

    for _ in range(3):
        for factor in (2.0, 3.0):
            x, y = leaf(2, 3), leaf(3)
            assert composed(function, (x, y), factor).uop is ((x + y) * factor).relu().uop
            assert composed(function, (x, None), factor).uop is (x * factor).relu().uop
    assert sorted(calls) == [2.0, 2.0, 3.0, 3.0]


def test_what_tells_recipes_apart() -> None:
    def function(x: Tensor, factor: float) -> Tensor:
        return x * factor

    for x in (leaf(2), leaf(3), leaf(2, dtype="int32"), leaf(2, 1)):
        for factor in (1, 1.0, True, 0.0, -0.0, 2):
            for _ in range(2):
                assert composed(function, (x,), factor).uop is (x * factor).uop


def test_operands_that_are_one_value_or_part_of_each_other() -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return (x * 2 + y).exp(), x

    for x, y in [(leaf(4), leaf(4)), *[(z, w) for z in [leaf(4)] for w in (z, z * 2, (z * 2 + z).exp())]]:
        for a, b in ((x, y), (y, x)):
            one, other = composed(function, (a, b))
            assert one.uop is (a * 2 + b).exp().uop and other.uop is a.uop and other is not a


def test_functions_without_a_recipe_are_called() -> None:
    calls = []

    def random_values(x: Tensor) -> Tensor:
        calls.append(1)
        return x + Tensor.rand(2)

    x = leaf(2)
    assert composed(random_values, (x,)).uop is not composed(random_values, (x,)).uop
    assert kept() == 0 and len(calls) >= 2
    held = leaf(2)
    assert composed(lambda y: y + held, (x,)).uop is (x + held).uop and kept() == 0

    def length(y: Tensor) -> Tensor:
        return y.sum()

    assert composed(length, (leaf(0, 3),)).item() == 0.0 and kept() == 0
    assert composed(length, (Tensor(3.0) * 2,)).item() == 6.0


def test_results_are_written_like_others() -> None:
    def turned(x: Tensor) -> Tensor:
        return (x * 2).reshape(3, 2)

    for _ in range(2):
        x = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
        y = composed(turned, (x,))
        y[0] = 7
        assert y.tolist() == [[7, 7], [4, 6], [8, 10]] and x.tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize("again", range(2))
def test_errors_stay(again: int) -> None:
    x, w = leaf(1, 2, 5, 5), leaf(3, 2, 3, 3)
    for _ in range(again + 1):
        with pytest.raises(ShapeError):
            x.conv2d(leaf(3, 4, 3, 3))
        with pytest.raises(DTypeError):
            x.conv2d(3)  # type: ignore[arg-type]
        with pytest.raises(DeviceError):
            x.conv2d(leaf(3, 2, 3, 3, device="PYTHON"))
        x.conv2d(w, stride=1)
        with pytest.raises(GradletError):
            x.conv2d(w, stride=1.0)  # type: ignore[arg-type]


def test_layers_and_optimizers_with_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers of each shape, trained for some steps: the second of everything goes by recipe."""

    def train() -> list[np.ndarray]:
        Tensor.manual_seed(3)
        layers = [nn.Conv2d(2, 2, 3, padding=1, bias=number > 0) for number in range(2)]
        norms = [nn.BatchNorm2d(2, affine=number < 2) for number in range(3)]
        parameters = nn.state.get_parameters([layers, norms])
        optimizer = nn.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)
        x = Tensor(np.random.default_rng(0).normal(size=(3, 2, 5, 5)).astype(np.float32))
        with Tensor.train():
            for _ in range(3):
                y = norms[2](norms[1](layers[1](norms[0](layers[0](x)).relu())))
                optimizer.zero_grad()
                (y * y.sigmoid()).mean().backward()
                optimizer.step()
        return [value.numpy() for value in nn.state.get_state_dict([layers, norms]).values()]

    with_recipes = train()
    assert kept() >= 3
    monkeypatch.setattr(recipes, "_are_plain", lambda values: False)
    recipes._recipes.clear()
    without = train()
    assert not recipes._recipes
    for one, other in zip(with_recipes, without, strict=True):
        np.testing.assert_array_equal(one, other)
