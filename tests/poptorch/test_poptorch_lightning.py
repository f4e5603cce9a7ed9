"""PyTorch Lightning's trainer on simulated IPUs: with what Lightning 2.0 has itself, and with ``lightning-graphcore``.

The oracle is Lightning on the CPU, with as many samples a step.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ipuperf import poptorch  # noqa: E402
from ipuperf.runtime.install import install, uninstall  # noqa: E402

# Lightning asks once, while it is imported, whether there is PopTorch.
install(["poptorch"])
try:
    pl = pytest.importorskip("lightning.pytorch", reason="pip install lightning==2.0.9")
    try:
        import lightning_graphcore
    except ImportError:
        lightning_graphcore = None
finally:
    uninstall(["poptorch"])

import torch.nn.functional as F  # noqa: E402
from torch import nn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

SAMPLES = 32
QUIET: dict[str, Any] = {"enable_progress_bar": False, "logger": False, "enable_model_summary": False}


@pytest.fixture(params=["lightning", "lightning_graphcore"])
def ipu(request: Any) -> SimpleNamespace:
    """The classes for the IPU, and what 16 bits are called. Lightning 2.0 converts loaders for its accelerator only,
    so that is taken with both strategies."""
    if not hasattr(pl.accelerators, "IPUAccelerator") or not pl.accelerators.IPUAccelerator.is_available():
        pytest.skip("Lightning from 2.1 on has no IPUs itself, or was imported before")
    strategy, precision, half = pl.strategies.IPUStrategy, pl.plugins.IPUPrecisionPlugin, "16-mixed"
    if request.param == "lightning_graphcore":
        if lightning_graphcore is None:
            pytest.skip("pip install lightning-graphcore")
        strategy, precision, half = lightning_graphcore.IPUStrategy, lightning_graphcore.IPUPrecision, "16-true"
    return SimpleNamespace(Strategy=strategy, Precision=precision, half=half)


class Module(pl.LightningModule):  # type: ignore[misc, name-defined]
    """What is common: classes of samples, and everything that steps give is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[str, list[float]] = {"train": [], "validate": [], "test": []}

    def training_step(self, batch: Any, number: int) -> Any:
        x, y = batch
        return F.cross_entropy(self(x), y)

    def validation_step(self, batch: Any, number: int) -> Any:
        return self.training_step(batch, number)

    def test_step(self, batch: Any, number: int) -> Any:
        x, y = batch
        return (self(x).argmax(-1) == y).float().mean()

    def predict_step(self, batch: Any, number: int) -> Any:
        return self(batch[0])

    def on_train_batch_end(self, outputs: Any, batch: Any, number: int) -> None:
        self.seen["train"].append(float(outputs["loss"].float().mean()))

    def on_validation_batch_end(self, outputs: Any, batch: Any, number: int, *_: Any) -> None:
        self.seen["validate"].append(float(outputs.float().mean()))

    def on_test_batch_end(self, outputs: Any, batch: Any, number: int, *_: Any) -> None:
        self.seen["test"].append(float(outputs.float().mean()))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class Digits(Module):
    """A convolutional network of small pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 6, 2),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(24, 10),
        )

    def forward(self, x: Any) -> Any:
        return self.net(x)


class Stages(Module):
    """A transformer: its embedding and first layer on one IPU, the second and the head on another."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Linear(8, 8)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=True) for _ in range(2)
        )
        self.head = nn.Linear(8, 10)

    def in_stages(self, ipus: int) -> None:
        for ipu in range(ipus):
            self.layers[ipu] = poptorch.BeginBlock(self.layers[ipu], f"stage{ipu}", ipu_id=ipu)

    def forward(self, x: Any) -> Any:
        h = self.patches(x.flatten(1, 2))
        for layer in self.layers:
            h = layer(h)
        return self.head(h.mean(1))


def loader(batch: int, dtype: Any = torch.float32) -> Any:
    generator = torch.Generator().manual_seed(7)
    pictures = torch.randn(SAMPLES, 1, 8, 8, generator=generator)
    return DataLoader(TensorDataset(pictures.to(dtype), torch.randint(10, (SAMPLES,), generator=generator)), batch)


def made(cls: type[Module]) -> tuple[Module, Module]:
    torch.manual_seed(3)
    model = cls()
    return model, copy.deepcopy(model)


def trainer(
    ipu: SimpleNamespace, precision: Any = "32-true", devices: int = 1, strategy: Any = None, **more: Any
) -> Any:
    return pl.Trainer(
        accelerator="ipu", strategy=strategy or ipu.Strategy(), devices=devices,
        plugins=[ipu.Precision(precision)], **{"max_epochs": 2, "enable_checkpointing": False, **QUIET, **more},
    )  # fmt: skip


def on_cpu(**more: Any) -> Any:
    return pl.Trainer(accelerator="cpu", **{"max_epochs": 2, "enable_checkpointing": False, **QUIET, **more})


