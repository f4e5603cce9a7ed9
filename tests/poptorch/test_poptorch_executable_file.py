"""Compiled models in files: what is loaded computes what was stored; bad files are one error."""

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ipuperf import poptorch  # noqa: E402
from ipuperf.poptorch.executor import archive  # noqa: E402


class Network(torch.nn.Module):
    """Tied weights, a buffer that changes, an optional argument, a nested result."""

    def __init__(self, width: int = 3) -> None:
        super().__init__()
        self.first = torch.nn.Linear(width, width)
        self.second = torch.nn.Linear(width, width, bias=False)
        self.second.weight = self.first.weight
        self.norm = torch.nn.BatchNorm1d(width)

    def forward(self, x: Any, y: Any = None) -> Any:
        out = self.norm(torch.tanh(self.second(torch.relu(self.first(x)))))
        return out if y is None else {"out": out, "loss": torch.nn.functional.mse_loss(out, y)}


def options(**changes: Any) -> poptorch.Options:
    made = poptorch.Options().showCompilationProgressBar(False)
    for name, value in changes.items():
        getattr(made, name)(value)
    return made


X, Y = torch.arange(12.0).reshape(4, 3) / 7, torch.ones(4, 3)


def test_a_training_goes_on_from_the_file(tmp_path: Path) -> None:
    torch.manual_seed(1)
    module = Network()
    optimizer = poptorch.optim.SGD(module.parameters(), lr=0.25, weight_decay=0.125)
    stored = options(deviceIterations=2).randomSeed(4)
    stored.Training.gradientAccumulation(2)
    model = poptorch.trainingModel(module, stored, optimizer)
    x, y = torch.cat([X, X]), torch.cat([Y, Y])
    model.compileAndExport(str(tmp_path), x, y)
    (path,) = tmp_path.iterdir()
    found = poptorch.load(str(path))
    assert found.options.device_iterations == 2
    assert found.options.Training.gradient_accumulation == 2
    assert found.model.second.weight is found.model.first.weight
    for _ in range(2):
        torch.testing.assert_close(found(x, y), model(x, y), rtol=0, atol=0)
    for name, value in module.state_dict().items():
        torch.testing.assert_close(found.state_dict()[name], value, rtol=0, atol=0)
    with pytest.raises(poptorch.Error, match="compiled for sgd"):
        found.setOptimizer(torch.optim.Adam(found.model.parameters()))


def test_the_loaded_module_runs_on_the_host(tmp_path: Path) -> None:
    module = Network()
    model = poptorch.inferenceModel(module, options())
    model(X)
    model.save(str(tmp_path / "file"))
    found = poptorch.load(tmp_path / "file", lambda made: made.deviceIterations(2) and None)
    wanted = module.eval()(X).detach()
    torch.testing.assert_close(found.model(X), wanted)
    torch.testing.assert_close(found(torch.cat([X, X])), torch.cat([wanted, wanted]))
    assert not found.model.training
    with pytest.raises(poptorch.Error, match=r"takes tensors of the shapes \[\(4, 3\)\]"):
        found.model(X[:2])


def test_without_the_model_the_program_is_loaded_into_one(tmp_path: Path) -> None:
    file = str(tmp_path / "file")
    module = Network()
    poptorch.inferenceModel(module, options()).compileAndExport(file, X, export_model=False)
    other = poptorch.inferenceModel(Network(), options())
    other.loadExecutable(file)
    torch.testing.assert_close(other(X), other.model.eval()(X).detach())
    with pytest.raises(poptorch.Error, match="holds no model"):
        poptorch.load(file)
    with pytest.raises(poptorch.Error, match="already compiled"):
        other.loadExecutable(file)
    with pytest.raises(poptorch.Error, match="holds a program for inference, this is a model for training"):
        poptorch.trainingModel(Network(), options()).loadExecutable(file)
    with pytest.raises(poptorch.Error, match=r"another module: first.weight is of shape \(5, 5\)"):
        poptorch.inferenceModel(Network(5), options()).loadExecutable(file)
    with pytest.raises(poptorch.Error, match="has not been compiled"):
        poptorch.inferenceModel(Network(), options()).save(file)


