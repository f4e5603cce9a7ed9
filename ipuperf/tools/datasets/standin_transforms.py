"""The transforms of the torchvision stand-in: ``Compose``, ``ToTensor``, ``Normalize`` and ``Lambda``.

They do to grey images what torchvision's transforms of these names do, with the same float32 arithmetic, and differ
in one point: an image is a uint8 NumPy array (``[H, W]`` or ``[H, W, C]``) rather than a PIL picture. With torch
installed the results are torch tensors, without it NumPy arrays of the same values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


class Compose:
    """Applies ``transforms`` one after the other."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = transforms

    def __call__(self, image: Any) -> Any:
        """``image`` through all transforms."""
        for transform in self.transforms:
            image = transform(image)
        return image

    def __repr__(self) -> str:
        lines = "".join(f"\n    {transform!r}" for transform in self.transforms)
        return f"{type(self).__name__}({lines}\n)"


class ToTensor:
    """uint8 ``[H, W]`` or ``[H, W, C]`` -> float32 ``[C, H, W]`` divided by 255.

    Arrays of other dtypes are brought to ``[C, H, W]`` with their values as they are. Raises ``TypeError`` for
    anything but a NumPy array and ``ValueError`` for other than two or three dimensions, as torchvision does.
    """

    def __call__(self, image: np.ndarray) -> Any:
        """The tensor of ``image``; see the class."""
        if not isinstance(image, np.ndarray):
            raise TypeError(f"ToTensor takes a NumPy array [H, W] or [H, W, C], got {type(image).__name__}")
        if image.ndim not in (2, 3):
            raise ValueError(f"ToTensor takes an image of 2 or 3 dimensions, got shape {image.shape}")
        channels_first = image[None] if image.ndim == 2 else image.transpose(2, 0, 1)
        if image.dtype == np.uint8:
            return _tensor_of(np.ascontiguousarray(channels_first, dtype=np.float32) / np.float32(255))
        return _tensor_of(np.ascontiguousarray(channels_first))

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Normalize:
    """``(x - mean[c]) / std[c]`` for each channel ``c`` of a floating-point ``[..., C, H, W]`` tensor, in its dtype.

    ``mean`` and ``std`` have one entry per channel. With ``inplace`` the tensor given is changed and returned. Raises
    ``TypeError`` for integers, ``ValueError`` for fewer than three dimensions or a zero in ``std``.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float], inplace: bool = False) -> None:
        self.mean = mean
        self.std = std
        self.inplace = inplace

    def __call__(self, tensor: Any) -> Any:
        """The normalised ``[..., C, H, W]`` tensor; see the class."""
        mean: Any
        std: Any
        result: Any
        if isinstance(tensor, np.ndarray):
            _check_normalize(np.issubdtype(tensor.dtype, np.floating), tensor, self.std)
            mean, std = (np.asarray(figure, dtype=tensor.dtype).reshape(-1, 1, 1) for figure in (self.mean, self.std))
            result = tensor if self.inplace else tensor.copy()
        else:
            import torch

            if not isinstance(tensor, torch.Tensor):
                raise TypeError(f"Normalize takes a tensor [..., C, H, W], got {type(tensor).__name__}")
            _check_normalize(tensor.is_floating_point(), tensor, self.std)
            mean, std = (torch.as_tensor(f, dtype=tensor.dtype).reshape(-1, 1, 1) for f in (self.mean, self.std))
            result = tensor if self.inplace else tensor.clone()
        # The result is the tensor itself or a copy of it by now, so these may work in place.
        result -= mean
        result /= std
        return result

    def __repr__(self) -> str:
        return f"{type(self).__name__}(mean={self.mean}, std={self.std})"


class Lambda:
    """Applies the callable ``lambd``."""

    def __init__(self, lambd: Callable[[Any], Any]) -> None:
        if not callable(lambd):
            raise TypeError(f"Lambda takes a callable, got {type(lambd).__name__}")
        self.lambd = lambd

    def __call__(self, image: Any) -> Any:
        """What the callable gives for ``image``."""
        return self.lambd(image)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def _check_normalize(floating: bool, tensor: Any, std: Sequence[float]) -> None:
    if not floating:
        raise TypeError(f"Normalize takes floating-point tensors, got {tensor.dtype}; put ToTensor before it")
    if tensor.ndim < 3:
        raise ValueError(f"Normalize takes tensors [..., C, H, W], got shape {tuple(tensor.shape)}")
    if any(float(figure) == 0 for figure in std):
        raise ValueError(f"Normalize cannot divide by the zero in std={std}")


def _tensor_of(array: np.ndarray) -> Any:
    """A torch tensor on the memory of ``array``, or ``array`` itself where torch is not installed."""
    try:
        import torch
    except ImportError:
        return array
    return torch.from_numpy(array)
