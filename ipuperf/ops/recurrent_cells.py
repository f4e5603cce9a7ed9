"""What a time step of a recurrent layer computes: LSTM, GRU and plain cells, their backward steps and their vertices.

Gates are PyTorch's, in its order; arrays are ``(R, batch, units)`` times the number of gates. A cell gets two sums of
products: ``x`` of the step's input and ``h`` of the state before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np

from ipuperf.ir import DType

from . import vertices
from .work import Vertices

States = tuple[np.ndarray, ...]


def _sigmoid(x: np.ndarray) -> np.ndarray:
    return 0.5 * (np.tanh(0.5 * x) + 1)


def _tanh_slope(y: np.ndarray) -> np.ndarray:
    return 1 - y * y


def _relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0)


def _relu_slope(y: np.ndarray) -> np.ndarray:
    return (y > 0).astype(y.dtype)


class RecurrentCell:
    """Base of the cells.

    Class attributes:
        gates: sums of products for each unit.
        states: values of a unit that go from step to step, the result first.
        kept: values of a unit that the backward step needs besides the states.
        alike: the gradients of ``x`` and ``h`` are the same; else ``h`` has a bias of its own.
        joint: gates of which inputs and state are one product; of the others each has one.
    """

    gates: ClassVar[int]
    states: ClassVar[int] = 1
    kept: ClassVar[int] = 0
    alike: ClassVar[bool] = True
    joint: ClassVar[int]

    def forward(self, x: np.ndarray, h: np.ndarray, states: States) -> tuple[States, np.ndarray | None]:
        """The states after a step, and what the backward step needs."""
        raise NotImplementedError

    def backward(
        self, grads: States, states: States, after: States, kept: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, States]:
        """From gradients of the states ``after`` a step: those of ``x`` and ``h``, and of the ``states`` before it,
        but for what comes through ``h``."""
        raise NotImplementedError

    def forward_work(self, dtype: DType, units: int) -> list[Vertices]:
        """Compute sets of :meth:`forward` after the products, for so many ``units`` of the whole batch."""
        raise NotImplementedError

    def backward_work(self, dtype: DType, units: int) -> list[Vertices]:
        """Compute sets of :meth:`backward`."""
        raise NotImplementedError


class LstmCell(RecurrentCell):
    """Gates input, forget, candidate, output (PopLibs ``lib/popnn/Lstm.cpp``). Activations of several gates are one
    compute set there; here it is counted as sigmoids."""

    gates = 4
    states = 2
    kept = 5
    joint = 4

    def forward(self, x: np.ndarray, h: np.ndarray, states: States) -> tuple[States, np.ndarray | None]:
        """``c = f c + i g``, ``h = o tanh(c)``."""
        i, f, g, o = np.split(x + h, 4, axis=-1)
        i, f, g, o = _sigmoid(i), _sigmoid(f), np.tanh(g), _sigmoid(o)
        cell = f * states[1] + i * g
        t = np.tanh(cell)
        return (o * t, cell), np.concatenate([i, f, g, o, t], axis=-1)

    def backward(
        self, grads: States, states: States, after: States, kept: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, States]:
        """Through the result, the cell and the gates."""
        assert kept is not None
        i, f, g, o, t = np.split(kept, 5, axis=-1)
        cell = grads[1] + grads[0] * o * (1 - t * t)
        each = [cell * g * i * (1 - i), cell * states[1] * f * (1 - f), cell * i * (1 - g * g)]
        found = np.concatenate([*each, grads[0] * t * o * (1 - o)], axis=-1)
        return found, found, (np.zeros_like(grads[0]), cell * f)

    def forward_work(self, dtype: DType, units: int) -> list[Vertices]:
        """``basicLstmCellForwardPass``: the bias, the gates, two products, the cell, its tangent, the result."""
        return [
            vertices.binary("ADD", dtype, 4 * units, in_place=True),
            vertices.unary("SIGMOID", dtype, 4 * units, in_place=True),
            vertices.binary("MULTIPLY", dtype, 2 * units),
            vertices.binary("ADD", dtype, units, in_place=True),
            vertices.unary("TANH", dtype, units),
            vertices.binary("MULTIPLY", dtype, units),
        ]

    def backward_work(self, dtype: DType, units: int) -> list[Vertices]:
        """``backwardStepImpl``: the gradient of the result joins the state's; two products with it, their slopes; the
        cell's gradient; four products with it, the slopes of three gates."""
        return [
            vertices.binary("ADD", dtype, units),
            vertices.binary("MULTIPLY", dtype, 2 * units),
            vertices.non_linearity_grad("SIGMOID", dtype, 2 * units, 3),
            vertices.binary("ADD", dtype, units, in_place=True),
            vertices.binary("MULTIPLY", dtype, 4 * units),
            vertices.non_linearity_grad("SIGMOID", dtype, 3 * units, 3),
        ]


