"""The stand-in has the values of torchvision's arithmetic, never hides the real one, and explains itself."""

import importlib
import importlib.util
import pickle
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from ipuperf.datasets import DatasetError, install_standin, torchvision_standin, uninstall_standin
from ipuperf.datasets.standin_transforms import Compose, Lambda, Normalize, ToTensor

torch = pytest.importorskip("torch")

needs_standin = pytest.mark.skipif(
    importlib.util.find_spec("torchvision") is not None, reason="torchvision is really installed here"
)


@pytest.fixture
def standin() -> Iterator[ModuleType]:
    assert install_standin()
    yield importlib.import_module("torchvision")
    uninstall_standin()


@pytest.fixture
def images() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (37, 28, 28), dtype=np.uint8)


@pytest.fixture
def root(tmp_path: Path, images: np.ndarray, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("IPUPERF_DATA", str(tmp_path))
    labels = np.arange(37, dtype=np.uint8) % 10
    for part in ("train", "t10k"):
        content = struct.pack(">IIII", 0x803, *images.shape) + images.tobytes()
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(content)
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 0x801, 37) + labels.tobytes())
    return tmp_path


def reference(images: np.ndarray, mean: float = 0.1307, std: float = 0.3081) -> np.ndarray:
    """ToTensor and Normalize in plain float32 NumPy."""
    scaled = images.astype(np.float32) / np.float32(255)
    return (scaled - np.float32(mean)) / np.float32(std)


def mnist_transform() -> Compose:
    return Compose([ToTensor(), Normalize((0.1307,), (0.3081,))])


@needs_standin
class TestInstalled:
    def test_the_tutorials_loader(self, standin: Any, root: Path, images: np.ndarray) -> None:
        loader = torch.utils.data.DataLoader(
            standin.datasets.MNIST(
                "~/.torch/datasets",
                train=True,
                download=True,
                transform=standin.transforms.Compose(
                    [standin.transforms.ToTensor(), standin.transforms.Normalize((0.1307,), (0.3081,))]
                ),
            ),
            batch_size=8,
            shuffle=True,
            drop_last=True,
        )
        batches = list(loader)
        assert len(batches) == len(loader) == 4
        rows = {row.tobytes() for row in reference(images)}
        for data, labels in batches:
            assert data.shape == (8, 1, 28, 28)
            assert data.dtype == torch.float32
            assert labels.dtype == torch.int64
            assert all(row.numpy().tobytes() in rows for row in data)

    def test_import_forms(self, standin: ModuleType) -> None:
        import torchvision.transforms as transforms
        from torchvision import datasets
        from torchvision.datasets import MNIST

        assert sys.modules["torchvision.transforms"] is transforms is standin.transforms
        assert sys.modules["torchvision.datasets"] is datasets
        assert datasets.MNIST is MNIST
        assert issubclass(MNIST, torch.utils.data.Dataset)
        assert all(isinstance(sys.modules[name], ModuleType) for name in ("torchvision", "torchvision.datasets"))

    def test_what_it_lacks_is_explained(self, standin: Any) -> None:
        for lacking in (
            lambda: standin.models,
            lambda: standin.transforms.RandomCrop,
            lambda: standin.datasets.CIFAR10,
        ):
            with pytest.raises(AttributeError, match=r"stand-in.*datasets\.MNIST.*pip install torchvision"):
                lacking()
        assert not hasattr(standin, "ops")
        for statement in (
            "from torchvision import models",
            "import torchvision.models",
            "import torchvision.transforms.v2",
            "from torchvision.transforms import RandomCrop",
        ):
            with pytest.raises(ImportError, match=r"stand-in.*pip install torchvision"):
                exec(statement)

    def test_twice_and_out_again(self) -> None:
        before = list(sys.meta_path)
        assert install_standin()
        first = sys.modules["torchvision"]
        assert install_standin()
        assert sys.modules["torchvision"] is first
        assert importlib.util.find_spec("torchvision") is not None
        uninstall_standin()
        assert not {name for name in sys.modules if name.partition(".")[0] == "torchvision"}
        assert sys.meta_path == before


class TestNotInTheWay:
    def test_an_imported_torchvision_stays(self, monkeypatch: pytest.MonkeyPatch) -> None:
        real = ModuleType("torchvision")
        monkeypatch.setitem(sys.modules, "torchvision", real)
        assert not install_standin()
        assert sys.modules["torchvision"] is real
        uninstall_standin()
        assert sys.modules["torchvision"] is real

    def test_an_installed_torchvision_is_not_shadowed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            monkeypatch.delitem(sys.modules, name)
        (tmp_path / "torchvision").mkdir()
        (tmp_path / "torchvision" / "__init__.py").write_text("")
        monkeypatch.syspath_prepend(tmp_path)
        assert not install_standin()
        assert "torchvision" not in sys.modules


