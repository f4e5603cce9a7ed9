"""``torchvision.datasets.MNIST`` of the torchvision stand-in.

Importing this module imports torch where it is installed, which takes a second or two; it is therefore imported only
when a program first asks for ``MNIST``.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ipuperf.tools.datasets.mnist import load_mnist
from ipuperf.tools.datasets.standin_transforms import Compose, split_tabulated, tabulate

torch: Any
try:
    import torch
    from torch.utils.data import Dataset as _Base
except ImportError:  # then MNIST is a plain sequence of NumPy images
    torch = None

    class _Base:  # type: ignore[no-redef]
        """What is left of ``torch.utils.data.Dataset`` without torch."""


class MNIST(_Base):
    """MNIST as a data set of ``(image, label)`` pairs.

    ``root``, ``train`` and ``download`` are those of :func:`ipuperf.datasets.load_mnist`. An image is a uint8 ``[28,
    28]`` NumPy array (torchvision: a PIL picture) to which ``transform`` is applied; a label is an ``int`` to which
    ``target_transform`` is applied. ``data`` (uint8 ``[n, 28, 28]``) and ``targets`` (int64 ``[n]``) hold everything,
    as torch tensors where torch is installed, and may be replaced, for instance by the first thousand.

    A beginning of ``transform`` that treats each pixel alone is looked up in a table of 256 values, and a whole batch
    is looked up at once when a ``DataLoader`` asks for one; the values are the same.
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
        self._table_key: Hashable = None
        self._table: np.ndarray | None = None

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
        return self._transformed(self._pixels[index]), self._target(self._labels[index])

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, Any]]:
        """The items of a whole batch; PyTorch's data loader asks for this where it exists."""
        # A subclass with its own ``__getitem__`` must see each index.
        length = self._tabulated_length() if type(self).__getitem__ is MNIST.__getitem__ else 0
        if not length:
            return [self[index] for index in indices]
        chosen = np.asarray(indices, dtype=np.int64)
        looked_up = np.take(self._table, self._pixels[chosen])[:, None]  # type: ignore[arg-type]
        images = looked_up if torch is None else torch.from_numpy(looked_up).unbind(0)
        return [
            (self._rest(image, length), self._target(label))
            for image, label in zip(images, self._labels[chosen].tolist())
        ]

    def __repr__(self) -> str:
        split = "train" if self.train else "test"
        return f"Dataset MNIST (ipuperf's stand-in)\n    Number of datapoints: {len(self)}\n    Split: {split}"

    def _transformed(self, pixels: np.ndarray) -> Any:
        if self.transform is None:
            return pixels.copy()
        length = self._tabulated_length()
        if not length:
            return self.transform(pixels.copy())
        looked_up = np.take(self._table, pixels)[None]  # type: ignore[arg-type]
        return self._rest(looked_up if torch is None else torch.from_numpy(looked_up), length)

    def _tabulated_length(self) -> int:
        """How many transforms ``self._table`` stands for; makes the table anew if the transforms have changed."""
        key, length = split_tabulated(self.transform)
        if not length or self._pixels.dtype != np.uint8 or self._pixels.ndim != 3:
            return 0
        # A program may change its transforms at any time; the key tells.
        if self._table is None or key != self._table_key:
            self._table, self._table_key = tabulate(self.transform, length), key
        return length

    def _rest(self, image: Any, done: int) -> Any:
        """Apply the transforms after the first ``done`` ones."""
        if type(self.transform) is not Compose:
            return image
        for transform in self.transform.transforms[done:]:
            image = transform(image)
        return image

    def _target(self, label: Any) -> Any:
        return int(label) if self.target_transform is None else self.target_transform(int(label))
