"""Special functions and signal windows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gradlet import Tensor
from gradlet.ops.movement import operand

NAMES = (
    "airy_ai", "bessel_j0", "bessel_j1", "bessel_y0", "bessel_y1", "chebyshev_polynomial_t",
    "chebyshev_polynomial_u", "chebyshev_polynomial_v", "chebyshev_polynomial_w", "entr", "erfcx",
    "hermite_polynomial_h", "hermite_polynomial_he", "i0e", "i1", "i1e", "laguerre_polynomial_l",
    "legendre_polynomial_p", "log_ndtr", "modified_bessel_i0", "modified_bessel_i1", "modified_bessel_k0",
    "modified_bessel_k1", "ndtr", "ndtri", "scaled_modified_bessel_k0", "scaled_modified_bessel_k1",
    "shifted_chebyshev_polynomial_t", "shifted_chebyshev_polynomial_u", "shifted_chebyshev_polynomial_v",
    "shifted_chebyshev_polynomial_w", "spherical_bessel_j0", "xlog1py", "zeta",
)  # fmt: skip


def _method(name: str) -> Callable[..., Any]:
    """A method as a function, which refuses what is no tensor."""

    def call(x: Any, *args: Any) -> Any:
        return getattr(operand(x, name, "input"), name)(*args)

    return call


def _polygamma(x: Tensor, order: int) -> Tensor:
    return x.polygamma(order)


MAPPING: dict[str, Callable[..., Any]] = {
    **{f"special.{name}": _method(name) for name in NAMES},
    "digamma": Tensor.digamma,
    "erfc": Tensor.erfc,
    "erfinv": Tensor.erfinv,
    "i0": Tensor.i0,
    "igamma": _method("igamma"),
    "igammac": _method("igammac"),
    "lgamma": Tensor.lgamma,
    "mvlgamma": Tensor.mvlgamma,
    "polygamma": _polygamma,
    "special.polygamma": _polygamma,
}
REASONS: dict[str, str] = {}


def _windows(own: Callable[..., Any]) -> Callable[..., Any]:
    """A window with torch's `sym` as `periodic`."""

    def call(points: int, *, sym: bool = True, **rest: Any) -> Any:
        return own(points, periodic=not sym, **rest)

    return call


MAPPING |= {
    "signal.windows.bartlett": _windows(Tensor.bartlett_window),
    "signal.windows.blackman": _windows(Tensor.blackman_window),
    "signal.windows.cosine": Tensor.cosine_window,
    "signal.windows.exponential": Tensor.exponential_window,
    "signal.windows.gaussian": Tensor.gaussian_window,
    "signal.windows.general_cosine": Tensor.general_cosine_window,
    "signal.windows.general_hamming": Tensor.general_hamming_window,
    "signal.windows.hamming": _windows(Tensor.hamming_window),
    "signal.windows.hann": _windows(Tensor.hann_window),
    "signal.windows.kaiser": _windows(Tensor.kaiser_window),
    "signal.windows.nuttall": Tensor.nuttall_window,
}
