"""Swin, CLIP and the small CNN: their mathematics against PyTorch, sizes as published, bad options."""

import importlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from ipuperf.poptorch import inferenceModel, trainingModel  # noqa: E402

EXACT = {"precision": "32.32", "memory_proportions": (), "micro_batch": 2}
SWIN = {"image": 16, "patch": 2, "window": 2, "width": 8, "depths": (2, 2), "heads": (1, 2), "classes": 3}
SWIN |= {"layers_per_ipu": (4,), "training": False}
CLIP = {"layers": 1, "image": 8, "patch": 4, "image_hidden": 8, "image_heads": 2, "texts": 3, "sequence": 5}
CLIP |= {"vocabulary": 11, "text_hidden": 8, "text_heads": 2, "shared": 4, "layers_per_ipu": (1,)}
VIT = {"layers": 1, "hidden": 8, "heads": 2, "feed_forward": 16, "image": 8, "patch": 4, "classes": 3}
VIT |= {"layers_per_ipu": (1,), "training": False, "device_iterations": 1}


@pytest.fixture(scope="module")
def models(installed_front_ends: Callable[[], Any]) -> Iterator[SimpleNamespace]:
    """The modules of the models."""
    with installed_front_ends():
        names = ("clip", "small_cnn", "swin", "vit")
        yield SimpleNamespace(**{name: importlib.import_module(f"ipuperf.models.{name}") for name in names})


