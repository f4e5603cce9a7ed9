"""The options of ``IPUConfig``: names, defaults, types, and what each does here (:mod:`ipuperf.runtime.effects`)."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

from ipuperf.runtime.effects import APPLIED, NO_EFFECT, UNSUPPORTED, Effect

Types = tuple[type, ...]


class SelectionOrder(Enum):
    """Order in which IPUs are taken for the shards of a replica: :func:`.programs.devices.selection_order`."""

    AUTO = 0
    ZIGZAG = 1
    SNAKE = 2
    HOOF = 3


class ExecutionProfileType(Enum):
    """What execution profiles contain (recorded)."""

    NO_PROFILE = 0
    DEVICE_PROFILE = 1
    IPU_PROFILE = 2
    TILE_PROFILE = 3


class DeviceConnectionType(Enum):
    """When a device is attached."""

    ALWAYS = 0
    ON_DEMAND = 1
    PRE_COMPILE = 2
    NEVER = 3


class MergeRemoteBuffersBehaviour(Enum):
    """Whether remote buffers are merged."""

    NO_MERGING = 0
    MERGE = 1
    IF_BENEFICIAL = 2


class SchedulingAlgorithm(Enum):
    """Order of instructions."""

    CHOOSE_BEST = 0
    CLUSTERING = 1
    POST_ORDER = 2
    LOOK_AHEAD = 3
    SHORTEST_PATH = 4


class StochasticRoundingBehaviour(Enum):
    """Whether results are rounded at random."""

    OFF = 0
    ON = 1
    REPLICA_IDENTICAL_ONLY = 2

    @staticmethod
    def from_bool(value: bool) -> StochasticRoundingBehaviour:
        """ON or OFF."""
        return StochasticRoundingBehaviour.ON if value else StochasticRoundingBehaviour.OFF


class ConfigOption(NamedTuple):
    """One option.

    Attributes:
        default: its value unless a program sets it; the default never gives a warning.
        effect: what it does.
        allowed: types of values; empty: that of the default.
    """

    default: Any
    effect: Effect
    allowed: Types = ()

    @property
    def types(self) -> Types:
        """Types of values."""
        return self.allowed or (type(self.default),)


_APPLIED = Effect(APPLIED)
COMPILER = Effect(NO_EFFECT, "a decision of the Poplar compiler that the cost model does not take")
_NUMBERS = Effect(NO_EFFECT, "NaN and infinity are passed on")
_MODEL = Effect(NO_EFFECT, "the machine is the simulated one of `ipuperf run --machine`")
SLICES = Effect(NO_EFFECT, "lookups of TensorFlow programs are planned with PopLibs' default options")
_LIBRARY = Effect(NO_EFFECT, "this library's plans have no options here")
_CONNECTION = Effect(NO_EFFECT, "the simulated machine is always there")
_ORDER = Effect(NO_EFFECT, "ops are ordered for few live bytes")

OPTIONS: Mapping[str, ConfigOption] = {
    "allow_recompute": ConfigOption(False, _APPLIED),
    "selection_order": ConfigOption(SelectionOrder.AUTO, _APPLIED),
    "serialization_output_folder": ConfigOption("", Effect(NO_EFFECT, "there are no Poplar executables")),
    "compilation_poplar_options": ConfigOption({}, COMPILER),
    "gcl_poplar_options": ConfigOption({}, COMPILER),
    "auto_select_ipus": ConfigOption([], _APPLIED, (int, list, tuple)),
    "select_ipus": ConfigOption([], _APPLIED, (int, list, tuple)),
    "convolutions.poplar_options": ConfigOption({}, _APPLIED),
    "device_connection.type": ConfigOption(
        DeviceConnectionType.ALWAYS, _CONNECTION._replace(neutral=("DeviceConnectionType.ON_DEMAND",))
    ),
    "device_connection.version": ConfigOption("", _CONNECTION),
    "device_connection.enable_remote_buffers": ConfigOption(False, _CONNECTION),
    "slices.poplar_options": ConfigOption({}, SLICES),
    "experimental.always_rearrange_copies_on_the_host": ConfigOption(False, COMPILER),
    "experimental.enable_remote_buffer_embedding": ConfigOption(False, COMPILER),
    "experimental.enable_prng_stability": ConfigOption(
        False, Effect(NO_EFFECT, "random numbers follow from seed, op and replica anyway")
    ),
    "experimental.multi_replica_distribution.process_index": ConfigOption(0, Effect(NO_EFFECT, "there is one process")),
    "experimental.multi_replica_distribution.process_count": ConfigOption(
        0, Effect(UNSUPPORTED, "several processes are not simulated; use one process with all replicas", (0, 1))
    ),
    "floating_point_behaviour.inv": ConfigOption(False, _NUMBERS),
    "floating_point_behaviour.div0": ConfigOption(False, _NUMBERS),
    "floating_point_behaviour.oflo": ConfigOption(False, _NUMBERS),
    "floating_point_behaviour.esr": ConfigOption(
        StochasticRoundingBehaviour.OFF,
        Effect(
            NO_EFFECT, "float16 results are rounded to the nearest value", ("StochasticRoundingBehaviour.OFF", False)
        ),
        (StochasticRoundingBehaviour, bool),
    ),
    "floating_point_behaviour.nanoo": ConfigOption(False, Effect(NO_EFFECT, "float16 overflows to infinity")),
    "floating_point_behaviour.set_all": ConfigOption(False, _NUMBERS),
    "io_tiles.num_io_tiles": ConfigOption(0, _APPLIED),
    "io_tiles.place_ops_on_io_tiles": ConfigOption(
        False,
        Effect(
            NO_EFFECT, "host I/O of TensorFlow programs stays on the compute tiles, one after the other with computing"
        ),
    ),
    "io_tiles.available_memory_proportion": ConfigOption(0.9, Effect(NO_EFFECT, "nothing is placed on I/O tiles")),
    "ipu_model.compile_ipu_code": ConfigOption(True, _MODEL),
    "ipu_model.tiles_per_ipu": ConfigOption(0, _MODEL),
    "ipu_model.version": ConfigOption("ipu2", _MODEL),
    "matmuls.clear_pass_type": ConfigOption(False, COMPILER),
    "matmuls.poplar_options": ConfigOption({}, _APPLIED),
    "norms.use_stable_statistics": ConfigOption(False, _APPLIED),
    "norms.experimental.distributed_batch_norm_replica_group_size": ConfigOption(
        1, Effect(UNSUPPORTED, "there is no batch normalisation over replicas; allowed: 1")
    ),
    "optimizations.prefetch_data_streams": ConfigOption(True, Effect(NO_EFFECT, "use prefetch_depth of the queue")),
    "optimizations.combine_embedding_lookups": ConfigOption(False, COMPILER),
    "optimizations.combine_matmuls": ConfigOption(False, COMPILER),
    "optimizations.enable_graph_outlining": ConfigOption(True, _APPLIED),
    "optimizations.merge_infeed_io_copies": ConfigOption(False, COMPILER),
    "optimizations.maximum_cross_replica_sum_buffer_size": ConfigOption(0, _APPLIED),
    "optimizations.maximum_reduce_scatter_buffer_size": ConfigOption(0, _APPLIED),
    "optimizations.maximum_inter_ipu_copies_buffer_size": ConfigOption(0, COMPILER),
    "optimizations.maximum_send_recv_cluster_size": ConfigOption(0, COMPILER),
    "optimizations.maximum_reduce_many_buffer_size": ConfigOption(0, COMPILER),
    "optimizations.maximum_all_gather_buffer_size": ConfigOption(0, _APPLIED),
    "optimizations.minimum_remote_tensor_size": ConfigOption(128, _APPLIED),
    "optimizations.merge_remote_buffers": ConfigOption(MergeRemoteBuffersBehaviour.IF_BENEFICIAL, COMPILER),
    "optimizations.enable_gather_simplifier": ConfigOption(True, COMPILER),
    "optimizations.triangular_solve_expander_block_size": ConfigOption(0, _APPLIED),
    "optimizations.cholesky_block_size": ConfigOption(0, _APPLIED),
    "optimizations.enable_fast_math": ConfigOption(False, COMPILER),
    "optimizations.math.fast": ConfigOption(False, COMPILER),
    "optimizations.math.dot_strength": ConfigOption(True, COMPILER),
    "pooling.poplar_options": ConfigOption({}, _LIBRARY),
    "scheduling.algorithm": ConfigOption(SchedulingAlgorithm.CHOOSE_BEST, _ORDER),
    "scheduling.maximum_scheduler_lookahead_depth": ConfigOption(5, _ORDER),
    "scheduling.maximum_scheduler_search_space_size": ConfigOption(64, _ORDER),
}
"""By full name, as a program writes it behind its configuration."""
