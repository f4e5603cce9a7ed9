"""``IPUConfig``: how programs are compiled and on which IPUs they run.

Attribute names and types are strict, as upstream. These change what is simulated or computed: ``auto_select_ipus``,
``select_ipus``, ``selection_order``, ``allow_recompute``, ``matmuls.poplar_options``,
``optimizations.minimum_remote_tensor_size``, ``optimizations.maximum_cross_replica_sum_buffer_size``,
``optimizations.maximum_reduce_scatter_buffer_size``, ``optimizations.maximum_all_gather_buffer_size``,
``optimizations.enable_graph_outlining``, ``io_tiles`` (nothing is placed on them), ``floating_point_behaviour`` (its
exceptions), and in ``norms.experimental`` the size of the groups of replicas of a batch norm. All others stand for
decisions of the Poplar compiler that the cost model does not take: the catalogue of options
(:mod:`ipuperf.frontends.options`) lists every one, and :func:`configure_ipu_system` says once which of them have been
set in vain.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from enum import Enum
from typing import Any, ClassVar

from ipuperf.base.near_names import instead_of, near_names
from ipuperf.frontends.options import Option

from .config_options import OPTIONS, DeviceConnectionType, Types, default_of, types_of
from .effects import EFFECTS
from .programs.devices import PLAN_OPTIONS
from .state import state


class _Category:
    """A set of attributes with defaults and strict types; attributes may be categories themselves.

    Class attributes:
        path: full name of the category.
        options: by name, the rows of :data:`.config_options.OPTIONS` right below ``path``.
        categories: names of the categories right below it.
        known: the classes by path; a category that checks nothing gets one when it is first needed.
    """

    path: ClassVar[str] = ""
    options: ClassVar[Mapping[str, Option]] = {}
    categories: ClassVar[tuple[str, ...]] = ()
    known: ClassVar[dict[str, type[_Category]]] = {}

    def __init_subclass__(cls) -> None:
        _Category.known[cls.path] = cls
        start = f"{cls.path}." if cls.path else ""
        below = {name.removeprefix(start): row for name, row in OPTIONS.items() if name.startswith(start)}
        cls.options = {name: row for name, row in below.items() if "." not in name}
        cls.categories = tuple(dict.fromkeys(name.split(".")[0] for name in below if "." in name))

    def __init__(self) -> None:
        for name, option in self.options.items():
            default = default_of(option)
            # Lists and dictionaries are copied: otherwise all configurations would share the default.
            object.__setattr__(self, name, type(default)(default) if isinstance(default, (list, dict)) else default)
        for path in map(self._full, self.categories):
            kind = self.known.get(path) or type(path, (_Category,), {"path": path})
            object.__setattr__(self, path.rpartition(".")[2], kind())

    def _full(self, name: str) -> str:
        return f"{self.path}.{name}" if self.path else name

    def __getattr__(self, name: str) -> Any:
        # copy and pickle look for such names and expect this error.
        if name.startswith("__"):
            raise AttributeError(name)
        close = near_names(name, [*self.options, *self.categories])
        hint = f"Did you mean '{self._full(close[0])}'?" if close else ""
        raise ValueError(f"'{name}' is not a valid attribute of this config. {hint}".rstrip())

    def __setattr__(self, name: str, value: Any) -> None:
        if name in self.categories:
            raise ValueError(f"{self._full(name)} is a category and cannot be assigned to.")
        if name not in self.options:
            getattr(self, name)  # raises, with a suggestion
        # Types are compared strictly, because a bool is an int to isinstance.
        types = types_of(self.options[name])
        if type(value) not in types or (
            isinstance(value, (list, tuple)) and any(type(entry) is not int for entry in value)
        ):
            raise TypeError(f"Trying to set {self._full(name)} to {value}, but it must be of type {_type_names(types)}")
        object.__setattr__(self, name, value)

    def check(self) -> None:
        """Raise ValueError where attributes contradict each other; all categories."""
        for name in self.categories:
            getattr(self, name).check()

    def items(self) -> dict[str, Any]:
        """Full attribute names and values."""
        values = {self._full(name): getattr(self, name) for name in self.options}
        for name in self.categories:
            values.update(getattr(self, name).items())
        return values


def _listed(ipus: int | list[int] | tuple[int, ...]) -> list[int]:
    """A choice of IPUs as a list: one number, or several."""
    return [ipus] if isinstance(ipus, int) else list(ipus)


def _type_names(types: Types) -> str:
    names = ["List[int]" if t is list else "Tuple[int, ...]" if t is tuple else t.__name__ for t in types]
    return names[0] if len(names) == 1 else f"Union[{', '.join(names)}]"


class _MultiReplicaDistribution(_Category):
    path = "experimental.multi_replica_distribution"

    def check(self) -> None:
        if self.process_count and not 0 <= self.process_index < self.process_count:
            raise ValueError(f"{self.path}.process_index must be in the range [0, {self.path}.process_count).")


class _IOTiles(_Category):
    path = "io_tiles"

    def check(self) -> None:
        if self.place_ops_on_io_tiles and self.num_io_tiles == 0:
            raise ValueError("Cannot place ops on I/O tiles when io_tiles.num_io_tiles == 0")


class _DeviceConnection(_Category):
    path = "device_connection"

    def check(self) -> None:
        if self.type in (DeviceConnectionType.PRE_COMPILE, DeviceConnectionType.NEVER) and not self.version:
            raise ValueError(
                "device_connection.version must be set when device_connection.type is DeviceConnectionType.NEVER or "
                "DeviceConnectionType.PRE_COMPILE"
            )


class _NormsExperimental(_Category):
    path = "norms.experimental"

    def check(self) -> None:
        if self.distributed_batch_norm_replica_group_size < 1:
            raise ValueError(f"{self.path}.distributed_batch_norm_replica_group_size must be at least 1.")


class _Optimizations(_Category):
    path = "optimizations"

    def check(self) -> None:
        for name in self.options:
            if name.endswith("_buffer_size") and getattr(self, name) < 0:
                raise ValueError(f"{self._full(name)} is {getattr(self, name)}, it must be 0 bytes or more.")
        super().check()


class IPUConfig(_Category):
    """All options, in categories; see the module for those that have an effect.

    Raises:
        ValueError: an attribute that does not exist (with the closest name); TypeError: a value of another type.
    """

    _host_processes: int = 1

    def served_by(self, host_processes: int) -> None:
        """Say how many host processes serve the replicas, as those of ``poprun`` would (not upstream)."""
        # This goes past the check of names, as it is no option of upstream.
        object.__setattr__(self, "_host_processes", host_processes)

    def check(self) -> None:
        """Raise ValueError where attributes contradict each other."""
        counts, chosen = _listed(self.auto_select_ipus), _listed(self.select_ipus)
        if counts and chosen:
            raise ValueError("Only one of `auto_select_ipus` and `select_ipus` can be set.")
        for name, numbers, least in (("auto_select_ipus", counts, 1), ("select_ipus", chosen, 0)):
            if min(numbers, default=least) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; numbers of at least {least} are needed")
        if len(set(chosen)) != len(chosen):
            raise ValueError("All MultiIPU indices in `select_ipus` must be unique.")
        if self.io_tiles.num_io_tiles > 0 and self.norms.experimental.distributed_batch_norm_replica_group_size > 1:
            raise ValueError(
                f"I/O tiles do not go with {_NormsExperimental.path}.distributed_batch_norm_replica_group_size above 1."
            )
        super().check()

    def configure_ipu_system(self, device: str = "cpu") -> None:
        """Make this the configuration of the process."""
        configure_ipu_system(self, device)

    # -- conversion --------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """Full attribute names and values that JSON can hold (enumerations as ``Class.MEMBER``)."""
        return {
            name: f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else value
            for name, value in self.items().items()
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> IPUConfig:
        """A configuration with these attributes; others keep their defaults.

        Raises:
            ValueError: an attribute or member that does not exist; TypeError: a value of another type.
        """
        config = cls()
        for name, value in values.items():
            *path, leaf = name.split(".")
            category: Any = config
            for part in path:
                category = getattr(category, part)
            if leaf in category.categories:
                raise ValueError(f"{name} is a category and cannot be assigned to.")
            getattr(category, leaf)
            setattr(category, leaf, _member(value, types_of(category.options[leaf])))
        return config

    def to_json(self) -> str:
        """:meth:`to_dict` as JSON."""
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> IPUConfig:
        """:meth:`from_dict` of JSON."""
        return cls.from_dict(json.loads(text))


def _member(value: Any, types: Types) -> Any:
    """The enumeration member that a text names; other values as they are."""
    for kind in types:
        if isinstance(value, str) and issubclass(kind, Enum):
            name = value.rpartition(".")[2]
            if name not in kind.__members__:
                raise ValueError(f"{value!r} is no member of {kind.__name__}{instead_of(value, kind.__members__)}")
            return kind[name]
    return value


def _tell_effects(config: IPUConfig) -> None:
    """Say which attributes are set in vain; NotImplementedError: one that is not supported."""
    defaults = IPUConfig().items()
    for name, value in config.items().items():
        if value != defaults[name]:
            EFFECTS.given(f"ipu.config.IPUConfig.{name}", value)
    if config.floating_point_behaviour.set_all:
        for name in ("esr", "nanoo"):
            EFFECTS.given(f"ipu.config.IPUConfig.floating_point_behaviour.{name}", True)
    for name in ("matmuls", "convolutions"):
        options = getattr(config, name).poplar_options
        if set(options) - PLAN_OPTIONS:
            EFFECTS.given(f"ipu.config.IPUConfig.{name}.poplar_options (other keys)", options)


def configure_ipu_system(config: IPUConfig, device: str = "cpu", reset_configuration: bool = True) -> None:
    """Make ``config`` the configuration of the process: programs that run for the first time later use it.

    Raises:
        TypeError: no IPUConfig; ValueError: attributes that contradict each other; NotImplementedError: one that is not
            supported.
    """
    if not isinstance(config, IPUConfig):
        raise TypeError(f"`config` must be an IPUConfig instance, got {config!r}")
    EFFECTS.given("ipu.config.configure_ipu_system(device)", device)
    EFFECTS.given("ipu.config.configure_ipu_system(reset_configuration)", reset_configuration)
    config.check()
    _tell_effects(config)
    copy = IPUConfig.from_dict(config.to_dict())
    copy.served_by(config._host_processes)
    state().config = copy


def get_ipu_config() -> list[IPUConfig]:
    """The configuration in force.

    Raises:
        RuntimeError: none has been applied.
    """
    config = state().config
    if config is None:
        raise RuntimeError("No IPU devices configured.")
    return [config]


def reset_ipu_configuration() -> None:
    """Back to no configuration."""
    state().config = None
