"""``torchvision.datasets.MNIST`` of the torchvision stand-in.

Importing this module imports torch where it is installed, which takes a second or two; it is therefore imported only
when a program first asks for ``MNIST``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ipuperf.tools.datasets.mnist import load_mnist
from ipuperf.tools.datasets.standin_transforms import Compose, Normalize, ToTensor

torch: Any
try:
    import torch
except ImportError:  # then MNIST is a plain sequence of NumPy images
    torch = None

if TYPE_CHECKING:
    from torch.utils.data import Dataset

    _Base = Dataset[Any]
else:
    _Base = object if torch is None else torch.utils.data.Dataset


class MNIST(_Base):
    """MNIST as a data set of ``(image, label)`` pairs.

    ``root``, ``train`` and ``download`` are those of :func:`ipuperf.datasets.load_mnist`. An image is a uint8 ``[28,
    28]`` NumPy array (torchvision: a PIL picture) to which ``transform`` is applied; a label is an ``int`` to which
    ``target_transform`` is applied. ``data`` (uint8 ``[n, 28, 28]``) and ``targets`` (int64 ``[n]``) hold everything,
    as torch tensors where torch is installed, and may be replaced, for instance by the first thousand.

    When a ``DataLoader`` asks for a batch, ``ToTensor`` and ``Normalize`` at the beginning of ``transform`` are applied
    to all its images at once, which takes a tenth of the time; the values are the same.
    """

    classes: ClassVar[list[str]] = [
        *("0 - zero", "1 - one", "2 - two", "3 - three", "4 - four"),
        *("5 - five", "6 - six", "7 - seven", "8 - eight", "9 - nine"),
    ]

    def __init__(
        self,
        root: str | Path,
        train: bool = True,
        transform: Callable[[Any], Any] | None = None,
        target_transform: Callable[[Any], Any] | None = None,
        download: bool = False,
    ) -> None:
        self.root = str(Path(root).expanduser())
        self.train = train
        self.transform = transform
        self.target_transform = target_transform
        images, labels = load_mnist(train, root=root, download=download)
        self.data = images if torch is None else torch.from_numpy(images)
        self.targets = labels.astype(np.int64) if torch is None else torch.from_numpy(labels.astype(np.int64))

    @property
    def data(self) -> Any:
        """uint8 ``[n, 28, 28]``: the images."""
        return self._data

    @data.setter
    def data(self, images: Any) -> None:
        self._data = images
        self._pixels = np.asarray(images)

    @property
    def targets(self) -> Any:
        """int64 ``[n]``: the labels."""
        return self._targets

    @targets.setter
    def targets(self, labels: Any) -> None:
        self._targets = labels
        self._labels = np.asarray(labels)

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The label of each class name."""
        return {name: label for label, name in enumerate(self.classes)}

    def __len__(self) -> int:
        return len(self._pixels)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        index = operator.index(index)
        # A transform may change its image in place, which must not reach the data set.
        pixels = self._pixels[index].copy()
        image = pixels if self.transform is None else self.transform(pixels)
        return image, self._target(self._labels[index])

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, Any]]:
        """The items of a whole batch; PyTorch's data loader asks for this where it exists."""
        transforms: list[Any] = list(self.transform.transforms if type(self.transform) is Compose else [self.transform])
        # A subclass with its own ``__getitem__`` must see each index, and one of a transform each image.
        plain = type(self).__getitem__ is MNIST.__getitem__ and self._pixels.ndim == 3
        if not plain or [type(transform) for transform in transforms[:1]] != [ToTensor]:
            return [self[index] for index in indices]
        chosen = np.asarray(indices, dtype=np.int64)
        # `ToTensor` takes channels last, so the images of a batch pass as the channels of one image.
        images = transforms.pop(0)(self._pixels[chosen].transpose(1, 2, 0))[:, None]
        while transforms and type(transforms[0]) is Normalize:
            images = transforms.pop(0)(images)
        remaining = Compose(transforms)
        return [(remaining(image), self._target(label)) for image, label in zip(images, self._labels[chosen].tolist())]

    def __repr__(self) -> str:
        split = "train" if self.train else "test"
        return f"Dataset MNIST (ipuperf's stand-in)\n    Number of datapoints: {len(self)}\n    Split: {split}"

    def _target(self, label: Any) -> Any:
        return int(label) if self.target_transform is None else self.target_transform(int(label))
