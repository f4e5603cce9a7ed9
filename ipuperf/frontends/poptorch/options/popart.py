"""``Options._Popart``: keys of ``popart.SessionOptions``, with their numbers instead of enumerations."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from ipuperf.base.near_names import instead_of
from ipuperf.frontends.options import NO_EFFECT, Option
from ipuperf.frontends.popart.engine_options import CALLBACK_OPTIONS, check_callback_option
from ipuperf.lowering import CollectiveMerging
from ipuperf.pipelines import AutomaticLossScale

from ..errors import require, require_path
from .effects import POPART_EFFECTS, Ledger
from .store import Freezable

#: ``popart::RecomputationType`` by number: what ``set("autoRecomputation", n)`` asks for.
RECOMPUTATION_TYPES = ("None", "Standard", "NormOnly", "Pipeline", "RecomputeAll")

#: ``popart::AccumulateOuterFragmentSchedule`` by number.
OUTER_FRAGMENT_SCHEDULES = ("Scheduler", "Serial", "OverlapCycleOptimized", "OverlapMemoryOptimized")


#: The depth of the host's stream buffers, and its older name.
BUFFERING_DEPTHS = ("defaultBufferingDepth", "defaultPrefetchBufferingDepth")

#: Start of the keys of ``popart::ReplicatedCollectivesSettings``, which are booleans.
COLLECTIVES = "replicatedCollectivesSettings."

#: ``popart::PatternsLevel::Default``.
_DEFAULT_PATTERNS = 2

_OTHER_PATTERNS = Option(NO_EFFECT, "of PopART's patterns only PadSum is here")

#: Start of the keys of ``popart::AutomaticLossScalingSettings``.
LOSS_SCALING = "automaticLossScalingSettings."


class _PopartOptions(Freezable):
    """Any key is accepted; :data:`.effects.POPART_EFFECTS` says which ones mean something."""

    def __init__(self, ledger: Ledger | None = None) -> None:
        self._ledger = ledger or Ledger()
        self.options: dict[str, Any] = {"instrumentWithHardwareCycleCounter": False, "rearrangeAnchorsOnHost": False}

    def set(self, key: str, value: Any) -> _PopartOptions:
        """Set ``key``. ``AssertionError`` for a value that the keys with a meaning do not take."""
        self.checkIsFrozen()
        require(isinstance(key, str), f"_Popart.set: key {key!r} given, expected a string")
        if key == "engineOptions":
            return self.setEngineOptions(value)
        if key == "patterns":
            return self.setPatterns(value, self.options.get("patterns_level", _DEFAULT_PATTERNS))
        if key == "patterns_level":
            return self.setPatterns(self.options.get("patterns", {}), value)
        _check_value(key, value)
        self._ledger.record(f"_Popart.set {key}", value, POPART_EFFECTS.get(key, POPART_EFFECTS["other keys"]))
        self.options[key] = value
        return self

    def store(self, key: str, value: Any) -> None:
        """Set ``key`` on behalf of another option, which has its own row in the table of effects."""
        self.checkIsFrozen()
        self.options[key] = value

    def setEngineOptions(self, engine_options: Mapping[str, str]) -> _PopartOptions:
        """Poplar's engine options: the directory of reports and ``streamCallbacks.*`` are used, others are without
        effect. ``AssertionError`` for no dictionary or a value that those do not take."""
        self.checkIsFrozen()
        require(isinstance(engine_options, Mapping), f"engineOptions: {engine_options!r} given, expected a dictionary")
        # ``debug.allowOutOfMemory`` asks for what happens anyway.
        known = ("autoReport.directory", "autoReport.all", "debug.allowOutOfMemory", *CALLBACK_OPTIONS)
        for key, value in engine_options.items():
            try:
                check_callback_option(key, str(value))
            except ValueError as error:
                require(False, f"engineOptions: {error}")
            if key not in known:
                row = Option(NO_EFFECT, "Poplar's engine is not here")
                self._ledger.record(f"_Popart.set engineOptions.{key}", value, row)
        self.options["engineOptions"] = dict(engine_options)
        return self

    def setPatterns(self, patterns: Mapping[str, bool], level: int = _DEFAULT_PATTERNS) -> _PopartOptions:
        """PopART's rewriting patterns, of which ``PadSum`` alone is here; it is on from level 2 (the default) on."""
        self.checkIsFrozen()
        require(isinstance(level, int), f"setPatterns: level {level!r} given, expected an int")
        require(isinstance(patterns, Mapping), f"setPatterns: {patterns!r} given, expected a dictionary")
        if level != _DEFAULT_PATTERNS:
            self._ledger.record("_Popart.set patterns_level", level, _OTHER_PATTERNS)
        for name in patterns:
            if name != "PadSum":
                self._ledger.record(f"_Popart.set patterns.{name}", patterns[name], _OTHER_PATTERNS)
        self.options.update(patterns_level=level, patterns=dict(patterns))
        return self

    # -- for the executor --------------------------------------------------------------------------------------------

    @property
    def recomputation(self) -> str | None:
        """One of :data:`RECOMPUTATION_TYPES`; None if not set (then pipelines of several IPUs use ``Pipeline``)."""
        number = self.options.get("autoRecomputation")
        return None if number is None else RECOMPUTATION_TYPES[int(number)]

    @property
    def explicit_recomputation(self) -> bool:
        """Whether ``RecomputeAll`` also recomputes what stands between the last checkpoint and the loss."""
        return bool(self.options.get("explicitRecomputation", False))

    @property
    def outlining(self) -> float | None:
        """Value from which repeated stretches share their code (``outlineThreshold``); None: ``enableOutlining`` is
        False."""
        if not self.options.get("enableOutlining", True):
            return None
        return max(0.0, float(self.options.get("outlineThreshold", 1.0)))

    @property
    def joins_pads(self) -> bool:
        """Whether gradients of disjoint parts of a tensor are joined, not padded and added up (pattern ``PadSum``)."""
        level = self.options.get("patterns_level", _DEFAULT_PATTERNS)
        return bool(self.options.get("patterns", {}).get("PadSum", level >= _DEFAULT_PATTERNS))

    @property
    def prefetch_depth(self) -> int:
        """Depth of the host's stream buffers (PopTorch's default is 1), by either of its names."""
        return max(int(self.options.get(key, 1)) for key in BUFFERING_DEPTHS)

    @property
    def strided_groups(self) -> bool:
        """Whether groups of group norms are of every so-many-th channel (``groupNormStridedChannelGrouping``), not of
        consecutive ones as PyTorch's are."""
        return bool(self.options.get("groupNormStridedChannelGrouping", False))

    @property
    def stable_norms(self) -> bool:
        """Whether variances of norms are those of centred values (``enableStableNorm``)."""
        return bool(self.options.get("enableStableNorm", False))

    @property
    def synthetic_data(self) -> bool:
        """Whether there is no host I/O (every ``syntheticDataMode`` but 0 is done as 2, normally distributed)."""
        return bool(self.options.get("syntheticDataMode", 0))

    @property
    def outer_fragment_schedule(self) -> str:
        """One of :data:`OUTER_FRAGMENT_SCHEDULES`: how the weight updates of the IPUs are ordered."""
        return OUTER_FRAGMENT_SCHEDULES[int(self.options.get("accumulateOuterFragmentSettings.schedule", 1))]

    @property
    def collective_merging(self) -> CollectiveMerging:
        """Which collectives become one (``replicatedCollectivesSettings``, all False unless set)."""

        def limit(kind: str) -> int | None:
            return None if self.options.get(f"{COLLECTIVES}merge{kind}Collectives") else 0

        return CollectiveMerging(
            limit("AllReduce"),
            limit("ReduceScatter"),
            limit("AllGather"),
            contiguous=bool(self.options.get(f"{COLLECTIVES}prepareScheduleForMergingCollectives")),
        )

    @property
    def automatic_loss_scale(self) -> AutomaticLossScale | None:
        """How the loss scale follows the gradients (``automaticLossScalingSettings``); None: it does not."""
        if not self.options.get(f"{LOSS_SCALING}enabled", False):
            return None
        default = AutomaticLossScale()
        return AutomaticLossScale(
            float(self.options.get(f"{LOSS_SCALING}binEdgeLocation", default.bin_edge)),
            float(self.options.get(f"{LOSS_SCALING}thresholdUpperCountProportion", default.threshold)),
        )

    @property
    def engine_options(self) -> dict[str, str]:
        """What was given to :meth:`setEngineOptions`."""
        return dict(self.options.get("engineOptions", {}))

    def toDict(self) -> dict[str, Any]:
        """A copy of all keys and values."""
        return copy.deepcopy(self.options)

    def __repr__(self) -> str:
        return f"_PopartOptions({', '.join(f'{key}={value!r}' for key, value in self.options.items())})"


_COLLECTIVES = [key for key in POPART_EFFECTS if key.startswith(COLLECTIVES)]


def _check_value(key: str, value: Any) -> None:
    call = f"_Popart.set({key!r}, {value!r})"
    if key == "cachePath":
        require_path(f"_Popart.set({key!r})", value)
    if key.startswith(COLLECTIVES):
        require(key in POPART_EFFECTS, f"{call}: unknown key{instead_of(key, _COLLECTIVES)}")
    words = POPART_EFFECTS[key].refusal(value) if key in POPART_EFFECTS else ""
    require(not words, f"{call}: expected {words}")
