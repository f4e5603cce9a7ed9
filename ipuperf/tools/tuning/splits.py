"""Ways to divide a model's layers into stages, and the units that each IPU then has."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ipuperf.tools.errors import CaseError
from ipuperf.tools.validation.programs import front_ends

_ALIKE = 3
"""Layers of a probe if those of the model are alike: the first, one other, and the last. The first and the last are on
their own because more ops may stand beside them."""


def splits(layers: int, ipus: int) -> tuple[tuple[int, ...], ...]:
    """Layers of each stage, for every power of two of stages up to ``ipus``.

    The first stage often has more than its layers (an embedding), so it has any number of layers from none up to an
    even share. The other stages share the remaining layers evenly.
    """
    divisions: list[tuple[int, ...]] = []
    stages = 1
    # The first stage may have no layers, so there can be one stage more than layers.
    while stages <= min(ipus, layers + 1):
        if stages == 1:
            divisions.append((layers,))
        else:
            shares = (_shared(layers - first_stage, stages - 1) for first_stage in range(layers // stages + 1))
            divisions += [
                (first_stage, *later_stages) for first_stage, later_stages in enumerate(shares) if min(later_stages) > 0
            ]
        stages *= 2
    return tuple(divisions)


def _shared(layers: int, stages: int) -> tuple[int, ...]:
    """Layers of each stage. If they do not divide evenly, the last stages have one more."""
    fewest, remainder = divmod(layers, stages)
    return tuple(fewest + (number >= stages - remainder) for number in range(stages))


@dataclass(frozen=True)
class Units:
    """The indivisible parts of a split model, in order, and their *probe*.

    A probe is a program in which each unit has its own IPU, so it shows the costs of each. If layers are alike, the
    probe has the first, one of the others, and the last.

    Attributes:
        seen: for each unit the IPU of the probe that has a unit like it.
        probe: the factors that have other values in the configuration of the probe.
    """

    seen: tuple[int, ...]
    probe: Mapping[str, Any]

    @property
    def ipus(self) -> int:
        """The number of IPUs of the probe."""
        return max(self.seen) + 1


def units_of(model: str, configuration: Mapping[str, Any]) -> Units | None:
    """The units of a model; None if they are not known.

    In models that place their layers by ``pipeline``, unit 0 is what always stands on the first IPU. The layers
    follow, and the last unit includes what comes after the last layer. The units of the encoder are its layers.
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
    """Whether ``config.layers`` sets the number of layers. Then the layers are alike."""
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
        fewest, remainder = divmod(layers, stages)
        counts = [fewest + (number < remainder) for number in range(stages)]
    else:
        first_layers, *later_layers = configuration["pipeline"]
        counts = [1 + first_layers, *later_layers]
    ends = [sum(counts[: number + 1]) for number in range(len(counts))]
    return [range(end - count, end) for count, end in zip(counts, ends)]
