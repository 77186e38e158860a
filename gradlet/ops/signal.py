"""Composed mixin: windows for signals, made from nothing, computed in float64 and rounded once.

The five that torch has as functions of their own take `periodic`, as there; the others take `sym`, as those of
`torch.signal.windows`. A periodic window of n points is a symmetric one of n + 1 points without the last.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self

from gradlet.base.dtype import DType, dtypes, to_dtype
from gradlet.base.errors import ArgumentError, DTypeError
from gradlet.ops.arguments import integer, number
from gradlet.ops.bessel import BesselMixin
from gradlet.ops.index import IndexMixin

Type = DType | str | None


class SignalMixin(BesselMixin, IndexMixin):
    """Windows. `window_length` and `M` are numbers of points; 0 points are an empty window, 1 point is a 1."""

    __slots__ = ()

    @classmethod
    def _window_points(cls, name: str, points: Any, dtype: Type, device: str | None) -> tuple[Self, int, DType]:
        """0, 1, ... in float64, how many, and the type of the result.

        Raises:
            ArgumentError: a negative number of points, or no integer.
            DTypeError: not a float type.
        """
        count = integer(points, name, "the number of points", 0)
        own = dtypes.default_float if dtype is None else to_dtype(dtype)
        if not own.is_float:
            raise DTypeError(f"{name}: {own} is not a float type, and a window's points are fractions")
        return cls.positions(count, device).cast(dtypes.float64), count, own

    @classmethod
    def _cosines(
        cls, name: str, points: Any, factors: Sequence[float], sym: bool, dtype: Type, device: str | None
    ) -> Self:
        """factors[0] - factors[1] cos(x) + factors[2] cos(2 x) - ... over one turn."""
        position, count, own = cls._window_points(name, points, dtype, device)
        angle = position.mul(2 * math.pi / max(count - 1 if sym else count, 1))
        total = position.mul(0.0).add(float(factors[0]))
        for order, factor in enumerate(factors[1:], 1):
            total = total.add(angle.mul(float(order)).cos().mul((-1.0) ** order * factor))
        return (total if count != 1 else position.add(1.0)).cast(own)

    @classmethod
    def bartlett_window(
        cls, window_length: int, periodic: bool = True, *, dtype: Type = None, device: str | None = None
    ) -> Self:
        """Triangle: 1 - |2 k / (n - 1) - 1| for k = 0 ... n - 1.

        >>> Tensor.bartlett_window(5, periodic=False).tolist()
        [0.0, 0.5, 1.0, 0.5, 0.0]
        """
        position, count, own = cls._window_points("bartlett_window", window_length, dtype, device)
        end = max(count if periodic else count - 1, 1)
        height = position.mul(2 / end).sub(1.0).abs().neg().add(1.0)
        return (height if count != 1 else position.add(1.0)).cast(own)

    @classmethod
    def blackman_window(
        cls, window_length: int, periodic: bool = True, *, dtype: Type = None, device: str | None = None
    ) -> Self:
        """0.42 - 0.5 cos(x) + 0.08 cos(2 x) with x = 2 pi k / (n - 1).

        >>> [round(abs(v), 4) for v in Tensor.blackman_window(5, periodic=False).tolist()]
        [0.0, 0.34, 1.0, 0.34, 0.0]
        """
        return cls._cosines("blackman_window", window_length, (0.42, 0.5, 0.08), not periodic, dtype, device)

    @classmethod
    def hamming_window(
        cls, window_length: int, periodic: bool = True, alpha: float = 0.54, beta: float = 0.46, *, dtype: Type = None,
        device: str | None = None,
    ) -> Self:  # fmt: skip
        """alpha - beta cos(x) with x = 2 pi k / (n - 1).

        >>> [round(v, 4) for v in Tensor.hamming_window(3, periodic=False).tolist()]
        [0.08, 1.0, 0.08]
        """
        factors = number(alpha, "hamming_window", "alpha"), number(beta, "hamming_window", "beta")
        return cls._cosines("hamming_window", window_length, factors, not periodic, dtype, device)

    @classmethod
    def hann_window(
        cls, window_length: int, periodic: bool = True, *, dtype: Type = None, device: str | None = None
    ) -> Self:
        """(1 - cos(x)) / 2 with x = 2 pi k / (n - 1).

        >>> [round(v, 4) for v in Tensor.hann_window(4).tolist()]
        [0.0, 0.5, 1.0, 0.5]
        """
        return cls._cosines("hann_window", window_length, (0.5, 0.5), not periodic, dtype, device)

    @classmethod
    def kaiser_window(
        cls, window_length: int, periodic: bool = True, beta: float = 12.0, *, dtype: Type = None,
        device: str | None = None,
    ) -> Self:  # fmt: skip
        """I0(beta sqrt(1 - x**2)) / I0(beta) with x = 2 k / (n - 1) - 1.

        Args:
            beta: shape; the higher, the narrower.

        Raises:
            ArgumentError: beta is negative.

        >>> [round(v, 4) for v in Tensor.kaiser_window(3, periodic=False, beta=1.0).tolist()]
        [0.7898, 1.0, 0.7898]
        """
        position, count, own = cls._window_points("kaiser_window", window_length, dtype, device)
        shape = float(_not_negative(beta, "kaiser_window", "beta"))
        end = max(count if periodic else count - 1, 1)
        x = position.mul(2 / end).sub(1.0)
        inside = x.neg().add(1.0).mul(x.add(1.0)).maximum(0.0).sqrt().mul(shape)
        # Both scaled, so that a large beta does not overflow.
        scaled = inside.i0e().mul(inside.sub(shape).exp()).fdiv(position.constant_like(shape).i0e())
        return (scaled if count != 1 else position.add(1.0)).cast(own)

    @classmethod
    def cosine_window(cls, M: int, *, sym: bool = True, dtype: Type = None, device: str | None = None) -> Self:
        """sin(pi (k + 1/2) / n) for k = 0 ... n - 1.

        >>> [round(v, 4) for v in Tensor.cosine_window(3).tolist()]
        [0.5, 1.0, 0.5]
        """
        position, count, own = cls._window_points("cosine_window", M, dtype, device)
        height = position.add(0.5).mul(math.pi / max(count if sym else count + 1, 1)).sin()
        return (height if count != 1 else position.add(1.0)).cast(own)

    @classmethod
    def exponential_window(
        cls, M: int, *, center: float | None = None, tau: float = 1.0, sym: bool = True, dtype: Type = None,
        device: str | None = None,
    ) -> Self:  # fmt: skip
        """e**(-|k - center| / tau) for k = 0 ... n - 1.

        Args:
            center: position of the peak, the middle when None; only for periodic windows.
            tau: how slowly it decays.

        Raises:
            ArgumentError: tau is not positive, or a center is given for a symmetric window.

        >>> [round(v, 4) for v in Tensor.exponential_window(3).tolist()]
        [0.3679, 1.0, 0.3679]
        """
        position, count, own = cls._window_points("exponential_window", M, dtype, device)
        decay = _positive(tau, "exponential_window", "tau")
        if sym and center is not None:
            raise ArgumentError(f"exponential_window: a symmetric window has its center in the middle, got {center}")
        middle = (count if not sym and count > 1 else count - 1) / 2
        peak = middle if center is None else number(center, "exponential_window", "center")
        return position.sub(float(peak)).abs().mul(-1 / decay).exp().cast(own)

    @classmethod
    def gaussian_window(
        cls, M: int, *, std: float = 1.0, sym: bool = True, dtype: Type = None, device: str | None = None
    ) -> Self:
        """e**(-x**2 / 2) with x = (k - middle) / std.

        Raises:
            ArgumentError: std is not positive.

        >>> [round(v, 4) for v in Tensor.gaussian_window(3).tolist()]
        [0.6065, 1.0, 0.6065]
        """
        position, count, own = cls._window_points("gaussian_window", M, dtype, device)
        width = _positive(std, "gaussian_window", "std")
        middle = (count if not sym and count > 1 else count - 1) / 2
        x = position.sub(middle).mul(1 / width)
        return x.mul(x).mul(-0.5).exp().cast(own)

    @classmethod
    def general_cosine_window(
        cls, M: int, *, a: Sequence[float], sym: bool = True, dtype: Type = None, device: str | None = None
    ) -> Self:
        """a[0] - a[1] cos(x) + a[2] cos(2 x) - ... with x = 2 pi k / (n - 1).

        Raises:
            ArgumentError: no factors, or something that is no number.

        >>> [round(v, 4) for v in Tensor.general_cosine_window(3, a=[0.5, 0.5]).tolist()]
        [0.0, 1.0, 0.0]
        """
        if not isinstance(a, (list, tuple)) or not a:
            raise ArgumentError(f"general_cosine_window: a must be a list of one factor or more, got {a!r}")
        factors = [number(f, "general_cosine_window", "a") for f in a]
        return cls._cosines("general_cosine_window", M, factors, sym, dtype, device)

    @classmethod
    def general_hamming_window(
        cls, M: int, *, alpha: float = 0.54, sym: bool = True, dtype: Type = None, device: str | None = None
    ) -> Self:
        """alpha - (1 - alpha) cos(x) with x = 2 pi k / (n - 1).

        >>> [round(v, 4) for v in Tensor.general_hamming_window(3, alpha=0.6).tolist()]
        [0.2, 1.0, 0.2]
        """
        share = number(alpha, "general_hamming_window", "alpha")
        return cls._cosines("general_hamming_window", M, (share, 1.0 - share), sym, dtype, device)

    @classmethod
    def nuttall_window(cls, M: int, *, sym: bool = True, dtype: Type = None, device: str | None = None) -> Self:
        """Nuttall's four cosine terms with the lowest sidelobes (Nuttall 1981, "Some windows with very good sidelobe
        behavior").

        >>> [round(v, 4) for v in Tensor.nuttall_window(3).tolist()]
        [0.0004, 1.0, 0.0004]
        """
        factors = (0.3635819, 0.4891775, 0.1365995, 0.0106411)
        return cls._cosines("nuttall_window", M, factors, sym, dtype, device)


def _positive(value: Any, what: str, name: str) -> float:
    found = float(number(value, what, name))
    if not 0 < found < math.inf:
        raise ArgumentError(f"{what}: {name} must be positive and finite, got {value}")
    return found


def _not_negative(value: Any, what: str, name: str) -> float:
    found = float(number(value, what, name))
    if not 0 <= found < math.inf:
        raise ArgumentError(f"{what}: {name} must be finite and not negative, got {value}")
    return found