class TestValues:
    def test_direct_equals_numpy_and_torch(self, images: np.ndarray) -> None:
        result = mnist_transform()(images[0])
        assert result.shape == (1, 28, 28)
        assert result.dtype == torch.float32
        np.testing.assert_array_equal(result.numpy(), reference(images[0])[None])
        with_torch = torch.from_numpy(images[0]).to(torch.float32).div(255)
        with_torch.sub_(torch.as_tensor([0.1307])).div_(torch.as_tensor([0.3081]))
        assert torch.equal(result[0], with_torch)

    def test_channels_last_and_other_dtypes(self) -> None:
        colour = np.random.default_rng(1).integers(0, 256, (4, 5, 3), dtype=np.uint8)
        result = ToTensor()(colour)
        assert result.is_contiguous()
        np.testing.assert_array_equal(result.numpy(), colour.transpose(2, 0, 1).astype(np.float32) / np.float32(255))
        normalized = Normalize((0.1, 0.2, 0.3), (1.0, 2.0, 4.0))(result)
        expected = (result.numpy() - np.float32([[[0.1]], [[0.2]], [[0.3]]])) / np.float32([[[1]], [[2]], [[4]]])
        np.testing.assert_array_equal(normalized.numpy(), expected)
        floats = np.random.default_rng(2).random((4, 5))
        np.testing.assert_array_equal(ToTensor()(floats).numpy(), floats[None])

    def test_in_place(self) -> None:
        tensor = torch.ones(1, 2, 2)
        assert Normalize((1,), (2,))(tensor) is not tensor
        assert tensor.sum() == 4
        assert Normalize((1,), (2,), inplace=True)(tensor) is tensor
        assert tensor.sum() == 0

    def test_errors(self) -> None:
        with pytest.raises(TypeError, match="NumPy array"):
            ToTensor()([[1, 2]])
        with pytest.raises(ValueError, match="2 or 3 dimensions"):
            ToTensor()(np.zeros(3, np.uint8))
        with pytest.raises(TypeError, match="put ToTensor before it"):
            Normalize((0,), (1,))(torch.zeros(1, 2, 2, dtype=torch.uint8))
        with pytest.raises(ValueError, match="C, H, W"):
            Normalize((0,), (1,))(torch.zeros(2, 2))
        with pytest.raises(ValueError, match="zero"):
            Normalize((0,), (0,))(torch.zeros(1, 2, 2))
        with pytest.raises(TypeError, match="callable"):
            Lambda(3)


