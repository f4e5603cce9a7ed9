"""Connectionist temporal classification: its loss, and a beam search for the likeliest labels.

Upstream: PopART ``willow/src/op/ctc.cpp`` and ``ctcbeamsearchdecoder.cpp``, which call popnn's ``CTCLoss`` and
``CTCInference``. PopLibs has estimates of the loss's vertices and a planner (``lib/popnn/PerformanceEstimation.hpp``,
``CTCLossPlan.cpp``), which goes through time step by step. They are not followed here, so cycles have low confidence.
"""

from __future__ import annotations

import math

import numpy as np

from ipuperf.ir import FLOAT32, INT32, DTypeError, GradientBuilder, Tensor, TensorSpec
from ipuperf.ir.attributes import FLAG, INTEGER, Attribute

from .. import vertices
from ..base import Arrays, Environment, Gradients, Kernel, Op
from ..work import Vertices, Work

#: Cycles of a worker for one cell of the table of time steps and labels: three loads, two additions of logarithms (an
#: exponential and a logarithm each) and a store. Assumed.
CELL = 60


def _cells(name: str, spec: TensorSpec, cells: int) -> Vertices:
    """One vertex over a table of ``cells``, whose time steps follow each other."""
    cycles = vertices.tile_cycles(lambda m, chip: 50 + CELL * m, 11)
    vertex = f"popnn::{name}<{vertices.poplar_type(spec.dtype)}>"
    return Vertices(vertex, cells, cycles, 10 * cells, low_confidence=True)


def _with_blanks(labels: np.ndarray, blank: int) -> np.ndarray:
    """Labels with a blank before, between and after them."""
    wide = np.full(2 * len(labels) + 1, blank)
    # Labels stand at odd positions, blanks at even ones.
    wide[1::2] = labels
    return wide


def _skips(labels: np.ndarray) -> np.ndarray:
    """Where a path may come from two labels before: at a label that differs from that one."""
    skips = np.zeros(len(labels), bool)
    skips[3::2] = labels[3::2] != labels[1:-2:2]
    return skips


def _forwards(logs: np.ndarray, skips: np.ndarray) -> np.ndarray:
    """Logarithms of the probabilities of all paths that end at a time and label. ``logs`` is (time, labels)."""
    table = np.full(logs.shape, -np.inf)
    # A path begins with the first blank or the first label.
    table[0, :2] = logs[0, :2]
    for step in range(1, len(logs)):
        previous = table[step - 1]
        reached = np.logaddexp(previous, np.concatenate([[-np.inf], previous[:-1]]))
        skipping = np.concatenate([[-np.inf, -np.inf], previous[:-2]])[: len(previous)]
        table[step] = np.where(skips, np.logaddexp(reached, skipping), reached) + logs[step]
    return table


def _ends(table: np.ndarray) -> float:
    """The logarithm of the probability of all complete paths; they end at the last label or at the blank behind it."""
    return float(np.logaddexp.reduce(table[-1, -2:]))


