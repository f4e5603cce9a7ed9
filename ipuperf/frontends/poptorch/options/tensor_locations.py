"""``Options.TensorLocations`` and ``TensorLocationSettings``: what lives in Streaming Memory, what is sharded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ipuperf.frontends.options import APPLIED, Option

from ..errors import require, require_bool, require_int
from .effects import LOCATION_EFFECTS, Ledger
from .store import OptionsDict

MIN_ELEMENTS_OFF_CHIP = 2
"""PopART's default: tensors with fewer elements stay on chip (``popart:willow/include/popart/sessionoptions.hpp``)."""

MIN_ELEMENTS_SHARDING = 8192
"""PopART's default: tensors with fewer elements are not sharded (same file)."""


class TensorLocationSettings(OptionsDict):
    """Where the tensors of one kind live; each setter returns the settings themselves."""

    def minElementsForOffChip(self, min_elements: int) -> TensorLocationSettings:
        """Tensors with fewer elements stay on chip."""
        require_int("minElementsForOffChip", min_elements, 0)
        self.createOrSet(minElementsForOffChip=min_elements)
        return self

    def minElementsForReplicatedTensorSharding(self, min_elements: int) -> TensorLocationSettings:
        """Tensors with fewer elements are not sharded over replicas."""
        require_int("minElementsForReplicatedTensorSharding", min_elements, 0)
        self.createOrSet(minElementsForReplicatedTensorSharding=min_elements)
        return self

    def useOnChipStorage(self, use: bool | None = True) -> TensorLocationSettings:
        """In-Processor-Memory (True), Streaming Memory (False), or the default (None)."""
        if use is None:
            self.deleteIfExists("onChip")
        else:
            require_bool("useOnChipStorage", use)
            self.createOrSet(onChip=int(use))
        return self

    def useReplicatedTensorSharding(self, use: bool = True) -> TensorLocationSettings:
        """Each replica holds one shard."""
        require_bool("useReplicatedTensorSharding", use)
        self.createOrSet(useReplicatedTensorSharding=int(use))
        return self

    def useIOTilesToLoad(self, use: bool = True) -> TensorLocationSettings:
        """Load from Streaming Memory through I/O tiles; without effect."""
        require_bool("useIOTilesToLoad", use)
        self.createOrSet(useIOTilesToLoad=int(use))
        return self

    def useIOTilesToStore(self, use: bool = True) -> TensorLocationSettings:
        """Store to Streaming Memory through I/O tiles; without effect."""
        require_bool("useIOTilesToStore", use)
        self.createOrSet(useIOTilesToStore=int(use))
        return self


@dataclass(frozen=True)
class TensorLocation:
    """The location of one kind of tensor, complete with PopART's defaults."""

    on_chip: bool
    sharded: bool = False
    min_elements_off_chip: int = MIN_ELEMENTS_OFF_CHIP
    min_elements_sharding: int = MIN_ELEMENTS_SHARDING


class _TensorLocationOptions(OptionsDict):
    """``Options.TensorLocations``."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        self._ledger = ledger or Ledger()
        super().__init__()

    def numIOTiles(self, num_tiles: int) -> _TensorLocationOptions:
        """Tiles of each IPU set aside for I/O: an even number from 32 to 192. The others compute; what is marked with
        ``poptorch.set_overlap_for_input`` and ``set_overlap_for_output`` is loaded and stored on the I/O tiles."""
        good = isinstance(num_tiles, int) and 32 <= num_tiles <= 192 and num_tiles % 2 == 0
        require(good, f"numIOTiles must be an even number between 32 and 192, got {num_tiles!r}.")
        self._ledger.record("TensorLocations.numIOTiles", num_tiles)
        self.createOrSet(numIOTiles=num_tiles)
        return self

    @property
    def num_io_tiles(self) -> int:
        """What :meth:`numIOTiles` was given, 0 if nothing."""
        return int(self._values.get("numIOTiles", 0))

    def setActivationLocation(self, location: TensorLocationSettings) -> _TensorLocationOptions:
        """Where stashed activations live."""
        return self._set("activation", "setActivationLocation", location)

    def setWeightLocation(self, location: TensorLocationSettings) -> _TensorLocationOptions:
        """Where weights live."""
        return self._set("weight", "setWeightLocation", location)

    def setOptimizerLocation(self, location: TensorLocationSettings) -> _TensorLocationOptions:
        """Where the optimiser's state lives."""
        return self._set("optimizer", "setOptimizerLocation", location)

    def setAccumulatorLocation(self, location: TensorLocationSettings) -> _TensorLocationOptions:
        """Where gradient accumulators live."""
        return self._set("accumulator", "setAccumulatorLocation", location)

    def location(self, kind: str, on_chip_by_default: bool = True) -> TensorLocation:
        """Location of ``activation``, ``weight``, ``optimizer`` or ``accumulator`` tensors.

        Phased executions pass ``on_chip_by_default=False``: there PopTorch's default is Streaming Memory.
        """
        kinds = ("activation", "weight", "optimizer", "accumulator")
        require(kind in kinds, f"location: kind {kind!r} given, expected one of {kinds}")
        found: dict[str, Any] = self._values.get(f"location_{kind}", {})
        return TensorLocation(
            on_chip=bool(found.get("onChip", on_chip_by_default)),
            sharded=bool(found.get("useReplicatedTensorSharding", False)),
            min_elements_off_chip=found.get("minElementsForOffChip", MIN_ELEMENTS_OFF_CHIP),
            min_elements_sharding=found.get("minElementsForReplicatedTensorSharding", MIN_ELEMENTS_SHARDING),
        )

    def _set(self, kind: str, option: str, location: TensorLocationSettings) -> _TensorLocationOptions:
        require(
            isinstance(location, TensorLocationSettings),
            f"{option}: {type(location).__name__} given, expected poptorch.TensorLocationSettings",
        )
        self.createOrSet(**{f"location_{kind}": location.toDict()})
        self._ledger.record(f"TensorLocations.{option}", location)
        for member, value in location.toDict().items():
            self._ledger.record(f"TensorLocations.{option} {member}", value, _effect_of(kind, member))
        return self


def _effect_of(kind: str, member: str) -> Option:
    if kind == "optimizer" and member == "useReplicatedTensorSharding":
        return Option(APPLIED)
    return LOCATION_EFFECTS[member]
