"""Memory for keys and values: what is written is read, and room for positions to come takes no memory."""

from __future__ import annotations

import resource
from pathlib import Path

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.llm.cache import Cache

HEADS, FEATURES = 3, 64


@pytest.mark.parametrize("start", [0, 5, 4089])
def test_positions_are_written_in_place_and_read_up_to_the_last(start: int) -> None:
    cache = Cache(HEADS, 4096, FEATURES)
    rng = np.random.default_rng(start)
    before = rng.standard_normal((HEADS, start, FEATURES)).astype(np.float32)
    new = rng.standard_normal((HEADS, 7, FEATURES)).astype(np.float32)
    if start:
        cache.append(Tensor(before), Tensor(-before), 0)
    keys, values = cache.append(Tensor(new), Tensor(-new), start)
    np.testing.assert_array_equal(keys.numpy(), np.concatenate([before, new], 1))
    np.testing.assert_array_equal(values.numpy(), -np.concatenate([before, new], 1))


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux says how much memory came")
def test_a_few_positions_bring_in_a_few_pages() -> None:
    """Of 64 layers for 16384 positions, 1.6 GB, which pages of two megabytes would bring in half of."""
    few = Tensor(np.ones((HEADS, 4, FEATURES), np.float32))
    layers = [Cache(HEADS, 16384, FEATURES) for _ in range(64)]
    layers[0].append(few, few, 0)[0].realize()  # compiled, too
    before = _resident()
    for layer in layers[1:]:
        keys, values = layer.append(few, few, 0)
        Tensor.realize(keys, values)
    assert _resident() - before < 64 * 2**20


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
