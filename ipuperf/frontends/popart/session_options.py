"""``popart.SessionOptions`` of a PopXL program: every option works, has a stated lack of effect, or is refused.

:mod:`ipuperf.frontends.options` has the rows. A name that upstream does not have is an error.

Names and defaults: popart: willow/include/popart/sessionoptions.hpp, and those that ``popxl.Ir`` sets itself
(python/popxl/python_files/ir.py).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any

from ipuperf.base.near_names import did_you_mean
from ipuperf.frontends.options import POPART, Member
from ipuperf.runtime.effects import tell

from . import enums
from .engine_options import CALLBACK_OPTIONS, callback_threads, check_callback_option
from .enums import AccumulateOuterFragmentSchedule
from .locations import TensorLocation

PLAN_KEYS = ("availableMemoryProportion", "partialsType")
"""Keys of ``matmulOptions`` and ``convolutionOptions`` that plans use; see PopLibs' ``poplin``."""


@dataclass(slots=True)
class AccumulateOuterFragmentSettings:
    """The order of a pipeline's weight updates. PopXL has no updates that PopART would order."""

    schedule: AccumulateOuterFragmentSchedule = AccumulateOuterFragmentSchedule.Serial
    excludedVirtualGraphs: list[int] = field(default_factory=list)


@dataclass(slots=True)
class ReplicatedCollectivesSettings:
    """The collectives that PopART merges. PopXL runs its graphs as they are."""

    prepareScheduleForMergingCollectives: bool = False
    mergeAllReduceCollectives: bool = False
    mergeReduceScatterCollectives: bool = False
    mergeAllGatherCollectives: bool = False


@dataclass(slots=True)
class TensorLocationSettings:
    """The place where PopART keeps a kind of tensors. Variables of PopXL state their own place."""

    location: TensorLocation = field(default_factory=TensorLocation)
    minElementsForOffChip: int = 2
    minElementsForReplicatedTensorSharding: int = 8192


class Flags(dict[str, str]):
    """An option that is a dictionary; each key is checked as it is set.

    Args:
        option: name of the option.
        given: called with option, key and value of each entry.
    """

    def __init__(self, option: str, check: Callable[[str, str, str], None], entries: Mapping[str, str] = {}) -> None:
        super().__init__()
        self._option = option
        self._given = check
        self.update(entries)

    def __setitem__(self, key: str, value: str) -> None:
        if not isinstance(key, str) or not isinstance(value, str):
            raise TypeError(f"SessionOptions.{self._option}[{key!r}] = {value!r}: keys and values are strings")
        self._given(self._option, key, value)
        super().__setitem__(key, value)

    def update(self, *entries: Any, **named: str) -> None:
        """As of a dictionary."""
        for key, value in dict(*entries, **named).items():
            self[key] = value

    def setdefault(self, key: str, default: str = "") -> str:
        """As of a dictionary."""
        if key not in self:
            self[key] = default
        return self[key]


ROWS = POPART.below("SessionOptions.")
"""The options by name."""


def _defaults() -> dict[str, Any]:
    # Caching is on upstream if one of these variables is set.
    cache = os.environ.get("POPXL_CACHE_DIR", os.environ.get("POPART_CACHE_DIR"))
    scope = {**vars(enums), **globals()}
    defaults: dict[str, Any] = {
        name: row.default.value(scope) if isinstance(row.default, Member) else copy(row.default)
        for name, row in ROWS.items()
        if name not in _FLAGS
    }
    return {**defaults, "enableEngineCaching": cache is not None, "cachePath": cache or defaults["cachePath"]}


_FLAGS = tuple(name for name, row in ROWS.items() if row.accepts == "Flags")
_OF_ONNX = (
    "automaticLossScalingSettings",
    "autodiffSettings",
    "batchSerializationSettings",
    "executionPhaseSettings",
    "developerSettings",
    "hardwareInstrumentations",
    "globalReplicationFactor",
    "globalReplicaOffset",
    "tensorLocationSettingsOverride",
    "compilationProgressLogger",
    "serializedPoprithmsShiftGraphsDir",
    "createImplicitPipeliningFwdOnlyProgram",
)
_PLANNED = ("matmulOptions", "convolutionOptions")
_ANYWAY = {"debug.allowOutOfMemory": ("true", "false")}


