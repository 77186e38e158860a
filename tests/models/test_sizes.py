"""Numbers of parameters as published, counted without any memory for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gradlet import GlobalCounters
from gradlet.models import (
    bert,
    clip,
    crepe,
    efficientnet,
    gpt2,
    llama,
    mamba,
    resnet,
    retinanet,
    rnnt,
    silero,
    speaker,
    stable_diffusion,
    unet,
    vit,
    weights,
    whisper,
    yolov8,
)  # fmt: skip

QUICK: list[tuple[Callable[[], Any], int]] = [
    (resnet.resnet50, 25_557_032),
    (gpt2.GPT2, 124_439_808),
    (yolov8.YOLOv8, 3_157_200),
]
SLOW: list[tuple[Callable[[], Any], int]] = [
    (resnet.resnet18, 11_689_512),
    (lambda: efficientnet.efficientnet(0), 5_288_548),
    (lambda: efficientnet.efficientnet(4), 19_341_616),
    (efficientnet.efficientnet_lite0, 4_652_008),
    (vit.vit_b_16, 86_567_656),
    (unet.UNet, 31_037_698),
    (bert.bert_base, 109_482_240),
    (bert.minilm_l6, 22_713_216),
    (lambda: gpt2.GPT2(gpt2.SIZES["gpt2-xl"]), 1_557_611_200),
    (llama.Llama, 6_738_415_616),
    (lambda: llama.Llama(llama.Config(128256, kv_heads=8, hidden=14336)), 8_030_261_248),
    (mamba.Mamba, 129_135_360),
    (clip.Clip, 151_277_313),
    (whisper.Whisper, 37_760_640),
    (stable_diffusion.UNet, 859_520_964),
    (stable_diffusion.Autoencoder, 83_653_863),
    (lambda: yolov8.YOLOv8("s"), 11_166_560),
    (lambda: yolov8.YOLOv8("x"), 68_229_648),
    (retinanet.RetinaNet, 34_068_119),
    (speaker.SpeakerEncoder, 1_423_618),
    (rnnt.RNNT, 45_323_037),
    (crepe.Crepe, 22_239_976),
    (silero.SileroVAD, 309_633),
]


@pytest.mark.parametrize(("model", "count"), [*QUICK, *[pytest.param(*r, marks=pytest.mark.slow) for r in SLOW]])
def test_number_of_parameters(model: Callable[[], Any], count: int) -> None:
    before = GlobalCounters.mem_used
    made = model()
    assert weights.parameter_count(made) == count
    assert GlobalCounters.mem_used - before < count  # what is random is not made yet
