"""More networks against torch functions of the same weights; what writes token by token against all tokens at once."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra [oracle]")

from gradlet import Tensor
from gradlet.base.errors import ArgumentError, ShapeError
from gradlet.models import (
    clip,
    llama,
    lstm,
    mamba,
    resnet,
    retinanet,
    rnnt,
    stable_diffusion,
    whisper,
    yolov8,
)  # fmt: skip
from tests.models import functional, oracle

IDS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
SMALL_WHISPER = whisper.Config(13, 6, 16, 2, 2, 24, 10, 9)


@pytest.mark.slow
def test_llama() -> None:
    model = llama.Llama(llama.Config(11, 16, 1, 2, 1, 24))
    w = functional.Weights(model)
    oracle.same(model(IDS.tolist()), functional.llama(w, IDS, 2, 1, 1))


@pytest.mark.slow
def test_mamba_along_a_text_and_token_by_token() -> None:
    model = mamba.Mamba(mamba.Config(11, 16, 2, 3))
    w = functional.Weights(model)
    oracle.same(model(IDS.tolist()), functional.mamba(w, IDS, 2, 3, 1))
    tokens = IDS[0, :2].tolist()
    for _ in range(5):
        tokens.append(int(functional.mamba(w, torch.tensor([tokens]), 2, 3, 1)[0, -1].argmax()))
    generator = mamba.Generator(model)
    for _ in range(2):  # a second text begins anew
        assert generator.greedy(tokens[:2], 5) == tokens[2:]
    with pytest.raises(ArgumentError, match="no tokens"):
        generator.greedy([], 1)


@pytest.mark.slow
def test_gradients_through_the_selective_scan() -> None:
    shapes = ((2, 5, 3), (2, 5, 3), (3, 4), (2, 5, 4), (2, 5, 4))
    theirs = [oracle.random(*shape, seed=k).requires_grad_() for k, shape in enumerate(shapes)]
    ours = [oracle.given(value) for value in theirs]
    x, dt, a, b, c = theirs
    h, rows = torch.zeros(2, 3, 4), []
    for t in range(5):
        h = torch.exp(dt[:, t, :, None] * -a.abs()) * h + (dt[:, t] * x[:, t])[..., None] * b[:, t, None]
        rows.append((h * c[:, t, None]).sum(-1))
    weight = oracle.random(2, 5, 3, seed=9)
    (torch.stack(rows, 1) * weight).sum().backward()
    found = mamba.selective_scan(ours[0], ours[1], -ours[2].abs(), ours[3], ours[4])
    for mine, their in zip((found * oracle.given(weight)).sum().gradient(*ours), theirs):
        oracle.same(mine, their.grad)


@pytest.mark.slow
def test_clip() -> None:
    part = clip.Part(16, 2, 2, 24)
    model = clip.Clip(clip.Config(part, part, 6, 11, 8, 16, 8))
    w, images = functional.Weights(model), oracle.random(3, 3, 16, 16)
    oracle.same(model(IDS.tolist(), oracle.given(images)), functional.clip(w, IDS, images, 2, 8, 2))


@pytest.mark.slow
def test_whisper_at_once_and_token_by_token() -> None:
    model = whisper.Whisper(SMALL_WHISPER)
    w = functional.Weights(model)
    sounds = [oracle.random(1, 6, 20, seed=k) for k in range(2)]
    ids = torch.tensor([[1, 5, 3, 4]])
    oracle.same(model(oracle.given(sounds[0]), ids.tolist()), functional.whisper(w, sounds[0], ids, 2, 2))
    writer = whisper.Transcriber(model)
    for sound in sounds:  # nothing is left of the first one
        tokens = [1, 5]
        while len(tokens) < 9:
            logits = functional.whisper(w, sound, torch.tensor([tokens]), 2, 2)[0, -1].detach()
            logits[7] = -torch.inf
            tokens.append(int(logits.argmax()))
        assert writer.greedy(oracle.given(sound), [1, 5], end=-1, suppressed=[7]) == tokens[2:]
        end = tokens[4]
        assert writer.greedy(oracle.given(sound), [1, 5], end, suppressed=[7]) == tokens[2 : tokens.index(end, 2)]
    with pytest.raises(ArgumentError, match="there is room for 1 to 9"):
        writer.greedy(oracle.given(sounds[0]), [], 2)


def test_whisper_says_what_it_reads() -> None:
    with pytest.raises(ShapeError, match=r"\[batch, mels, 20\] is needed"):
        whisper.Whisper(SMALL_WHISPER).encoder(Tensor.zeros(1, 6, 19))


@pytest.mark.slow
def test_spectrogram_is_that_of_an_fft() -> None:
    import numpy as np

    sound = np.random.default_rng(0).standard_normal(6000).astype(np.float32)
    padded = np.pad(np.pad(sound, (0, 8000 - 6000)), 200, mode="reflect")
    window = torch.hann_window(400).numpy()
    frames = np.stack([padded[k * 160 : k * 160 + 400] * window for k in range(50)])
    power = np.abs(np.fft.rfft(frames)) ** 2
    heights = np.log10(np.maximum(power @ whisper.mel_filters(80), 1e-10)).T
    expected = (np.maximum(heights, heights.max() - 8) + 4) / 4
    assert np.abs(whisper.log_mel(Tensor(sound), seconds=0.5).numpy()[0] - expected).max() < 1e-3
    # A tone of 1000 Hz is loudest where the filters are highest at 1000 Hz: at 15 mels of 45.2.
    tone = np.sin(2 * np.pi * 1000 * np.arange(8000) / 16000).astype(np.float32)
    assert whisper.log_mel(Tensor(tone), seconds=0.5).mean(2).argmax().item() == round(15 / 45.245 * 81) - 1


@pytest.mark.slow
def test_stable_diffusion() -> None:
    widths = (8, 8, 16, 16)
    model = stable_diffusion.UNet(stable_diffusion.UNetConfig(widths=widths, heads=2, text=12, groups=4))
    w = functional.Weights(model)
    x, text, times = oracle.random(2, 4, 8, 16), oracle.random(2, 5, 12, seed=1), torch.tensor([981.0, 3.0])
    expected = functional.diffusion_unet(w, x, times, text, 2, 4)
    oracle.same(model(oracle.given(x), oracle.given(times), oracle.given(text)), expected, 1e-3)


@pytest.mark.slow
def test_autoencoder_of_stable_diffusion() -> None:
    model = stable_diffusion.Autoencoder((8, 12), groups=4)
    w = functional.Weights(model)
    x, latents = oracle.random(1, 3, 16, 24), oracle.random(1, 4, 8, 12)
    mean = w.conv(functional.autoencoder_half(w, x, "encoder", 2, 4), "quant_conv")[:, :4]
    oracle.same(model.encode(oracle.given(x)), mean)
    image = functional.autoencoder_half(w, w.conv(latents, "post_quant_conv"), "decoder", 2, 4)
    oracle.same(model.decode(oracle.given(latents)), image)


@pytest.mark.slow
def test_the_sampler_finds_the_image_whose_noise_is_known() -> None:
    """A network that knows the image: what is left of the noise after all steps is what the first time has."""
    image, text = oracle.given(oracle.random(1, 4, 4, 4)), Tensor.zeros(1, 2, 3)
    kept = stable_diffusion.DDIM(10).kept

    def network(x: Tensor, times: Tensor, texts: Tensor) -> Tensor:
        share = kept[int(times.numpy()[0])]
        return (x - image * share**0.5) / (1 - share) ** 0.5

    found = stable_diffusion.sample(network, oracle.given(oracle.random(1, 4, 4, 4, seed=2)), text, text, 10)
    assert abs(found.numpy() - image.numpy()).max() < 0.15
    with pytest.raises(ArgumentError, match="1 to 1000 are possible"):
        stable_diffusion.DDIM(0)


@pytest.mark.slow
def test_yolov8() -> None:
    model = yolov8.YOLOv8("n", classes=3)
    w = functional.Weights(model)
    x = oracle.random(1, 3, 64, 32).abs()
    expected = functional.yolov8(w, x)
    oracle.same(model(oracle.given(x)), expected, 1e-3)
    found = model.detect(oracle.given(x[0]), least=0.0, limit=5)
    assert len(found) == 5 and abs(found[0].score - expected[0, 4:].max().item()) < 1e-3
    assert [d.score for d in found] == sorted((d.score for d in found), reverse=True)


def small_retinanet() -> Any:
    body = resnet.ResNet(resnet.BasicBlock, (1, 1, 1, 1), 0, 4)
    return retinanet.RetinaNet(3, body, 8)


@pytest.mark.slow
def test_retinanet() -> None:
    model = small_retinanet()
    w = functional.Weights(model)
    x = oracle.given(oracle.random(1, 3, 96, 64))
    features = [torch.tensor(part.numpy()) for part in model.backbone["body"].features(x)[1:]]
    for ours, theirs in zip(model(x), functional.retinanet(w, features)):
        oracle.same(ours, theirs, 1e-3)
    logits = functional.retinanet(w, features)[0]
    assert retinanet.anchors(96, 64).shape == (logits.shape[1], 4)
    found = model.detect(x[0], limit=4)
    assert abs(found[0].score - logits.sigmoid().max().item()) < 1e-3
    assert all(0 <= left <= right <= 64 and 0 <= top <= bottom <= 96 for left, top, right, bottom in
               (d.box for d in found))  # fmt: skip


@pytest.mark.slow
def test_lstm_in_parts_and_in_training() -> None:
    model = lstm.LSTM(3, 5, 2)
    holder = {"lstm": model}
    w = functional.Weights(holder)
    x = oracle.random(2, 2 * lstm.TOGETHER + 3, 3)
    expected, (hidden, cell) = w.lstm(x, "lstm", 2)
    found, state = model(oracle.given(x))
    oracle.same(found, expected)
    oracle.same(Tensor.stack(*[layer[0] for layer in state]), hidden)
    oracle.same(Tensor.stack(*[layer[1] for layer in state]), cell)
    # A text in two calls, and gradients.
    first, state = model(oracle.given(x[:, :4]))
    oracle.same(first.cat(model(oracle.given(x[:, 4:7]), state)[0], dim=1), expected[:, :7])
    weight = w["lstm.weight_hh_l0"].requires_grad_()
    module = torch.func.functional_call
    reference = torch.nn.LSTM(3, 5, 2, batch_first=True)
    names = {key: w[f"lstm.{key}"] for key in reference.state_dict()}
    module(reference, names, (x[:, :4],))[0].square().sum().backward()
    with Tensor.train():
        mine = model(oracle.given(x[:, :4]))[0].square().sum().gradient(model.weight_hh_l0)[0]
    oracle.same(mine, weight.grad, 1e-3)
    with pytest.raises(ShapeError, match=r"\[batch, time, 3\] is needed"):
        model(Tensor.zeros(1, 4, 2))


@pytest.mark.slow
def test_rnnt_and_what_it_writes() -> None:
    config = rnnt.Config(6, 8, 1, 1, 2, 5, 2, 7, 4)
    model = rnnt.RNNT(config)
    w = functional.Weights(model)
    frames, ids = oracle.random(2, 7, 6), torch.tensor([[0, 2, 1], [1, 1, 0]])
    oracle.same(model(oracle.given(frames), Tensor(ids.numpy())), functional.rnnt(w, frames, ids, 2))
    letters: list[int] = []
    for time in range(4):
        for _ in range(3):
            best = int(
                functional.rnnt(w, frames[:1], torch.tensor([letters], dtype=torch.int64), 2)[0, time, -1].argmax()
            )
            if best == 3:
                break
            letters.append(best)
    assert model.greedy(oracle.given(frames[:1]), most=3) == letters
