"""More peers: torch compiled and with channels last, jax, numpy, onnxruntime, OpenVINO, and how fast memory is read.

Each is a class like those in frameworks.py. ONNX peers get a graph with the weights inside, as they are meant to.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import cases
import numpy as np
from frameworks import THREADS, TorchApi


class CompiledTorch(TorchApi):
    """torch.compile (inductor)."""

    def over(self, f: Callable[..., Any], inputs: list[Any]) -> cases.Run:
        return super().over(self.torch.compile(f, dynamic=False), inputs)

    def trained(self, loss_of: Callable[..., Any]) -> Callable[..., Any]:
        compiled: Callable[..., Any] = self.torch.compile(loss_of, dynamic=False)
        return compiled


class ChannelsLastTorch(TorchApi):
    """torch eager with images kept channels last, the conversion outside what is timed."""

    def convolution(self, x: np.ndarray, weight: np.ndarray, **settings: int) -> cases.Run:
        return self.over(lambda a, w: self.conv2d(a, w, **settings), [self.weight(x), self.weight(weight)])

    def weight(self, array: np.ndarray) -> Any:
        tensor = self.torch.from_numpy(array)
        return tensor.contiguous(memory_format=self.torch.channels_last) if array.ndim == 4 else tensor


class JaxApi:
    """jax.jit."""

    def __init__(self) -> None:
        import jax

        self.jax, self.np = jax, jax.numpy

    def describe(self) -> dict[str, Any]:
        return {"version": self.jax.__version__, "device": self.jax.devices()[0].platform, "threads": THREADS}

    def function(self, f: Callable[..., Any], *arrays: np.ndarray) -> cases.Run:
        return self.over(f, [self.np.asarray(a) for a in arrays])

    def narrow_function(self, f: Callable[..., Any], *arrays: np.ndarray) -> cases.Run:
        return self.over(f, [self.np.asarray(a).astype(self.np.bfloat16) for a in arrays])

    def over(self, f: Callable[..., Any], inputs: list[Any]) -> cases.Run:
        jitted = self.jax.jit(f)
        return lambda: self.jax.block_until_ready(jitted(*inputs))

    def softmax(self, x: Any) -> Any:
        return self.jax.nn.softmax(x, -1)

    def layer_norm(self, x: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        return centred * self.jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)

    def cumsum(self, x: Any) -> Any:
        return x.cumsum(1)

    def stored(self, x: Any) -> Any:
        return x

    def rows(self, table: Any, numbers: Any) -> Any:
        return table[numbers]

    def relu(self, x: Any) -> Any:
        return self.jax.nn.relu(x)

    def tanh(self, x: Any) -> Any:
        return self.np.tanh(x)

    def convolution(self, x: np.ndarray, weight: np.ndarray, stride: int, padding: int, groups: int) -> cases.Run:
        def f(a: Any, w: Any) -> Any:
            pads = [(padding, padding)] * 2
            return self.jax.lax.conv_general_dilated(a, w, (stride, stride), pads, feature_group_count=groups)

        return self.function(f, x, weight)

    def values(self, result: Any) -> np.ndarray:
        first = result[0] if isinstance(result, tuple) else result
        return np.asarray(first.astype(self.np.float32))


class NumpyApi:
    """numpy."""

    def describe(self) -> dict[str, Any]:
        return {"version": np.__version__, "device": "cpu", "threads": THREADS}

    def function(self, f: Callable[..., Any], *arrays: np.ndarray) -> cases.Run:
        return lambda: f(*arrays)

    def cumsum(self, x: Any) -> Any:
        return np.cumsum(x, 1)

    def stored(self, x: Any) -> Any:
        return np.ascontiguousarray(x)

    def rows(self, table: Any, numbers: Any) -> Any:
        return table.take(numbers, 0)

    def values(self, result: Any) -> np.ndarray:
        return np.asarray(result)


class Symbol:
    """A value of an ONNX graph that is being built."""

    def __init__(self, graph: OnnxGraph, name: str) -> None:
        self.graph, self.name = graph, name

    def __matmul__(self, other: Symbol) -> Symbol:
        return self.graph.node("MatMul", self, other)

    def __add__(self, other: Symbol) -> Symbol:
        return self.graph.node("Add", self, other)

    @property
    def T(self) -> Symbol:
        return self.graph.node("Transpose", self, perm=[1, 0])


class OnnxGraph:
    """Nodes and weights in the order they were made."""

    def __init__(self) -> None:
        import onnx

        self.onnx = onnx
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def constant(self, array: np.ndarray) -> Symbol:
        name = f"w{len(self.weights)}"
        self.weights.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
        return Symbol(self, name)

    def node(self, kind: str, *inputs: Symbol, **attributes: Any) -> Symbol:
        name = f"v{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(kind, [i.name for i in inputs], [name], **attributes))
        return Symbol(self, name)

    def model(self, output: Symbol, inputs: dict[str, np.ndarray]) -> bytes:
        """The serialized model; shapes of inputs are fixed."""
        helper, kind = self.onnx.helper, self.onnx.TensorProto.FLOAT
        given = [helper.make_tensor_value_info(n, kind, a.shape) for n, a in inputs.items()]
        wanted = [helper.make_tensor_value_info(output.name, kind, None)]
        graph = helper.make_graph(self.nodes, "case", given, wanted, self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        data: bytes = self.onnx.shape_inference.infer_shapes(model).SerializeToString()
        return data


class OnnxApi:
    """What both ONNX runtimes share: the first array is the input, the others are weights inside the graph."""

    def function(self, f: Callable[..., Any], *arrays: np.ndarray) -> cases.Run:
        self.graph = OnnxGraph()
        weights = [self.graph.constant(a) for a in arrays[1:]]
        output = f(Symbol(self.graph, "x"), *weights)
        return self.session(self.graph.model(output, {"x": arrays[0]}), arrays[0])

    def model(self, forward: Callable[..., Any], x: np.ndarray, weights: list[np.ndarray]) -> cases.Run:
        return self.function(lambda a, *held: forward(a, list(held)), x, *weights)

    def session(self, model: bytes, x: np.ndarray) -> cases.Run:
        raise NotImplementedError

    def constant(self, array: np.ndarray) -> Symbol:
        return self.graph.constant(array)

    def conv2d(
        self, x: Symbol, weight: Symbol, bias: Symbol | None = None, stride: int = 1, padding: int = 0, groups: int = 1
    ) -> Symbol:
        operands = (x, weight) if bias is None else (x, weight, bias)
        return self.graph.node("Conv", *operands, strides=[stride] * 2, pads=[padding] * 4, group=groups)

    def relu(self, x: Symbol) -> Symbol:
        return self.graph.node("Relu", x)

    def linear(self, x: Symbol, weight: Symbol, bias: Symbol) -> Symbol:
        return self.graph.node("Gemm", x, weight, bias, transB=1)

    def window_max(self, x: Symbol) -> Symbol:
        return self.graph.node("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)

    def pixel_mean(self, x: Symbol) -> Symbol:
        return self.graph.node("Flatten", self.graph.node("GlobalAveragePool", x))

    def convolution(self, x: np.ndarray, weight: np.ndarray, **settings: int) -> cases.Run:
        return self.function(lambda a, w: self.conv2d(a, w, **settings), x, weight)

    def values(self, result: Any) -> np.ndarray:
        return np.asarray(result)


class OnnxRuntime(OnnxApi):
    """onnxruntime."""

    def describe(self) -> dict[str, Any]:
        import onnxruntime

        return {"version": onnxruntime.__version__, "device": "cpu", "threads": THREADS}

    def session(self, model: bytes, x: np.ndarray) -> cases.Run:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = THREADS, 1
        options.add_session_config_entry("session.force_spinning_stop", "1")  # its threads would spin beside others
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return lambda: session.run(None, {"x": x})[0]


class OpenVino(OnnxApi):
    """OpenVINO, precision kept at float32."""

    def describe(self) -> dict[str, Any]:
        import openvino

        return {"version": openvino.__version__.split("-")[0], "device": "cpu", "threads": THREADS}

    def session(self, model: bytes, x: np.ndarray) -> cases.Run:
        import io

        import openvino

        core = openvino.Core()
        config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_NUM_THREADS": THREADS, "INFERENCE_PRECISION_HINT": "f32"}
        compiled = core.compile_model(core.read_model(io.BytesIO(model)), "CPU", config)
        request = compiled.create_infer_request()
        return lambda: request.infer([x], share_inputs=True, share_outputs=True)[0]


class ReadBandwidth(TorchApi):
    """How fast memory is read: as many bytes as the case has weights, by the faster of two library kernels."""

    def narrow_weights(self, raw: np.ndarray, scale: np.ndarray, x: np.ndarray) -> cases.Run:
        """Read as many bytes once; the product itself is computed beforehand."""
        self.product = np.concatenate([decoded(part) @ x for part in np.array_split(raw, 64)])
        if raw.dtype == np.int8:
            self.product *= scale
        numbers = self.torch.from_numpy(np.ones(raw.size // 4 // 4096 * 4096, np.float32)).reshape(-1, 4096)
        ones = self.torch.ones(numbers.shape[0])
        ways = (lambda: numbers.sum(), lambda: ones @ numbers)
        seconds = []
        for way in ways:
            way()
            begin = time.perf_counter()
            way()
            way()
            seconds.append(time.perf_counter() - begin)
        return ways[int(np.argmin(seconds))]

    def values(self, result: Any) -> np.ndarray:
        return self.product


def decoded(raw: np.ndarray) -> np.ndarray:
    """Weights in float32: int8 as they are, or blocks of a float16 and 32 codes of 4 bits less 8, low halves first."""
    if raw.dtype == np.int8:
        return raw.astype(np.float32)
    scale = np.ascontiguousarray(raw[..., :2]).view(np.float16).astype(np.float32)
    codes = np.concatenate([raw[..., 2:] & 15, raw[..., 2:] >> 4], -1).astype(np.float32) - 8
    return (codes * scale).reshape(len(raw), -1)


PEERS: dict[str, Callable[[], Any]] = {
    "torch.compile": CompiledTorch,
    "torch channels last": ChannelsLastTorch,
    "jax": JaxApi,
    "numpy": NumpyApi,
    "onnxruntime": OnnxRuntime,
    "openvino": OpenVino,
    "read": ReadBandwidth,
}
