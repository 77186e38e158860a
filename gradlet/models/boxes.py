"""Boxes of detectors: overlap, and the choice of one box among many for the same thing."""

from __future__ import annotations

from typing import NamedTuple

from gradlet.tensor.tensor import Tensor


class Detection(NamedTuple):
    """A thing in an image: its left, top, right and bottom in pixels, how sure the network is, and its class."""

    box: tuple[float, float, float, float]
    score: float
    label: int


def overlaps(one: Tensor, other: Tensor) -> Tensor:
    """Shared area over joint area of boxes [n, 4] and [m, 4]: [n, m].

    >>> overlaps(Tensor([[0.0, 0.0, 2.0, 2.0]]), Tensor([[1.0, 0.0, 2.0, 2.0]])).tolist()
    [[0.5]]
    """
    one, other = one.unsqueeze(1), other.unsqueeze(0)
    sides = (one[..., 2:].minimum(other[..., 2:]) - one[..., :2].maximum(other[..., :2])).relu()
    shared = sides[..., 0] * sides[..., 1]
    return shared / (_area(one) + _area(other) - shared)


def _area(boxes: Tensor) -> Tensor:
    return (boxes[..., 2] - boxes[..., 0]) * (boxes[..., 3] - boxes[..., 1])


def suppressed(
    boxes: Tensor, scores: Tensor, labels: Tensor, overlap: float, least: float, limit: int
) -> list[Detection]:
    """The surest boxes, without those that overlap a surer one of their class by more than `overlap`.

    Args:
        boxes: [n, 4].
        scores, labels: [n].
        least: scores below it are left out.
        limit: how many boxes are returned at most.

    >>> boxes = Tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 1.9], [5.0, 5.0, 6.0, 6.0]])
    >>> [d.score for d in suppressed(boxes, Tensor([0.5, 0.75, 0.25]), Tensor([1, 1, 1]), 0.5, 0.1, 10)]
    [0.75, 0.25]
    """
    import numpy as np

    chosen = np.flatnonzero(scores.numpy() > least)
    order = chosen[np.argsort(-scores.numpy()[chosen], kind="stable")][: 10 * limit]
    if not len(order):
        return []
    numbers = Tensor(order.astype(np.int32))
    boxes, scores, labels = boxes[numbers], scores[numbers], labels[numbers]
    same = labels.unsqueeze(1) == labels.unsqueeze(0)
    close = ((overlaps(boxes, boxes) > overlap) & same).numpy()
    gone = np.zeros(len(order), bool)
    kept: list[int] = []
    for place in range(len(order)):
        if not gone[place] and len(kept) < limit:
            kept.append(place)
            gone |= close[place]
    rows = zip(boxes.tolist(), scores.tolist(), labels.tolist())
    found = [Detection(tuple(box), score, int(label)) for box, score, label in rows]
    return [found[place] for place in kept]
