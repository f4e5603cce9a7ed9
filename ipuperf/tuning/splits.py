"""Ways to cut a model's layers into stages, and which units each IPU then has."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ipuperf.validation.errors import CaseError
from ipuperf.validation.programs import front_ends

_ALIKE = 3
"""Layers of a probe where those of the model are alike: the first and the last may have more beside them."""


def splits(layers: int, ipus: int) -> tuple[tuple[int, ...], ...]:
    """Layers of each stage, for every power of two of stages up to ``ipus``: the first stage, which often has more
    besides its layers, has any number from none to as many as the others, which share the rest evenly."""
    found: list[tuple[int, ...]] = []
    stages = 1
    while stages <= min(ipus, layers + 1):
        if stages == 1:
            found.append((layers,))
        else:
            shares = (_shared(layers - first, stages - 1) for first in range(layers // stages + 1))
            found += [(first, *rest) for first, rest in enumerate(shares) if min(rest) > 0]
        stages *= 2
    return tuple(found)


def _shared(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage, the last ones have one more where it does not divide."""
    each, more = divmod(layers, stages)
    return tuple(each + (number >= stages - more) for number in range(stages))


@dataclass(frozen=True)
class Units:
    """The indivisible parts of a split model, in order, and a program that shows what each takes: its *probe*, in
    which units have an IPU of their own. Where layers are alike the probe has the first, one of the others, and the
    last.

    Attributes:
        seen: of each unit the IPU of the probe that has one like it.
        probe: what is different in the configuration of the probe.
    """

    seen: tuple[int, ...]
    probe: Mapping[str, Any]

    @property
    def ipus(self) -> int:
        """Of the probe."""
        return max(self.seen) + 1


def units_of(model: str, configuration: Mapping[str, Any]) -> Units | None:
    """The units of a model; None where nobody knows them.

    Models that place their layers by ``pipeline`` have what always stands on the first IPU as unit 0, then the layers,
    the last with what follows it; the encoder has its layers.
    """
    if model == "encoder":
        layers = configuration.get("config.layers", 0)
        if layers <= 1:
            return None
        if layers <= _ALIKE:
            return Units(tuple(range(layers)), {"config.stages": layers})
        seen = (0, *(1,) * (layers - 2), 2)
        return Units(seen, {"config.layers": _ALIKE, "config.stages": _ALIKE})
    pipeline = configuration.get("pipeline", ())
    if not pipeline or "config.halves" in configuration:
        return None
    layers = sum(pipeline)
    if layers > _ALIKE and _says_layers(model, configuration.get("config.preset")):
        seen = (0, 1, *(2,) * (layers - 2), 3)
        return Units(seen, {"config.layers": _ALIKE, "pipeline": (0, *(1,) * _ALIKE)})
    return Units(tuple(range(layers + 1)), {"pipeline": (0,) + (1,) * layers})


@cache
def _says_layers(model: str, preset: Any) -> bool:
    """Whether the model has as many layers as ``config.layers`` says, and so alike."""
    with front_ends():
        module = importlib.import_module(f"ipuperf.models.{model}")
    try:
        return bool(module.placed_layers({"preset": preset, "layers": 2}) == 2)
    except CaseError:
        return False


def placed(model: str, configuration: Mapping[str, Any]) -> Sequence[range]:
    """The units of each IPU of a replica, for a model that has units."""
    if model == "encoder":
        layers, stages = configuration["config.layers"], configuration.get("config.stages", 4)
        each, more = divmod(layers, stages)
        counts = [each + (number < more) for number in range(stages)]
    else:
        first, *others = configuration["pipeline"]
        counts = [1 + first, *others]
    ends = [sum(counts[: number + 1]) for number in range(len(counts))]
    return [range(end - count, end) for count, end in zip(counts, ends)]
