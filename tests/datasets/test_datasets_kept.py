"""Modules of Keras that are imported after files are served, transforms of NumPy arrays, folders of downloads."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

from ipuperf.datasets import DatasetError, digits, download, idx, keras_files, load_mnist
from ipuperf.datasets.standin_transforms import Lambda, Normalize

SOURCE = 'NAME = __name__\ndef get_file(fname, origin="far"):\n    """Fetch it."""\n    return f"{origin}/{fname}"\n'


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package whose modules fetch files, in place of Keras'."""
    for folder in ("made_up_keras", "made_up_keras/datasets"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    for name in ("datasets/one.py", "datasets/two.py", "other.py"):
        (tmp_path / "made_up_keras" / name).write_text(SOURCE)
    (tmp_path / "made_up_keras" / "datasets" / "plain.py").write_text("VALUE = 3\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(keras_files, "_PACKAGE", "made_up_keras.datasets.")
    monkeypatch.setenv("IPUPERF_DATA", str(tmp_path))
    yield "made_up_keras"
    keras_files.unserve_keras()
    for name in [name for name in sys.modules if name.startswith("made_up_keras")]:
        del sys.modules[name]


def test_modules_that_are_imported_later_are_served_too(package: str, tmp_path: Path) -> None:
    one = importlib.import_module(f"{package}.datasets.one")
    plain = one.get_file
    assert (keras_files.serve_keras(), keras_files.serve_keras()) == (True, False)
    assert sum(type(finder).__module__ == keras_files.__name__ for finder in sys.meta_path) == 1
    two, other, value = (
        importlib.import_module(f"{package}.{name}") for name in ("datasets.two", "other", "datasets.plain")
    )
    assert value.VALUE == 3
    assert (two.NAME, two.get_file.__doc__, two.__spec__.loader.get_filename()) == (
        two.__name__,
        "Fetch it.",
        two.__file__,
    )
    for module in (one, two):
        assert hasattr(module.get_file, "_serves_local_files")
        assert module.get_file("x.npz", origin="near") == "near/x.npz"
    assert not hasattr(other.get_file, "_serves_local_files")
    with pytest.raises(ModuleNotFoundError, match="gone"):
        importlib.import_module(f"{package}.datasets.gone")
    (tmp_path / "x.npz").touch()
    assert (one.get_file("x.npz"), other.get_file("x.npz")) == (tmp_path / "x.npz", "far/x.npz")
    keras_files.unserve_keras()
    assert one.get_file is plain
    assert not hasattr(two.get_file, "_serves_local_files")
    assert two.get_file("x.npz") == "far/x.npz"


@pytest.mark.parametrize("inplace", [False, True])
def test_arrays_are_normalised(inplace: bool) -> None:
    image = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    wanted = (image - np.array([1, 2], np.float32)[:, None, None]) / np.array([4, 8], np.float32)[:, None, None]
    before = image.copy()
    found = Normalize([1, 2], [4, 8], inplace)(image)
    np.testing.assert_array_equal(found, wanted)
    assert (found is image) == inplace == (not np.array_equal(image, before))
    for wrong, error in ((np.ones((1, 2, 2), int), TypeError), (np.ones((2, 2), np.float32), ValueError)):
        with pytest.raises(error, match="Normalize takes"):
            Normalize([0], [1])(wrong)
    with pytest.raises(ValueError, match="cannot divide by the zero"):
        Normalize([0, 0], [1, 0])(image)
    with pytest.raises(TypeError, match="callable, got int"):
        Lambda(3)
    assert Lambda(np.max)(image) == image.max()


@pytest.mark.parametrize(("root", "data"), [("root", True), ("root", False), (None, True), (None, False)])
def test_where_downloads_go(root: str | None, data: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("IPUPERF_DATA", str(tmp_path) if data else "")
    asked: list[Path] = []

    def fetch(folder: Path) -> None:
        asked.append(folder)
        raise DatasetError("no network")

    monkeypatch.setattr(download, "download_files", fetch)
    with pytest.raises(DatasetError, match="could not be downloaded: no network; searched: .*MNIST/raw"):
        load_mnist(False, root=None if root is None else tmp_path / root, download=True)
    usual = tmp_path / "mnist" if data else tmp_path / "home" / ".torch" / "datasets" / "MNIST" / "raw"
    assert asked == [usual if root is None else tmp_path / root / "MNIST" / "raw"]


def test_answers_of_mirrors_that_are_too_long(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """More than an MNIST file is cut off; as much as the limit is not."""
    import gzip
    import hashlib

    monkeypatch.setattr(download, "_LARGEST_BYTES", 100)
    monkeypatch.setattr(download, "_CHUNK_BYTES", 30)
    for size, said in ((100, None), (101, "more than 100 bytes sent")):
        content = gzip.compress(b"a", mtime=0).ljust(size, b"\0")
        (tmp_path / "f.gz").write_bytes(content)
        monkeypatch.setattr(download.urllib.request, "urlopen", download.urllib.request.build_opener().open)
        call = {"mirrors": [f"{tmp_path.as_uri()}/"], "checksums": {"f.gz": hashlib.md5(b"a").hexdigest()}}
        if said is None:
            download.download_files(tmp_path / f"{size}", **call)
            assert (tmp_path / f"{size}" / "f.gz").read_bytes() == content
            assert (tmp_path / f"{size}" / "f.gz").stat().st_mode & 0o777 == 0o644
        else:
            with pytest.raises(DatasetError, match=said):
                download.download_files(tmp_path / f"{size}", **call)
    assert [path.name for path in (tmp_path / "100").iterdir()] == ["f.gz"]


def test_constants() -> None:
    """What the formats and the published files say."""
    assert [np.dtype(kind).str for kind in idx._ELEMENT_TYPES.values()] == ["|u1", "|i1", ">i2", ">i4", ">f4", ">f8"]
    assert list(idx._ELEMENT_TYPES) == [0x08, 0x09, 0x0B, 0x0C, 0x0D, 0x0E]
    assert (idx._MAX_DIMENSIONS, idx._CHUNK_BYTES, idx._CHECKED_BYTES) == (32, 2**20, 2**28)
    assert (download._CHUNK_BYTES, download._LARGEST_BYTES, download.TIMEOUT_SECONDS) == (2**16, 2**26, 10)
    assert (digits._SIDE, digits._SMALL_SIDE, digits._LARGEST_GREY, digits._TEST_EVERY) == (28, 8, 16, 5)


@pytest.mark.parametrize(("source", "target"), [(8, 28), (8, 8), (5, 3), (1, 4), (3, 1)])
def test_weights_of_resampling(source: int, target: int) -> None:
    """The oracle interpolates between centres of pixels; edges continue."""
    centres = (np.arange(target) + 0.5) * source / target - 0.5
    wanted = [np.interp(centres, np.arange(source), one) for one in np.eye(source)]
    np.testing.assert_allclose(digits._bilinear_weights(source, target), np.transpose(wanted), atol=1e-12)


def test_every_fifth_of_a_class_is_for_testing() -> None:
    labels = np.random.default_rng(2).integers(0, 3, 60)
    wanted = np.zeros(60, bool)
    for label in range(3):
        wanted[np.flatnonzero(labels == label)[4::5]] = True
    assert digits._is_test(labels).tolist() == wanted.tolist()
