"""Where MNIST is looked for, how it is fetched, and that what is loaded is MNIST."""

import gzip
import hashlib
import struct
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ipuperf.datasets import DatasetError, download, find_mnist, load_digits_28x28, load_mnist
from ipuperf.datasets.digits import resample_bilinear

NAMES = ["train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"]


def tiny_files(seed: int = 0) -> dict[str, bytes]:
    """Four IDX files with 5 training and 3 test images."""
    generator = np.random.default_rng(seed)
    files = {}
    for part, count in (("train", 5), ("t10k", 3)):
        images = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        labels = generator.integers(0, 10, count, dtype=np.uint8)
        files[f"{part}-images-idx3-ubyte"] = struct.pack(">IIII", 0x803, count, 28, 28) + images.tobytes()
        files[f"{part}-labels-idx1-ubyte"] = struct.pack(">II", 0x801, count) + labels.tobytes()
    return files


def write_files(folder: Path, files: dict[str, bytes], packed: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / (f"{name}.gz" if packed else name)).write_bytes(gzip.compress(content) if packed else content)
    return folder


@pytest.fixture(autouse=True)
def _own_surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No data set of the machine is seen, and no network is asked."""
    (tmp_path / "home").mkdir()
    (tmp_path / "work").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("IPUPERF_DATA", raising=False)
    monkeypatch.chdir(tmp_path / "work")

    def no_network(url: str, timeout: float) -> Any:
        raise urllib.error.URLError("no network in tests")

    monkeypatch.setattr(urllib.request, "urlopen", no_network)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    "place", ["data/mnist", "data", "root/MNIST/raw", "root", "home/.torch/datasets/MNIST/raw", "work/datasets"]
)
def test_each_place_is_searched(place: str, packed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("IPUPERF_DATA", str(tmp_path / "data"))
    write_files(tmp_path / place, tiny_files(), packed)
    found = find_mnist([tmp_path / "root"])
    assert found is not None
    assert found.resolve() == tmp_path / place
    images, labels = load_mnist(True, root=tmp_path / "root")
    assert images.dtype == labels.dtype == np.uint8
    assert images.tobytes() == tiny_files()[NAMES[0]][16:]
    assert labels.tobytes() == tiny_files()[NAMES[1]][8:]
    assert load_mnist(False, root=tmp_path / "root")[0].shape == (3, 28, 28)


def test_the_order_of_the_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("IPUPERF_DATA", str(tmp_path / "data"))
    expected = []
    for place in ["data/mnist", "data", "root/MNIST/raw", "root", "home/.torch/datasets", "work/datasets"]:
        expected.append(write_files(tmp_path / place, tiny_files()))
    for folder in expected:
        found = find_mnist([tmp_path / "root"])
        assert found is not None
        assert found.resolve() == folder
        for name in NAMES:
            (folder / name).unlink()
    assert find_mnist([tmp_path / "root"]) is None


def test_a_folder_without_all_files_is_passed_over(tmp_path: Path) -> None:
    folder = write_files(tmp_path / "root", tiny_files())
    (folder / NAMES[3]).unlink()
    assert find_mnist([tmp_path / "root"]) is None
    assert len(load_mnist(True, root=tmp_path / "root")[1]) == 5  # the training files are there
    with pytest.raises(DatasetError, match="IPUPERF_DATA"):
        load_mnist(False, root=tmp_path / "root")


def test_a_folder_of_data_that_is_not_there_is_an_error_whatever_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_files(tmp_path / "root", tiny_files())
    monkeypatch.setenv("IPUPERF_DATA", str(tmp_path / "data"))
    for find in (
        lambda: find_mnist([root]),
        lambda: load_mnist(True, root=root),
        lambda: load_mnist(True, root=root, download=True),
    ):
        with pytest.raises(DatasetError, match="data: no such folder"):
            find()
    assert not (tmp_path / "data").exists()


def test_missing_everywhere_names_variable_and_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("IPUPERF_DATA", str(tmp_path / "data"))
    for wanted in (False, True):
        with pytest.raises(DatasetError) as caught:
            load_mnist(True, root=tmp_path / "root", download=wanted)
        message = str(caught.value)
        assert "IPUPERF_DATA" in message
        for place in ("data/mnist", "root/MNIST/raw", "home/.torch/datasets"):
            assert str(tmp_path / place) in message
        assert ("no network in tests" in message) == wanted
    assert not (tmp_path / "root").exists()


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (NAMES[0], struct.pack(">IIII", 0x803, 1, 28, 27) + bytes(28 * 27), r"\(1, 28, 27\) found"),
        (NAMES[1], struct.pack(">II", 0x801, 4) + bytes(4), "4 labels found, expected 5"),
        (NAMES[1], struct.pack(">II", 0x801, 5) + bytes([1, 2, 3, 4, 10]), "label 10 found"),
        (NAMES[1], struct.pack(">III", 0x802, 5, 1) + bytes(5), r"\(5, 1\) found"),
    ],
)
def test_other_contents_are_refused(name: str, content: bytes, said: str, tmp_path: Path) -> None:
    write_files(tmp_path, {**tiny_files(), name: content})
    with pytest.raises(DatasetError, match=said):
        load_mnist(True, root=tmp_path)


class TestDownload:
    """With real ``file://`` mirrors in place of the network."""

    @pytest.fixture
    def files(self, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
        monkeypatch.setattr(urllib.request, "urlopen", urllib.request.build_opener().open)
        return tiny_files(seed=1)

    @staticmethod
    def checksums(files: dict[str, bytes]) -> dict[str, str]:
        return {f"{name}.gz": hashlib.md5(content).hexdigest() for name, content in files.items()}

    def test_fetches_what_is_missing(self, files: dict[str, bytes], tmp_path: Path) -> None:
        mirror = write_files(tmp_path / "mirror", files, packed=True).as_uri() + "/"
        target = tmp_path / "a" / "b"
        download.download_files(target, mirrors=[mirror], checksums=self.checksums(files))
        assert sorted(path.name for path in target.iterdir()) == sorted(f"{name}.gz" for name in NAMES)
        assert all(gzip.decompress((target / f"{name}.gz").read_bytes()) == files[name] for name in NAMES)
        (target / f"{NAMES[0]}.gz").write_bytes(b"damaged")
        (tmp_path / "mirror" / f"{NAMES[1]}.gz").unlink()  # not asked for again: the one at the target is good
        download.download_files(target, mirrors=[mirror], checksums=self.checksums(files))
        assert gzip.decompress((target / f"{NAMES[0]}.gz").read_bytes()) == files[NAMES[0]]

    def test_wrong_checksum_leaves_nothing(self, files: dict[str, bytes], tmp_path: Path) -> None:
        mirror = write_files(tmp_path / "mirror", tiny_files(seed=2), packed=True).as_uri() + "/"
        with pytest.raises(DatasetError, match=r"MD5 .* found, expected"):
            download.download_files(tmp_path / "target", mirrors=[mirror], checksums=self.checksums(files))
        assert not (tmp_path / "target").exists()

    def test_the_next_mirror_is_tried(self, files: dict[str, bytes], tmp_path: Path) -> None:
        broken = write_files(tmp_path / "broken", files)  # unpacked, so its .gz files do not exist
        wrong = write_files(tmp_path / "wrong", tiny_files(seed=2), packed=True)
        cut = write_files(tmp_path / "cut", files, packed=True)
        for path in cut.iterdir():
            path.write_bytes(path.read_bytes()[:-9])
        mirrors = [folder.as_uri() + "/" for folder in (broken, wrong, cut)]
        with pytest.raises(DatasetError) as caught:
            download.download_files(tmp_path / "target", mirrors=mirrors, checksums=self.checksums(files))
        assert all(mirror in str(caught.value) for mirror in mirrors)
        good = write_files(tmp_path / "good", files, packed=True).as_uri() + "/"
        download.download_files(tmp_path / "target", mirrors=[*mirrors, good], checksums=self.checksums(files))
        assert len(list((tmp_path / "target").iterdir())) == 4

    def test_a_folder_that_cannot_be_written(self, files: dict[str, bytes], tmp_path: Path) -> None:
        mirror = write_files(tmp_path / "mirror", files, packed=True).as_uri() + "/"
        (tmp_path / "file").write_text("")
        with pytest.raises(DatasetError, match="cannot be written"):
            download.download_files(tmp_path / "file", mirrors=[mirror], checksums=self.checksums(files))

    def test_load_mnist_downloads_into_torchvisions_folder(
        self, files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        mirror = write_files(tmp_path / "mirror", files, packed=True).as_uri() + "/"
        whole = download.download_files
        monkeypatch.setattr(
            download, "download_files", lambda folder: whole(folder, mirrors=[mirror], checksums=self.checksums(files))
        )
        images, _ = load_mnist(True, root=tmp_path / "root", download=True)
        assert images.tobytes() == files[NAMES[0]][16:]
        assert (tmp_path / "root" / "MNIST" / "raw" / f"{NAMES[0]}.gz").is_file()


def test_the_mirrors_are_asked_over_https() -> None:
    assert all(mirror.startswith("https://") and mirror.endswith("/") for mirror in download.MIRRORS)
    assert sorted(download.UNPACKED_MD5) == sorted(f"{name}.gz" for name in NAMES)


class TestRealFiles:
    @pytest.mark.heavy
    def test_shapes_and_known_beginnings(self, monkeypatch: pytest.MonkeyPatch, data_folder: Path) -> None:
        monkeypatch.setenv("IPUPERF_DATA", str(data_folder))
        images, labels = load_mnist(True)
        assert images.shape == (60_000, 28, 28)
        assert labels[:5].tolist() == [5, 0, 4, 1, 9]
        assert images.mean() / 255 == pytest.approx(0.1307, abs=5e-5)  # the figures the tutorials normalise with
        assert images.std() / 255 == pytest.approx(0.3081, abs=5e-5)
        images, labels = load_mnist(False)
        assert images.shape == (10_000, 28, 28)
        assert np.bincount(labels).tolist() == [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]

    def test_the_checksums_are_those_of_mnist(self, mnist_folder: Path) -> None:
        for name, checksum in download.UNPACKED_MD5.items():
            packed = mnist_folder / name
            plain = mnist_folder / name.removesuffix(".gz")
            content = gzip.decompress(packed.read_bytes()) if packed.is_file() else plain.read_bytes()
            assert hashlib.md5(content).hexdigest() == checksum


class TestDigits:
    def test_split(self) -> None:
        pytest.importorskip("sklearn")
        train_images, train_labels = load_digits_28x28(True)
        test_images, test_labels = load_digits_28x28(False)
        assert train_images.dtype == train_labels.dtype == np.uint8
        assert train_images.shape[1:] == test_images.shape[1:] == (28, 28)
        assert len(train_images) == len(train_labels)
        assert len(train_labels) + len(test_labels) == 1797
        share = np.bincount(test_labels) / (np.bincount(test_labels) + np.bincount(train_labels))
        assert share == pytest.approx(np.full(10, 0.2), abs=0.005)
        assert (train_images.min(), train_images.max()) == (0, 255)
        again, _ = load_digits_28x28(True)
        np.testing.assert_array_equal(again, train_images)

    def test_they_are_those_of_scikit_learn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        theirs = pytest.importorskip("sklearn.datasets").load_digits()
        monkeypatch.setattr("ipuperf.datasets.digits.resample_bilinear", lambda images, side: images * 16 / 255)
        for train in (True, False):
            images, labels = load_digits_28x28(train)
            chosen = [theirs.images[theirs.target == label] for label in range(10)]
            kept = np.concatenate([of[[(i % 5 == 4) != train for i in range(len(of))]] for of in chosen])
            np.testing.assert_array_equal(images[np.argsort(labels, kind="stable")], kept)

    def test_resampling_equals_torch(self) -> None:
        torch = pytest.importorskip("torch")
        small = np.random.default_rng(3).random((2, 8, 8))
        expected = torch.nn.functional.interpolate(
            torch.from_numpy(small)[:, None], size=(28, 28), mode="bilinear", align_corners=False
        )
        np.testing.assert_allclose(resample_bilinear(small, 28), expected[:, 0].numpy(), rtol=0, atol=1e-12)

    def test_without_scikit_learn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "sklearn.datasets", None)
        with pytest.raises(DatasetError, match=r"pip install 'scikit-learn<.*IPUPERF_DATA"):
            load_digits_28x28(True)
