"""Names, shapes and results against the public packages, where they are installed (extra `zoo`)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="needs the extra [oracle]")

from gradlet import Tensor, nn
from gradlet.models import (
    bert,
    clip,
    efficientnet,
    gpt2,
    llama,
    mamba,
    resnet,
    retinanet,
    stable_diffusion,
    vit,
    weights,
    whisper,
    yolov8,
)  # fmt: skip
from tests.models import oracle

pytestmark = pytest.mark.slow


def package(name: str) -> Any:
    """A package; the test is skipped where it is not, or does not fit the installed torch."""
    try:
        return pytest.importorskip(name, reason="needs the extra [zoo]", exc_type=ImportError)
    except RuntimeError as error:  # torchvision for another torch
        pytest.skip(f"{name} cannot be imported: {error}")


def transformers(config: str, model: str, **sizes: Any) -> Any:
    found = package("transformers")
    return getattr(found, model)(getattr(found, config)(**sizes))


def unet(**more: Any) -> Any:
    cross, plain = ("CrossAttnDownBlock2D",) * 3 + ("DownBlock2D",), ("UpBlock2D",) + ("CrossAttnUpBlock2D",) * 3
    return package("diffusers").UNet2DConditionModel(
        down_block_types=cross, up_block_types=plain, attention_head_dim=more.pop("heads", 8), **more
    )


def autoencoder(widths: tuple[int, ...], **more: Any) -> Any:
    return package("diffusers").AutoencoderKL(
        block_out_channels=widths, down_block_types=("DownEncoderBlock2D",) * len(widths),
        up_block_types=("UpDecoderBlock2D",) * len(widths), layers_per_block=2, **more,
    )  # fmt: skip


def yolo() -> Any:
    package("ultralytics")
    from ultralytics.nn.tasks import DetectionModel

    return DetectionModel("yolov8n.yaml", verbose=False)


def retina() -> Any:
    package("torchvision")
    from torchvision.models.detection import retinanet_resnet50_fpn

    return retinanet_resnet50_fpn(weights=None, weights_backbone=None)


def whole(name: str) -> Callable[[], Any]:
    return lambda: getattr(package("torchvision").models, name)()


# Ours and the public one.
PUBLISHED: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
    "resnet18": (resnet.resnet18, whole("resnet18")),
    "resnet34": (resnet.resnet34, whole("resnet34")),
    "resnet50": (resnet.resnet50, whole("resnet50")),
    "resnet101": (resnet.resnet101, whole("resnet101")),
    "efficientnet_b0": (lambda: efficientnet.efficientnet(0), whole("efficientnet_b0")),
    "efficientnet_b3": (lambda: efficientnet.efficientnet(3), whole("efficientnet_b3")),
    "efficientnet_b7": (lambda: efficientnet.efficientnet(7), whole("efficientnet_b7")),
    "vit_b_16": (vit.vit_b_16, whole("vit_b_16")),
    "vit_l_16": (vit.vit_l_16, whole("vit_l_16")),
    "retinanet": (retinanet.RetinaNet, retina),
    "yolov8n": (yolov8.YOLOv8, yolo),
    "bert": (bert.bert_base, lambda: transformers("BertConfig", "BertModel")),
    "gpt2": (gpt2.GPT2, lambda: transformers("GPT2Config", "GPT2LMHeadModel")),
    "clip": (clip.Clip, lambda: transformers("CLIPConfig", "CLIPModel")),
    "whisper": (whisper.Whisper, lambda: transformers(
        "WhisperConfig", "WhisperForConditionalGeneration", d_model=384, encoder_layers=4, decoder_layers=4,
        encoder_attention_heads=6, decoder_attention_heads=6, encoder_ffn_dim=1536, decoder_ffn_dim=1536)),
    "mamba": (mamba.Mamba, lambda: transformers(
        "MambaConfig", "MambaForCausalLM", vocab_size=50280, hidden_size=768, num_hidden_layers=24)),
    "llama": (llama.Llama, lambda: transformers("LlamaConfig", "LlamaForCausalLM")),
    "sd_unet": (stable_diffusion.UNet, lambda: unet(cross_attention_dim=768)),
    "sd_vae": (stable_diffusion.Autoencoder, lambda: autoencoder((128, 256, 512, 512))),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_names_and_shapes_of_published_sizes(name: str) -> None:
    """Without memory on either side: torch's is on the device meta, ours is lazy."""
    ours, theirs = PUBLISHED[name]
    with torch.device("cpu" if name == "yolov8n" else "meta"):  # it looks at values of its weights
        expected = {key: tuple(value.shape) for key, value in theirs().state_dict().items()}
    model = ours()
    prefix, ignored = getattr(model, "PREFIX", ""), getattr(model, "IGNORE", ())
    expected = {key.removeprefix(prefix): shape for key, shape in expected.items()}
    found = {key: value.shape for key, value in nn.state.get_state_dict(model).items()}
    assert found == {k: s for k, s in expected.items() if k in found or not any(re.search(p, k) for p in ignored)}


