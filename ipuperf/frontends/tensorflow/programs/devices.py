"""Which IPUs a program gets: number of replicas, physical order of the shards, options of the configuration.

Facts: ``docs/reference/pipelines.md`` 2.1 (from ``poplar_compiler.cc:440-451, 748-756, 818-842``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ipuperf.ir import FLOAT16, FLOAT32, Ir, Op
from ipuperf.lowering import NO_MERGING, CollectiveMerging
from ipuperf.numerics.exceptions import INVALID, OVERFLOW, ZERO
from ipuperf.ops import Cholesky, IpuCopy, TriangularSolve
from ipuperf.runtime.executable import choose_machine
from ipuperf.runtime.settings import current_settings

if TYPE_CHECKING:
    from ..config import IPUConfig


def check_ordinal(ordinal: Any) -> None:
    """ValueError for what is no number of a device (None: that of the program)."""
    if ordinal is not None and (isinstance(ordinal, bool) or not isinstance(ordinal, int) or ordinal < 0):
        raise ValueError(f"device_ordinal is {ordinal!r}; a whole number of at least 0 is needed")


def power_of_two(number: int) -> int:
    """``number`` rounded up to a power of two."""
    return 1 << max(0, number - 1).bit_length()


def ipus_of_index(index: int, system: int = 16) -> int:
    """IPUs of entry ``index`` of the device listing (``gc-info -l``) of a system of ``system`` IPUs.

    The listing has the single IPUs, then the pairs, the groups of four and so on up to the whole system.

    Raises:
        ValueError: there is no such entry.
    """
    start, size = 0, 1
    while size <= system:
        if start <= index < start + system // size:
            return size
        start += system // size
        size *= 2
    raise ValueError(f"select_ipus: index {index} is not in the listing of {system} IPUs; allowed: 0 to {start - 1}")


def num_ipus(config: IPUConfig | None, device: int) -> int | None:
    """IPUs of TensorFlow device ``/device:IPU:<device>``; None when the configuration does not say.

    Raises:
        ValueError: there is no such device.
    """
    if config is None:
        return None
    chosen, counts = config.auto_select_ipus or config.select_ipus, [0]
    listed = [chosen] if isinstance(chosen, int) else list(chosen)
    counts = listed if config.auto_select_ipus else [ipus_of_index(i) for i in listed]
    if not counts:
        return None
    if device >= len(counts):
        raise ValueError(f"/device:IPU:{device} does not exist: the configuration has {len(counts)} devices")
    return counts[device]


def replicas(config: IPUConfig | None, device: int, shards: int) -> int:
    """Number of replicas of a program with ``shards`` shards (a power of two).

    Without a choice of IPUs in the configuration the program gets as many as it has shards: one replica.

    Raises:
        ValueError: the shards do not divide the IPUs.
    """
    count = num_ipus(config, device)
    if count is None:
        return 1
    if count % shards:
        raise ValueError(
            f"Trying to compile a graph for an IPU device with {count} IPUs and {shards} shards. The number of shards "
            "needs to divide the number of IPUs."
        )
    return count // shards


def selection_order(config: IPUConfig | None, shards: int, pipeline_default_mapping: bool) -> tuple[int, ...]:
    """Physical IPU within the replica of each shard.

    ZIGZAG counts up; SNAKE exchanges every second pair, so that consecutive shards are neighbours on the ladder; HOOF
    goes up one rail and down the other. AUTO is SNAKE for pipelines with the default device mapping, else ZIGZAG.
    """
    name = config.selection_order.name if config is not None else "AUTO"
    if name == "AUTO":
        name = "SNAKE" if pipeline_default_mapping else "ZIGZAG"
    if name == "SNAKE":
        return tuple(i ^ 1 if i % 4 >= 2 else i for i in range(shards))
    if name == "HOOF":
        return (*range(0, shards, 2), *reversed(range(1, shards, 2)))
    return tuple(range(shards))


def relabel(program: Ir, order: Sequence[int]) -> None:
    """Move everything on shard ``i`` to IPU ``order[i]``."""
    if list(order) == list(range(len(order))):
        return
    for graph in program.all_graphs():
        for op in graph.ops:
            op.ipu = None if op.ipu is None else order[op.ipu]
            if isinstance(op, IpuCopy):
                op.attributes["source"] = order[op.source]
                op.attributes["destination"] = order[op.destination]
        for tensor in graph.tensors.values():
            tensor.ipu = None if tensor.ipu is None else order[tensor.ipu]


def remote_buffers_supported(shards: int = 1) -> bool:
    """Whether the machine of the settings in force has Streaming Memory."""
    return choose_machine(current_settings().machine, 1, shards).ipu_machine.streaming_memory is not None


def minimum_remote_bytes(config: IPUConfig | None) -> int:
    """Smallest tensor that is kept in Streaming Memory (``optimizations.minimum_remote_tensor_size``)."""
    return 128 if config is None else config.optimizations.minimum_remote_tensor_size


def collective_merging(config: IPUConfig | None) -> CollectiveMerging:
    """Collectives wait until so many bytes have come together (0, the default: they do not)."""
    if config is None:
        return NO_MERGING
    sizes = config.optimizations
    return CollectiveMerging(
        sizes.maximum_cross_replica_sum_buffer_size,
        sizes.maximum_reduce_scatter_buffer_size,
        sizes.maximum_all_gather_buffer_size,
        contiguous=True,
    )


def floating_point_exceptions(config: IPUConfig | None) -> bool | frozenset[str]:
    """The kinds of floating-point exceptions that end a run; False: none."""
    if config is None:
        return False
    asked = config.floating_point_behaviour
    kinds = {INVALID: asked.inv, ZERO: asked.div0, OVERFLOW: asked.oflo}
    return asked.set_all or frozenset(kind for kind, wanted in kinds.items() if wanted) or False


PLAN_OPTIONS = frozenset({"availableMemoryProportion", "partialsType"})
"""PopLibs options of products and convolutions that plans take."""


def block_attributes(op_class: type[Op], config: Any) -> dict[str, int]:
    """The size of the blocks of Cholesky factors and triangular equations that a configuration says (0: poplin's);
    nothing for other ops."""
    names = {Cholesky: "cholesky_block_size", TriangularSolve: "triangular_solve_expander_block_size"}
    size = getattr(config.optimizations, names[op_class]) if config is not None and op_class in names else 0
    return {"block_size": size} if size else {}


def plan_attributes(options: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of a MatMul or Conv for PopLibs options ``availableMemoryProportion`` and ``partialsType``.

    Raises:
        ValueError: a partials type other than half and float.
    """
    attributes: dict[str, Any] = {}
    if "availableMemoryProportion" in options:
        attributes["available_memory_proportion"] = float(options["availableMemoryProportion"])
    if "partialsType" in options:
        types = {"half": FLOAT16, "float": FLOAT32}
        if options["partialsType"] not in types:
            raise ValueError(f"partialsType {options['partialsType']!r}; allowed: half, float")
        attributes["partials_dtype"] = types[options["partialsType"]]
    return attributes


_OF_GRADIENT = {
    "partials_dtype": "gradient_partials_dtype",
    "available_memory_proportion": "gradient_memory_proportion",
}


def of_gradient(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes of a recurrent layer for those of the products of its backward pass."""
    return {_OF_GRADIENT[name]: value for name, value in attributes.items()}
