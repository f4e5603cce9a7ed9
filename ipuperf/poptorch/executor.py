"""``trainingModel`` and ``inferenceModel``: calls of a module that run on simulated IPUs.

The numbers are computed with NumPy, the time is simulated. Differences to upstream, all harmless to a program that runs
there: weights are copied at no simulated time; an inference model is compiled as the module is in ``eval()`` (a
training model as its submodules' modes say); ``compilationTime`` is the real time of this compilation; ``cycleCount``
needs no ``logCycleCount``. A loss scaling that is constant is compiled in: with another one the program is lowered
anew. Each replica has running statistics of its own; those of the first are written back.
"""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.weak import WeakTensorKeyDictionary

from ipuperf.ir import FLOAT16, Stream, Variable
from ipuperf.numerics import FloatingPointException
from ipuperf.runtime.effects import tell
from ipuperf.runtime.run_context import RUN

from . import executable_file, optim
from .anchors import names_of
from .blocks import module_repr
from .calls import first_micro_batch, modes_kept
from .compilation import CompiledModel, compile_model
from .enums import CommGroupType, ConnectionType, OutputMode
from .errors import Error, UnsupportedError, require
from .executable_file import StoredModule, StoredProgram, description_of, optimiser_of
from .export import InputSpec, OutputSpec
from .export_structure import Signature, flatten, rebuild
from .export_trace import Traced
from .hooks import CompileHooks, call_hooks
from .latency import Counters, Latencies, Latency
from .log import logger
from .optim import OptimiserSpec, optimiser_description
from .optimizer_state import DeviceState, current_loss_scaling
from .options import Options
from .popart_ir import serialised
from .replica_groups import one_replica, with_grouping
from .wrapping import Ties, fetch_weights, plain

if TYPE_CHECKING:
    from ipuperf.trace import Trace

#: Version of each parameter and buffer that a training model wrote last.
_TRAINED = WeakTensorKeyDictionary()

_NOT_COMPILED = "Model has not been compiled or has been destroyed."
_NO_BACKWARD = (
    "backward() cannot be called explicitly on outputs of a PopTorch model. If you're using a trainingModel, the "
    "backwards pass is performed automatically when invoking the model. If you're using an inferenceModel, you should "
    "use a trainingModel instead."
)


