"""Networks for images against torch modules with the same weights."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra [oracle]")

from gradlet import Tensor, nn
from gradlet.models import efficientnet, resnet, unet, vit
from tests.models import oracle, reference

ROWS = [(1, 3, 1, 8, 1), (6, 5, 2, 8, 2), (6, 3, 1, 16, 1)]


@pytest.mark.slow
def test_resnet_of_basic_blocks() -> None:
    module = oracle.shaken(reference.ResNet(False, [1, 1, 1, 1], 5, 4))
    model = oracle.copied(resnet.ResNet(resnet.BasicBlock, (1, 1, 1, 1), 5, 4), module)
    x = oracle.random(2, 3, 33, 40)
    oracle.same(model(oracle.given(x)), module(x))


@pytest.mark.slow
def test_resnet_of_bottlenecks() -> None:
    module = oracle.shaken(reference.ResNet(True, [2, 1, 1, 2], 5, 4))
    model = oracle.copied(resnet.ResNet(resnet.Bottleneck, (2, 1, 1, 2), 5, 4), module)
    x = oracle.random(1, 3, 64, 33)
    oracle.same(model(oracle.given(x)), module(x))


@pytest.mark.slow
def test_a_step_of_training_a_resnet_is_that_of_torch() -> None:
    module = oracle.shaken(reference.ResNet(False, [1, 1, 1, 1], 5, 4)).train()
    model = oracle.copied(resnet.ResNet(resnet.BasicBlock, (1, 1, 1, 1), 5, 4), module)
    x, labels = oracle.random(4, 3, 64, 64), torch.tensor([0, 3, 1, 4])
    theirs = torch.optim.SGD(module.parameters(), lr=0.01)
    loss = torch.nn.functional.cross_entropy(module(x), labels)
    loss.backward()
    theirs.step()
    kept = ("running_mean", "running_var", "num_batches_tracked")
    named = nn.state.get_state_dict(model)
    ours = nn.optim.SGD([t for name, t in named.items() if name.rpartition(".")[2] not in kept], lr=0.01)
    with Tensor.train():
        mine = model(oracle.given(x)).sparse_categorical_crossentropy(Tensor(labels.numpy())).backward()
        ours.step()
    oracle.same(mine, loss)
    for name, value in module.state_dict().items():
        oracle.same(named[name], value, 1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("lite", [True, False])
def test_efficientnet(lite: bool) -> None:
    module = oracle.shaken(reference.EfficientNet(ROWS, 8, 24, 5, lite))
    form = efficientnet.Form(Tensor.relu6, squeeze=False, same=True, epsilon=1e-3) if lite else None
    model = efficientnet.EfficientNet([efficientnet.Stage(*row) for row in ROWS], 8, 24, 5, form)
    oracle.copied(model, module)
    x = oracle.random(2, 3, 18, 25)
    oracle.same(model(oracle.given(x)), module(x))


def test_names_of_lite_weights_are_told_apart() -> None:
    rename = efficientnet.lite_names()
    own = nn.state.get_state_dict(efficientnet.efficientnet_lite0())
    files = [f"_blocks.{n}.{part}" for n in range(16) for part in ("_depthwise_conv.weight", "_project_conv.weight")]
    files += [f"_blocks.{n}._expand_conv.weight" for n in range(1, 16)]
    files += [f"_blocks.{n}._bn{k}.bias" for n in range(16) for k in range(3) if n or k]
    files += ["_conv_stem.weight", "_conv_head.weight", "_bn0.bias", "_bn1.bias", "_fc.weight", "_fc.bias"]
    found = [rename(name) for name in files]
    assert sorted(found) == sorted(n for n in own if n.endswith((".weight", ".bias")) and not _scale(own, n))


def _scale(own: dict[str, Any], name: str) -> bool:
    return name.endswith(".weight") and own[name].ndim == 1


def test_vision_transformer() -> None:
    sizes = dict(size=32, patch=8, depth=2, heads=2, width=16, hidden=24, classes=5)
    module = oracle.shaken(reference.VisionTransformer(**sizes))
    model = oracle.copied(vit.VisionTransformer(**sizes), module, module.names)
    x = oracle.random(3, 3, 32, 32)
    oracle.same(model(oracle.given(x)), module(x))


@pytest.mark.slow
def test_unet_with_odd_sizes() -> None:
    module = oracle.shaken(reference.UNet(2, 3, 4))
    model = oracle.copied(unet.UNet(2, 3, 4), module)
    x = oracle.random(2, 2, 35, 50)
    oracle.same(model(oracle.given(x)), module(x))