class CtcLoss(Op):
    """``-log p(labels)`` for each sequence (float32).

    Inputs: logarithms of probabilities ``(T, N, C)``, labels ``(N, S)``, lengths of the sequences ``(N,)`` and of the
    labels ``(N,)``, whole numbers. Attributes: ``blank``, and ``zero_infinity``, with which a sequence that no path
    reaches has loss and gradient 0.
    """

    type = "Ctc"

    blank = Attribute(INTEGER, 0)
    zero_infinity = Attribute(FLAG, False)

    def infer(self) -> list[TensorSpec]:
        """One loss for each sequence."""
        logs, labels, *lengths = self.inputs
        self.floating(logs)
        for tensor in (labels, *lengths):
            if not tensor.dtype.is_integer:
                raise DTypeError(f"{self.where()}: {tensor.id!r} is {tensor.dtype.name}; whole numbers are needed")
        ranks = len(logs.shape) == 3 and len(labels.shape) == 2 and labels.shape[0] == logs.shape[1]
        self.require(
            ranks and all(t.shape == (logs.shape[1],) for t in lengths),
            "logarithms (T, N, C), labels (N, S), and two lengths (N,) are needed, got "
            + ", ".join(str(t.shape) for t in self.inputs),
        )
        self.require(0 <= self.blank < logs.shape[2], f"blank={self.blank}; there are {logs.shape[2]} classes")
        return [TensorSpec((logs.shape[1],), FLOAT32)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Compute sequence by sequence, in float64."""
        (out,) = outputs

        def run() -> None:
            for place in np.ndindex(*out.shape):
                logs, skips, _ = _sequence(inputs, place, self.blank)
                loss = -_ends(_forwards(logs, skips)) if len(logs) else math.inf
                out[place] = 0 if self.zero_infinity and math.isinf(loss) else loss

        return run

    def gradient_from(self, builder: GradientBuilder, grad: Tensor) -> Gradients:
        """See :class:`CtcLossGrad`."""
        inputs = [grad, *(builder.forward(t) for t in self.inputs)]
        return [builder.op(CtcLossGrad, inputs, **self.attributes), None, None, None]

    def work(self) -> list[Work]:
        """The table of paths."""
        return [_cells("CTCAlpha", self.inputs[0].spec, _table(self.inputs[0], self.inputs[1]))]


def _table(logs: Tensor, labels: Tensor) -> int:
    time, count, _ = logs.shape
    return time * count * (2 * labels.shape[1] + 1)


def _sequence(inputs: Arrays, place: tuple[int, ...], blank: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For one sequence: logarithms ``(time, labels with blanks)``, where a path may skip a blank, and the labels
    with blanks."""
    replica, sequence = place
    logs, labels, times, lengths = inputs
    label_sequence = _with_blanks(labels[replica, sequence, : lengths[replica, sequence]].astype(np.int64), blank)
    class_logs = logs[replica, : times[replica, sequence], sequence].astype(np.float64)
    return class_logs[:, label_sequence], _skips(label_sequence), label_sequence


class CtcLossGrad(Op):
    """``(gradient of the losses, the operands of CtcLoss) -> gradient of the logarithms``.

    As in PyTorch it is the probability of a class less the share of the paths' probability that passes it. That is the
    gradient of the operand of the log-softmax. The gradient of the logarithms themselves differs by the probability,
    which a log-softmax removes.
    """

    type = "CtcGrad"

    blank = Attribute(INTEGER, 0)
    zero_infinity = Attribute(FLAG, False)

    def infer(self) -> list[TensorSpec]:
        """Like the logarithms."""
        return [self.inputs[1].spec]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Fill tables from both ends, sequence by sequence, in float64."""
        (out,), (grad, *operands) = outputs, inputs

        def run() -> None:
            out[...] = 0
            for place in np.ndindex(*grad.shape):
                replica, sequence = place
                logs, skips, label_sequence = _sequence(operands, place, self.blank)
                if not len(logs):
                    continue
                slopes = self._slopes(logs, skips, label_sequence, operands[0][replica, : len(logs), sequence])
                out[replica, : len(logs), sequence] = slopes * grad[place]

        return run

    def _slopes(
        self, logs: np.ndarray, skips: np.ndarray, label_sequence: np.ndarray, class_logs: np.ndarray
    ) -> np.ndarray:
        """The gradient of one sequence, from ``class_logs`` ``(time, classes)``."""
        forwards = _forwards(logs, skips)
        total = _ends(forwards)
        # No path has these labels: the gradient is undefined unless it is asked to be 0.
        if math.isinf(total):
            return np.full(class_logs.shape, 0.0 if self.zero_infinity else np.nan)
        # Read backwards, a path skips from the label to which it skips forwards.
        skips_backwards = np.zeros(len(skips), bool)
        skips_backwards[2:] = skips[:1:-1]
        backwards = _forwards(logs[::-1, ::-1], skips_backwards)[::-1, ::-1]
        # Both tables contain the factor of the cell itself, so it is taken away once.
        shares = np.exp(forwards + backwards - logs - total)
        result = np.exp(class_logs.astype(np.float64))
        for place, label in enumerate(label_sequence):
            result[:, label] -= shares[:, place]
        return result

    def work(self) -> list[Work]:
        """The tables from both ends, and their sums by class."""
        logs, labels = self.inputs[1], self.inputs[2]
        cells = _table(logs, labels)
        return [
            _cells("CTCBeta", logs.spec, cells),
            _cells("CTCGrad", logs.spec, cells),
            vertices.binary("SUBTRACT", logs.dtype, logs.spec.elements),
        ]


class CtcBeamSearchDecoder(Op):
    """The likeliest labels of sequences.

    ``(logarithms (T, N, C), lengths (N,)) -> logarithms of the probabilities of the best paths (N, P) float32, their
    lengths (N, P), and their labels (N, P, T)`` (int32, padded with the blank).

    Attributes ``blank``, ``beam_width`` (prefixes that are kept from step to step), ``top_paths`` (P).
    """

    blank = Attribute(INTEGER, 0)
    beam_width = Attribute(INTEGER, 100)
    top_paths = Attribute(INTEGER, 1)

    def infer(self) -> list[TensorSpec]:
        """Paths of each sequence."""
        logs, lengths = self.inputs
        self.floating(logs)
        self.require(
            len(logs.shape) == 3 and lengths.shape == (logs.shape[1],),
            f"logarithms (T, N, C) and lengths (N,) are needed, got {logs.shape} and {lengths.shape}",
        )
        paths = 1 <= self.top_paths <= self.beam_width
        self.require(paths, f"top_paths={self.top_paths}; allowed: 1 to beam_width={self.beam_width}")
        self.require(0 <= self.blank < logs.shape[2], f"blank={self.blank}; there are {logs.shape[2]} classes")
        time, count, _ = logs.shape
        path_shape = (count, self.top_paths)
        return [TensorSpec(path_shape, FLOAT32), TensorSpec(path_shape, INT32), TensorSpec((*path_shape, time), INT32)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Search sequence by sequence."""
        (logs, lengths), (chances, sizes, labels) = inputs, outputs

        def run() -> None:
            chances[...], sizes[...], labels[...] = -np.inf, 0, self.blank
            for replica, sequence in np.ndindex(*lengths.shape):
                class_logs = logs[replica, : lengths[replica, sequence], sequence].astype(np.float64)
                for rank, (path, chance) in enumerate(self._best(class_logs)):
                    place = replica, sequence, rank
                    chances[place], sizes[place], labels[place][: len(path)] = chance, len(path), path

        return run

    def _best(self, logs: np.ndarray) -> list[tuple[tuple[int, ...], float]]:
        """The best labellings of one sequence. For each prefix the beam holds two logarithms: the probability of
        the paths that end with a blank, and of those that do not."""
        # The empty prefix counts as ending with a blank, with probability 1.
        beam: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, -math.inf)}
        for step in logs:
            following: dict[tuple[int, ...], list[float]] = {}
            for prefix, (blank, label) in beam.items():
                both = float(np.logaddexp(blank, label))
                for symbol, chance in enumerate(step.tolist()):
                    for path, kind, weight in self._steps(prefix, symbol, blank, label, both):
                        cell = following.setdefault(path, [-math.inf, -math.inf])
                        cell[kind] = float(np.logaddexp(cell[kind], weight + chance))
            # Equal chances are ordered by their labels,
            # so that the answer is always the same.
            ranked = sorted(following.items(), key=lambda entry: (-np.logaddexp(entry[1][0], entry[1][1]), entry[0]))
            beam = {path: (cell[0], cell[1]) for path, cell in ranked[: self.beam_width]}
        return [(path, float(np.logaddexp(cell[0], cell[1]))) for path, cell in list(beam.items())[: self.top_paths]]

    def _steps(
        self, prefix: tuple[int, ...], symbol: int, blank: float, label: float, both: float
    ) -> list[tuple[tuple[int, ...], int, float]]:
        """The prefixes to which a symbol leads, whether they end with a label, and the weight they inherit."""
        if symbol == self.blank:
            return [(prefix, 0, both)]
        if prefix and prefix[-1] == symbol:
            # A repeated label extends the prefix only after
            # a blank; otherwise it is the same label again.
            return [(prefix, 1, label), ((*prefix, symbol), 1, blank)]
        return [((*prefix, symbol), 1, both)]

    def work(self) -> list[Work]:
        """Every step extends each beam by each class and keeps the best beams."""
        time, count, classes = self.inputs[0].shape
        return [_cells("CTCSelectCandidates", self.inputs[0].spec, time * count * self.beam_width * classes)]
