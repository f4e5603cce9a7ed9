"""Units of measured values, and the quantities that a run has."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Quantity:
    """A measurable quantity of a run.

    Attributes:
        dimension: dimension of its value, see :data:`UNITS`.
        meaning: one line for users.
        less_is_faster: whether it is a time. Others are rates, whose errors enter the bias with the sign reversed.
    """

    dimension: str
    meaning: str
    less_is_faster: bool = False


QUANTITIES: dict[str, Quantity] = {
    "time": Quantity("time", "one run, the host's fixed cost of a run included", True),
    "device time": Quantity("time", "one run without the host's fixed cost of a run", True),
    "cycles": Quantity("cycles", "cycles of one run without the host's fixed cost of a run", True),
    "cycles of an update": Quantity("cycles", "cycles of a pipeline's second weight update in a run", True),
    "run rate": Quantity("rate", "runs per second, the host's fixed cost of a run included"),
    "rate": Quantity("rate", "items of a run per second, the host's fixed cost of a run included"),
    "flop rate": Quantity("flop rate", "floating-point operations of a run per second of device time"),
    "bandwidth": Quantity("bandwidth", "bytes of a run per second of device time"),
    "memory: always live": Quantity("bytes", "always-live bytes of IPU 0"),
    "memory: baseline": Quantity("bytes", "least not-always-live bytes of IPU 0 at a load of the program's input"),
    "memory: peak": Quantity("bytes", "highest not-always-live bytes of IPU 0"),
}
"""Quantities by name, as written in case files."""

UNITS: dict[str, tuple[str, float]] = {
    **{
        name: ("time", scale) for name, scale in {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "us/step": 1e-6}.items()
    },
    "cycles": ("cycles", 1.0),
    **{
        f"{counted}/s": ("rate", 1.0)
        for counted in ("it", "samples", "sequences", "img", "images", "items", "tokens", "steps")
    },
    **{
        name: ("flop rate", scale)
        for name, scale in {"GFLOP/s": 1e9, "TFLOP/s": 1e12, "TFLOPS": 1e12, "PFLOP/s": 1e15}.items()
    },
    **{name: ("bandwidth", scale) for name, scale in {"MB/s": 1e6, "GB/s": 1e9, "TB/s": 1e12}.items()},
    **{name: ("bytes", scale) for name, scale in {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9, "MiB": 2.0**20}.items()},
}
"""Unit -> dimension and size in the base unit (seconds, cycles, 1/s, FLOP/s, bytes/s, bytes)."""


def units_of(quantity: str) -> list[str]:
    """Units in which a quantity may be given."""
    return [unit for unit, (dimension, _) in UNITS.items() if dimension == QUANTITIES[quantity].dimension]
