"""A traced program: the Ir with its variables, arguments, queues and results, and its execution.

A program is traced when it is compiled and completed at its first run, when the configuration is known: the number of
replicas is the number of IPUs of the device over the number of shards, rounded up to a power of two
(``docs/reference/pipelines.md`` 2.1). Simplifications: arguments and variables that the host has changed reach
the device between runs, outside of the simulated time; results that a program returns are those of replica 0.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf import ir as _ir
from ipuperf import ops as _k
from ipuperf.lowering import OUTLINE_THRESHOLD, ipus_per_replica
from ipuperf.runtime.executable import Executable

from . import devices
from .array import Array, convert
from .dtypes import HostArray, as_dtype, to_host
from .state import state
from .tracing import Frame, Operation, leaves, map_structure, use_frame

if TYPE_CHECKING:
    from ipuperf.pipelines import Pipeline

    from .infeed import IPUInfeedQueue
    from .variables import Variable


@dataclass
class Infeed:
    """A queue that the program reads: its streams, how many elements per replica a run takes, and further sets of
    streams that carry the same elements to other readers (concurrent pipeline stages)."""

    queue: IPUInfeedQueue
    streams: list[_ir.Stream]
    count: int
    copies: list[list[_ir.Stream]] = field(default_factory=list)

    def streams_of(self, index: int) -> list[_ir.Stream]:
        """Streams that carry tensor ``index`` of the elements: the first, and those of further readers."""
        return [self.streams[index], *(copy[index] for copy in self.copies)]


@dataclass
class Result:
    """Streams that come back with a run, in a structure whose leaves are indices (None where there was no array)."""

    structure: Any = None
    streams: list[_ir.Stream] = field(default_factory=list)


class TracedProgram:
    """A program under construction or complete.

    Args:
        name: name in reports.

    Attributes:
        ir: the program.
        main: frame of its main graph.
        arguments: main-graph variables that hold the arguments of the traced function.
        deferred: what is built when the number of replicas is known.
        executable: None before the first run.
        pipeline: the built pipeline, if the program has one and has run.
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = name or "program"
        self.ir = _ir.Ir()
        self.main = Frame(self, self.ir.main_graph)
        self.arguments: list[_ir.Variable] = []
        self.infeeds: list[Infeed] = []
        self.deferred: list[Callable[[], None]] = []
        self.before_run: list[Callable[[], None]] = []
        self.result = Result()
        self.executable: Executable | None = None
        self.changed: set[Variable] = set()
        self.unreduced: list[str] = []
        self.minimum_shards = 1
        self.pipeline_default_mapping = False
        self.device = state().device
        self.matmul_options: dict[str, Any] = {}
        self.convolution_options: dict[str, Any] = {}
        self.pipeline: Pipeline | None = None
        self._variables: dict[Variable, _ir.Variable] = {}
        self._seen: dict[Variable, int] = {}
        self._seeds: list[_ir.Variable] = []
        self._random_keys = itertools.count()

    # -- tracing -----------------------------------------------------------------------------------------------------

    def trace(self, function: Callable[..., Any], arguments: Sequence[Any]) -> None:
        """Trace ``function(*arguments)`` into the main graph; its arrays become results."""
        with use_frame(self.main):
            arrays = [self.argument(value, f"arg{i}") for i, value in enumerate(arguments)]
            outputs = function(*arrays)
            self._store_results(outputs)

    def argument(self, value: Any, name: str) -> Any:
        """A main-graph variable that holds an argument, which may change from run to run."""
        from .variables import Variable

        if isinstance(value, Variable):
            return value
        spec = getattr(value, "default", None)
        data = to_host(value if spec is None else spec)
        variable = self.data(name, data)
        self.arguments.append(variable)
        return Array(variable)

    def data(self, name: str, value: np.ndarray) -> _ir.Variable:
        """A new main-graph variable with the same value on all replicas."""
        graph = self.ir.main_graph
        spec = _ir.TensorSpec(tuple(value.shape), as_dtype(value.dtype))
        with _ir.CONTEXT.detached():
            name = graph.tensor_id(name)
        variable = _ir.Variable(name, spec, graph, value.copy(), self.ir.grouping())
        graph.add(variable)
        return variable

    def variable(self, handle: Variable, offload: bool = False) -> _ir.Variable:
        """The main-graph variable of a user's variable; a new one lives in Streaming Memory if ``offload`` says so and
        it is large enough."""
        if handle not in self._variables:
            variable = self.data(handle.op_name, handle.numpy())
            if offload and variable.spec.bytes >= devices.minimum_remote_bytes(state().config):
                variable.remote = (self.ir.remote_buffer(variable.shape, variable.dtype, 1), 0)
            if _ir.CONTEXT.ipus:
                variable.ipu = _ir.CONTEXT.ipus[-1]
            self._variables[handle] = variable
            self._seen[handle] = handle.version
        return self._variables[handle]

    def handle(self, variable: _ir.Variable) -> Variable:
        """The user's variable of a main-graph variable."""
        return next(h for h, v in self._variables.items() if v is variable)

    def seed(self, name: str) -> _ir.Variable:
        """A new seed: ``uint32`` of shape (2,), another one on each replica, kept from run to run."""
        seed = self.data(name, np.zeros(2, np.uint32))
        self._seeds.append(seed)
        return seed

    def random_key(self) -> int:
        """A number that tells random ops of the program apart: 0, 1, 2 ... in the order of tracing."""
        return next(self._random_keys)

    def stream(self, name: str, shape: Sequence[int], dtype: Any, direction: str, count: int) -> _ir.Stream:
        """A new host stream of which a run moves ``count`` slices."""
        graph = self.ir.main_graph
        with _ir.CONTEXT.detached():
            name = graph.tensor_id(name)
        stream = _ir.Stream(name, _ir.TensorSpec(tuple(shape), as_dtype(dtype)), graph, direction)
        stream.transfers = count
        graph.add(stream)
        return stream

    def assign(self, frame: Frame, handle: Variable, value: Any) -> Operation:
        """Set a variable where the frame is now.

        Raises:
            TypeError, ValueError: another type or shape.
        """
        array = convert(value, Array(self.variable(handle)))
        if array.dtype != handle.dtype or array.shape != handle.shape:
            raise ValueError(
                f"variable {handle.name!r} is {handle.shape} {handle.dtype.name}; a value of {array.shape} "
                f"{array.dtype.name} was assigned"
            )
        frame.create(_k.CopyVarUpdate, [self.variable(handle), array.tensor], [f"{handle.op_name}_assigned"])
        self.changed.add(handle)
        return Operation(f"{handle.op_name}/Assign")

    def plan_attributes(self, op_class: type[_ir.Op]) -> dict[str, Any]:
        """Attributes of products and convolutions: the options of the active pipeline stage over those of the
        configuration. None for other ops."""
        options: dict[Any, dict[str, Any]] = {_k.MatMul: self.matmul_options, _k.Conv: self.convolution_options}
        config, own = state().config, options.get(op_class)
        if own is None:
            return {}
        set_up = None if config is None else config.matmuls if op_class is _k.MatMul else config.convolutions
        return devices.plan_attributes({**(set_up.poplar_options if set_up is not None else {}), **own})

    def _store_results(self, outputs: Any) -> None:
        def store(value: Any) -> int | None:
            if value is None or isinstance(value, Operation):
                return None
            array = convert(value)
            stream = self.stream("result", array.shape, array.dtype, "d2h", 1)
            with _ir.CONTEXT.detached():
                self.main.create(_k.HostStore, [array.tensor], [], stream=stream)
            self.result.streams.append(stream)
            return len(self.result.streams) - 1

        self.result.structure = map_structure(store, outputs)

    # -- completion --------------------------------------------------------------------------------------------------

    def finish(self) -> Executable:
        """Complete the program for the configuration in force, once.

        Raises:
            ValueError: the shards do not divide the IPUs, or replicas are updated without a cross-replica optimiser.
        """
        if self.executable is not None:
            return self.executable
        shards = devices.power_of_two(max(self.minimum_shards, ipus_per_replica(self.ir)))
        replicas = devices.replicas(state().config, self.device, shards)
        if replicas > 1 and self.unreduced:
            raise ValueError(
                f"variable {self.unreduced[0]!r} is updated on {replicas} replicas by an optimizer that does not "
                "reduce gradients over them, so the replicas would go apart; wrap the optimizer in "
                "ipu.optimizers.CrossReplicaOptimizer"
            )
        self._replicate(replicas)
        order = devices.selection_order(state().config, shards, self.pipeline_default_mapping)
        devices.relabel(self.ir, order)
        for build in self.deferred:
            build()
        self._set_io_tiles_aside()
        config = state().config
        outlined = config is None or config.optimizations.enable_graph_outlining
        self.executable = Executable(
            self.ir,
            name=self.name,
            merging=devices.collective_merging(config),
            outlining=OUTLINE_THRESHOLD if outlined else None,
            prefetch_depth=max((feed.queue.prefetch_depth for feed in self.infeeds), default=1),
        )
        self.executable.evaluator.load_variables()
        return self.executable

    def _set_io_tiles_aside(self) -> None:
        """Tiles set aside for I/O do not compute; nothing is placed on them."""
        config = state().config
        if config is None or not config.io_tiles.num_io_tiles:
            return
        self.ir.num_io_tiles = config.io_tiles.num_io_tiles

    def ipu_order(self) -> tuple[int, ...]:
        """Physical IPU of each shard of a replica."""
        shards = devices.power_of_two(max(self.minimum_shards, ipus_per_replica(self.ir)))
        return devices.selection_order(state().config, shards, self.pipeline_default_mapping)

    def _replicate(self, replicas: int) -> None:
        self.ir.replication_factor = replicas
        group = self.ir.grouping()
        for variable in self.ir.variables():
            variable.grouping = group
        for graph in self.ir.all_graphs():
            for op in graph.ops:
                if isinstance(op.attributes.get("group"), _ir.ReplicaGrouping):
                    op.attributes["group"] = group
        for number, seed in enumerate(self._seeds):
            seed.grouping = self.ir.grouping(1, 1)
            words = np.random.SeedSequence([state().seed, number]).generate_state(2 * replicas).reshape(replicas, 2)
            seed.data = words if replicas > 1 else words[0]

    # -- runs --------------------------------------------------------------------------------------------------------

    def run(self, arguments: Sequence[Any] | None = None) -> Any:
        """Execute the program once; what the traced function returned, as host arrays.

        Raises:
            ValueError: arguments of another number, shape or type.
            OutOfRangeError: an infeed's dataset has too few elements.
        """
        executable = self.finish()
        if arguments is not None:
            self._set_arguments(arguments)
        for action in self.before_run:
            action()
        self._load_changes()
        inputs = self._take_inputs()
        for handle in self.changed:
            handle._owner = self
        outputs = executable.run(inputs)

        def fetch(index: int | None) -> HostArray | None:
            return None if index is None else np.asarray(outputs[self.result.streams[index]][0, 0]).view(HostArray)

        return map_structure(fetch, self.result.structure)

    def _set_arguments(self, values: Sequence[Any]) -> None:
        if len(values) != len(self.arguments):
            raise ValueError(f"{self.name}: {len(values)} arguments given, the program takes {len(self.arguments)}")
        for variable, value in zip(self.arguments, values):
            self.write(variable, to_host(value, variable.dtype))

    def write(self, variable: _ir.Variable, value: np.ndarray) -> None:
        """Set a main-graph variable on host and device.

        Raises:
            ValueError: another shape.
        """
        if value.shape != variable.shape:
            raise ValueError(f"{self.name}: {variable.id!r} has shape {variable.shape}, got {value.shape}")
        variable.data[...] = value
        if self.executable is not None:
            self.executable.evaluator.variables[variable][...] = value

    def _load_changes(self) -> None:
        """Bring variables that the host or another program has changed to the device."""
        assert self.executable is not None
        for handle, variable in self._variables.items():
            if handle._owner is not None and handle._owner is not self:
                handle._owner.store_variables()
            if handle.version != self._seen[handle] and handle._owner is None:
                variable.data = handle._value.copy()
                if variable.remote is None:
                    np.copyto(self.executable.evaluator.variables[variable], handle._value)
                else:
                    self.executable.evaluator.store_variables(v for v in self.ir.variables() if v is not variable)
                    self.executable.evaluator.load_variables()
                self._seen[handle] = handle.version

    def store_variables(self) -> None:
        """Bring the variables that the program changes to the host."""
        if self.executable is None:
            return
        stale = [h for h in self.changed if h._owner is self]
        self.executable.evaluator.store_variables([self._variables[h] for h in stale])
        for handle in stale:
            handle._value = self._variables[handle].data.copy()
            handle._owner = None
            handle.version += 1
            self._seen[handle] = handle.version

    def _take_inputs(self) -> dict[_ir.Stream, np.ndarray]:
        """Elements of the infeeds for one run: element ``t * R + r`` goes to step t of replica r."""
        assert self.executable is not None
        replicas = self.ir.replication_factor
        wanted = set(self.executable.evaluator.required_inputs())
        inputs: dict[_ir.Stream, np.ndarray] = {}
        for feed in self.infeeds:
            elements = [leaves(feed.queue.next_element()) for _ in range(feed.count * replicas)]
            for index, first in enumerate(feed.streams):
                readers = [stream for stream in feed.streams_of(index) if stream in wanted]
                if not readers:
                    continue
                flat = np.empty((len(elements), *first.shape), first.dtype.numpy)
                for position, element in enumerate(elements):
                    flat[position] = element[index]
                array = flat.reshape(feed.count, replicas, *first.shape)
                inputs.update((stream, array) for stream in readers)
        return inputs
