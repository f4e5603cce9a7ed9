"""Find, load and download MNIST (60,000 + 10,000 images of 28 x 28 grey values, labels 0 to 9).

The environment variable ``IPUPERF_DATA`` names a folder of data sets, which is searched first: its sub-folder
``mnist``, then the folder itself. If there is no such folder, everything here raises `DatasetError`. Then come the
caller's folders and the places where torchvision programs usually keep the files, each in torchvision's layout
(``FOLDER/MNIST/raw``) and flat. Files may be packed (``.gz``) or unpacked.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from ipuperf.base.kinds import checked
from ipuperf.tools.datasets.idx import read_idx
from ipuperf.tools.errors import DatasetError

ENVIRONMENT_VARIABLE = "IPUPERF_DATA"
IMAGE_SHAPE = (28, 28)
_FILES = {
    True: ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    False: ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
}
_USUAL_FOLDERS = ("~/.torch/datasets", "./datasets")


def find_mnist(extra_folders: Iterable[str | Path] = ()) -> Path | None:
    """Return the first folder that holds all four MNIST files, packed or not; ``None`` if there is none.

    The search covers ``$IPUPERF_DATA/mnist`` and ``$IPUPERF_DATA``, then for each of ``extra_folders``,
    ``~/.torch/datasets`` and ``./datasets`` first ``FOLDER/MNIST/raw`` and then ``FOLDER``.
    """
    return _first_with(_folders(extra_folders), _FILES[True] + _FILES[False])


@checked()
def load_mnist(train: bool, root: str | Path | None = None, download: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return ``(images, labels)`` of the training or the test set: uint8 ``[n, 28, 28]`` and uint8 ``[n]``.

    The files are searched as in :func:`find_mnist`, with ``root`` as the extra folder. If they are nowhere and
    ``download`` is true, they are downloaded into ``ROOT/MNIST/raw`` (``$IPUPERF_DATA/mnist`` or ``~/.torch/datasets``
    without a root). Raises :class:`DatasetError` if they are missing or damaged; the message names the folders
    searched.
    """
    extra = () if root is None else (root,)
    # A list, because an error names the folders once more.
    searched = list(_folders(extra))
    folder = _first_with(searched, _FILES[train])
    if folder is None:
        folder = _fetch(searched, root) if download else None
    if folder is None:
        raise DatasetError(f"MNIST is not on this machine; {_advice(searched)}, or pass download=True")
    images_path, labels_path = (_existing(folder, name) for name in _FILES[train])
    assert images_path is not None
    assert labels_path is not None
    return _checked(images_path, labels_path)


def _checked(images_path: Path, labels_path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return both arrays, after checking that they have MNIST's form and belong together."""
    images, labels = read_idx(images_path), read_idx(labels_path)
    if images.dtype != np.uint8 or images.ndim != 3 or images.shape[1:] != IMAGE_SHAPE:
        raise DatasetError(f"{images_path}: {images.dtype} {images.shape} found, expected uint8 (n, 28, 28)")
    if labels.dtype != np.uint8 or labels.ndim != 1:
        raise DatasetError(f"{labels_path}: {labels.dtype} {labels.shape} found, expected uint8 (n,)")
    if len(images) != len(labels):
        raise DatasetError(
            f"{labels_path}: {len(labels)} labels found, expected {len(images)} as images in {images_path}"
        )
    if len(labels) and labels.max() > 9:
        raise DatasetError(f"{labels_path}: label {labels.max()} found, expected 0 to 9")
    return images, labels


def _fetch(searched: Sequence[Path], root: str | Path | None) -> Path:
    """Download all four files into the folder that belongs to ``root``; returns that folder."""
    from ipuperf.tools.datasets.download import download_files

    configured_folder = data_folder()
    if root is not None:
        folder = Path(root).expanduser() / "MNIST" / "raw"
    elif configured_folder is not None:
        folder = configured_folder / "mnist"
    else:
        folder = Path(_USUAL_FOLDERS[0]).expanduser() / "MNIST" / "raw"
    try:
        download_files(folder)
    except DatasetError as error:
        raise DatasetError(
            f"MNIST is not on this machine and could not be downloaded: {error}; {_advice(searched)}"
        ) from error
    return folder


def _advice(searched: Sequence[Path]) -> str:
    folders = ", ".join(str(folder) for folder in searched)
    return (
        f"searched: {folders}. Put the four IDX files into a folder mnist/ and "
        f"set {ENVIRONMENT_VARIABLE} to the folder that contains it"
    )


def data_folder() -> Path | None:
    """Return the folder that the environment names; a missing folder is an error, so that no other data is used."""
    configured_folder = os.environ.get(ENVIRONMENT_VARIABLE)
    if not configured_folder:
        return None
    folder = Path(configured_folder).expanduser()
    if not folder.is_dir():
        raise DatasetError(
            f"{ENVIRONMENT_VARIABLE}={configured_folder}: no such folder; make it, or unset {ENVIRONMENT_VARIABLE}"
        )
    return folder


def _folders(extra_folders: Iterable[str | Path]) -> Iterator[Path]:
    """Yield every folder to search, in order."""
    configured_folder = data_folder()
    if configured_folder is not None:
        yield configured_folder / "mnist"
        yield configured_folder
    for folder in (*extra_folders, *_USUAL_FOLDERS):
        expanded = Path(folder).expanduser()
        yield expanded / "MNIST" / "raw"
        yield expanded


def _first_with(folders: Iterable[Path], names: Sequence[str]) -> Path | None:
    return next((folder for folder in folders if all(_existing(folder, name) for name in names)), None)


def _existing(folder: Path, name: str) -> Path | None:
    """Return the unpacked file, else the packed one, else ``None``."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)
