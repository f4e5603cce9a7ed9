"""Recurrent layers: LSTM, GRU and plain ones, of several layers and directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ipuperf.functions import make
from ipuperf.functions.arranging import cut, flipped, joined, reshaped, row, swapped
from ipuperf.functions.recurrences import recurrent
from ipuperf.ir import Tensor
from ipuperf.ops import Sigmoid, Tanh

from .lowering import Handler, Lowering, Value
from .norms import dropout
from .products import product


class _Layers:
    """The layers of one module.

    Args:
        cell, activation: names of the cell (:data:`ipuperf.ops.recurrent.cells.CELLS`) and of its function.
        params: of each layer and direction its weights, and biases if there are any.
    """

    def __init__(
        self, low: Lowering, cell: str, activation: str, params: Sequence[Value], has_biases: bool, directions: int
    ) -> None:
        self.low = low
        self.cell = cell
        self.activation = activation
        self.directions = directions
        self.biased = has_biases
        self.params = low.tensors(list(params), low.dtype)

    def run(
        self, x: Tensor, states: Sequence[Tensor], layers: int, between: float, train: bool
    ) -> tuple[Tensor, list[list[Tensor]]]:
        """The last layer's results ``(T, B, directions * units)``, and the last states of each layer and direction."""
        each = len(self.params) // (layers * self.directions)
        last = []
        for layer in range(layers):
            if layer:
                x = dropout(self.low, x, between, train)
            directions = []
            for direction in range(self.directions):
                number = layer * self.directions + direction
                weights = self.params[number * each : (number + 1) * each]
                results, after = self._direction(x, [row(s, 0, number) for s in states], weights, bool(direction))
                directions.append(results)
                last.append(after)
            x = directions[0] if len(directions) == 1 else joined(directions, 2)
        return x, last

    def _direction(
        self, x: Tensor, states: Sequence[Tensor], params: Sequence[Tensor], turned: bool
    ) -> tuple[Tensor, list[Tensor]]:
        """One layer in one direction: its results ``(T, B, units)`` and last states ``(B, units)``."""
        kernel, recurrent, *others = params
        biases, projection = (others[:2], others[2:]) if self.biased else ([], others)
        if not biases:
            biases = [self.low.constant([0.0] * kernel.shape[0], x.dtype)] * 2
        x = flipped(x, [0]) if turned else x
        if projection:
            results, after = self._projected(x, states, params, biases, projection[0])
        else:
            results, after = self._steps([x, kernel, recurrent], biases, states)
        return (flipped(results, [0]) if turned else results), after

    def _steps(
        self, operands: Sequence[Tensor], biases: Sequence[Tensor], states: Sequence[Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        joined_biases = list(biases) if self.cell == "gru" else [biases[0] + biases[1]]
        inputs, options = [*operands, *joined_biases, *states], {"cell": self.cell, "activation": self.activation}
        outputs, _ = recurrent(inputs, **options, trains=self.low.training)
        return outputs[0], outputs[1 : 1 + len(states)]

    def _projected(
        self,
        x: Tensor,
        states: Sequence[Tensor],
        params: Sequence[Tensor],
        biases: Sequence[Tensor],
        projection: Tensor,
    ) -> tuple[Tensor, list[Tensor]]:
        """An LSTM whose result is projected (``proj_size``), step by step: popnn has no such one."""
        kernel, recurrent, h, c = *params[:2], *states
        time, batch, wide = x.shape
        sums = product(self.low, reshaped(x, (time * batch, wide)), swapped(kernel)) + biases[0] + biases[1]
        sums, units, results = reshaped(sums, (time, batch, kernel.shape[0])), c.shape[-1], []
        for time in range(sums.shape[0]):
            gates = row(sums, 0, time) + product(self.low, h, swapped(recurrent))
            i, f, g, o = (cut(gates, 1, start * units, (start + 1) * units) for start in range(4))
            c = make(Sigmoid, f) * c + make(Sigmoid, i) * make(Tanh, g)
            h = product(self.low, make(Sigmoid, o) * make(Tanh, c), swapped(projection))
            results.append(reshaped(h, (1, *h.shape)))
        return joined(results, 0), [h, c]


def _layer(cell: str, activation: str = "tanh") -> Handler:
    def handler(
        low: Lowering,
        x: Tensor,
        hx: Any,
        params: Sequence[Value],
        has_biases: bool,
        num_layers: int,
        dropout: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool,
    ) -> list[Tensor]:
        """Results and last states of a recurrent layer."""
        states = low.tensors(list(hx) if cell == "lstm" else [hx], low.dtype)
        layers = _Layers(low, cell, activation, params, has_biases, 2 if bidirectional else 1)
        x = low.tensor(x, low.dtype)
        results, last = layers.run(swapped(x, 0, 1) if batch_first else x, states, num_layers, dropout, train)
        stacked = [[reshaped(t, (1, *t.shape)) for t in parts] for parts in zip(*last, strict=True)]
        after = [joined(parts, 0) if len(parts) > 1 else parts[0] for parts in stacked]
        return [swapped(results, 0, 1) if batch_first else results, *after]

    return handler


#: Handlers by aten name.
HANDLERS: Mapping[str, Handler] = {
    "gru.input": _layer("gru"),
    "lstm.input": _layer("lstm"),
    "rnn_relu.input": _layer("rnn", "relu"),
    "rnn_tanh.input": _layer("rnn"),
}