def test_files_that_are_none(tmp_path: Path, monkeypatch: Any) -> None:
    file = tmp_path / "file"
    poptorch.inferenceModel(Network(), options()).compileAndExport(str(file), X)
    good = file.read_bytes()
    with zipfile.ZipFile(tmp_path / "foreign", "w") as foreign:
        foreign.writestr("document.json", '{"format": "other"}')
    at = good.index(b"tensors/0") + 12
    broken = good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :]
    torch.save(Network().state_dict(), tmp_path / "pickle")
    for content in (b"", b"text", good[: len(good) // 3], broken):
        (tmp_path / "bad").write_bytes(content)
        with pytest.raises(poptorch.Error, match="bad: .*damaged"):
            poptorch.load(str(tmp_path / "bad"))
    for name in ("foreign", "pickle"):
        with pytest.raises(poptorch.Error, match=f"{name}: not a file of PopTorch programs written by ipuperf"):
            poptorch.load(str(tmp_path / name))
    with pytest.raises(FileNotFoundError):
        poptorch.load(str(tmp_path / "missing"))
    monkeypatch.setattr(archive, "_NUMBER", 99)
    with pytest.raises(poptorch.Error, match=r"written by another version: format 1 \(here 99\)"):
        poptorch.load(str(file))


class Secret:
    pass


def test_what_no_file_can_hold_is_named(tmp_path: Path) -> None:
    class Odd(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x + 1, Secret()

    with pytest.raises(poptorch.Error, match="cannot be stored: it has .*Secret"):
        poptorch.inferenceModel(Odd(), options()).compileAndExport(str(tmp_path / "file"), X)
    assert not list(tmp_path.iterdir())


def test_an_archive_gives_back_what_it_was_given(tmp_path: Path) -> None:
    """Types, shapes, empty tensors and those without numbers; the same bytes for the same content."""
    kept = [
        torch.arange(6.0).reshape(2, 3).t(), torch.tensor(True), torch.ones(3).half(), torch.empty(0, 4),
        torch.empty(2, 3, dtype=torch.int32, device="meta"), torch.tensor([1, -(2**40)]),
    ]  # fmt: skip
    for name in ("one", "other"):
        archive.write(tmp_path / name, "thing", {"a": [1, None]}, kept)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    content, tensors = archive.read(tmp_path / "one", "thing")
    assert content == {"a": [1, None]}
    assert [(t.shape, t.dtype, t.device) for t in tensors] == [(t.shape, t.dtype, t.device) for t in kept]
    assert all(torch.equal(t, k) for t, k in zip(tensors, kept, strict=True) if k.device.type != "meta")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({}, "holds a thing, expected a model"),
        ({"format": "other"}, "not a file of PopTorch programs written by ipuperf$"),
        ({"versions": {"format": "0"}}, r"written by another version: format 0 \(here 1\), ipuperf None \(here "),
        ({"versions": None}, r"written by another version: format None \(here 1\)"),
        ({"kind": "model", "tensors": [{"dtype": "nn", "shape": [], "meta": False}]}, "damaged .ValueError: tensor 0"),
        ({"kind": "model", "tensors": [{"dtype": "int8", "shape": [1], "meta": False}]}, "damaged .KeyError"),
        ({"kind": "model", "content": None}, ""),
    ],
)
def test_what_is_no_archive_of_this_kind(tmp_path: Path, change: dict[str, Any], text: str) -> None:
    archive.write(tmp_path / "good", "thing", [], [])
    with zipfile.ZipFile(tmp_path / "good") as file:
        head = json.loads(file.read("document.json"))
    with zipfile.ZipFile(tmp_path / "bad", "w") as file:
        file.writestr("document.json", json.dumps({**head, **change}))
    if not text:
        assert archive.read(tmp_path / "bad", "model") == (None, [])
        return
    with pytest.raises(archive.FileError, match=text):
        archive.read(tmp_path / "bad", "model")
    with pytest.raises(FileNotFoundError):
        archive.read(tmp_path / "none", "model")
