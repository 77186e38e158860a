"""Signals: Fourier transforms as matrix products, windows, mel filters.

Source: the pages of these operators in the ONNX specification, "Operators" of domain ai.onnx.
"""

from __future__ import annotations

import numpy as np

from gradlet.onnx.elements import numpy_type
from gradlet.onnx.registry import operator
from gradlet.onnx.runner import Call
from gradlet.onnx.values import Array, Number
from gradlet.tensor.tensor import Tensor


def _waves(length: int, inverse: bool, dtype: str) -> tuple[Array, Array]:
    """Cosines and sines of the transform: element (n, k) turns by n * k parts of the circle."""
    turn = np.arange(length)
    angle = 2 * np.pi * (np.outer(turn, turn) % length) / length
    return np.cos(angle).astype(dtype), (np.sin(angle) * (1 if inverse else -1)).astype(dtype)


@operator("DFT", until=19)
def dft_17(
    call: Call, x: Tensor, dft_length: Number = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0
) -> Tensor:
    """The discrete Fourier transform along an axis that the file holds."""
    return _dft(call, x, dft_length, axis, inverse, onesided)


@operator("DFT", since=20)
def dft(
    call: Call, x: Tensor, dft_length: Number = None, axis: Number = -2, *, inverse: int = 0, onesided: int = 0
) -> Tensor:
    """The discrete Fourier transform along an axis."""
    return _dft(call, x, dft_length, -2 if axis is None else int(axis), inverse, onesided)


def _dft(call: Call, x: Tensor, dft_length: float | None, axis: int, inverse: int, onesided: int) -> Tensor:
    at = axis % x.ndim
    real = inverse and onesided
    have = x.shape[at]
    length = int(dft_length) if dft_length is not None else 2 * (have - 1) if real else have
    moved = x.transpose(at, x.ndim - 2) if at != x.ndim - 2 else x
    if real:
        # The other half of the spectrum is its mirror image, conjugated.
        kept = moved[..., : length // 2 + 1, :]
        mirror = kept[..., 1 : (length + 1) // 2, :].flip(kept.ndim - 2)
        sign = call.constant(np.array([1, -1], np.float32)).cast(x.dtype)
        moved = kept.cat(mirror * sign, dim=kept.ndim - 2)
    elif length > have:
        moved = moved.pad([(0, 0)] * (x.ndim - 2) + [(0, length - have), (0, 0)])
    else:
        moved = moved[..., :length, :]
    cosine, sine = (call.constant(w).cast(x.dtype) for w in _waves(length, bool(inverse), "float64"))
    bins = length // 2 + 1 if onesided and not inverse else length
    cosine, sine = cosine[:, :bins], sine[:, :bins]
    a = moved[..., 0]
    first, second = a.matmul(cosine), a.matmul(sine)
    if moved.shape[-1] == 2:
        b = moved[..., 1]
        first, second = first - b.matmul(sine), second + b.matmul(cosine)
    result = first.unsqueeze(-1) if real else first.stack(second, dim=first.ndim)
    if inverse:
        result = result / length
    return result.transpose(at, x.ndim - 2) if at != x.ndim - 2 else result


@operator("STFT")
def stft(
    call: Call, signal: Tensor, frame_step: Number, window: Tensor | None = None, frame_length: Number = None, *,
    onesided: int = 1,
) -> Tensor:  # fmt: skip
    """Fourier transforms of windows that slide over a signal."""
    complex_signal = signal.ndim == 3 and signal.shape[2] == 2
    length = int(frame_length) if frame_length is not None else window.shape[0] if window is not None else 0
    if not length:
        raise call.error("it has neither a window nor a frame length")
    step = int(frame_step)
    cosine, sine = (call.constant(w).cast(signal.dtype) for w in _waves(length, False, "float64"))
    bins = length // 2 + 1 if onesided else length
    cosine, sine = cosine[:, :bins], sine[:, :bins]
    if window is not None:
        cosine, sine = cosine * window.reshape(-1, 1), sine * window.reshape(-1, 1)
    parts = [signal[..., k] for k in range(2 if complex_signal else 1)] if signal.ndim == 3 else [signal]
    frames = [p.unfold(1, length, step) for p in parts]
    real, imaginary = frames[0].matmul(cosine), frames[0].matmul(sine)
    if complex_signal:
        real, imaginary = real - frames[1].matmul(sine), imaginary + frames[1].matmul(cosine)
    return real.stack(imaginary, dim=3)


def _window(name: str, parts: tuple[float, ...]) -> None:
    @operator(name)
    def apply(size: Number, *, output_datatype: int = 1, periodic: int = 1) -> Array:
        count = int(size)
        angle = 2 * np.pi * np.arange(count) / (count if periodic else max(1, count - 1))
        total = sum(part * np.cos(k * angle) for k, part in enumerate(parts))
        return np.asarray(total).astype(numpy_type(output_datatype))


_window("HannWindow", (0.5, -0.5))
_window("HammingWindow", (25 / 46, -21 / 46))
_window("BlackmanWindow", (0.42, -0.5, 0.08))


@operator("MelWeightMatrix")
def mel_weight_matrix(
    num_mel_bins: Number, dft_length: Number, sample_rate: Number, lower: Number, upper: Number, *,
    output_datatype: int = 1,
) -> Array:  # fmt: skip
    """Triangles that are evenly spaced in mel, over the bins of a spectrum."""
    count, bins = int(num_mel_bins), int(dft_length) // 2 + 1
    low, high = (2595 * np.log10(1 + f / 700) for f in (lower, upper))
    mel = np.arange(count + 2) * ((high - low) / (count + 2)) + low
    edges = np.floor((dft_length + 1) * (700 * (10 ** (mel / 2595) - 1)) / sample_rate).astype(np.int64)
    result = np.zeros((bins, count))
    for i in range(count):
        left, middle, right = edges[i : i + 3]
        if middle == left:
            result[middle, i] = 1
        else:
            for j in range(left, middle + 1):
                result[j, i] = (j - left) / (middle - left)
        if right > middle:
            for j in range(middle, right):
                result[j, i] = (right - j) / (right - middle)
    return result.astype(numpy_type(output_datatype))
