"""Views with other strides: values, gradients and changes in place against PyTorch, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from atencases import noise  # noqa: E402

from ipuperf import poptorch  # noqa: E402


def in_place(change: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A copy of the operand after a change."""

    def function(x: Any) -> Any:
        copied = x * 1
        change(copied)
        return copied

    return function


CASES: dict[str, Callable[[Any], Any]] = {
    "diag": lambda x: x.diag(),
    "trace": lambda x: x.trace(),
    "diagonal": lambda x: x[1:].diagonal(),
    "diagonal_of_transposed": lambda x: x.t().diagonal(1),
    "diagonal_of_two_axes": lambda x: torch.diagonal(x.view(2, 2, 6), 1, 0, 2),
    "windows": lambda x: x.unfold(1, 2, 1),
    "windows_of_transposed": lambda x: x.t().unfold(0, 3, 2),
    "windows_of_a_part": lambda x: x[1:, 2:][1:].unfold(1, 2, 1),
    "windows_twice": lambda x: x.unfold(0, 2, 1).unfold(1, 3, 2),
    "strided": lambda x: x.as_strided((2, 3), (6, 1), 2),
    "overlapping": lambda x: x.as_strided((4, 3), (1, 1)),
    "strided_part": lambda x: x[1:][1:].as_strided((2, 3), (6, 1)),
    "strided_in_memory": lambda x: (x * 2).t().as_strided((2, 3), (1, 1), 2),
    "filled_diagonal": in_place(lambda x: x.diagonal().fill_(0.5)),
    "diagonal_of_a_view": in_place(lambda x: x.t()[1:].diagonal().add_(3)),
    "scaled_windows": in_place(lambda x: x.unfold(1, 2, 2).mul_(2)),
    "strided_in_place": in_place(lambda x: x.as_strided((2, 2), (6, 1)).add_(1)),
    "diagonal_scatter": lambda x: torch.diagonal_scatter(x, x[:, 0] * 2),
}


def test_values_and_gradients(check_all: Any) -> None:
    check_all(CASES, noise(4, 6))


class Strided(torch.nn.Module):
    """``as_strided`` of a view."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__()
        self.arguments = arguments

    def forward(self, x: Any) -> Any:
        return x[1:].as_strided(*self.arguments)


def test_an_offset_into_the_memory_of_a_view_is_refused() -> None:
    with pytest.raises(poptorch.UnsupportedError, match="does not begin where its memory does"):
        poptorch.inferenceModel(Strided((2, 3), (6, 1), 0)).compile(noise(4, 6))


class Pooled(torch.nn.Module):
    """A pooling with the positions of what it found."""

    def forward(self, x: Any) -> Any:
        return torch.nn.functional.max_pool2d(x, 2, return_indices=True)


def test_positions_of_a_pooling_are_refused() -> None:
    with pytest.raises(poptorch.UnsupportedError, match="max_pool2d_with_indices: result 1"):
        poptorch.inferenceModel(Pooled()).compile(noise(1, 2, 4, 4))
