"""Data-parallel scaling: the growth of the step time between published systems, predicted and measured.

Growth is the ratio of two times, larger system over smaller. It is given for the whole weight update (with the row's
global batch) and for one micro-batch (step time over accumulation), because a larger system usually gives each replica
fewer micro-batches. A ratio cancels errors that make both rows of a pair too fast or too slow alike. Growth within
:data:`FLAT` of 1 has no sign.

A line separates two parts that a ratio leaves together. A step of ``n`` micro-batches lasts ``rest + n micro_batch``,
where the rest is ramps, weight update and one-time work of the host. The line is exact if both systems have the same
rest. If the larger system's rest is larger, a third or a half of the difference enters the slope, predicted and
measured alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ipuperf.tools.validation.rows import Row
from ipuperf.tools.validation.units import UNITS

FLAT = 0.05
"""Relative growth up to which a pair counts as neither growing nor shrinking."""

FACTOR = 1.5
"""Largest acceptable factor between predicted and measured growth."""

PAIRS: tuple[tuple[str, str], ...] = (
    ("MLP10-GR-ipu-pod16-POPART-closed-bert-STEP", "MLP10-GR-ipu-pod64-POPART-closed-bert-STEP"),
    ("MLP10-GR-ipu-pod16-POPART-open-bert-STEP", "MLP10-GR-ipu-pod64-POPART-open-bert-STEP"),
    ("MLP10-GR-ipu-pod16-TF1-resnet-STEP", "MLP10-GR-ipu-pod64-TF1-resnet-STEP"),
    ("MLP11-GR-ipu-pod16-POPART-closed-bert-STEP", "MLP11-GR-ipu-pod64-POPART-closed-bert-STEP"),
    ("MLP11-GR-ipu-pod16-TF1-resnet-STEP", "MLP11-GR-ipu-pod64-TF1-resnet-STEP"),
    ("MLP20-GR-ipu-pod64-POPART-closed-bert-STEP", "MLP20-GR-ipu-pod256-POPART-closed-bert-STEP"),
    ("GPP-RN50-P16", "GPP-RN50-P256"),
    ("GPP-RN50-P16", "GPP-RN50-P64"),
    ("GPP-BL1-A", "GPP-BL1-C"),
    ("GPP-BL2-384-A", "GPP-BL2-384-C"),
    ("GPP-BL2-PK-P16-POPART", "GPP-BL2-PK-P64-POPART"),
    ("ALCF-RNSCALE-2", "ALCF-RNSCALE-4"),
    ("ALCF-RNSCALE-4", "ALCF-RNSCALE-8"),
    ("ALCF-RNSCALE-8", "ALCF-RNSCALE-16"),
    ("WENET-M2000-POD4", "WENET-M2000-POD16"),
    ("WENET-M2000-POD4", "WENET-M2000-POD64"),
    ("WENET-BOW-POD4", "WENET-BOW-POD64"),
)
"""Ids of cases of the same model on a smaller and on a larger system."""


LINES: tuple[tuple[str, str], ...] = (
    ("MLP20-GR-ipu-pod64-POPART-closed-bert-STEP", "MLP20-GR-ipu-pod256-POPART-closed-bert-STEP"),
    *(pair for pair in PAIRS if pair[0].startswith(("GPP-BL", "GPP-RN50", "MLP10-GR-ipu-pod16-TF1", "WENET"))),
    ("MLP11-GR-ipu-pod16-TF1-resnet-STEP", "MLP11-GR-ipu-pod64-TF1-resnet-STEP"),
)
"""Ids of cases of one model with the same stages and micro-batch, and different accumulation."""


@dataclass(frozen=True)
class Line:
    """The line through two steps of one model: seconds of a ``micro_batch``, and of the ``rest`` of the step."""

    micro_batch: float
    rest: float


@dataclass(frozen=True)
class Lines:
    """Two rows, with the line through their measurements and the line through their predictions."""

    first: Row
    second: Row
    measured: Line
    predicted: Line


def lines(rows: Sequence[Row], pairs: Sequence[tuple[str, str]] = LINES) -> list[Lines]:
    """Return the lines of the complete pairs, in order.

    Raises:
        ValueError: a row of a pair is neither a time nor a rate, or both have the same accumulation.
    """
    rows_by_id = {row.case.id: row for row in rows}
    return [
        _lines(rows_by_id[first_id], rows_by_id[second_id])
        for first_id, second_id in pairs
        if first_id in rows_by_id and second_id in rows_by_id
    ]


def _lines(first_row: Row, second_row: Row) -> Lines:
    more = first_row.case.accumulation - second_row.case.accumulation
    if not more:
        raise ValueError(
            f"cases {first_row.case.id!r} and {second_row.case.id!r} both accumulate {first_row.case.accumulation} "
            "micro-batches; a line needs two numbers of them"
        )

    def line(first_seconds: float, second_seconds: float) -> Line:
        # Both steps have the same rest, so it cancels in their difference.
        micro_batch = (first_seconds - second_seconds) / more
        return Line(micro_batch, first_seconds - first_row.case.accumulation * micro_batch)

    measured = [step_seconds(row, row.case.measured.value) for row in (first_row, second_row)]
    predicted = [step_seconds(row, row.predicted) for row in (first_row, second_row)]
    return Lines(first_row, second_row, line(*measured), line(*predicted))


def lines_text(rows: Sequence[Row]) -> list[str]:
    """Format the section of the report; empty if no pair is complete."""
    pairs = lines(rows)
    if not pairs:
        return []
    names = [f"{pair.first.case.id} and {pair.second.case.id}" for pair in pairs]
    wide = max(map(len, names))
    result = [f"{'lines through two steps':{wide}} {'ms':>9} {'measured':>9} {'rest ms':>9} {'measured':>9}"]
    for name, pair in zip(names, pairs, strict=True):
        numbers = (pair.predicted.micro_batch, pair.measured.micro_batch, pair.predicted.rest, pair.measured.rest)
        result.append(f"{name:{wide}} {' '.join(f'{1e3 * number:9.2f}' for number in numbers)}")
    return [*result, "ms of a micro-batch, and what a step takes besides its micro-batches: predicted and measured", ""]


@dataclass(frozen=True)
class Growth:
    """Growth of a time between two systems: larger over smaller."""

    measured: float
    predicted: float

    @property
    def factor(self) -> float:
        """How far prediction and measurement are apart, 1 or more."""
        return max(self.predicted / self.measured, self.measured / self.predicted)

    @property
    def right_sign(self) -> bool:
        """Whether both grow, both shrink, or both are flat; a flat one agrees with one within twice the flat band."""
        signs = _sign(self.measured), _sign(self.predicted)
        # Otherwise 1.04 and 1.06 would have different signs.
        near = max(abs(self.measured - 1), abs(self.predicted - 1)) <= 2 * FLAT
        return signs[0] == signs[1] or (0 in signs and near)

    @property
    def good(self) -> bool:
        """The right sign and within :data:`FACTOR`."""
        return self.right_sign and self.factor <= FACTOR


@dataclass(frozen=True)
class Scaling:
    """A pair of rows and the growth between them."""

    smaller: Row
    larger: Row
    step: Growth
    micro_batch: Growth


def scaling(rows: Sequence[Row], pairs: Sequence[tuple[str, str]] = PAIRS) -> list[Scaling]:
    """Return the growth of the complete pairs, in order.

    Raises:
        ValueError: a row of a pair is neither a time nor a rate.
    """
    rows_by_id = {row.case.id: row for row in rows}
    return [
        _scaling(rows_by_id[smaller_id], rows_by_id[larger_id])
        for smaller_id, larger_id in pairs
        if smaller_id in rows_by_id and larger_id in rows_by_id
    ]


def _scaling(smaller: Row, larger: Row) -> Scaling:
    measured = step_seconds(larger, larger.case.measured.value) / step_seconds(smaller, smaller.case.measured.value)
    predicted = step_seconds(larger, larger.predicted) / step_seconds(smaller, smaller.predicted)
    # Dividing each step time by its own accumulation turns step growth into micro-batch growth.
    micro = smaller.case.accumulation / larger.case.accumulation
    return Scaling(smaller, larger, Growth(measured, predicted), Growth(measured * micro, predicted * micro))


def step_seconds(row: Row, value: float) -> float:
    """Return the seconds of a weight update if the row's quantity has this value.

    A rate counts the samples of the update, or the sequences packed in them (``sequences_in_pack`` of the case's
    config).

    Raises:
        ValueError: the quantity is neither a time nor a rate.
    """
    quantity = row.case.measured.quantity
    # To seconds, or to a number per second.
    value *= UNITS[row.case.measured.unit][1]
    if quantity in ("time", "device time"):
        return value
    if quantity == "rate":
        return row.case.samples * float(row.case.config.get("sequences_in_pack", 1.0)) / value
    raise ValueError(f"case {row.case.id!r}: quantity {quantity!r} says nothing about a step, allowed: time, rate")


def _sign(growth: float) -> int:
    return 0 if abs(growth - 1) <= FLAT else 1 if growth > 1 else -1


def scaling_text(rows: Sequence[Row]) -> list[str]:
    """Format the section of the report; empty if no pair is complete."""
    pairs = scaling(rows)
    if not pairs:
        return []
    wide = max(len(_name(pair)) for pair in pairs)
    columns = f"{'step':>9} {'measured':>9} {'factor':>7} {'micro-batch':>12} {'measured':>9} {'factor':>7}"
    lines = [f"{'data-parallel scaling':{wide}} {columns}"]
    for pair in pairs:
        good = pair.step.good and pair.micro_batch.good
        lines.append(
            f"{_name(pair):{wide}} {pair.step.predicted:9.3f} {pair.step.measured:9.3f} {pair.step.factor:7.2f} "
            f"{pair.micro_batch.predicted:12.3f} {pair.micro_batch.measured:9.3f} {pair.micro_batch.factor:7.2f}"
            f"{'' if good else '  <-- not'}"
        )
    met = sum(pair.step.good and pair.micro_batch.good for pair in pairs)
    lines.append("predicted and measured time of a step and of a micro-batch, larger system over smaller")
    lines.append(f"right sign and within a factor of {FACTOR}: {met} of {len(pairs)} pairs")
    return [*lines, ""]


def _name(pair: Scaling) -> str:
    return f"{pair.smaller.case.id} -> {pair.larger.case.id}"
