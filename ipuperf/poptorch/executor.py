"""``trainingModel`` and ``inferenceModel``: calls of a module that run on simulated IPUs.

The numbers are computed with NumPy, the time is simulated. Differences to upstream, all harmless to a program that runs
there: weights are written back to the host model after each training call, at no simulated time, instead of when they
are first looked at; an inference model takes changed weights of its module on the next call; ``compilationTime`` is the
real time of this compilation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ipuperf.ir import Variable

from .compilation import CompiledModel, compile_model
from .enums import CommGroupType, OutputMode
from .errors import Error, UnsupportedError
from .export import InputSpec, OutputSpec
from .export_structure import Signature, flatten, rebuild
from .hooks import CompileHooks
from .latency import Latencies
from .log import logger
from .optim import OptimiserSpec, optimiser_description
from .options import Options

Latency = tuple[float, float, float]
"""Smallest, largest and mean seconds."""

_NOT_COMPILED = "Model has not been compiled or has been destroyed."


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
        if options is not None and not isinstance(options, Options):
            raise Error(f"options is a {type(options).__name__}, expected poptorch.Options")
        self._model = model
        self._options = Options() if options is None else options.clone()
        self._training = training
        self._optimiser: OptimiserSpec | None = None
        if training:
            self._optimiser = optimiser_description(_optimizer(model, optimizer))
        self._options._freeze()
        self._compiled: CompiledModel | None = None
        self._attached = False
        self._seen: dict[str, int] = {}

    # -- calls -------------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one batch: ``device iterations x gradient accumulation x replicas`` micro-batches along axis 0.

        Raises:
            Error: a batch that does not divide, or arguments unlike those the model was compiled with.
        """
        _, tensors, paths = flatten(Signature(self._model.forward).bind(args, kwargs))
        self._check_batch(tensors, paths)
        if self._compiled is None:
            self._compile(args, kwargs)
        compiled = self._compiled
        assert compiled is not None
        tensors = compiled.exported.tensors_of(args, kwargs)
        inputs = {
            spec.stream: self._slices(spec, tensor)
            for spec, tensor in zip(compiled.exported.inputs, tensors, strict=True)
            if spec.stream is not None
        }
        if not self._training:
            self._load_changed()
        results = compiled.executable.run(inputs)
        if self._training:
            self.copyWeightsToHost()
        found = [
            self._result(spec, None if stream is None else results[stream])
            for spec, stream in zip(compiled.exported.outputs, compiled.streams, strict=True)
        ]
        return compiled.exported.result_of(found)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile for arguments like these."""
        _, tensors, paths = flatten(Signature(self._model.forward).bind(args, kwargs))
        self._check_batch(tensors, paths)
        self._compile(args, kwargs)

    # -- compilation -------------------------------------------------------------------------------------------------

    def _compile(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        factor = self._options.samples_factor
        narrowed_args, narrowed_kwargs = (_narrowed(a, factor) for a in (list(args), dict(kwargs)))
        for note in self._options.effects():
            logger.warning("%s", note)
        CompileHooks.before()
        name = (
            self._options.model_name or f"{type(self._model).__name__}-{'training' if self._training else 'inference'}"
        )
        was_training = self._model.training
        self._model.train(self._training)
        try:
            with _progress(self._options.show_compilation_progress_bar):
                self._compiled = compile_model(
                    self._model,
                    self._options,
                    narrowed_args,
                    narrowed_kwargs,
                    training=self._training,
                    optimiser=self._optimiser,
                    name=name,
                )
        finally:
            self._model.train(was_training)
        self._attached = True
        self.copyWeightsToDevice()
        CompileHooks.after()
        if self._options.profiling_dir is not None:
            self._write_report(Path(self._options.profiling_dir))

    def _write_report(self, folder: Path) -> None:
        from ipuperf.report import write_report

        assert self._compiled is not None
        write_report(self._compiled.executable.trace, folder / ("training" if self._training else "inference"))

    def _check_batch(self, tensors: Sequence[torch.Tensor], paths: Sequence[str]) -> None:
        """Axis 0 of every input has to divide into micro-batches."""
        factor = self._options.samples_factor
        for tensor, path in zip(tensors, paths, strict=True):
            if factor == 1:
                continue
            if tensor.dim() == 0:
                raise Error(f"Input {path!r} is a scalar; its axis 0 has to hold {factor} micro-batches")
            if tensor.shape[0] % factor:
                raise Error(
                    f"The batch dimension of input {path!r} is {tensor.shape[0]}, which is not divisible by "
                    f"deviceIterations ({self._options.device_iterations}) * replicationFactor "
                    f"({self._options.replication_factor}) / input group size ({self._options.input_group_size}) * "
                    f"gradientAccumulation ({self._options.Training.gradient_accumulation}) = {factor}"
                )

    # -- data --------------------------------------------------------------------------------------------------------

    def _slices(self, spec: InputSpec, tensor: torch.Tensor) -> np.ndarray:
        """``(micro-batches, replicas, *shape)``: replicas take micro-batches in turn."""
        compiled = self._compiled
        assert compiled is not None
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

    def _result(self, spec: OutputSpec, array: np.ndarray | None) -> torch.Tensor:
        """A result from ``(slices, replicas, *shape)``: slices and replicas joined along axis 0."""
        if array is None:
            assert spec.constant is not None
            return spec.constant.clone()
        mode = self._options.resolved_output_mode(self._training)
        if mode is OutputMode.EveryN:
            period = self._options.output_return_period
            array = array[period - 1 :: period]
        elif mode is OutputMode.Sum and len(array) > 1:
            array = array.sum(axis=0, keepdims=True, dtype=array.dtype)
        count = array.shape[0] * array.shape[1]
        shape = spec.shape
        joined = (count * shape[0], *shape[1:]) if shape else ((count,) if count > 1 else ())
        return spec.to_torch(array.reshape(joined))

    # -- weights -----------------------------------------------------------------------------------------------------

    def _states(self) -> Iterator[tuple[str, torch.Tensor, Variable]]:
        """Name, tensor of the module and variable of the program of every parameter and buffer, each once."""
        compiled = self._require()
        known = dict(self._model.named_parameters(remove_duplicate=False))
        known.update(self._model.named_buffers(remove_duplicate=False))
        done: set[Variable] = set()
        for name, variable in compiled.exported.variables.items():
            if variable not in done:
                done.add(variable)
                yield name, known[name], variable

    def copyWeightsToDevice(self) -> None:
        """Load parameters and buffers of the module."""
        compiled = self._require()
        for name, tensor, variable in self._states():
            np.copyto(variable.data, tensor.detach().cpu().numpy(), casting="same_kind")
            self._seen[name] = tensor._version
        compiled.executable.evaluator.load_variables()

    def copyWeightsToHost(self) -> None:
        """Write parameters and buffers back to the module."""
        compiled = self._require()
        compiled.executable.evaluator.store_variables()
        with torch.no_grad():
            for name, tensor, variable in self._states():
                tensor.copy_(torch.from_numpy(np.ascontiguousarray(variable.data)))
                self._seen[name] = tensor._version

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Weights are written back after each training call, so there is never need."""
        return False

    def copyNamedBuffersToDevice(self) -> None:
        """Load the buffers named by ``updatableNamedBuffers``."""
        wanted = set(self._options.updatable_named_buffers)
        chosen = [variable for name, _, variable in self._states() if name in wanted]
        for name, tensor, variable in self._states():
            if variable in chosen:
                np.copyto(variable.data, tensor.detach().cpu().numpy(), casting="same_kind")
                self._seen[name] = tensor._version
        self._require().executable.evaluator.load_variables(chosen)

    def _load_changed(self) -> None:
        """Before inference: what a training call or the program has changed since the last load."""
        if any(self._seen[name] != tensor._version for name, tensor, _ in self._states()):
            self.copyWeightsToDevice()

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Take over the numbers (learning rate ...) of ``optimizer``; its kind has to stay."""
        if not self._training:
            raise Error("setOptimizer: an inference model has no optimiser")
        spec = optimiser_description(optimizer)
        before = self._optimiser
        assert before is not None
        self._optimiser = spec
        if self._compiled is None:
            return
        if (spec.kind, len(spec.groups)) != (before.kind, len(before.groups)):
            raise Error(
                f"setOptimizer: the model was compiled for {before.kind} with {len(before.groups)} parameter group(s), "
                f"{spec.kind} with {len(spec.groups)} given; make a new model"
            )
        for name in before.constant:
            if any(a.values.get(name) != b.values.get(name) for a, b in zip(before.groups, spec.groups, strict=True)):
                raise Error(
                    f"setOptimizer: {name} is constant and cannot change; see VariableAttributes.markAsVariable"
                )
        rule = self._compiled.rule
        assert rule is not None
        values = rule.with_numbers(spec)
        changed = []
        for (name, _), variable in self._compiled.pipeline.scalars.items():
            if name not in values:
                raise Error(f"setOptimizer: {name.rsplit('.', 1)[0]} cannot become 0 after compilation")
            variable.data[...] = values[name]
            changed.append(variable)
        self._compiled.executable.evaluator.load_variables(changed)

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
        self.copyWeightsToDevice()

    def detachFromDevice(self) -> None:
        """Give the device back; simulated devices have no other user."""
        self._require()
        if not self._attached:
            raise Error("Device is not attached")
        self._attached = False

    def destroy(self) -> None:
        """Forget the compiled program."""
        self._compiled = None
        self._attached = False

    def _require(self) -> CompiledModel:
        if self._compiled is None:
            raise Error(_NOT_COMPILED)
        return self._compiled

    # -- what the simulation says -------------------------------------------------------------------------------------

    def cycleCount(self) -> int:
        """Cycles of the tile clock that one call takes on the IPUs (the host's fixed cost of a call left out)."""
        executable = self._require().executable
        host = executable.machine.chip.cycles(executable.machine.host.run_seconds)
        return executable.simulated_run_cycles - host

    def compilationTime(self) -> timedelta:
        """Real time that the compilation took."""
        return self._require().compilation_time

    def getPerfCounters(self) -> tuple[list[list[float]], list[list[float]], list[list[float]], list[list[float]]]:
        """Seconds since the start of the call at which each slice of each input was asked for and complete, and each
        output was asked for and complete; one list per tensor."""
        return self._latencies().counters()

    def getHostIpuLatency(self) -> Latency:
        """(min, max, mean) seconds from an input's being asked for to its arrival."""
        return self._latencies().host_to_ipu()

    def getComputeLatency(self) -> Latency:
        """(min, max, mean) seconds from a micro-batch's last input to its first output."""
        return self._latencies().compute()

    def getIpuHostLatency(self) -> Latency:
        """(min, max, mean) seconds that an output takes to the host."""
        return self._latencies().ipu_to_host()

    def getLatency(self) -> Latency:
        """(min, max, mean) seconds from a micro-batch's first input to its last output."""
        return self._latencies().total()

    def _latencies(self) -> Latencies:
        compiled = self._require()
        inputs = [spec.stream.id for spec in compiled.exported.inputs if spec.stream is not None]
        outputs = list(dict.fromkeys(s.id for s in compiled.streams if s is not None))
        return Latencies(compiled.executable.trace, inputs, outputs)

    # -- what is not here ---------------------------------------------------------------------------------------------

    def compileAndExport(self, filename: str, *args: Any, **kwargs: Any) -> None:
        """Unsupported: an executable is a Python object of this process."""
        raise UnsupportedError(f"compileAndExport({filename!r}): executables cannot be stored; compile in the program")

    def loadExecutable(self, filename: str) -> None:
        """Unsupported, see :meth:`compileAndExport`."""
        raise UnsupportedError(f"loadExecutable({filename!r}): executables cannot be stored; compile in the program")

    def save(self, filename: str, *args: Any, **kwargs: Any) -> None:
        """Unsupported, see :meth:`compileAndExport`."""
        raise UnsupportedError(f"save({filename!r}): executables cannot be stored; use torch.save(model.state_dict())")

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """Unsupported: return the tensor from ``forward``."""
        raise UnsupportedError(f"getAnchoredTensor({short_name!r}): return the tensor from the model's forward instead")

    # -- the module --------------------------------------------------------------------------------------------------

    @property
    def model(self) -> torch.nn.Module:
        """The module."""
        return self._model

    @property
    def options(self) -> Options:
        """The (frozen) options."""
        return self._options

    def getTensorNames(self) -> list[str]:
        """Names of the tensors of the program's main graph."""
        return list(self._require().exported.ir.main_graph.tensors)

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
        return getattr(self._model, name)

    def __repr__(self) -> str:
        kind = "training" if self._training else "inference"
        return f"<PoplarExecutor {kind} of {type(self._model).__name__}>"


def trainingModel(
    model: torch.nn.Module, options: Options | None = None, optimizer: torch.optim.Optimizer | None = None
) -> PoplarExecutor:
    """``model``, which returns a loss, as a training program.

    Args:
        model: the module; its parameters change with each call.
        options: default :class:`~ipuperf.poptorch.Options`.
        optimizer: default ``torch.optim.SGD`` with a learning rate of 0.01.
    """
    return PoplarExecutor(model, options, training=True, optimizer=optimizer)


def inferenceModel(model: torch.nn.Module | PoplarExecutor, options: Options | None = None) -> PoplarExecutor:
    """``model`` as an inference program; the module of a training program shares its weights."""
    module = model.model if isinstance(model, PoplarExecutor) else model
    return PoplarExecutor(module, options, training=False)


def load(filename: str) -> PoplarExecutor:
    """Unsupported: executables cannot be stored."""
    raise UnsupportedError(f"poptorch.load({filename!r}): executables cannot be stored; compile in the program")


def _optimizer(model: torch.nn.Module, optimizer: torch.optim.Optimizer | None) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01) if optimizer is None else optimizer


def _narrowed(value: Any, factor: int) -> Any:
    """The first micro-batch of every tensor."""

    def first(tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.dim() == 0 or factor == 1 else tensor[: tensor.shape[0] // factor]

    structure, tensors, _ = flatten(value)
    return rebuild(structure, lambda index: first(tensors[index]))


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
