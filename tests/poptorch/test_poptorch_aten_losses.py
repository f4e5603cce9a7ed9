"""Losses, types, dropout and what is unsupported."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from atencases import labels, noise, positive  # noqa: E402

from ipuperf import poptorch  # noqa: E402
from ipuperf.poptorch.export.module import export_model  # noqa: E402

F = torch.nn.functional


def one_loss(function: Any) -> Any:
    """A module whose loss is found by its function."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(1.3))

        def forward(self, x: Any, y: Any) -> Any:
            return function(x * self.scale, y)

    return Model()


CLASSES = labels(5, 6)
FIRST = int(CLASSES[0])
PROBABILITIES = noise(6, 5).softmax(1)
LOSSES = {
    "cross_entropy": (F.cross_entropy, CLASSES),
    "cross_entropy_sum": (lambda x, y: F.cross_entropy(x, y, reduction="sum"), CLASSES),
    "cross_entropy_ignored": (lambda x, y: F.cross_entropy(x, y, ignore_index=FIRST), CLASSES),
    "cross_entropy_smoothed": (lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1), CLASSES),
    "cross_entropy_smoothed_ignored": (
        lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1, ignore_index=FIRST),
        CLASSES,
    ),
    "cross_entropy_soft": (F.cross_entropy, PROBABILITIES),
    "cross_entropy_images": (lambda x, y: F.cross_entropy(x.view(2, 5, 3), y.view(2, 3)), CLASSES),
    "nll": (lambda x, y: F.nll_loss(x.log_softmax(1), y), CLASSES),
    "mse": (F.mse_loss, noise(6, 5) + 1),
    "mse_sum": (lambda x, y: F.mse_loss(x, y, reduction="sum"), noise(6, 5)),
    "l1": (F.l1_loss, noise(6, 5) + 1),
    "smooth_l1": (lambda x, y: F.smooth_l1_loss(x, y, beta=0.5), noise(6, 5) + 1),
    "huber": (lambda x, y: F.huber_loss(x, y, delta=0.7), noise(6, 5) + 1),
    "bce": (lambda x, y: F.binary_cross_entropy(x.sigmoid(), y), PROBABILITIES),
    "bce_logits": (F.binary_cross_entropy_with_logits, PROBABILITIES),
    "bce_weighted": (
        lambda x, y: F.binary_cross_entropy_with_logits(x, y, pos_weight=torch.linspace(1, 2, 5)),
        PROBABILITIES,
    ),
    "kl": (lambda x, y: F.kl_div(x.log_softmax(1), y, reduction="sum"), PROBABILITIES),
    "kl_log": (lambda x, y: F.kl_div(x.log_softmax(1), y.log(), reduction="sum", log_target=True), PROBABILITIES),
    "poisson": (F.poisson_nll_loss, positive(6, 5)),
    "poisson_full": (lambda x, y: F.poisson_nll_loss(x, y, full=True), positive(6, 5) * 3),
    "soft_margin": (F.soft_margin_loss, noise(6, 5).sign()),
    "hinge": (F.hinge_embedding_loss, noise(6, 5).sign()),
    "cosine": (lambda x, y: F.cosine_embedding_loss(x, y, torch.ones(6)), noise(6, 5) + 1),
    "triplet": (lambda x, y: F.triplet_margin_loss(x, y, x.flip(0)), noise(6, 5) + 1),
    "margin_ranking": (lambda x, y: F.margin_ranking_loss(x[:, 0], x[:, 1], y), noise(6).sign()),
    "multilabel": (F.multilabel_soft_margin_loss, (PROBABILITIES > 0.2).float()),
}


class Losses(torch.nn.Module):
    """All losses at once: none is found, so the sum is marked."""

    def __init__(self) -> None:
        super().__init__()
        self.scales = torch.nn.ParameterDict({n: torch.nn.Parameter(torch.tensor(1.3)) for n in LOSSES})

    def forward(self, x: Any) -> Any:
        found = {name: function(x * self.scales[name], target) for name, (function, target) in LOSSES.items()}
        return found, poptorch.identity_loss(sum(found.values()), "none")


