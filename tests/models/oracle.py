"""Weights of torch modules in models of gradlet, and the comparison of what both compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gradlet import Tensor
from gradlet.models import weights


def shaken(module: Any, seed: int = 0) -> Any:
    """A torch module in evaluation mode with random weights and statistics, none of them trivial."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in module.state_dict().items():
        if not value.dtype.is_floating_point:
            continue
        noise = torch.randn(value.shape, generator=generator)
        if name.endswith("running_var"):
            value.copy_(noise.abs() + 0.5)
        elif value.ndim > 1:
            value.copy_(noise / max(1, value[0].numel()) ** 0.5)
        else:
            value.add_(0.1 * noise)
    return module.eval()


def tensors(module: Any) -> dict[str, Tensor]:
    """Its state dict with copies of the values."""
    return {name: Tensor(value.detach().numpy().copy()) for name, value in module.state_dict().items()}


def copied(model: Any, module: Any, rename: Callable[[str], str | None] | None = None) -> Any:
    """The model with the module's weights; fails unless their names and shapes agree."""
    return weights.load(model, tensors(module), rename)


def random(*shape: int, seed: int = 0) -> Any:
    """A torch tensor of normal values."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def given(value: Any) -> Tensor:
    """A torch tensor as one of gradlet."""
    return Tensor(value.detach().numpy())


def same(ours: Tensor, theirs: Any, relative: float = 1e-4) -> None:
    """Equal up to a share of the largest value."""
    expected = theirs.detach().numpy()
    assert ours.shape == expected.shape
    found = ours.numpy()
    assert np.isfinite(found).all()
    limit = relative * max(np.abs(expected).max(), 1e-6)
    assert np.abs(found - expected).max() <= limit, (np.abs(found - expected).max(), limit)
