"""Local files in place of what ``tf.keras.datasets`` downloads."""

import sys
from types import ModuleType

import numpy as np
import pytest

from ipuperf.datasets import DatasetError
from ipuperf.datasets.keras_files import local_file, serve_keras, unserve_keras
from ipuperf.datasets.mnist import ENVIRONMENT_VARIABLE


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv(ENVIRONMENT_VARIABLE, str(tmp_path))
    return tmp_path


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def test_mnist_is_made_of_idx_files(folder):
    images, labels = np.arange(2 * 784, dtype=np.uint8).reshape(2, 28, 28), np.array([3, 7], np.uint8)
    for name in ("train", "t10k"):
        (folder / f"{name}-images-idx3-ubyte").write_bytes(idx(images))
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(idx(labels))
    with np.load(local_file("mnist.npz")) as found:
        assert sorted(found) == ["x_test", "x_train", "y_test", "y_train"]
        assert (found["x_train"] == images).all()
        assert (found["y_test"] == labels).all()


def test_other_files_have_their_own_names(folder):
    assert local_file("imdb.npz") is None
    (folder / "imdb.npz").write_bytes(b"x")
    assert local_file("imdb.npz") == folder / "imdb.npz"


def test_keras_is_asked_where_there_is_no_file(folder, monkeypatch):
    def get_file(name, origin):
        if origin == "nowhere":
            raise OSError("no network")
        return f"{origin}/{name}"

    module = ModuleType("tf_keras.src.datasets.imdb")
    module.get_file = get_file
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert serve_keras()
    try:
        assert not serve_keras()
        assert module.get_file("imdb.npz", origin="far") == "far/imdb.npz"
        with pytest.raises(DatasetError, match="imdb.npz is not on this machine .*no network"):
            module.get_file("imdb.npz", origin="nowhere")
        (folder / "imdb.npz").write_bytes(b"x")
        assert module.get_file("imdb.npz", origin="far") == folder / "imdb.npz"
    finally:
        unserve_keras()
    assert module.get_file is get_file
