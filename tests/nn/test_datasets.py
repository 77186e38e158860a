"""The bundled digits."""

from __future__ import annotations

import pytest

from gradlet.base.dtype import dtypes
from gradlet.base.errors import ArgumentError
from gradlet.nn.datasets import digits


def test_shapes_types_and_values() -> None:
    train_images, train_labels, test_images, test_labels = digits()
    assert train_images.shape == (1500, 1, 8, 8) and test_images.shape == (297, 1, 8, 8)
    assert train_images.dtype is dtypes.float32 and train_labels.dtype is dtypes.int32
    pixels = (train_images.numpy() * 16).reshape(-1)
    assert pixels.min() == 0 and pixels.max() == 16 and (pixels == pixels.round()).all()
    labels = train_labels.tolist() + test_labels.tolist()
    assert [labels.count(digit) for digit in range(10)] == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_the_seed_decides_the_split() -> None:
    first, again, other = digits(3), digits(3), digits(4)
    assert all(a.tolist() == b.tolist() for a, b in zip(first, again, strict=True))
    assert first[3].tolist() != other[3].tolist()


def test_no_image_is_in_both_parts_and_images_go_with_their_labels() -> None:
    images = {}
    for seed in (0, 1):
        parts = digits(seed, test=100)
        rows = [tuple(map(float, r)) for part in (parts[0], parts[2]) for r in part.numpy().reshape(-1, 64)]
        labels = parts[1].tolist() + parts[3].tolist()
        assert len(rows) == 1797
        images[seed] = sorted(zip(rows, labels, strict=True))
    assert images[0] == images[1]


@pytest.mark.parametrize("test", [0, 1797, -1])
def test_a_split_without_two_parts_is_refused(test: int) -> None:
    with pytest.raises(ArgumentError, match=f"test={test}"):
        digits(test=test)
