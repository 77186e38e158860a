"""Overlap of boxes and the choice among them against plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from gradlet import Tensor
from gradlet.models.boxes import overlaps, suppressed


def overlap(a: Any, b: Any) -> float:
    width = max(0.0, min(a[2], b[2]) - max(a[0], b[0]))
    height = max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    areas = [(c[2] - c[0]) * (c[3] - c[1]) for c in (a, b)]
    return width * height / (sum(areas) - width * height)


def plain(boxes: Any, scores: Any, labels: Any, most: float, least: float, limit: int) -> list[int]:
    kept: list[int] = []
    for i in sorted(range(len(boxes)), key=lambda i: -scores[i]):
        if scores[i] > least and all(labels[i] != labels[k] or overlap(boxes[i], boxes[k]) <= most for k in kept):
            kept.append(i)
    return kept[:limit]


@pytest.mark.slow
@pytest.mark.parametrize("limit", [3, 50])
def test_the_boxes_of_a_plain_loop(limit: int) -> None:
    random = np.random.default_rng(0)
    corners = random.random((40, 2)) * 10
    boxes = np.concatenate([corners, corners + 1 + random.random((40, 2)) * 6], 1).astype(np.float32)
    scores, labels = random.permutation(40).astype(np.float32) / 40, random.integers(0, 2, 40).astype(np.int32)
    found = suppressed(Tensor(boxes), Tensor(scores), Tensor(labels), 0.3, 0.2, limit)
    expected = plain(boxes, scores, labels, 0.3, 0.2, limit)
    assert [d.score for d in found] == [float(scores[i]) for i in expected]
    assert [d.label for d in found] == [int(labels[i]) for i in expected]
    assert np.allclose([d.box for d in found], boxes[expected])
    if limit > 3:
        table = overlaps(Tensor(boxes), Tensor(boxes[:7])).numpy()
        assert np.allclose(table, [[overlap(a, b) for b in boxes[:7]] for a in boxes], atol=1e-5)


def test_nothing_is_sure_enough() -> None:
    assert suppressed(Tensor([[0.0, 0.0, 1.0, 1.0]]), Tensor([0.1]), Tensor([0]), 0.5, 0.5, 10) == []