def check(model: Module, reference: Module, tolerance: float = 1e-5) -> None:
    for name, value in model.state_dict().items():
        expected = reference.state_dict()[name]
        torch.testing.assert_close(value, expected, rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_digits_train_are_validated_tested_and_predicted(ipu: SimpleNamespace) -> None:
    model, reference = made(Digits)
    for run, module in ((trainer(ipu), model), (on_cpu(), reference)):
        run.fit(module, loader(8), loader(16))
        run.validate(module, loader(8), verbose=False)
        run.test(module, loader(8), verbose=False)
        module.predicted = torch.cat(run.predict(module, loader(8)))
    for what, values in reference.seen.items():
        assert model.seen[what] == pytest.approx(values, rel=1e-5, abs=1e-5), what
    torch.testing.assert_close(model.predicted, reference.predicted, rtol=1e-5, atol=1e-5)
    check(model, reference)


def test_a_transformer_in_two_stages(ipu: SimpleNamespace) -> None:
    model, reference = made(Stages)
    model.in_stages(2)
    run = trainer(ipu, accumulate_grad_batches=4)
    run.fit(model, loader(4))
    on_cpu().fit(reference, loader(16))
    assert len(model.seen["train"]) == len(reference.seen["train"])
    check(model, reference)


def test_float16(ipu: SimpleNamespace) -> None:
    """With "16-true" the module is of float16, and differs in the last bit; with "16-mixed" what it is given."""
    model, reference = made(Digits)
    kept, tolerance = (torch.float16, 1e-3) if ipu.half == "16-true" else (torch.float32, 5e-3)
    trainer(ipu, ipu.half).fit(model.to(kept), loader(8, torch.float16))
    on_cpu().fit(reference.to(kept), loader(8, kept))
    assert model.seen["train"] == pytest.approx(reference.seen["train"], rel=tolerance)
    check(model, reference, tolerance)


def test_replicas(ipu: SimpleNamespace) -> None:
    model, reference = made(Digits)
    trainer(ipu, devices=2).fit(model, loader(4))
    on_cpu().fit(reference, loader(8))
    check(model, reference)


def test_device_iterations_and_options_of_ones_own(ipu: SimpleNamespace) -> None:
    model, reference = made(Digits)
    training, inference = poptorch.Options().deviceIterations(2), poptorch.Options().deviceIterations(4)
    training.outputMode(poptorch.OutputMode.All)
    training.Training.gradientAccumulation(2)
    run = trainer(ipu, strategy=ipu.Strategy(training_opts=training, inference_opts=inference))
    run.fit(model, loader(4), loader(4))
    cpu = on_cpu()
    cpu.fit(reference, loader(8), loader(16))
    check(model, reference)
    steps = torch.tensor(reference.seen["train"]).view(-1, 2).mean(1).tolist()
    assert model.seen["train"] == pytest.approx(steps, rel=1e-5)
    assert torch.cat(run.predict(model, loader(4))).shape == (SAMPLES, 10)


class Scheduled(Digits):
    """A rate that falls, running statistics, and an optimiser that knows its state on the device."""

    kinds: Any = poptorch.optim

    def __init__(self) -> None:
        super().__init__()
        self.net.insert(2, nn.BatchNorm2d(4))

    def configure_optimizers(self) -> Any:
        optimizer = self.kinds.AdamW(self.parameters(), lr=0.02)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.3)}


class Counting(pl.Callback):  # type: ignore[misc, name-defined]
    """The hooks that were called."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def on_train_epoch_end(self, run: Any, module: Any) -> None:
        self.calls.append(f"epoch {run.current_epoch} step {run.global_step}")

    def on_validation_end(self, run: Any, module: Any) -> None:
        self.calls.append(run.state.stage.value)


def test_checkpoints_schedules_and_callbacks(ipu: SimpleNamespace, tmp_path: Path) -> None:
    found = []
    for name, kinds, make in (("ipu", poptorch.optim, partial(trainer, ipu)), ("cpu", torch.optim, on_cpu)):
        model, again, calls = *made(Scheduled), Counting()
        model.kinds = again.kinds = kinds
        keeping = pl.callbacks.ModelCheckpoint(str(tmp_path / name), save_last=True, every_n_epochs=1)
        more = {"enable_checkpointing": True, "default_root_dir": str(tmp_path)}
        make(callbacks=[calls, keeping], **more).fit(model, loader(8), loader(8))
        make(max_epochs=3, **more).fit(again, loader(8), ckpt_path=str(tmp_path / name / "last.ckpt"))
        found.append((model, again, calls.calls))
    (model, again, calls), (reference, resumed, expected) = found
    assert calls == expected
    check(model, reference)
    check(again, resumed)


class Gan(pl.LightningModule):  # type: ignore[misc, name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator, self.discriminator = nn.Linear(2, 4), nn.Linear(4, 1)

    def training_step(self, batch: Any, number: int) -> Any:
        return self.discriminator(self.generator(batch[0].flatten(1)[:, :2])).mean()

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(part.parameters()) for part in (self.generator, self.discriminator)]


class Lbfgs(Digits):
    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters())


@pytest.mark.parametrize(
    ("cls", "more", "text"),
    [
        (Gan, {}, "only support one optimizer"),
        (Lbfgs, {}, "LBFGS"),
        (Digits, {"gradient_clip_val": 1.0}, "do not support clipping"),
    ],
)
def test_what_lightning_refuses(ipu: SimpleNamespace, cls: Any, more: Any, text: str) -> None:
    torch.manual_seed(0)
    with pytest.raises(Exception, match=text):
        trainer(ipu, **more).fit(cls(), loader(8))
