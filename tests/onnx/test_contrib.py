"""Operators of com.microsoft against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx", reason="needs the extra [onnx]")
from onnx import helper

from gradlet.onnx.runner import OnnxRunner

MS = "com.microsoft"
random = np.random.default_rng(0)


def f32(*shape: int) -> Any:
    return random.standard_normal(shape).astype(np.float32)


def run(op: str, outputs: int = 1, /, attributes: dict[str, Any] | None = None, **inputs: Any) -> list[Any]:
    """The outputs of one node."""
    names = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(
        op, [n if v is not None else "" for n, v in inputs.items()], names, domain=MS, **(attributes or {})
    )
    given = {n: v for n, v in inputs.items() if v is not None}
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for n, v in given.items()
    ]
    graph = helper.make_graph([node], "g", infos, [helper.make_tensor_value_info(n, 1, None) for n in names])
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 18), helper.make_opsetid(MS, 1)], ir_version=10
    )
    found = OnnxRunner(made)(given)
    return [None if found[n] is None else found[n].numpy() for n in names]


def close(got: Any, wanted: Any, atol: float = 1e-5) -> None:
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=atol)


def test_fast_gelu() -> None:
    x, b = f32(3, 5), f32(5)
    v = (x + b).astype(np.float64)
    close(run("FastGelu", x=x, b=b)[0], 0.5 * v * (1 + np.tanh(np.sqrt(2 / np.pi) * (v + 0.044715 * v**3))))


def test_skip_layer_normalization() -> None:
    x, skip, gamma, beta, bias = f32(2, 3, 4), f32(2, 3, 4), f32(4), f32(4), f32(4)
    total = x + skip + bias
    centred = total - total.mean(-1, keepdims=True)
    wanted = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * gamma + beta
    got = run("SkipLayerNormalization", 4, {"epsilon": 1e-5}, x=x, s=skip, g=gamma, b=beta, c=bias)
    close(got[0], wanted)
    close(got[3], total)


@pytest.mark.parametrize(("left", "right"), [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_fused_matmul(left: int, right: int) -> None:
    a, b = f32(2, 3, 4), f32(2, 4, 5)
    got = run("FusedMatMul", 1, {"alpha": 0.5, "transA": left, "transB": right},
              a=a.swapaxes(1, 2).copy() if left else a, b=b.swapaxes(1, 2).copy() if right else b)  # fmt: skip
    close(got[0], 0.5 * (a @ b))


@pytest.mark.parametrize("zero", [False, True])
def test_matmul_n_bits(zero: bool) -> None:
    k, n, block = 40, 3, 16
    codes = random.integers(0, 16, (n, 3, block)).astype(np.uint8)
    packed = codes[..., 0::2] | codes[..., 1::2] << 4
    scales = np.abs(f32(n * 3))
    zeros = random.integers(0, 16, (n, 4)).astype(np.uint8)
    offset = zeros[:, :3, None].astype(np.float32) if zero else 8.0
    weight = ((codes - offset) * scales.reshape(n, 3, 1)).reshape(n, -1)[:, :k]
    a = f32(2, k)
    given = {
        "a": a,
        "b": packed,
        "s": scales,
        "z": (zeros[:, 0::2] | zeros[:, 1::2] << 4).reshape(-1) if zero else None,
    }
    close(run("MatMulNBits", 1, {"K": k, "N": n, "bits": 4, "block_size": block}, **given)[0], a @ weight.T, 1e-4)


def test_dynamic_quantize_matmul_is_near() -> None:
    a, b = f32(4, 32), random.integers(-127, 128, (32, 6)).astype(np.int8)
    scale = np.array([0.02], np.float32)
    got = run("DynamicQuantizeMatMul", a=a, b=b, s=scale, z=np.array([0], np.int8), c=f32(6) * 0)
    assert np.abs(got[0] - a @ (b * scale)).max() < 0.4


def test_quantized_addition() -> None:
    a, b = (random.integers(0, 256, (5, 7)).astype(np.uint8) for _ in range(2))
    s, z = [np.float32(v) for v in (0.1, 0.2, 0.3)], [np.uint8(v) for v in (10, 20, 30)]
    got = run("QLinearAdd", a=a, sa=s[0], za=z[0], b=b, sb=s[1], zb=z[1], sc=s[2], zc=z[2])
    real = (a.astype(np.float32) - 10) * s[0] + (b.astype(np.float32) - 20) * s[1]
    assert np.abs(got[0].astype(int) - np.clip(np.rint(real / s[2]) + 30, 0, 255)).max() <= 1


def test_multi_head_attention() -> None:
    q, k, v = f32(2, 3, 8), f32(2, 5, 8), f32(2, 5, 8)
    mask = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]], np.int32)
    got = run("MultiHeadAttention", 1, {"num_heads": 2}, q=q, k=k, v=v, b=None, m=mask)[0]
    heads = [x.reshape(2, -1, 2, 4).transpose(0, 2, 1, 3) for x in (q, k, v)]
    scores = heads[0] @ heads[1].swapaxes(2, 3) / 2 + np.where(mask, 0, -10000.0)[:, None, None]
    shares = np.exp(scores - scores.max(-1, keepdims=True))
    wanted = shares / shares.sum(-1, keepdims=True) @ heads[2]
    close(got, wanted.transpose(0, 2, 1, 3).reshape(2, 3, 8))


def test_dynamic_quantize_lstm_is_the_lstm_of_its_weights() -> None:
    t, batch, size, hidden = 4, 2, 3, 5
    x = f32(t, batch, size)
    w = random.integers(-127, 128, (1, size, 4 * hidden)).astype(np.int8)
    r = random.integers(-127, 128, (1, hidden, 4 * hidden)).astype(np.int8)
    b = f32(1, 8 * hidden)
    s, z = np.array([0.01], np.float32), np.array([3], np.int8)
    got = run("DynamicQuantizeLSTM", 1, {"hidden_size": hidden}, x=x, w=w, r=r, b=b, n=None, h0=None, c0=None, p=None,
              ws=s, wz=z, rs=s, rz=z)[0]  # fmt: skip
    wide = [(m[0].astype(np.float64) - 3) * 0.01 for m in (w, r)]
    h, c = np.zeros((batch, hidden)), np.zeros((batch, hidden))
    for step in range(t):
        gates = x[step] @ wide[0] + h @ wide[1] + b[0, : 4 * hidden] + b[0, 4 * hidden :]
        i, o, f, g = np.split(gates, 4, axis=1)
        i, o, f = (1 / (1 + np.exp(-v)) for v in (i, o, f))
        c = f * c + i * np.tanh(g)
        h = o * np.tanh(c)
        close(got[step, 0], h)
