"""Small data sets that come with the package."""

from __future__ import annotations

import gzip
import random
import struct
from functools import cache
from pathlib import Path

from gradlet.base.dtype import dtypes
from gradlet.base.errors import ArgumentError, FileFormatError
from gradlet.nn.parameter import from_bytes
from gradlet.ops.arguments import integer
from gradlet.tensor.tensor import Tensor

_MAGIC = b"DIGITS01"


@cache
def _read_digits() -> tuple[list[bytes], bytes]:
    """Images (bytes of pixels, 0..16) and labels of the bundled file, in its order."""
    path = Path(__file__).parent / "data" / "digits.bin.gz"
    content = gzip.decompress(path.read_bytes())
    count, rows, columns = struct.unpack_from("<III", content, len(_MAGIC))
    start, pixels = len(_MAGIC) + 12, rows * columns
    if content[: len(_MAGIC)] != _MAGIC or len(content) != start + count * (pixels + 1):
        raise FileFormatError(f"{path}: damaged; install gradlet again")
    images = [content[start + i * pixels : start + (i + 1) * pixels] for i in range(count)]
    return images, content[start + count * pixels :]


def digits(seed: int = 0, test: int = 297, device: str | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Handwritten digits: 1,797 grey images of 8x8 pixels, shuffled by `seed` and split.

    The test set of the UCI "Optical Recognition of Handwritten Digits" (E. Alpaydin, C. Kaynak, 1998, CC BY 4.0,
    doi 10.24432/C50P49). The same seed gives the same split everywhere.

    Args:
        seed: which shuffle.
        test: how many images are kept for testing.
        device: where the tensors live.

    Returns:
        Training images, training labels, test images, test labels. Images are float32 of shape (n, 1, 8, 8) with
        values 0..1, labels int32 of shape (n,) with values 0..9.

    >>> from gradlet.nn.datasets import digits
    >>> [t.shape for t in digits()]
    [(1500, 1, 8, 8), (1500,), (297, 1, 8, 8), (297,)]
    """
    images, labels = _read_digits()
    if not 0 < integer(test, "digits", "test") < len(images):
        raise ArgumentError(f"test={test} must be above 0 and below the {len(images)} images there are")
    order = list(range(len(images)))
    random.Random(seed).shuffle(order)
    split = len(order) - test
    parts: list[Tensor] = []
    for chosen in (order[:split], order[split:]):
        pixels = [value / 16 for number in chosen for value in images[number]]
        parts.append(
            from_bytes(struct.pack(f"<{len(pixels)}f", *pixels), dtypes.float32, (len(chosen), 1, 8, 8), device)
        )
        answers = [labels[number] for number in chosen]
        parts.append(from_bytes(struct.pack(f"<{len(answers)}i", *answers), dtypes.int32, (len(chosen),), device))
    return parts[0], parts[1], parts[2], parts[3]
