"""A plain roofline beside the simulation: what all its detail is worth.

The roofline knows what a run computes and moves, and the peaks of its machine. A run takes as long as the resource that
needs longest: its FLOP at the peak of their types times one efficiency, or its bytes at the peak of the exchange, the
busiest link, Streaming Memory or connection of the host. It knows no plan, layout, sync, launch, schedule or fixed
cost. The efficiency is fitted to the rows that are compared (:func:`fitted_efficiency`), so the roofline has seen them
all. FLOP, bytes and peaks come from the simulated trace.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import mean, median
from typing import TYPE_CHECKING

from ipuperf.report.limits import limits
from ipuperf.tools.validation.units import QUANTITIES
from ipuperf.trace import Trace

if TYPE_CHECKING:
    from ipuperf.tools.validation.rows import Row, Run

COMPUTE = "flops"
"""The resource to which the efficiency applies. The others are ``exchange`` and the kinds of links."""


def seconds_at_peak(trace: Trace) -> dict[str, float]:
    """Return the seconds that each resource needs at its peak for what a trace computes and moves.

    FLOP and bytes of the exchange are those of all IPUs over the peak of all. Of a kind of link the busiest one counts.
    """
    summary, costs = trace.summary(), trace.operations_by_ipu(of_each_class=True)
    cycles = summary["total_cycles"]
    needed = {limit["name"]: limit["share"] * cycles for limit in limits(trace, summary, costs)}
    # Of the exchange, ``limits`` says the share of the time, not of the peak.
    received = sum(int(size) * int(ipus) for size, ipus in zip(costs["exchange_bytes"], costs["ipus"]))
    needed["exchange"] = received / (trace.meta["peak_exchange_bytes_per_cycle"] * trace.meta["num_ipus"])
    return {name: trace.seconds(1) * amount for name, amount in needed.items() if amount > 0}


def at_efficiency(bounds: Mapping[str, float], quantity: str, efficiency: float) -> float:
    """Return what the roofline predicts.

    Args:
        bounds: the quantity if one resource alone bound the run, by resource; not empty.
        quantity: one of :data:`~ipuperf.validation.units.QUANTITIES`.
        efficiency: share of the peak FLOP/s that is reached.
    """
    if QUANTITIES[quantity].less_is_faster:
        return max(value / efficiency if name == COMPUTE else value for name, value in bounds.items())
    return min(value * efficiency if name == COMPUTE else value for name, value in bounds.items())


@dataclass(frozen=True)
class ClassBaseline:
    """Errors of a class, simulated and by the roofline, over the same runs.

    Attributes:
        name, runs: the class, and its runs that have a bound. Differences of two programs and memory have none.
        mean, median: mean and median absolute error of a run as simulated.
        roofline_mean, roofline_median: the same by the roofline.
        efficiency: share of the peak FLOP/s in the roofline, equal for all classes.
    """

    name: str
    runs: int
    mean: float
    median: float
    roofline_mean: float
    roofline_median: float
    efficiency: float

    def as_dict(self) -> dict[str, object]:
        """The class as JSON."""
        return {"class" if key == "name" else key: value for key, value in asdict(self).items()}


def baseline(rows: Sequence[Row]) -> list[ClassBaseline]:
    """Return the errors of each class, then of all rows that are not bound by the host, to which the efficiency is
    fitted.

    Rows without a bound are left out.
    """
    from ipuperf.tools.validation.rows import runs

    bounded = [row for row in rows if row.roofline]
    modelled = [row for row in bounded if not row.case.host_bound]
    efficiency = fitted_efficiency(runs(modelled))
    classes = [
        _class(name, runs([row for row in bounded if row.case.group == name]), efficiency)
        for name in dict.fromkeys(row.case.group for row in bounded)
    ]
    everything = [_class("all but host-bound", runs(modelled), efficiency)] if modelled else []
    return classes + everything


def fitted_efficiency(fitted_runs: Sequence[Run]) -> float:
    """Return the efficiency with the least mean of ``|log(predicted / measured)|``, in which each run counts once.

    In the logarithm of the efficiency that mean is made of straight pieces. They meet where a row is exactly right, or
    where compute takes over from another resource, so one of these places is the best. It is at most 1, and 1 where no
    row depends on it.
    """
    places = {place for run in fitted_runs for row in run.rows for place in _places(row) if 0 < place <= 1}
    return min(sorted(places, reverse=True), key=lambda place: _misfit(fitted_runs, place), default=1.0)


def _places(row: Row) -> list[float]:
    """Efficiencies at which the roofline of a row is right, or bends."""
    bounds, measured = row.roofline, row.case.measured
    if COMPUTE not in bounds:
        return []
    others = [value for name, value in bounds.items() if name != COMPUTE]
    ratios = [bounds[COMPUTE] / value for value in (measured.value, *others)]
    return ratios if QUANTITIES[measured.quantity].less_is_faster else [1 / ratio for ratio in ratios]


def _misfit(fitted_runs: Sequence[Run], efficiency: float) -> float:
    return mean(mean(abs(math.log(_ratio(row, efficiency))) for row in run.rows) for run in fitted_runs)


def _ratio(row: Row, efficiency: float) -> float:
    """Predicted by the roofline over measured."""
    measured = row.case.measured
    return at_efficiency(row.roofline, measured.quantity, efficiency) / measured.value


def _class(name: str, class_runs: Sequence[Run], efficiency: float) -> ClassBaseline:
    ours = [run.error for run in class_runs]
    theirs = [mean(abs(_ratio(row, efficiency) - 1) for row in run.rows) for run in class_runs]
    return ClassBaseline(name, len(ours), mean(ours), median(ours), mean(theirs), median(theirs), efficiency)


def baseline_text(rows: Sequence[Row]) -> str:
    """Format the table of :func:`baseline`, with the efficiency below it."""
    classes = baseline(rows)
    if not classes:
        return "no row has a roofline"
    lines = [f"{'class':26}{'runs':>6}{'mean |error|':>14}{'median':>9}{'roofline: mean':>17}{'median':>9}"]
    lines += [
        f"{entry.name:26}{entry.runs:>6}{entry.mean:>14.1%}{entry.median:>9.1%}{entry.roofline_mean:>17.1%}"
        f"{entry.roofline_median:>9.1%}"
        for entry in classes
    ]
    without = sum(not row.roofline for row in rows)
    lines.append(f"roofline: peak bandwidths, and {classes[0].efficiency:.1%} of the peak FLOP/s, fitted to these rows")
    return "\n".join(
        [*lines, f"{without} values have no roofline (memory, differences of programs)"] if without else lines
    )