class SessionOptions:
    """The options of one program.

    Args:
        changed: called with name and value of each option that a program sets, before the value is stored; an exception
            leaves the option as it was.

    Raises (on setting):
        AttributeError: there is no such option.
        TypeError: the value has another type.
        ValueError: the option is refused, or a number is too small.
    """

    def __init__(self, changed: Callable[[str, Any], None] = lambda name, value: None) -> None:
        defaults = _defaults()
        defaults.update((name, Flags(name, _entry)) for name in _FLAGS)
        # Plain assignment would call this class's own ``__setattr__``, which reads both attributes.
        object.__setattr__(self, "_kept", defaults)
        object.__setattr__(self, "_changed", changed)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self._kept:
            raise _unknown(name)
        return self._kept[name]

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._kept:
            raise _unknown(name)
        value = _checked(name, self._kept[name], value)
        # Setting an option to its present value asks for nothing.
        if name not in _FLAGS and value != self._kept[name]:
            POPART.given(f"SessionOptions.{name}", value)
        self._changed(name, value)
        self._kept[name] = value

    def __dir__(self) -> list[str]:
        return sorted(self._kept)

    def keep(self, name: str, value: Any) -> None:
        """Set an option for another name of the same setting, for example ``Ir.num_io_tiles``, without any check."""
        self._kept[name] = value

    def getGlobalReplicationFactor(self) -> int:
        """Return the number of replicas: ``replicatedGraphCount`` if ``enableReplicatedGraphs`` is set, else 1."""
        return int(self._kept["replicatedGraphCount"]) if self._kept["enableReplicatedGraphs"] else 1

    @property
    def prefetch_depth(self) -> int:
        """Slices that the host prepares ahead of the IPU for each stream; 0 without prefetching."""
        depth = max(self._kept["defaultBufferingDepth"], self._kept["defaultPrefetchBufferingDepth"])
        return int(depth) if self._kept["enablePrefetchDatastreams"] else 0

    @property
    def callback_threads(self) -> int | None:
        """Threads of the host that run the callbacks of streams; see :func:`.engine_options.callback_threads`."""
        return callback_threads(self._kept["engineOptions"])


def _unknown(name: str) -> AttributeError:
    if name in _OF_ONNX:
        return AttributeError(f"SessionOptions.{name} belongs to PopART's ONNX interface, which is not here")
    return AttributeError(f"popart.SessionOptions has no option {name!r}{did_you_mean(name, ROWS)}")


def _checked(name: str, current: Any, value: Any) -> Any:
    """Return ``value`` in the form in which the option is stored."""
    if name in _FLAGS:
        if not isinstance(value, Mapping):
            raise TypeError(f"SessionOptions.{name} = {value!r}: dict is needed")
        return Flags(name, _entry, value)
    kind = type(current)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        # C++ converts integers for options of type double.
        value = float(value)
    if kind in (set, list) and isinstance(value, (set, list, tuple)):
        value = kind(value)
    # In Python a bool is an int, but no number of IPUs or replicas.
    whole = kind is not int or not isinstance(value, bool)
    if not isinstance(value, kind) or not whole:
        raise TypeError(f"SessionOptions.{name} = {value!r}: {kind.__name__} is needed")
    least = ROWS[name].least
    if least is not None and value < least:
        raise ValueError(f"SessionOptions.{name} = {value!r}: at least {least} is needed")
    return value


def _entry(option: str, key: str, value: str) -> None:
    """Note that a dictionary's entry has no effect, unless plans use it or it asks for what happens anyway."""
    check_callback_option(key, value)
    accepted_keys = CALLBACK_OPTIONS if option == "engineOptions" else PLAN_KEYS if option in _PLANNED else ()
    if key in accepted_keys or value in _ANYWAY.get(key, ()):
        return
    tell(f"popart.SessionOptions.{option}[{key!r}] is without effect: {ROWS[option].reason}")
