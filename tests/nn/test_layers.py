"""Layers against torch's of the same name: values, gradients, and names and shapes of parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from gradlet import Tensor, nn
from gradlet.base.dtype import dtypes
from gradlet.base.errors import ArgumentError, DTypeError, ShapeError
from gradlet.nn.state import get_state_dict, load_state_dict


def torch_module() -> Any:
    return pytest.importorskip("torch")


class Case(NamedTuple):
    name: str
    ours: Callable[[], Any]
    theirs: Callable[[Any], Any]  # of torch.nn
    shape: tuple[int, ...]


CASES = [
    Case("linear", lambda: nn.Linear(5, 3), lambda t: t.Linear(5, 3), (4, 5)),
    Case("linear_batch", lambda: nn.Linear(5, 3, bias=False), lambda t: t.Linear(5, 3, bias=False), (2, 4, 5)),
    Case("conv1d", lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, groups=2),
         lambda t: t.Conv1d(4, 6, 3, stride=2, padding=1, groups=2), (2, 4, 9)),
    Case("conv2d", lambda: nn.Conv2d(2, 4, 3, padding=1), lambda t: t.Conv2d(2, 4, 3, padding=1), (2, 2, 6, 5)),
    Case("conv2d_mixed", lambda: nn.Conv2d(2, 4, (3, 2), stride=(2, 1), dilation=(1, 2), padding=(0, 2), bias=False),
         lambda t: t.Conv2d(2, 4, (3, 2), stride=(2, 1), dilation=(1, 2), padding=(0, 2), bias=False), (2, 2, 7, 6)),
    Case("conv2d_same", lambda: nn.Conv2d(2, 4, (3, 4), padding="same", dilation=2),
         lambda t: t.Conv2d(2, 4, (3, 4), padding="same", dilation=2), (2, 2, 7, 9)),
    Case("conv3d", lambda: nn.Conv2d(2, 3, (2, 2, 2)), lambda t: t.Conv3d(2, 3, 2), (1, 2, 3, 4, 3)),
    Case("transpose1d", lambda: nn.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2),
         lambda t: t.ConvTranspose1d(4, 6, 3, stride=2, padding=1, output_padding=1, groups=2), (2, 4, 5)),
    Case("transpose2d", lambda: nn.ConvTranspose2d(2, 3, 3, stride=2, dilation=(1, 2)),
         lambda t: t.ConvTranspose2d(2, 3, 3, stride=2, dilation=(1, 2)), (2, 2, 4, 3)),
    Case("batch_norm", lambda: nn.BatchNorm(3), lambda t: t.BatchNorm2d(3), (4, 3, 2, 2)),
    Case("batch_norm_plain", lambda: nn.BatchNorm2d(3, affine=False, track_running_stats=False),
         lambda t: t.BatchNorm1d(3, affine=False, track_running_stats=False), (4, 3)),
    Case("layer_norm", lambda: nn.LayerNorm(6), lambda t: t.LayerNorm(6), (2, 3, 6)),
    Case("layer_norm_two", lambda: nn.LayerNorm((3, 4), eps=1e-3), lambda t: t.LayerNorm((3, 4), eps=1e-3), (2, 3, 4)),
    Case("group_norm", lambda: nn.GroupNorm(2, 6), lambda t: t.GroupNorm(2, 6), (2, 6, 3, 2)),
    Case("instance_norm", lambda: nn.InstanceNorm(3), lambda t: t.InstanceNorm2d(3, affine=True), (2, 3, 4, 2)),
    Case("rms_norm", lambda: nn.RMSNorm(6), lambda t: t.RMSNorm(6, eps=1e-6), (2, 3, 6)),
]  # fmt: skip


def randomised(layer: Any, random: np.random.Generator) -> dict[str, np.ndarray]:
    """Give every float parameter random values (norms start at ones and zeros); returns all values."""
    values = {}
    for name, tensor in get_state_dict(layer).items():
        if not tensor.dtype.is_float:
            values[name] = np.array(0)
            continue
        array = random.uniform(0.5, 1.5, tensor.shape).astype(np.float32)
        tensor.assign(Tensor(array)).realize()
        values[name] = array
    return values


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluating"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_values_gradients_and_names_are_torch_s(case: Case, training: bool) -> None:
    torch = torch_module()
    random = np.random.default_rng(0)
    ours, theirs = case.ours(), case.theirs(torch.nn).train(training)
    values = randomised(ours, random)
    assert list(theirs.state_dict()) == sorted(values, key=list(theirs.state_dict()).index)
    theirs.load_state_dict({name: torch.tensor(value) for name, value in values.items()})
    data = random.normal(size=case.shape).astype(np.float32)
    x, tx = Tensor(data), torch.tensor(data, requires_grad=True)
    with Tensor.train(training):
        y = ours(x)
        ty = theirs(tx)
        weights = random.normal(size=tuple(ty.shape)).astype(np.float32)
        trained = dict(theirs.named_parameters())
        own = get_state_dict(ours)
        found = (y * Tensor(weights)).sum().gradient(x, *(own[name] for name in trained))
    np.testing.assert_allclose(y.numpy(), ty.detach().numpy(), rtol=2e-4, atol=2e-5)
    (ty * torch.tensor(weights)).sum().backward()
    for mine, their in zip(found, [tx, *trained.values()], strict=True):
        np.testing.assert_allclose(mine.numpy(), their.grad.numpy(), rtol=2e-3, atol=2e-4)


def test_batch_norm_keeps_running_statistics() -> None:
    torch = torch_module()
    random = np.random.default_rng(1)
    ours, theirs = nn.BatchNorm(3, momentum=0.3), torch.nn.BatchNorm2d(3, momentum=0.3)
    with Tensor.train():
        for _ in range(3):
            data = random.normal(2, 3, (4, 3, 2, 2)).astype(np.float32)
            theirs(torch.tensor(data))
            ours(Tensor(data)).realize(*get_state_dict(ours).values())
    for name, value in theirs.state_dict().items():
        np.testing.assert_allclose(get_state_dict(ours)[name].numpy(), value.numpy(), rtol=1e-5, atol=1e-5)
    data = random.normal(size=(2, 3, 2, 2)).astype(np.float32)
    before = get_state_dict(ours)["running_mean"].numpy()
    np.testing.assert_allclose(
        ours(Tensor(data)).numpy(), theirs.eval()(torch.tensor(data)).detach().numpy(), rtol=1e-4, atol=1e-5
    )
    np.testing.assert_array_equal(get_state_dict(ours)["running_mean"].numpy(), before)


def test_layer_norm_2d_normalises_channels() -> None:
    x = np.random.default_rng(2).normal(size=(2, 3, 4, 5)).astype(np.float32)
    expected = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(nn.LayerNorm2d(3)(Tensor(x)).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_lstm_cell() -> None:
    torch = torch_module()
    random = np.random.default_rng(3)
    ours, theirs = nn.LSTMCell(3, 5), torch.nn.LSTMCell(3, 5)
    values = randomised(ours, random)
    theirs.load_state_dict({name: torch.tensor(value) for name, value in values.items()})
    x = random.normal(size=(2, 3)).astype(np.float32)
    hidden, cell = ours(Tensor(x))
    t_hidden, t_cell = theirs(torch.tensor(x))
    for _ in range(2):
        np.testing.assert_allclose(hidden.numpy(), t_hidden.detach().numpy(), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(cell.numpy(), t_cell.detach().numpy(), rtol=1e-4, atol=1e-5)
        hidden, cell = ours(Tensor(x), (hidden, cell))
        t_hidden, t_cell = theirs(torch.tensor(x), (t_hidden, t_cell))


def test_embedding() -> None:
    layer = nn.Embedding(7, 3)
    index = Tensor([[1, 6], [1, 0]])
    table = layer.weight.numpy()
    np.testing.assert_array_equal(layer(index).numpy(), table[[[1, 6], [1, 0]]])
    (found,) = layer(index).sum().gradient(layer.weight)
    np.testing.assert_array_equal(found.numpy()[:, 0], [1, 2, 0, 0, 0, 0, 1])
    with pytest.raises(DTypeError, match="float32"):
        layer(Tensor([1.0]))


def test_equal_layers_have_gradients_of_their_own() -> None:
    first, second = nn.LayerNorm(2), nn.LayerNorm(2)
    x = Tensor([[1.0, 2.0], [2.0, 0.0]])
    loss = (first(x) * 2 + second(x) * 3).sum()
    by_first, by_second = loss.gradient(first.bias, second.bias)
    assert by_first.tolist() == [4, 4] and by_second.tolist() == [6, 6]


@pytest.mark.parametrize("layer", [lambda: nn.Linear(100, 50), lambda: nn.Conv2d(4, 50, 5)])
def test_first_values_are_even_over_the_inverse_root_of_the_inputs(layer: Callable[[], Any]) -> None:
    Tensor.manual_seed(0)
    values = layer().weight.numpy()
    assert abs(values).max() <= 0.1001 and abs(values).max() > 0.095
    assert abs(values.mean()) < 0.005 and abs(values.std() - 0.1 / np.sqrt(3)) < 0.003


def test_norms_of_half_precision_are_computed_in_float32() -> None:
    x = Tensor(np.full((1, 4), 300.0, np.float16))  # the squares overflow half precision
    result = nn.RMSNorm(4, elementwise_affine=False)(x)
    assert result.dtype is dtypes.float16 and result.tolist() == [[1, 1, 1, 1]]


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ShapeError, match="BatchNorm"):
        nn.BatchNorm(3)(Tensor.ones(2, 4))
    with pytest.raises(ShapeError, match="LayerNorm"):
        nn.LayerNorm(3)(Tensor.ones(2, 4))
    with pytest.raises(ShapeError, match="GroupNorm"):
        nn.GroupNorm(1, 3)(Tensor.ones(2, 4, 2))
    with pytest.raises(ShapeError, match="stride"):
        nn.Conv2d(1, 1, 3, stride=(1, 1, 1))
    with pytest.raises(ArgumentError, match="num_groups=2"):
        nn.GroupNorm(2, 3)
    with pytest.raises(ArgumentError, match="groups=2"):
        nn.Conv2d(3, 4, 3, groups=2)
    with pytest.raises(ArgumentError, match="padding='full'"):
        nn.Conv2d(3, 4, 3, padding="full")
    with pytest.raises(ArgumentError, match="stride 1"):
        nn.Conv2d(3, 4, 3, padding="same", stride=2)


def test_state_of_a_torch_model_loads() -> None:
    torch = torch_module()

    class Model:
        def __init__(self) -> None:
            self.layers = [nn.Conv2d(1, 2, 3), nn.BatchNorm(2), Tensor.relu, lambda x: x.flatten(1), nn.Linear(8, 3)]

        def __call__(self, x: Tensor) -> Tensor:
            return x.sequential(self.layers)

    theirs = torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8, 3)
    ).eval()
    ours = Model()
    load_state_dict(ours, {f"layers.{name}": Tensor(value.numpy()) for name, value in theirs.state_dict().items()})
    x = np.random.default_rng(5).normal(size=(2, 1, 4, 4)).astype(np.float32)
    np.testing.assert_allclose(ours(Tensor(x)).numpy(), theirs(torch.tensor(x)).detach().numpy(), rtol=1e-4, atol=1e-5)
