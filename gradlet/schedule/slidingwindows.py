"""What the axes of a convolution are: windows that slide over an image, and the axes of a product that make them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gradlet.graph.node import UOp, mk
from gradlet.ops.op import Op, WindowArg
from gradlet.schedule import moves
from gradlet.schedule.affineviews import AffineView, Place
from gradlet.schedule.moves import expand_to


@dataclass(frozen=True)
class Roles:
    """What the axes of a product are.

    Attributes:
        shared: those of both factors.
        reduced: those that are summed over.
    """

    shared: frozenset[int]
    reduced: frozenset[int]

    def slide(self, one: int, other: int) -> bool:
        """Whether two axes of the image are pixels and taps: one of the result, the other of both factors, summed."""
        return self.summed(one) != self.summed(other) and self.own(one) != self.own(other)

    def summed(self, axis: int) -> bool:
        """Whether both factors have it and the result has not."""
        return axis in self.shared and axis in self.reduced

    def own(self, axis: int) -> bool:
        """Whether the image has it, and the result, and the other factor has not."""
        return axis not in self.shared and axis not in self.reduced


@dataclass(frozen=True)
class Window:
    """An axis of the image with two axes of the product sliding over it.

    Attributes:
        dim: the axis of the image.
        pixel, taps: the axes of the product.
        stride, dilation: their steps.
    """

    dim: int
    pixel: int
    taps: int
    stride: int
    dilation: int


def cut_apart(image: AffineView, roles: Roles) -> tuple[AffineView, dict[int, Window]] | None:
    """The windows by axis of the image, and the image with axes apart that it has as one; None where there is more."""
    axes = [axis for place in image.places for axis, _ in place.terms]
    if len(set(axes)) != len(axes):
        return None
    windows: dict[int, Window] = {}
    places: list[Place] = []
    sizes: list[int] = []
    for place, size in zip(image.places, image.base.shape, strict=True):
        if len(place.terms) < 2:
            places.append(place)
            sizes.append(size)
            continue
        (one, far), (other, near) = sorted(place.terms, key=lambda term: -term[1])
        if near == 1 and far == image.shape[other] and size == far * image.shape[one] and place.inside is None:
            places += [Place(((one, 1),)), Place(((other, 1),))]
            sizes += [image.shape[one], image.shape[other]]
        elif roles.slide(one, other):
            pixel, taps = sorted(place.terms, key=lambda term: -image.shape[term[0]])
            windows[len(places)] = Window(len(places), pixel[0], taps[0], pixel[1], taps[1])
            places.append(place)
            sizes.append(size)
        else:
            return None
    return image._replace(base=reshape(image.base, tuple(sizes)), places=tuple(places)), windows


def join_windows(
    image: AffineView, windows: dict[int, Window], roles: Roles
) -> tuple[AffineView, dict[int, Window]]:  # fmt: skip
    """Windows that touch without an overlap, which are two axes of the image, as one axis each."""
    places, sizes = list(image.places), list(image.base.shape)
    at = len(sizes) - 1
    found: list[tuple[int, int]] = []
    while not windows and at > 1:
        pixel, taps = places[at - 1], places[at]
        if not whole(pixel, sizes[at - 1], image.shape) or not whole(taps, sizes[at], image.shape):
            break
        outer = [axis for place in places[: at - 1] for axis, _ in place.terms]
        one, other = pixel.terms[0][0], taps.terms[0][0]
        alike = [a for a in outer if (roles.own(a), roles.summed(a)) == (roles.own(other), roles.summed(other))]
        if not roles.slide(one, other) or not alike:  # else it is a matrix
            break
        places[at - 1 : at + 1] = [pixel.times(sizes[at]).plus(taps)]
        sizes[at - 1 : at + 1] = [sizes[at - 1] * sizes[at]]
        found.append((one, other))
        at -= 2
    first = len(places) - len(found)
    joined = {
        first + at: Window(first + at, one, other, image.shape[other], 1) for at, (one, other) in enumerate(found[::-1])
    }
    return image._replace(base=reshape(image.base, tuple(sizes)), places=tuple(places)), windows or joined


def whole(place: Place, size: int, shape: Sequence[int]) -> bool:
    """Whether a place is one axis of the view, from its beginning to its end."""
    if len(place.terms) != 1 or place.offset or place.inside is not None:
        return False
    return place.terms[0][1] == 1 and shape[place.terms[0][0]] == size


def reshape(node: UOp, shape: tuple[int, ...]) -> UOp:
    """One RESHAPE where there were two."""
    return moves.reshape(node.src[0] if node.op is Op.RESHAPE else node, shape)


def slide(node: UOp, at: int, window: Window, shape: Sequence[int]) -> UOp:
    """The windows over one axis; the taps are the axis after it."""
    pixels, taps = shape[window.pixel], shape[window.taps]
    node = reshape(node, (*node.shape[: at + 1], 1, *node.shape[at + 1 :]))
    node = expand_to(node, (*node.shape[: at + 1], taps, *node.shape[at + 2 :]))
    return mk(Op.WINDOW, node.dtype, (node,), WindowArg(at, at + 1, window.stride, window.dilation, pixels))
