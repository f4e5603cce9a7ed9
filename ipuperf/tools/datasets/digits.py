"""scikit-learn's handwritten digits in the shape of MNIST, for machines that have no MNIST and no network.

scikit-learn ships 1,797 images of 8 x 8 with grey values 0 to 16 (Alpaydin and Kaynak, UCI machine learning
repository).
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ipuperf.base.kinds import checked
from ipuperf.base.requirements import pip_install
from ipuperf.tools.errors import DatasetError

_SIDE = 28
_SMALL_SIDE = 8
_LARGEST_GREY = 16
_TEST_EVERY = 5


@checked()
def load_digits_28x28(train: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return ``(images, labels)``: uint8 ``[n, 28, 28]`` with values 0 to 255, and uint8 ``[n]`` with values 0 to 9.

    Images are resampled bilinearly. In the order of the data set, every fifth image of each class belongs to the test
    set and the others to the training set. So the split is the same everywhere and keeps the classes balanced. Raises
    :class:`DatasetError` if scikit-learn, or its file, is not installed.
    """
    table = np.loadtxt(_file(), delimiter=",")
    labels = table[:, -1].astype(np.uint8)
    chosen = _is_test(labels) != train
    small = table[chosen, :-1].reshape(-1, _SMALL_SIDE, _SMALL_SIDE)
    large = resample_bilinear(small, _SIDE) * (255 / _LARGEST_GREY)
    return np.rint(large).clip(0, 255).astype(np.uint8), labels[chosen]


def _file() -> Path:
    """Return the file in scikit-learn's package without importing it, which would take ten times as long as all else
    here.
    """
    # ``None`` in ``sys.modules`` blocks an import, which ``find_spec`` would not notice.
    blocked = sys.modules.get("sklearn.datasets", sys) is None
    package = None if blocked else find_spec("sklearn")
    if package is None or package.origin is None:
        raise DatasetError(
            f"the digits data set comes with scikit-learn, which is not installed: {pip_install('data')}; MNIST in its "
            "place needs none: IPUPERF_DATA names the folder that holds mnist/"
        )
    file = Path(package.origin).with_name("datasets") / "data" / "digits.csv.gz"
    if not file.is_file():
        raise DatasetError(f"{file}: no such file; this scikit-learn has no digits data set")
    return file


def resample_bilinear(images: np.ndarray, side: int) -> np.ndarray:
    """Resize square ``images`` ``[n, k, k]`` to ``[n, side, side]`` by bilinear interpolation, float64.

    Pixel centres lie at half-integers (as in ``torch.nn.functional.interpolate(align_corners=False)`` without
    antialiasing). Beyond the outermost centres the edge value continues.
    """
    weights = _bilinear_weights(images.shape[-1], side)
    # Bilinear interpolation is separable: one product per axis.
    resized: np.ndarray = weights @ images.astype(np.float64) @ weights.T
    return resized


def _bilinear_weights(source: int, target: int) -> np.ndarray:
    """Return ``[target, source]``: row ``i`` holds the weights of the source pixels in target pixel ``i``."""
    centres = ((np.arange(target) + 0.5) * source / target - 0.5).clip(0, source - 1)
    lower = np.floor(centres).astype(np.int64)
    upper = np.minimum(lower + 1, source - 1)
    fraction = centres - lower
    # ``add.at`` adds both weights also where lower and upper are the same pixel, at the edge.
    weights = np.zeros((target, source))
    np.add.at(weights, (np.arange(target), lower), 1 - fraction)
    np.add.at(weights, (np.arange(target), upper), fraction)
    return weights


def _is_test(labels: np.ndarray) -> np.ndarray:
    """bool ``[n]``: true for every fifth member of each class, counted in order."""
    rank = np.zeros(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        members = np.flatnonzero(labels == label)
        rank[members] = np.arange(len(members))
    is_test: np.ndarray = rank % _TEST_EVERY == _TEST_EVERY - 1
    return is_test