class PoplarExecutor:
    """A module on simulated IPUs; made by :func:`trainingModel` and :func:`inferenceModel`."""

    def __init__(
        self,
        model: torch.nn.Module,
        options: Options | None,
        *,
        training: bool,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        if not isinstance(model, torch.nn.Module):
            raise Error(f"model is a {type(model).__name__}, expected torch.nn.Module")
        if options is not None and not isinstance(options, Options):
            raise Error(f"options is a {type(options).__name__}, expected poptorch.Options")
        self._model = model
        self._options = Options() if options is None else options.clone()
        processes = self._options.Distributed.numProcesses
        if processes > 1:
            raise UnsupportedError(
                f"poptorch.Options().Distributed of {processes} processes is not supported for models: "
                "one process simulates all replicas; use one process and replicationFactor()"
            )
        self._training = training
        self._optimiser: OptimiserSpec | None = None
        self._optimizer: optim.Optimizer | None = None
        if training:
            given = _optimizer(model, optimizer)
            self._optimiser = optimiser_description(given)
            self._optimizer = given if isinstance(given, optim.Optimizer) else None
            self._options.Training._divide_while_running(self._optimiser.accum_dtype is FLOAT16)
        else:
            accumulation = self._options.Training.gradient_accumulation
            require(
                accumulation == 1,
                "Gradient accumulation should be left to its default value (1) for inference, "
                f"poptorch.Options().Training.gradientAccumulation is {accumulation}",
            )
        self._options._freeze()
        self._compiled: CompiledModel | None = None
        self._attached = False
        self._ran = False
        self._ties = Ties(self, model)
        self._seen: dict[str, int] = {}
        self._warned = False
        self._anchored: dict[str, np.ndarray] = {}
        self.per_replica_params: dict[str, Any] = {}
        """What ``replicaGrouping`` was told, by the parameters' names in the module; read by the compilation."""

    def _tied(self) -> PoplarExecutor:
        """Let the module fetch its weights by itself. ``Error``: another executor trains it."""
        self._ties.tie()
        return self

    # -- calls -------------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one batch: ``device iterations x gradient accumulation x replicas`` micro-batches along axis 0.

        Raises:
            AssertionError: a batch that does not divide into micro-batches.
            Error: arguments unlike those the model was compiled with, or what :meth:`compile` raises.
        """
        arguments = self._arguments(args, kwargs)
        if self._compiled is None:
            self._compile(arguments)
        if not self._attached:
            self.attachToDevice()
        compiled = self._require()
        tensors = compiled.exported.tensors_of(*self._spread(arguments))
        inputs = {
            spec.stream: self._slices(spec, tensor)
            for spec, tensor in zip(compiled.exported.inputs, tensors, strict=True)
            if spec.stream is not None
        }
        synthetic = self._options._Popart.synthetic_data
        if not self._training:
            self._load_trained()
        elif self._optimizer is not None and self._optimizer.device_state.pending:
            self.copyWeightsToHost()
            self._optimizer.device_state.write(compiled)
        try:
            results = compiled.executable.run({} if synthetic else inputs)
        except FloatingPointException as error:
            raise Error(f"Floating point exception: {error}") from error
        self._ran = True
        if self._optimizer is not None:
            self._optimizer.device_state.dirty = True
        self._ties.dirty = self._training and not synthetic
        if not self._ties.tied:
            self.copyWeightsToHostIfNeeded()
        found = [
            self._result(spec, None if stream is None else self._never_sent(stream) if synthetic else results[stream])
            for spec, stream in zip(compiled.exported.outputs, compiled.streams, strict=True)
        ]
        if not synthetic:
            self._write_inputs(tensors, results)
            self._anchored = {name: results[anchor.stream] for name, anchor in compiled.anchors.items()}
        return compiled.exported.result_of(found)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile for arguments like these; ignored with a warning when the model has been compiled.

        Raises:
            AssertionError: see :meth:`__call__`.
            Error: what cannot be exported, partitioned, scheduled or placed, or does not fit (with strict memory).
        """
        if self._compiled is not None:
            logger.warning("Call to compile() ignored: the executable is already compiled")
            return
        self._compile(self._arguments(args, kwargs))

    def _arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name; ``TypeError`` as for a call of ``forward``."""
        arguments = self._signature().bind(args, kwargs)
        _, tensors, paths = flatten(arguments)
        self._check_batch(tensors, paths)
        return arguments

    def _spread(self, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self._signature().spread(arguments)

    def _signature(self) -> Signature:
        """The parameters of ``forward``, at which one may look without fetching the weights."""
        return Signature(object.__getattribute__(self._model, "forward"))

    # -- compilation -------------------------------------------------------------------------------------------------

    def _compile(self, arguments: Mapping[str, Any]) -> None:
        _, tensors, paths = flatten(arguments)
        for tensor, path in zip(tensors, paths, strict=True):
            if tensor.requires_grad:
                logger.warning(
                    "Input %s has requires_grad=True: it is detached, because there is no backward pass to inputs.",
                    path,
                )
        self._finish(lambda: self._program(arguments, None))

    def _finish(self, compilation: Callable[[], CompiledModel]) -> None:
        """Compile, tell what options do not do, and load the program."""
        for note in self._options.effects():
            tell(note)
        with _progress(self._options.show_compilation_progress_bar):
            compiled = compilation()
        self._compiled, self._attached, self._ran = compiled, True, False
        compiled.executable.evaluator.load_variables()  # optimiser state, scalars, seeds
        self.copyWeightsToDevice()
        self._adopt_optimizer()
        if self._options.profiling_dir is not None:
            self._write_report(Path(self._options.profiling_dir))

    def _program(self, arguments: Mapping[str, Any], name: str | None) -> CompiledModel:
        """The program for micro-batches of these arguments."""
        compiled = self._built(first_micro_batch(dict(arguments), self._options.samples_factor), name)
        compiled.executable.samples_per_run = next((t.shape[0] for t in flatten(arguments)[1] if t.dim()), None)
        return compiled

    def _built(self, arguments: Mapping[str, Any], name: str | None, traced: Traced | None = None) -> CompiledModel:
        """The program for one micro-batch, from an export if one is given."""
        kind = "training" if self._training else "inference"
        hooks = RUN.of(CompileHooks)
        call_hooks(hooks.before)
        try:
            with plain(self._model), modes_kept(self._model):
                if not self._training:
                    self._model.eval()
                return compile_model(
                    self._model,
                    self._options,
                    *self._spread(arguments),
                    training=self._training,
                    optimiser=self._optimiser,
                    grouped=self.per_replica_params,
                    name=name or self._options.model_name or f"{type(self._model).__name__}-{kind}",
                    traced=traced,
                )
        finally:
            call_hooks(hooks.after)

    def offline_program(self, args: Sequence[Any], kwargs: Mapping[str, Any], name: str | None = None) -> CompiledModel:
        """The program that a call with these arguments runs, made anew and not loaded (nothing of it is kept here).

        Args:
            args, kwargs: one whole batch; tensors may be on ``meta``.
            name: in reports; default: from the options or the module.

        Raises:
            AssertionError, Error: see :meth:`compile`.
        """
        return self._program(self._arguments(args, kwargs), name)

    def _write_report(self, folder: Path) -> None:
        from ipuperf.report import write_report

        write_report(self._require().executable.trace, folder / ("training" if self._training else "inference"))

    def _check_batch(self, tensors: Sequence[torch.Tensor], paths: Sequence[str]) -> None:
        """Axis 0 of every input has to divide into micro-batches."""
        options, factor = self._options, self._options.samples_factor
        for tensor, path in zip(tensors, paths, strict=True):
            size = tensor.shape[0] if tensor.dim() else 1
            require(
                size > 0,
                f"Invalid batch dimension: the input {path!r} of shape {tuple(tensor.shape)} has no samples, the batch "
                "dimension must be at least 1",
            )
            require(
                size % factor == 0,
                f"Invalid batch dimension: In the input {path!r} of shape {tuple(tensor.shape)}, the batch dimension "
                f"({size}) must be a multiple of Options.deviceIterations({options.device_iterations}) * "
                f"(Options.replicationFactor({options.replication_factor}) / "
                f"Options.inputReplicaGrouping.input_group_size({options.input_group_size})) * "
                f"Options.Training.gradientAccumulation({options.Training.gradient_accumulation}) = {factor}, because "
                "it is cut into that many micro-batches",
            )

    # -- data --------------------------------------------------------------------------------------------------------

    def _slices(self, spec: InputSpec, tensor: torch.Tensor) -> np.ndarray:
        """``(micro-batches, replicas, *shape)``: replicas take micro-batches in turn."""
        compiled = self._require()
        if tensor.dtype != spec.dtype:
            raise Error(f"Input {spec.name!r} is {tensor.dtype}, the model was compiled for {spec.dtype}")
        array = spec.to_numpy(tensor)
        group = self._options.input_group_size
        groups = self._options.replication_factor // group
        expected = (compiled.micro_batches * groups * spec.shape[0] if spec.shape else 0, *spec.shape[1:])
        if not spec.shape:
            return np.broadcast_to(array, (compiled.micro_batches, self._options.replication_factor))
        if array.shape != expected:
            raise Error(
                f"Input {spec.name!r} has shape {tuple(array.shape)}, the model was compiled for {expected}; the "
                "shapes of a data set must not change (use drop_last=True)"
            )
        split = array.reshape(compiled.micro_batches, groups, *spec.shape)
        if group == 1:
            return split
        repeated = np.repeat(split, group, axis=1)
        if CommGroupType(self._options.input_group_type) is CommGroupType.Orthogonal:
            repeated = np.concatenate([split] * group, axis=1)
        return repeated

    def _never_sent(self, stream: Stream) -> np.ndarray:
        """What stands for a result without host I/O: zeros."""
        shape = (stream.transfers or 1, self._options.replication_factor, *stream.shape)
        return np.zeros(shape, stream.dtype.numpy)

    def _result(self, spec: OutputSpec, array: np.ndarray | None) -> torch.Tensor:
        """A result from ``(slices, replicas, *shape)``: slices and replicas joined along axis 0."""
        if array is None:
            assert spec.constant is not None
            return spec.constant.clone()
        mode = self._options.resolved_output_mode(self._training)
        result = spec.to_torch(self._joined(array, spec.shape, mode, self._require().kept_period))
        result.backward = _no_backward  # type: ignore[method-assign]
        return result

    @staticmethod
    def _joined(array: np.ndarray, shape: tuple[int, ...], mode: OutputMode, period: int) -> np.ndarray:
        """The slices that a mode returns, with replicas, joined along axis 0."""
        if mode is OutputMode.EveryN:
            array = array[period - 1 :: period]
        elif mode is OutputMode.Sum and len(array) > 1:
            array = array.sum(axis=0, keepdims=True, dtype=array.dtype)
        count = array.shape[0] * array.shape[1]
        return array.reshape((count * shape[0], *shape[1:]) if shape else ((count,) if count > 1 else ()))

    def _write_inputs(self, tensors: Sequence[torch.Tensor], results: Mapping[Stream, np.ndarray]) -> None:
        """Give the tensors that ``forward`` changes in place their new values: each micro-batch its own samples. A
        tensor without axes, which all share, gets what the last micro-batch made of it; of replicas that had the same
        samples the first one counts."""
        compiled = self._require()
        for number, stream in compiled.written.items():
            spec, tensor = compiled.exported.written[number], tensors[number].detach()
            if stream is None:
                assert spec.constant is not None
                copies = (tensor.shape[0] // spec.shape[0], *[1] * (len(spec.shape) - 1)) if spec.shape else ()
                tensor.copy_(spec.constant.repeat(copies))
            elif not spec.shape:
                tensor.copy_(spec.to_torch(results[stream][-1, -1]))
            else:
                tensor.copy_(spec.to_torch(self._of_groups(results[stream]).reshape(tensor.shape)))

    def _of_groups(self, array: np.ndarray) -> np.ndarray:
        """``(micro-batches, replicas, *shape)`` for one replica of each input group."""
        size = self._options.input_group_size
        if CommGroupType(self._options.input_group_type) is CommGroupType.Orthogonal:
            return array[:, : array.shape[1] // size]
        return array[:, ::size]

    # -- weights -----------------------------------------------------------------------------------------------------

    def _states(self) -> Iterator[tuple[str, torch.Tensor, Variable]]:
        """Name, tensor of the module and variable of the program of every parameter and buffer, each once."""
        compiled = self._require()
        known: dict[str, torch.Tensor] = dict(self._model.named_parameters(remove_duplicate=False))
        known.update(self._model.named_buffers(remove_duplicate=False))
        done: set[Variable] = set()
        for name, variable in compiled.exported.variables.items():
            if variable not in done:
                done.add(variable)
                yield name, known[name], variable

    def copyWeightsToDevice(self) -> None:
        """Load parameters and buffers of the module, also where the IPUs have newer ones."""
        self._require()
        self._ties.dirty = False
        self._load(list(self._states()))

    def copyWeightsToHost(self) -> None:
        """Write parameters and buffers back to the module."""
        self._require()
        self._ties.dirty = False
        states = list(self._states())
        self._require().executable.evaluator.store_variables([variable for _, _, variable in states])
        with torch.no_grad():
            for name, tensor, variable in states:
                tensor.copy_(torch.from_numpy(np.asarray(variable.data, order="C")).reshape(tensor.shape))
                self._seen[name] = tensor._version
                if self._training:
                    _TRAINED[tensor] = tensor._version

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Write the weights back if the IPUs have newer ones; whether they had."""
        return self._ties.fetch()

    def copyNamedBuffersToDevice(self) -> None:
        """Load the buffers named by ``updatableNamedBuffers``."""
        wanted = set(self._options.updatable_named_buffers)
        unknown = sorted(wanted - {name for name, _ in self._model.named_buffers()})
        if unknown:
            raise Error(f"updatableNamedBuffers: the model has no buffer {', '.join(unknown)}")
        self._load([state for state in self._states() if state[0] in wanted])

    def _load(self, states: Sequence[tuple[str, torch.Tensor, Variable]]) -> None:
        """Copy tensors of the module to the IPUs."""
        for name, tensor, variable in states:
            np.copyto(variable.data, tensor.detach().cpu().numpy().reshape(variable.data.shape), casting="same_kind")
            self._seen[name] = tensor._version
        self._require().executable.evaluator.load_variables([variable for _, _, variable in states])

    def _load_trained(self) -> None:
        """Before inference: load all weights when a training model has written some since the last load.

        What the program itself has changed stays on the host until it is copied (upstream's rule); a warning says so.
        """
        fetch_weights(self._model)
        states = list(self._states())
        if any(_TRAINED.get(tensor, -1) > self._seen[name] for name, tensor, _ in states):
            self.copyWeightsToDevice()
            return
        changed = [name for name, tensor, _ in states if tensor._version != self._seen[name]]
        if changed and not self._warned:
            self._warned = True
            logger.warning(
                "%s changed on the host and the IPUs hold the old values; copyWeightsToDevice() loads all weights, "
                "copyNamedBuffersToDevice() the buffers of Options.updatableNamedBuffers",
                ", ".join(changed),
            )

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Take over the numbers (learning rate ...) of ``optimizer``; its kind has to stay."""
        if not self._training:
            raise Error("setOptimizer: an inference model has no optimiser")
        spec = optimiser_description(optimizer)
        if self._compiled is not None:
            rule = self._compiled.rule
            assert rule is not None
            values = {**rule.scalars_of(spec), **self._compiled.pipeline.scaled(self._loss_scaling(spec))}
            changed = []
            for (name, _), variable in self._compiled.pipeline.scalars.items():
                variable.data[...] = values[name]
                changed.append(variable)
            self._compiled.executable.evaluator.load_variables(changed)
        self._optimiser = spec
        self._optimizer = optimizer if isinstance(optimizer, optim.Optimizer) else None
        if self._optimizer is not None:
            self._optimizer.device_state.forget()
        self._adopt_optimizer(numbers=False)

    def _loss_scaling(self, spec: OptimiserSpec) -> float:
        """The loss scaling with another description: an automatic one stays as far from the optimiser's as it is."""
        assert self._compiled is not None
        if self._options._Popart.automatic_loss_scale is None:
            return spec.loss_scaling
        known = self._optimiser
        assert known is not None
        return current_loss_scaling(self._compiled) * spec.loss_scaling / known.loss_scaling

    # -- optimiser state ---------------------------------------------------------------------------------------------

    def _adopt_optimizer(self, *, numbers: bool = True) -> None:
        """Let the optimiser's ``state_dict`` show what is on the IPUs; load onto them what it was given before."""
        optimizer = self._optimizer
        offline = self._options.connection_type == ConnectionType.Never
        if optimizer is None or self._compiled is None or offline:
            return
        optimizer._executor = weakref.ref(self)
        held = optimizer.device_state
        if held.pending:
            held.write(self._compiled, numbers=numbers)
        held.dirty = True

    def read_optimizer_state(self, held: DeviceState) -> None:
        """Take over the optimiser's state from the IPUs if theirs is newer."""
        if self._compiled is None or not self._attached:
            return
        if held.pending or (held.states is not None and not held.dirty):
            logger.debug("Using cached optimiser state dict")
        else:
            held.read(self._compiled)

    @property
    def rng_state(self) -> list[int]:
        """The state of everything random on the IPUs: setting it again replays what came after.

        Upstream gives the device's seed and generator states; here it is the seed and the count of micro-batches of
        each stage that draws random numbers.
        """
        compiled = self._require()
        compiled.executable.evaluator.store_variables(list(compiled.pipeline.seeds))
        return [int(n) for variable in compiled.pipeline.seeds for n in np.asarray(variable.data).reshape(-1)]

    @rng_state.setter
    def rng_state(self, state: Sequence[int]) -> None:
        compiled = self._require()
        seeds = compiled.pipeline.seeds
        wanted = sum(np.asarray(variable.data).size for variable in seeds)
        if len(state) != wanted:
            raise Error(f"rng_state: {len(state)} numbers given, this model has {wanted}")
        numbers = iter(state)
        for variable in seeds:
            data = np.asarray(variable.data)
            data[...] = np.array([next(numbers) for _ in range(data.size)], data.dtype).reshape(data.shape)
        compiled.executable.evaluator.load_variables(list(seeds))

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's ``state_dict``."""
        return self._model.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Load into the module, and onto the IPUs if compiled."""
        found = self._model.load_state_dict(state_dict, strict)
        if self._compiled is not None:
            self.copyWeightsToDevice()
        return found

    # -- device ------------------------------------------------------------------------------------------------------

    def isCompiled(self) -> bool:
        """Whether the model has been compiled."""
        return self._compiled is not None

    def isAttachedToDevice(self) -> bool:
        """Whether the model is on its simulated device."""
        return self._compiled is not None and self._attached

    def attachToDevice(self) -> None:
        """Take the device again after :meth:`detachFromDevice`."""
        self._require()
        if self._attached:
            raise Error("Device is already attached")
        self._attached = True
        self._require().executable.evaluator.load_variables()
        self.copyWeightsToDevice()
        if self._optimizer is not None and self._optimizer.device_state.pending:
            self._optimizer.device_state.write(self._require())

    def detachFromDevice(self) -> None:
        """Give the device back; simulated devices have no other user."""
        self._require()
        if not self._attached:
            raise Error("Device is not attached")
        compiled = self._require()
        self.copyWeightsToHostIfNeeded()
        if self._optimizer is not None and not self._optimizer.device_state.pending:
            self._optimizer.device_state.read(compiled)
        compiled.executable.evaluator.store_variables(
            [*compiled.pipeline.state.values(), *compiled.pipeline.seeds, *compiled.pipeline.scalars.values()]
        )
        self._attached = False
        compiled.executable.unload()

    def destroy(self) -> None:
        """Forget the compiled program; the module has the newest weights and is a plain one again."""
        if self._compiled is not None and self._attached:
            self.copyWeightsToHostIfNeeded()
            if self._optimizer is not None:
                self.read_optimizer_state(self._optimizer.device_state)
        self._ties.loosen()
        self._compiled = None
        self._attached = False

    def __del__(self) -> None:
        """An executor that goes leaves its weights with the module, which is a plain one again."""
        ties = self.__dict__.get("_ties")
        if ties is None or sys.is_finalizing():
            return
        if ties.dirty and self._compiled is not None:
            self.copyWeightsToHost()
        ties.loosen()

    def _require(self) -> CompiledModel:
        if self._compiled is None:
            raise Error(_NOT_COMPILED)
        return self._compiled

    # -- what the simulation says -------------------------------------------------------------------------------------

    @property
    def compiled_model(self) -> CompiledModel | None:
        """What a call runs: the program, its pipeline and, as ``executable``, both on the machine; None before the
        compilation."""
        return self._compiled

    @property
    def _executable(self) -> CompiledModel | None:
        """:attr:`compiled_model` under the private name by which applications ask whether there is one."""
        return self._compiled

    @property
    def simulated_trace(self) -> Trace:
        """The trace of one call. ``Error`` before the compilation."""
        return self._require().executable.trace

    def cycleCount(self) -> int:
        """Cycles of the tile clock that one call takes on the IPUs, from the first step of any to the last of any; what
        the host does before and after (the fixed cost of a call, the handling of the last outputs) is left out.
        ``Error``: not compiled, or with ``logCycleCount`` not called yet, as upstream."""
        logged = bool(self._options._Popart.options["instrumentWithHardwareCycleCounter"])
        if self._compiled is None and not logged:
            raise Error(
                "Cycle count logging is disabled. Please set option logCycleCount to True to enable. (A model that has "
                "been compiled tells its cycles without.)"
            )
        if logged and not self._ran:
            raise Error("Please run the model at least once before obtaining cycle count.")
        executable = self._require().executable
        steps, instances = (executable.trace.columns(table) for table in ("steps", "instances"))
        of_host = np.isin(instances["segment"], steps["segment"][steps["kind"] == "host_run"])
        ends = (instances["start"] + instances["dur"])[~of_host]
        before = executable.host_start_cycles
        return int(ends.max(initial=before)) - before

    def compilationTime(self) -> timedelta:
        """Real time that the compilation took."""
        if self._compiled is None:
            raise Error("Please compile the model before obtaining compilation time.")
        return self._compiled.compilation_time

    def getPerfCounters(self) -> Counters:
        """Seconds since the start of the call, of each slice (and replica) of each tensor, by event: ``input`` (an
        input is asked for), ``input_complete`` (it has arrived), ``output`` (an output is ready), ``output_complete``
        (it has left)."""
        if self._compiled is None:
            return {event: [[]] for event in ("input", "input_complete", "output", "output_complete")}
        return self._latencies().counters()

    def getHostIpuLatency(self) -> Latency:
        """(min, max, mean) seconds from the first input's being asked for to the last input's arrival."""
        return self._latencies().host_to_ipu()

    def getComputeLatency(self) -> Latency:
        """(min, max, mean) seconds from the last input's arrival to the last output's being ready."""
        return self._latencies().compute()

    def getIpuHostLatency(self) -> Latency:
        """(min, max, mean) seconds from the first output's being ready to the last output's end."""
        return self._latencies().ipu_to_host()

    def getLatency(self) -> Latency:
        """(min, max, mean) seconds from the first input's being asked for to the last output's end."""
        return self._latencies().total()

    def _latencies(self) -> Latencies:
        compiled = self._require()
        inputs = [spec.stream.id for spec in compiled.exported.inputs if spec.stream is not None]
        outputs = [stream.id for stream in compiled.streams if stream is not None]
        return Latencies(compiled.executable, inputs, outputs, compiled.kept_period)

    # -- files -------------------------------------------------------------------------------------------------------

    def compileAndExport(self, filename: str, *args: Any, export_model: bool = True, **kwargs: Any) -> None:
        """Compile for arguments like these and write the program into a file, see :meth:`save`."""
        if self._compiled is None:
            self._compile(self._arguments(args, kwargs))
        self.save(filename, export_model)

    def save(self, filename: str, export_model: bool = True, save_rng_state: bool = True) -> None:
        """Write the compiled program into a file (in a folder: ``model.poptorch``).

        Args:
            export_model: also what :func:`load` needs to do without the module: options, numbers of parameters and
                buffers, the optimiser's numbers. The state of the optimiser is not part of it.
            save_rng_state: with ``export_model``: also the state of the random numbers.

        Raises:
            Error: not compiled, or the program has something that no file can hold.
        """
        exported = self._require().exported
        self.copyWeightsToHostIfNeeded()
        random = self.rng_state if save_rng_state else None
        executable_file.write(
            filename,
            training=self._training,
            traced=exported.traced,
            arguments=exported.arguments,
            leaves=[(spec.shape, spec.dtype) for spec in exported.inputs],
            signature=exported.signature,
            model=self._description(random) if export_model else None,
        )

    def _description(self, random: list[int] | None) -> dict[str, Any]:
        made = description_of(self._options, self._model, self._optimiser, random)
        return {**made, "grouped": {name: list(map(int, given)) for name, given in self.per_replica_params.items()}}

    def loadExecutable(self, filename: str) -> None:
        """Compile from a file that :meth:`save` or :meth:`compileAndExport` has written, without exporting the module.

        Raises:
            Error: already compiled; a program of the other kind (training, inference) or of another module; a file that
                is not ours, is damaged, or of another version.
        """
        if self._compiled is not None:
            raise Error(f"loadExecutable({filename!r}): the model is already compiled")
        stored = executable_file.read(filename)
        kinds = {True: "training", False: "inference"}
        if stored.training != self._training:
            raise Error(
                f"{filename}: holds a program for {kinds[stored.training]}, this is a model for {kinds[self._training]}"
            )
        self._compile_stored(stored)

    def _compile_stored(self, stored: StoredProgram) -> None:
        with one_replica(self._model, self.per_replica_params, self._options.replication_factor):
            missing = stored.missing_in(self._model)
        if missing:
            raise Error(f"the stored program is that of another module: {'; '.join(missing)}")
        self._options._freeze()
        arguments = rebuild(stored.arguments, stored.leaves.__getitem__)
        self._finish(lambda: self._built(arguments, None, stored.traced))

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """What the last call made of the tensor that ``Options.anchorTensor`` calls so.

        Raises:
            Error: there is no such anchor, or no call yet.
        """
        anchors = self._require().anchors
        if short_name not in anchors:
            known = ", ".join(anchors) or "nothing is anchored"
            raise Error(f"getAnchoredTensor({short_name!r}): no anchor of this name; anchored: {known}")
        if short_name not in self._anchored:
            raise Error(f"getAnchoredTensor({short_name!r}): the model has not been run")
        anchor = anchors[short_name]
        array = self._joined(self._anchored[short_name], anchor.stream.shape, anchor.mode, anchor.period)
        return torch.from_numpy(np.array(array)).to(anchor.dtype)

    # -- the module --------------------------------------------------------------------------------------------------

    @property
    def model(self) -> torch.nn.Module:
        """The module."""
        return self._model

    @property
    def options(self) -> Options:
        """The (frozen) options."""
        return self._options

    def _debugGetPopartIR(self) -> str:
        """The program's ops as JSON in PopART's layout (:mod:`~ipuperf.poptorch.popart_ir`); its name is upstream's.
        ``Error``: not compiled."""
        return serialised(self._require())

    def getTensorNames(self) -> list[str]:
        """Names of parameters, buffers, activations and gradients, which ``Options.anchorTensor`` takes."""
        return list(names_of(self._require().exported, self._training))

    def train(self, mode: bool = True) -> PoplarExecutor:
        """As of the module; the compiled program is a training one or an inference one and stays so."""
        self._model.train(mode)
        return self

    def eval(self) -> PoplarExecutor:
        """See :meth:`train`."""
        return self.train(False)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        found = getattr(self._model, name)
        return with_grouping(found, name, self.per_replica_params) if isinstance(found, torch.nn.Parameter) else found

    def __repr__(self) -> str:
        kind = "training" if self._training else "inference"
        return f"PoplarExecutor({kind}): {module_repr(self._model)}"


def trainingModel(
    model: torch.nn.Module | PoplarExecutor,
    options: Options | None = None,
    optimizer: torch.optim.Optimizer | None = None,
) -> PoplarExecutor:
    """``model``, which returns a loss, as a training program.

    Args:
        model: the module, whose parameters change with each call; or an executor, whose module it is then.
        options: default :class:`~ipuperf.poptorch.Options`.
        optimizer: default ``torch.optim.SGD`` with a learning rate of 0.01.

    Raises:
        Error: the module is trained by another executor, which has to be destroyed first.
    """
    return PoplarExecutor(_module_of(model), options, training=True, optimizer=optimizer)._tied()


def inferenceModel(model: torch.nn.Module | PoplarExecutor, options: Options | None = None) -> PoplarExecutor:
    """``model`` as an inference program; the module of a training program shares its weights."""
    return PoplarExecutor(_module_of(model), options, training=False)


def _module_of(model: torch.nn.Module | PoplarExecutor) -> torch.nn.Module:
    return model.model if isinstance(model, PoplarExecutor) else model


def load(filename: str, edit_opts_fn: Callable[[Options], None] | None = None) -> PoplarExecutor:
    """The model of a file that ``compileAndExport`` or ``save`` has written with ``export_model=True``, compiled.

    Its module (``model``) runs the exported ops: the user's class is not stored, see
    :mod:`~ipuperf.poptorch.executable_file`.

    Args:
        edit_opts_fn: called with the options before the program is lowered.

    Raises:
        Error: no model in the file; not ours, damaged, or of another version.
    """
    stored = executable_file.read(filename)
    if stored.model is None:
        raise Error(f"{filename}: holds no model (export_model=False); use loadExecutable of a model of your module")
    options: Options = stored.model["options"].clone()
    if edit_opts_fn is not None:
        edit_opts_fn(options)
    module = StoredModule(stored)
    made = PoplarExecutor(module, options, training=stored.training)
    if stored.training:
        made._tied()
    made._optimiser = optimiser_of(stored.model["optimiser"], module)
    made.per_replica_params = {name: tuple(given) for name, given in stored.model["grouped"].items()}
    made._compile_stored(stored)
    if stored.model["random"] is not None:
        made.rng_state = stored.model["random"]
    return made


def _optimizer(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01) if optimizer is None else optimizer


def _no_backward(*args: Any, **kwargs: Any) -> None:
    raise Error(_NO_BACKWARD)


@contextmanager
def _progress(show: bool) -> Iterator[Callable[[], None]]:
    """Upstream's bar "Graph compilation", which here goes from nothing to done."""
    from tqdm import tqdm

    if not show or not logger.isEnabledFor(logging.WARNING):
        yield lambda: None
        return
    with tqdm(total=100, desc="Graph compilation", leave=True) as bar:
        yield lambda: None
        bar.update(100)