def test_losses(stages: Any) -> None:
    model, x = Losses(), noise(6, 5)
    exported = export_model(model, (x,), training=True)
    outcome = stages(exported, [x])
    found, _ = exported.result_of(outcome.outputs)
    wanted, loss = model(x)
    loss.backward()
    for name in LOSSES:
        np.testing.assert_allclose(found[name], wanted[name].item(), rtol=1e-4, err_msg=name)
        grad = model.scales[name].grad.item()
        np.testing.assert_allclose(outcome.gradients[f"scales.{name}"], grad, rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("name", ["nll", "cosine"])
def test_losses_are_found_by_their_function(name: str) -> None:
    function, target = LOSSES[name]
    exported = export_model(one_loss(function), (noise(6, 5), target), training=True)
    assert exported.loss == (exported.outputs[0].part, exported.outputs[0].output)


def test_unreduced_loss(stages: Any) -> None:
    model, x, y = one_loss(lambda x, y: F.cross_entropy(x, y, reduction="none")), noise(6, 5), CLASSES
    exported = export_model(model, (x, y), training=True)
    loss = model(x, y)
    np.testing.assert_allclose(stages(exported, [x, y]).outputs[0], loss.detach().numpy(), rtol=1e-4)


def test_dropout_uses_the_seed_and_its_own_key(stages: Any) -> None:
    module = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Dropout(0.5), torch.nn.Dropout2d(0.3))
    x = torch.ones(8, 64, 4, 4)
    exported = export_model(module, (x,))
    keys = [op.attributes["key"] for op in exported.parts[0].graph.ops if op.type == "Dropout"]
    assert keys == [0, 1, 2]
    (result,) = stages(exported, [x]).outputs
    per_channel = (result != 0).any((2, 3)).mean()
    assert 0.6 < per_channel < 0.8
    assert 0.15 < (result != 0).mean() / per_channel < 0.35
    np.testing.assert_allclose(result[result != 0], 4 / 0.7, rtol=1e-5)
    assert not np.array_equal(result, stages(exported, [x], seed=9).outputs[0])
    module.eval()
    plain = export_model(module, (x,))
    np.testing.assert_array_equal(stages(plain, [x]).outputs[0], x.numpy())


def test_half_models(stages: Any) -> None:
    module = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.LayerNorm(16), torch.nn.Linear(16, 4)
    )
    wide, x = [p.clone() for p in module.parameters()], noise(5, 8)
    expected = module(x).detach()
    module.half()
    exported = export_model(module, (x.half(),))
    assert {v.dtype.name for v in exported.variables.values()} == {"float16"}
    (result,) = stages(exported, [x.half()]).outputs
    assert result.dtype == np.float16
    np.testing.assert_allclose(result, expected.numpy(), rtol=2e-2, atol=2e-2)
    assert len(wide) == len(exported.variables)


def test_autocast_regions_cast(stages: Any) -> None:
    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.float16):
                y = self.layer(x)
            return y, x

    module, x = Model(), noise(3, 8)
    exported = export_model(module, (x,))
    result, _ = stages(exported, [x]).outputs
    assert result.dtype == np.float16
    np.testing.assert_allclose(result, module.layer(x).detach().numpy(), rtol=1e-2, atol=1e-2)


def test_types_are_narrowed_and_come_back_so(stages: Any) -> None:
    x, i = noise(3).double(), torch.tensor([1, 2, 3])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exported = export_model(one_loss(lambda x, y: (x.double() * y, y + 1)), (x, i))
    assert any("float64 is float32 on the IPU: x" in str(w.message) for w in caught)
    assert [s.stream.dtype.name for s in exported.inputs] == ["float32", "int32"]
    outputs = stages(exported, [x, i]).outputs
    assert [o.dtype.name for o in outputs] == ["float32", "int32"]
    back = [spec.to_torch(o) for spec, o in zip(exported.outputs, outputs, strict=True)]
    assert [t.dtype for t in back] == [torch.float32, torch.int32]
    with pytest.raises(poptorch.Error, match="input 'y': 4294967296 does not fit into int32"):
        exported.inputs[1].to_numpy(torch.tensor([2**32]))


UNSUPPORTED = {
    "aten::_linalg_svd is unsupported": lambda x, y: torch.linalg.svd(x)[1],
    "torch.bfloat16, which the IPU does not have": lambda x, y: x.bfloat16() * 2,
}


@pytest.mark.parametrize("message", UNSUPPORTED)
def test_unsupported_ops_name_op_and_line(message: str) -> None:
    with pytest.raises(poptorch.Error, match=message) as caught:
        export_model(one_loss(UNSUPPORTED[message]), (noise(6, 5), CLASSES))
    assert __file__ in str(caught.value)