SMALL_VIT = (32, 8, 2, 2, 16, 24)


def image(*shape: int) -> Any:
    return oracle.random(*shape, seed=3)


def test_resnet_and_efficientnet_and_vit_of_torchvision() -> None:
    models = package("torchvision").models
    rows = [
        (resnet.resnet18(7), models.resnet18(num_classes=7), 64),
        (resnet.resnet50(7), models.resnet50(num_classes=7), 64),
        (efficientnet.efficientnet(0, 7), models.efficientnet_b0(num_classes=7), 64),
        (vit.VisionTransformer(*SMALL_VIT, 7), models.VisionTransformer(*SMALL_VIT, num_classes=7), 32),
    ]  # fmt: skip
    for model, module, size in rows:
        oracle.copied(model, oracle.shaken(module))
        x = image(2, 3, size, size)
        oracle.same(model(oracle.given(x)), module(x), 1e-3)


def test_retinanet_of_torchvision() -> None:
    """Pyramid, heads, anchors and boxes."""
    module = oracle.shaken(retina())
    model = oracle.copied(retinanet.RetinaNet(), module)
    x = image(1, 3, 96, 128)
    features = list(module.backbone(x).values())
    expected = module.head(features)
    logits, shifts = model(oracle.given(x))
    oracle.same(logits, expected["cls_logits"], 1e-3)
    oracle.same(shifts, expected["bbox_regression"], 1e-3)
    from torchvision.models.detection.image_list import ImageList

    boxes = module.anchor_generator(ImageList(x, [(96, 128)]), features)[0]
    ours = retinanet.anchors(96, 128)
    oracle.same(ours, boxes)
    moved = module.box_coder.decode_single(expected["bbox_regression"][0] * 0.1, boxes)
    oracle.same(retinanet.moved(ours, oracle.given(expected["bbox_regression"][0] * 0.1)), moved)


def test_yolov8_of_ultralytics() -> None:
    module = oracle.shaken(yolo())
    weight = module.model[22].dfl.conv.weight  # is fixed
    weight.data.copy_(torch.arange(16).reshape(1, 16, 1, 1))
    model = oracle.copied(yolov8.YOLOv8(), module)
    x = image(1, 3, 64, 96).abs()
    oracle.same(model(oracle.given(x)), module(x)[0], 1e-3)


def test_texts_of_transformers() -> None:
    ids = torch.tensor([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5, 8]])
    ours = ids.tolist()
    sizes = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)
    module = oracle.shaken(transformers("BertConfig", "BertModel", vocab_size=11, max_position_embeddings=8, **sizes))
    model = oracle.copied(bert.Bert(bert.Config(11, 16, 2, 2, 24, 8)), module)
    mask = torch.tensor([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]])
    expected = module(ids, attention_mask=mask)
    found = model(ours, Tensor(mask.numpy()))
    oracle.same(found[1], expected.last_hidden_state[1])
    oracle.same(found[0, :4], expected.last_hidden_state[0, :4])
    oracle.same(model.pooled(found), expected.pooler_output)
    module = oracle.shaken(
        transformers("GPT2Config", "GPT2LMHeadModel", vocab_size=11, n_positions=8, n_embd=16, n_layer=2, n_head=2)
    )
    oracle.same(oracle.copied(gpt2.GPT2(gpt2.Config(11, 8, 16, 2, 2)), module)(ours), module(ids).logits)
    more = dict(vocab_size=11, num_key_value_heads=1, max_position_embeddings=8)
    module = oracle.shaken(transformers("LlamaConfig", "LlamaForCausalLM", rms_norm_eps=1e-5, **sizes, **more))
    oracle.same(oracle.copied(llama.Llama(llama.Config(11, 16, 2, 2, 1, 24)), module)(ours), module(ids).logits)
    sizes = dict(vocab_size=11, hidden_size=16, num_hidden_layers=2, state_size=3, use_mambapy=False)
    module = oracle.shaken(transformers("MambaConfig", "MambaForCausalLM", **sizes))
    oracle.same(oracle.copied(mamba.Mamba(mamba.Config(11, 16, 2, 3)), module)(ours), module(ids).logits)