def spread(module: Any) -> Any:
    """``module`` with parameters that are neither zero nor small."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.2)
    return module


def agree(room: Any, options: Any) -> None:
    """Results of an inference are those of PyTorch."""
    module = spread(room.model(options)).eval()
    batch = room.batch(options)
    mine, wanted = inferenceModel(module, room.poptorch_options(options))(*batch), module(*batch)
    pairs = zip(mine, wanted, strict=True) if isinstance(wanted, tuple) else [(mine, wanted)]
    for one, two in pairs:
        np.testing.assert_allclose(one.detach().numpy(), two.detach().numpy(), rtol=2e-4, atol=2e-5)


@pytest.mark.heavy
def test_swin_is_that_of_pytorch(models: SimpleNamespace) -> None:
    agree(models.swin, models.swin.tiny(**SWIN, **EXACT, device_iterations=2))


@pytest.mark.heavy
def test_swin_of_hugging_face_is_that_of_pytorch(models: SimpleNamespace) -> None:
    exported = {"split_qkv": True, "scale_scores": True, "exported_gelu": True}
    agree(models.swin, models.swin.tiny(**SWIN, **EXACT, **exported))


def test_the_forms_of_swin_compute_the_same(models: SimpleNamespace) -> None:
    """Weights cut into three, scaled scores in place of queries, and GELU in single ops change no value."""
    swin = models.swin
    one = spread(swin.model(swin.tiny(**SWIN, **EXACT))).eval()
    other = swin.model(swin.tiny(**SWIN, **EXACT, split_qkv=True, scale_scores=True, exported_gelu=True)).eval()
    state = other.state_dict()
    for name, value in one.state_dict().items():
        first, joint, last = name.partition("attention.inputs.0.")
        for number, part in enumerate(value.chunk(3) if joint else [value]):
            state[f"{first}attention.inputs.{number}.{last}" if joint else name] = part
    other.load_state_dict(state)
    images = swin.batch(swin.tiny(**SWIN, **EXACT))[0]
    # The tanh form of GELU is up to 0.0005 off.
    torch.testing.assert_close(one(images), other(images), rtol=0.02, atol=0.02)


@pytest.mark.heavy
def test_clip_is_that_of_pytorch(models: SimpleNamespace) -> None:
    """One batch: its scores are between its own images and texts."""
    agree(models.clip, models.clip.ClipOptions(**CLIP, **EXACT))
    agree(models.clip, models.clip.ClipOptions(**CLIP, **EXACT, images=False, device_iterations=2))


def test_the_small_cnn_trains_like_pytorch(models: SimpleNamespace) -> None:
    room = models.small_cnn
    options = room.SmallCnnOptions(image=16, device_iterations=1, return_all=True)
    module = spread(room.model(options))
    images, labels = room.batch(options)
    scores, loss = module(images, labels)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    mine = trainingModel(module, room.poptorch_options(options), optimizer=optimizer)(images, labels.int())
    np.testing.assert_allclose(mine[0].detach().numpy(), scores.detach().numpy(), rtol=2e-4, atol=2e-5)
    np.testing.assert_allclose(mine[1].detach().numpy().mean(), loss.item(), rtol=1e-4)


def test_padded_attention_computes_the_same(models: SimpleNamespace) -> None:
    swin, vit = models.swin, models.vit
    plain, padded = (swin.model(swin.tiny(**SWIN, **EXACT, attention_grain=grain)) for grain in (1, 3))
    state = dict(spread(plain).state_dict())
    for name, value in padded.state_dict().items():
        if state[name].shape != value.shape:
            rows, columns = state[name].shape[1:]
            value[:, :rows, :columns] = state[name]
            state[name] = value
    padded.load_state_dict(state)
    images = swin.batch(swin.tiny(**SWIN, **EXACT))[0]
    torch.testing.assert_close(padded.eval()(images), plain.eval()(images))

    plain, padded = (vit.model(vit.VitOptions(**VIT, **EXACT, attention_grain=grain)).eval() for grain in (1, 8))
    padded.load_state_dict(spread(plain).state_dict())
    images = vit.batch(vit.VitOptions(**VIT, **EXACT))[0]
    torch.testing.assert_close(padded(images), plain(images))
    agree(vit, vit.VitOptions(**VIT, **EXACT, attention_grain=8, scale_scores=False))


def test_sizes_are_as_published(models: SimpleNamespace) -> None:
    """Swin-T and Swin-L (paper, with tables of relative positions instead of a bias for each pair), CLIP ViT-B/32 and
    the encoder of texts of ViT-L/14, the layer of 41,772 inputs of the tutorial."""
    swin, clip = models.swin, models.clip

    def tables(options: Any) -> int:
        """Parameters that the biases have more than tables of relative positions."""
        more = options.window**4 - (2 * options.window - 1) ** 2
        return sum(depth * heads * more for depth, heads in zip(options.depths, options.heads, strict=True))

    def count(module: Any) -> int:
        return sum(p.numel() for p in module.parameters())

    with torch.device("meta"):
        assert count(swin.model(swin.tiny())) - tables(swin.tiny()) == 28_288_354
        assert count(swin.model(swin.large())) - tables(swin.large()) == 196_735_516
        assert count(clip.model(clip.ClipOptions())) == 151_277_313
        assert count(clip.model(clip.text_encoder())) == 123_060_480
        assert models.small_cnn.model(models.small_cnn.SmallCnnOptions()).fc1.in_features == 41_772


def test_windows_and_their_masks(models: SimpleNamespace) -> None:
    swin, x = models.swin, torch.arange(2 * 4 * 4 * 3.0).reshape(2, 4, 4, 3)
    windows = swin.windows_of(x, 2)
    assert windows.shape == (8, 4, 3)
    torch.testing.assert_close(windows[1], x[0, :2, 2:].reshape(4, 3))
    torch.testing.assert_close(swin.joined(windows, 2, 4), x)
    seen = (swin.shift_mask(4, 2) == 0).sum((1, 2))
    assert seen.tolist() == [16, 8, 8, 4]  # all pairs; halves that came from both edges; four corners


def test_bad_options(models: SimpleNamespace) -> None:
    with pytest.raises(ValueError, match="windows of 3 patches do not fill a side of 8 patches"):
        models.swin.model(models.swin.tiny(**{**SWIN, "window": 3}))
    with pytest.raises(ValueError, match="training True, 1 IPUs; allowed: inference on one IPU"):
        models.clip.ClipOptions(training=True)
    with pytest.raises(ValueError, match="training False, 2 IPUs"):
        models.clip.ClipOptions(layers_per_ipu=(6, 6))
