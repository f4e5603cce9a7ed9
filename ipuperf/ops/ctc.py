"""Connectionist temporal classification: its loss, and a beam search for the likeliest labels.

Upstream: PopART ``willow/src/op/ctc.cpp`` and ``ctcbeamsearchdecoder.cpp``, which call popnn's ``CTCLoss`` and
``CTCInference``. No estimate of their vertices was found in public PopLibs: cycles have low confidence.
"""

from __future__ import annotations

import math

import numpy as np

from ipuperf.ir import FLOAT32, INT32, DTypeError, GradientBuilder, Tensor, TensorSpec
from ipuperf.ir.attributes import FLAG, INTEGER, Attribute

from . import vertices
from .base import Arrays, Environment, Gradients, Kernel, Op
from .work import Vertices, Work

#: Cycles of a worker for one cell of the table of time steps and labels: three loads, two additions of logarithms (an
#: exponential and a logarithm each) and a store. Assumed.
CELL = 60


def _cells(name: str, spec: TensorSpec, cells: int) -> Vertices:
    """One vertex over a table of ``cells``, whose steps in time follow each other."""
    cycles = vertices.tile_cycles(lambda m, chip: 50 + CELL * m, 11)
    vertex = f"popnn::{name}<{vertices.poplar_type(spec.dtype)}>"
    return Vertices(vertex, cells, cycles, 10 * cells, low_confidence=True)


def _with_blanks(labels: np.ndarray, blank: int) -> np.ndarray:
    """Labels with a blank before, between and after them."""
    wide = np.full(2 * len(labels) + 1, blank)
    wide[1::2] = labels
    return wide


def _skips(labels: np.ndarray) -> np.ndarray:
    """Where a path may come from two labels before: at a label that is not that one."""
    found = np.zeros(len(labels), bool)
    found[3::2] = labels[3::2] != labels[1:-2:2]
    return found


def _forwards(logs: np.ndarray, skips: np.ndarray) -> np.ndarray:
    """Logarithms of the probabilities of all paths that end at a time and label: ``logs`` is (time, labels)."""
    table = np.full(logs.shape, -np.inf)
    table[0, :2] = logs[0, :2]
    for step in range(1, len(logs)):
        before = table[step - 1]
        found = np.logaddexp(before, np.concatenate([[-np.inf], before[:-1]]))
        further = np.concatenate([[-np.inf, -np.inf], before[:-2]])[: len(before)]
        table[step] = np.where(skips, np.logaddexp(found, further), found) + logs[step]
    return table


def _ends(table: np.ndarray) -> float:
    """The logarithm of the probability of all paths, which end at the last label or the blank behind it."""
    return float(np.logaddexp.reduce(table[-1, -2:]))