def test_clip_of_transformers() -> None:
    part = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=24)
    found = package("transformers")
    config = found.CLIPConfig(
        text_config=dict(vocab_size=11, max_position_embeddings=8, eos_token_id=2, **part),
        vision_config=dict(image_size=16, patch_size=8, **part), projection_dim=6,
    )  # fmt: skip
    module = oracle.shaken(found.CLIPModel(config))
    sizes = clip.Part(16, 2, 2, 24)
    model = oracle.copied(clip.Clip(clip.Config(sizes, sizes, 6, 11, 8, 16, 8)), module)
    ids, x = torch.tensor([[3, 1, 4, 10, 5], [2, 10, 5, 3, 5]]), image(3, 3, 16, 16)
    expected = module(input_ids=ids, pixel_values=x)
    oracle.same(model(ids.tolist(), oracle.given(x)), expected.logits_per_image)
    oracle.same(model.text(ids.tolist()), expected.text_embeds)


def test_whisper_of_transformers() -> None:
    module = oracle.shaken(transformers(
        "WhisperConfig", "WhisperForConditionalGeneration", vocab_size=13, num_mel_bins=6, d_model=16, encoder_layers=2,
        decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24,
        max_source_positions=10, max_target_positions=9, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1))  # fmt: skip
    model = oracle.copied(whisper.Whisper(whisper.Config(13, 6, 16, 2, 2, 24, 10, 9)), module)
    x, ids = image(1, 6, 20), torch.tensor([[1, 5, 3, 4]])
    oracle.same(model(oracle.given(x), ids.tolist()), module(input_features=x, decoder_input_ids=ids).logits)


def test_spectrogram_of_transformers() -> None:
    import numpy as np

    sound = np.random.default_rng(0).standard_normal(40000).astype(np.float32)
    expected = package("transformers").WhisperFeatureExtractor()(sound, sampling_rate=16000, return_tensors="np")
    found = whisper.log_mel(Tensor(sound)).numpy()
    assert np.abs(found - expected["input_features"]).max() < 1e-3


def test_stable_diffusion_of_diffusers() -> None:
    widths = (8, 16, 16, 16)
    module = oracle.shaken(
        unet(block_out_channels=widths, cross_attention_dim=12, heads=2, norm_num_groups=4, layers_per_block=2)
    )
    config = stable_diffusion.UNetConfig(widths=widths, heads=2, text=12, groups=4)
    model = oracle.copied(stable_diffusion.UNet(config), module)
    x, text, times = image(2, 4, 16, 24), image(2, 5, 12), torch.tensor([981.0, 3.0])
    expected = module(x, times, encoder_hidden_states=text).sample
    oracle.same(model(oracle.given(x), oracle.given(times), oracle.given(text)), expected, 1e-3)
    module = oracle.shaken(autoencoder((8, 12), norm_num_groups=4))
    vae = oracle.copied(stable_diffusion.Autoencoder((8, 12), groups=4), module)
    x, latents = image(1, 3, 16, 24), image(1, 4, 8, 12)
    oracle.same(vae.encode(oracle.given(x)), module.encode(x).latent_dist.mean)
    oracle.same(vae.decode(oracle.given(latents)), module.decode(latents).sample)


def test_sampler_of_diffusers() -> None:
    scheduler = package("diffusers").DDIMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", clip_sample=False, set_alpha_to_one=False,
        steps_offset=1,
    )  # fmt: skip
    scheduler.set_timesteps(7)
    ours = stable_diffusion.DDIM(7)
    assert ours.times == scheduler.timesteps.tolist()
    x = image(1, 4, 3, 3)
    mine = oracle.given(x)
    for number, time in enumerate(ours.times):
        noise = image(1, 4, 3, 3) * 0.1 * number
        mine = ours.step(mine, oracle.given(noise), time)
        x = scheduler.step(noise, time, x).prev_sample
    oracle.same(mine, x)


def test_weights_are_saved_and_loaded_under_their_public_names(tmp_path: Any) -> None:
    module = oracle.shaken(package("torchvision").models.resnet18(num_classes=3))
    torch.save({"state_dict": module.state_dict()}, tmp_path / "net.pth")
    model = weights.load(resnet.resnet18(3), tmp_path / "net.pth")
    x = image(1, 3, 32, 32)
    oracle.same(model(oracle.given(x)), module(x), 1e-3)