class TestMNIST:
    @pytest.fixture
    def mnist(self) -> Any:
        from ipuperf.datasets.standin_mnist import MNIST

        return MNIST

    def test_plain(self, mnist: Any, root: Path, images: np.ndarray) -> None:
        data = mnist(root, train=False)
        assert len(data) == 37
        image, label = data[12]
        np.testing.assert_array_equal(image, images[12])
        assert image.dtype == np.uint8
        assert label == 2
        assert type(label) is int
        assert data.data.dtype == torch.uint8
        assert data.data.shape == (37, 28, 28)
        assert data.targets.dtype == torch.int64
        assert data.class_to_idx["4 - four"] == 4
        with pytest.raises(IndexError):
            data[37]
        image[:] = 0  # the caller's own
        np.testing.assert_array_equal(data[12][0], images[12])

    @pytest.mark.parametrize(
        "transform",
        [
            ToTensor(),
            Compose([ToTensor()]),
            mnist_transform(),
            Compose([ToTensor(), Normalize((0.5,), (0.5,)), Normalize((0.1,), (3.0,))]),
            Compose([ToTensor(), Normalize((0.1307,), (0.3081,)), Lambda(torch.flatten)]),
            Compose([ToTensor(), Lambda(lambda tensor: tensor * 2), Normalize((0.1,), (3.0,))]),
            Compose([Lambda(lambda image: image[::-1].copy()), ToTensor()]),
            Lambda(lambda image: torch.from_numpy(image.astype(np.int64))),
        ],
    )
    def test_items_and_batches_equal_the_transform(
        self, mnist: Any, root: Path, images: np.ndarray, transform: Any
    ) -> None:
        data = mnist(root, transform=transform)
        order = [5, 3, 36, 3, -1]
        for index, (batched, batched_label) in zip(order, data.__getitems__(order), strict=True):
            expected = transform(images[index].copy())
            single, label = data[index]
            assert torch.equal(single, expected)
            assert torch.equal(batched, expected)
            assert single.dtype == batched.dtype == expected.dtype
            assert label == batched_label
            assert type(label) is type(batched_label) is int
        data[0][0].zero_()
        data.__getitems__([0])[0][0].zero_()
        assert torch.equal(data[0][0], transform(images[0].copy()))

    def test_changes_are_followed(self, mnist: Any, root: Path, images: np.ndarray) -> None:
        transform = mnist_transform()
        data = mnist(root, transform=transform, target_transform=lambda label: label + 100)
        assert data[3][1] == 103
        transform.transforms[1].mean = (0.5,)
        np.testing.assert_array_equal(data[3][0].numpy()[0], reference(images[3], mean=0.5))
        data.transform = ToTensor()
        assert torch.equal(data[3][0], ToTensor()(images[3]))
        data.data[3] = 7
        assert torch.equal(data[3][0], torch.full((1, 28, 28), 7).div(255))
        data.data, data.targets = data.data[10:20], data.targets[10:20]
        assert len(data) == 10
        assert torch.equal(data[0][0], ToTensor()(images[10]))
        data.data = torch.zeros(2, 28, 28, dtype=torch.float32)
        assert data[0][0].dtype == torch.float32

    def test_subclasses_keep_their_items(self, mnist: Any, root: Path) -> None:
        class Negative(mnist):
            def __getitem__(self, index: int) -> Any:
                image, label = super().__getitem__(index)
                return -image, label

        class Doubling(Normalize):
            def __call__(self, tensor: Any) -> Any:
                return super().__call__(tensor) * 2

        plain = mnist(root, transform=mnist_transform())
        assert torch.equal(Negative(root, transform=mnist_transform()).__getitems__([4])[0][0], -plain[4][0])
        doubled = mnist(root, transform=Compose([ToTensor(), Doubling((0.1307,), (0.3081,))]))
        assert torch.equal(doubled[4][0], plain[4][0] * 2)

    def test_pickles(self, mnist: Any, root: Path) -> None:
        data = pickle.loads(pickle.dumps(mnist(root, transform=mnist_transform())))
        assert torch.equal(data[1][0], mnist(root, transform=mnist_transform())[1][0])

    def test_missing_files(self, mnist: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HOME", str(tmp_path))
        (tmp_path / "none").mkdir()
        monkeypatch.setenv("IPUPERF_DATA", str(tmp_path / "none"))
        monkeypatch.chdir(tmp_path)
        with pytest.raises(DatasetError, match="download=True"):
            mnist(tmp_path / "root")
        with pytest.raises(RuntimeError):  # what programs written for torchvision catch
            mnist(tmp_path / "root")


def test_without_torch_numpy_arrays_of_the_same_values(root: Path, images: np.ndarray) -> None:
    program = """
import sys
sys.modules["torch"] = None
import numpy as np
from ipuperf.datasets import install_standin
from ipuperf.datasets.torchvision_standin import build_standin
modules = build_standin()
transforms, datasets = modules["torchvision.transforms"], modules["torchvision.datasets"]
chain = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
data = datasets.MNIST(sys.argv[1], transform=chain)
assert isinstance(data.data, np.ndarray) and isinstance(data[0][0], np.ndarray)
assert data[5][0].shape == (1, 28, 28)
np.testing.assert_array_equal(data[5][0], chain(data.data[5]))
np.testing.assert_array_equal(data.__getitems__([5])[0][0], data[5][0])
sys.stdout.buffer.write(data[5][0].tobytes())
"""
    done = subprocess.run([sys.executable, "-c", program, str(root)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert done.stdout == reference(images[5]).tobytes()


@needs_standin
def test_installing_imports_neither_torch_nor_scikit_learn() -> None:
    program = (
        "import sys; from ipuperf.datasets import install_standin; install_standin(); import torchvision.transforms; "
        "sys.exit(bool({'torch', 'sklearn', 'tqdm'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_build_touches_nothing() -> None:
    before = dict(sys.modules)
    modules = torchvision_standin.build_standin()
    assert set(modules) == {"torchvision", "torchvision.datasets", "torchvision.transforms"}
    assert sys.modules.get("torchvision") is before.get("torchvision")
    assert modules["torchvision"].transforms is modules["torchvision.transforms"]