class CtcLoss(Op):
    """``-log p(labels)`` for each sequence (float32).

    Inputs: logarithms of probabilities ``(T, N, C)``, labels ``(N, S)``, lengths of the sequences ``(N,)`` and of the
    labels ``(N,)``, whole numbers. Attributes ``blank``, and ``zero_infinity``: what no path reaches has loss and
    gradient 0.
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
        """Sequence by sequence, in float64."""
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
    """Of one sequence: logarithms ``(time, labels with blanks)``, where a path may skip a blank, and those labels."""
    replica, number = place
    logs, labels, times, lengths = inputs
    wide = _with_blanks(labels[replica, number, : lengths[replica, number]].astype(np.int64), blank)
    found = logs[replica, : times[replica, number], number].astype(np.float64)
    return found[:, wide], _skips(wide), wide


class CtcLossGrad(Op):
    """``(gradient of the losses, the operands of CtcLoss) -> gradient of the logarithms``: the probability of a class
    less how much of the paths' probability passes it, as PyTorch has it (the gradient of what a log-softmax was made
    of; the true one differs by the probability, which a log-softmax takes away)."""

    type = "CtcGrad"

    blank = Attribute(INTEGER, 0)
    zero_infinity = Attribute(FLAG, False)

    def infer(self) -> list[TensorSpec]:
        """Like the logarithms."""
        return [self.inputs[1].spec]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Tables from both ends, sequence by sequence, in float64."""
        (out,), (grad, *operands) = outputs, inputs

        def run() -> None:
            out[...] = 0
            for place in np.ndindex(*grad.shape):
                replica, number = place
                logs, skips, wide = _sequence(operands, place, self.blank)
                if not len(logs):
                    continue
                found = self._slopes(logs, skips, wide, operands[0][replica, : len(logs), number])
                out[replica, : len(logs), number] = found * grad[place]

        return run

    def _slopes(self, logs: np.ndarray, skips: np.ndarray, wide: np.ndarray, own: np.ndarray) -> np.ndarray:
        """The gradient of one sequence, for ``own`` logarithms ``(time, classes)``."""
        forwards = _forwards(logs, skips)
        total = _ends(forwards)
        if math.isinf(total):
            return np.full(own.shape, 0.0 if self.zero_infinity else np.nan)
        turned = np.zeros(len(skips), bool)
        turned[2:] = skips[:1:-1]
        backwards = _forwards(logs[::-1, ::-1], turned)[::-1, ::-1]
        shares = np.exp(forwards + backwards - logs - total)
        result = np.exp(own.astype(np.float64))
        for place, label in enumerate(wide):
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
    """The likeliest labels of sequences: ``(logarithms (T, N, C), lengths (N,)) -> logarithms of the probabilities of
    the best paths (N, P) float32, their lengths (N, P), and their labels (N, P, T)`` (int32, padded with the blank).

    Attributes ``blank``, ``beam_width`` (prefixes that are kept from step to step), ``top_paths`` (P).
    """

    type = "CtcBeamSearchDecoder"

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
        found = (count, self.top_paths)
        return [TensorSpec(found, FLOAT32), TensorSpec(found, INT32), TensorSpec((*found, time), INT32)]

    def kernel(self, inputs: Arrays, outputs: Arrays, env: Environment) -> Kernel:
        """Sequence by sequence."""
        (logs, lengths), (chances, sizes, labels) = inputs, outputs

        def run() -> None:
            chances[...], sizes[...], labels[...] = -np.inf, 0, self.blank
            for replica, number in np.ndindex(*lengths.shape):
                own = logs[replica, : lengths[replica, number], number].astype(np.float64)
                for rank, (path, chance) in enumerate(self._best(own)):
                    place = replica, number, rank
                    chances[place], sizes[place], labels[place][: len(path)] = chance, len(path), path

        return run

    def _best(self, logs: np.ndarray) -> list[tuple[tuple[int, ...], float]]:
        """The best labellings of one sequence. A beam holds for each prefix the logarithms of the probability of those
        paths that end with a blank and of those that do not."""
        beam: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, -math.inf)}
        for step in logs:
            following: dict[tuple[int, ...], list[float]] = {}
            for prefix, (blank, label) in beam.items():
                both = float(np.logaddexp(blank, label))
                for symbol, chance in enumerate(step.tolist()):
                    for path, kind, weight in self._steps(prefix, symbol, blank, label, both):
                        cell = following.setdefault(path, [-math.inf, -math.inf])
                        cell[kind] = float(np.logaddexp(cell[kind], weight + chance))
            ranked = sorted(following.items(), key=lambda item: (-np.logaddexp(item[1][0], item[1][1]), item[0]))
            beam = {path: (cell[0], cell[1]) for path, cell in ranked[: self.beam_width]}
        return [(path, float(np.logaddexp(cell[0], cell[1]))) for path, cell in list(beam.items())[: self.top_paths]]

    def _steps(
        self, prefix: tuple[int, ...], symbol: int, blank: float, label: float, both: float
    ) -> list[tuple[tuple[int, ...], int, float]]:
        """Prefixes that a symbol leads to, whether they end with a label, and what they inherit."""
        if symbol == self.blank:
            return [(prefix, 0, both)]
        if prefix and prefix[-1] == symbol:
            return [(prefix, 1, label), ((*prefix, symbol), 1, blank)]
        return [((*prefix, symbol), 1, both)]

    def work(self) -> list[Work]:
        """Every step extends each beam by each class and keeps the best."""
        time, count, classes = self.inputs[0].shape
        return [_cells("CTCSelectCandidates", self.inputs[0].spec, time * count * self.beam_width * classes)]
