"""Casts by name, and what only complex numbers have."""

from __future__ import annotations

from typing import Any

from gradlet import Tensor
from gradlet.base.dtype import DType

T = Tensor


def _to(x: Any, *args: Any, **kwargs: Any) -> Any:
    if args and isinstance(args[0], (DType, Tensor)):  # (what, non_blocking, copy)
        return x.to(args[0], None, *args[1:], **kwargs)
    return x.to(*args, **kwargs)


MAPPING: dict[str, Any] = {
    "bfloat16": T.bfloat16, "bool": T.bool, "byte": T.byte, "char": T.char, "double": T.double, "float": T.float,
    "half": T.half, "int": T.int, "long": T.long, "short": T.short, "to": _to,
    "conj": T.conj, "conj_physical": T.conj_physical, "resolve_conj": T.resolve_conj, "resolve_neg": T.resolve_neg,
    "real": lambda x: x.real,
}  # fmt: skip

_COMPLEX = "complex numbers: there is no such type, a pair of real tensors takes their place"
REASONS: dict[str, str] = dict.fromkeys(
    (
        "cdouble", "cfloat", "chalf", "complex", "imag", "polar", "view_as_complex", "view_as_real", "stft", "istft",
        "fft.fft", "fft.fft2", "fft.fftn", "fft.hfft", "fft.hfft2", "fft.hfftn", "fft.ifft", "fft.ifft2", "fft.ifftn",
        "fft.ihfft", "fft.ihfft2", "fft.ihfftn", "fft.irfft", "fft.irfft2", "fft.irfftn", "fft.rfft", "fft.rfft2",
        "fft.rfftn",
    ),
    _COMPLEX,
)  # fmt: skip