class GruCell(RecurrentCell):
    """Gates reset, update, candidate, the reset gate after the product (PopLibs ``lib/popnn/Gru.cpp`` with
    ``resetAfter``)."""

    gates = 3
    kept = 4
    alike = False
    joint = 2

    def forward(self, x: np.ndarray, h: np.ndarray, states: States) -> tuple[States, np.ndarray | None]:
        """``n = tanh(x_n + r h_n)``, ``h = n + z (h - n)``."""
        xr, xz, xn = np.split(x, 3, axis=-1)
        hr, hz, hn = np.split(h, 3, axis=-1)
        r, z = _sigmoid(xr + hr), _sigmoid(xz + hz)
        n = np.tanh(xn + r * hn)
        return (n + z * (states[0] - n),), np.concatenate([r, z, n, hn], axis=-1)

    def backward(
        self, grads: States, states: States, after: States, kept: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, States]:
        """Through the candidate and the gates."""
        assert kept is not None
        r, z, n, hn = np.split(kept, 4, axis=-1)
        candidate = grads[0] * (1 - z) * (1 - n * n)
        reset, update = candidate * hn * r * (1 - r), grads[0] * (states[0] - n) * z * (1 - z)
        x = np.concatenate([reset, update, candidate], axis=-1)
        return x, np.concatenate([reset, update, candidate * r], axis=-1), (grads[0] * z,)

    def forward_work(self, dtype: DType, units: int) -> list[Vertices]:
        """Biases; the gates; the candidate of the reset sum; the new state."""
        return [
            vertices.binary("ADD", dtype, 4 * units, in_place=True),
            vertices.unary("SIGMOID", dtype, 2 * units, in_place=True),
            vertices.binary("MULTIPLY", dtype, units, in_place=True),
            vertices.binary("ADD", dtype, units, in_place=True),
            vertices.unary("TANH", dtype, units, in_place=True),
            vertices.binary("SUBTRACT", dtype, units),
            vertices.binary("MULTIPLY", dtype, units, in_place=True),
            vertices.binary("ADD", dtype, units, in_place=True),
        ]

    def backward_work(self, dtype: DType, units: int) -> list[Vertices]:
        """The gradient of the result joins that of the state; the candidate, its slope; the gates and their slopes;
        what the product gets of the candidate, and what the state before gets of the update gate."""
        product = vertices.binary("MULTIPLY", dtype, units)
        return [
            vertices.binary("ADD", dtype, units, in_place=True),
            product,
            vertices.binary("SUBTRACT", dtype, units, in_place=True),
            vertices.non_linearity_grad("TANH", dtype, units, 3),
            product,
            vertices.binary("SUBTRACT", dtype, units),
            product,
            vertices.non_linearity_grad("SIGMOID", dtype, 2 * units, 3),
            product,
        ]


class PlainCell(RecurrentCell):
    """``h = f(x + h)`` with one function."""

    gates = 1
    joint = 1

    def __init__(
        self, function: Callable[[np.ndarray], np.ndarray], slope: Callable[[np.ndarray], np.ndarray], vertex: str
    ) -> None:
        self._function = function
        self._slope = slope
        self._vertex = vertex

    def forward(self, x: np.ndarray, h: np.ndarray, states: States) -> tuple[States, np.ndarray | None]:
        """The function of the sum."""
        return (self._function(x + h),), None

    def backward(
        self, grads: States, states: States, after: States, kept: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray, States]:
        """The slope, by the result."""
        found = grads[0] * self._slope(after[0])
        return found, found, (np.zeros_like(grads[0]),)

    def forward_work(self, dtype: DType, units: int) -> list[Vertices]:
        """The bias and the function."""
        return [
            vertices.binary("ADD", dtype, units, in_place=True),
            vertices.unary(self._vertex, dtype, units, in_place=True),
        ]

    def backward_work(self, dtype: DType, units: int) -> list[Vertices]:
        """The gradient of the result joins that of the state; the slope."""
        return [
            vertices.binary("ADD", dtype, units, in_place=True),
            vertices.non_linearity_grad(self._vertex, dtype, units, 2),
        ]


CELLS: Mapping[str, RecurrentCell] = MappingProxyType(
    {
        "lstm": LstmCell(),
        "gru": GruCell(),
        "tanh": PlainCell(np.tanh, _tanh_slope, "TANH"),
        "relu": PlainCell(_relu, _relu_slope, "RELU"),
    }
)
"""The cells by name."""
