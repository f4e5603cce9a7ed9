"""The program of a model: from the arguments of a call to a program on the IPUs, and whether it is there."""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from ipuperf.ir import FLOAT16
from ipuperf.runtime.effects import tell
from ipuperf.runtime.model_revision import ModelRequest, revised_model
from ipuperf.runtime.run_context import RUN

from ..errors import Error, UnsupportedError, require
from ..export.checks import check_not_compiled
from ..export.structure import Signature, flatten, rebuild
from ..export.trace import Traced
from ..log import logger
from ..optimisers import classes as optim
from ..optimisers.classes import OptimiserSpec, optimiser_description
from ..options import Options
from .compilation import CompiledModel, compile_model
from .wrapping import plain

Hook = Callable[[], Any]


@dataclass
class Task:
    """What an executor runs.

    Attributes:
        module: the user's.
        options: frozen.
        training: with a backward pass and weight updates; else inference.
        mode: the training mode in which a training program compiles the module itself.
        optimiser: the description of the optimiser (training).
        optimizer: the optimiser itself, where it is one of PopTorch's classes.
        grouped: what ``replicaGrouping`` was told, by the parameters' names in the module.
        inputs: what the host makes of each tensor of a call (levers ask for that).
    """

    module: torch.nn.Module
    options: Options
    training: bool
    mode: bool
    optimiser: OptimiserSpec | None
    optimizer: optim.Optimizer | None
    grouped: dict[str, Any]
    inputs: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = ()

    @classmethod
    def of(
        cls,
        module: torch.nn.Module,
        options: Options | None,
        training: bool,
        optimizer: torch.optim.Optimizer | None,
    ) -> Task:
        """The task of these arguments, checked; the options are copied.

        Raises:
            Error: an argument of another kind.
            UnsupportedError: a module without Python code, or several processes.
            AssertionError: gradient accumulation in inference.
        """
        if not isinstance(module, torch.nn.Module):
            raise Error(f"model is a {type(module).__name__}, expected torch.nn.Module")
        check_not_compiled(module)
        request = revised_model(ModelRequest("poptorch", _options(options, training), training, module))
        task = cls(module, request.options, training, module.training, None, None, {}, request.inputs)
        if training:
            # PopTorch's default.
            task.take(torch.optim.SGD(module.parameters(), lr=0.01) if optimizer is None else optimizer)
            assert task.optimiser is not None
            task.options.Training._divide_while_running(task.optimiser.accum_dtype is FLOAT16)
        else:
            _check_inference(task.options)
        task.options._freeze()
        return task

    def take(self, optimizer: torch.optim.Optimizer) -> None:
        """Train with this optimiser."""
        self.optimiser = optimiser_description(optimizer)
        self.optimizer = optimizer if isinstance(optimizer, optim.Optimizer) else None

    @property
    def kind(self) -> str:
        """``training`` or ``inference``."""
        return "training" if self.training else "inference"


def _options(options: Options | None, training: bool) -> Options:
    if options is None:
        options = Options()
    elif isinstance(options, Options):
        options._freeze()  # later changes would not reach this model
        options = options.clone()
    else:
        raise Error(f"options is a {type(options).__name__}, expected poptorch.Options")
    if options.defaultOutputMode():
        options.outputMode(options.resolved_output_mode(training))
    processes = options.Distributed.numProcesses
    if processes > 1:
        raise UnsupportedError(
            f"poptorch.Options().Distributed of {processes} processes is not supported for models: "
            "one process simulates all replicas; use one process and replicationFactor()"
        )
    return options


def _check_inference(options: Options) -> None:
    accumulation = options.Training.gradient_accumulation
    require(
        accumulation == 1,
        f"poptorch.Options().Training.gradientAccumulation is {accumulation}; an inference model accumulates "
        "nothing, so it has to be 1",
    )


class Presence(Enum):
    """Where a program is."""

    NOT_COMPILED = "not compiled"
    DETACHED = "compiled, and not on the device"
    ATTACHED = "on the device"


class Program:
    """The program of a task.

    Attributes:
        compiled: None before the compilation.
        presence: where it is.
        inputs: what it was compiled for; None where a file said it.
    """

    def __init__(self, task: Task) -> None:
        self._task = task
        self.compiled: CompiledModel | None = None
        self.presence = Presence.NOT_COMPILED
        self.inputs: ExecutableInputs | None = None

    @property
    def attached(self) -> bool:
        """Whether it is on the device."""
        return self.presence is Presence.ATTACHED

    def require(self) -> CompiledModel:
        """The compiled model. ``Error``: there is none."""
        if self.compiled is None:
            raise Error("Model has not been compiled or has been destroyed.")
        return self.compiled

    def require_presence(self, presence: Presence) -> CompiledModel:
        """The compiled model, which is attached or detached as ``presence`` says. ``Error``: it is not."""
        compiled = self.require()
        if self.presence is not presence:
            raise Error("Device is not attached" if presence is Presence.ATTACHED else "Device is already attached")
        return compiled

    def forget(self) -> None:
        """Drop the compiled program."""
        self.compiled = self.inputs = None
        self.presence = Presence.NOT_COMPILED

    # -- arguments ---------------------------------------------------------------------------------------------------

    def bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name; ``TypeError`` as for a call of ``forward``.

        Raises:
            AssertionError: a batch that does not divide into micro-batches, or a sparse tensor.
        """
        arguments = self._signature.bind(args, kwargs)
        structure, tensors, paths = flatten(arguments)
        for change in self._task.inputs:
            tensors = [change(tensor) for tensor in tensors]
            arguments = rebuild(structure, tensors.__getitem__)
        _check_batch(self._task.options, tensors, paths)
        return arguments

    def has_other_optionals(self, arguments: Mapping[str, Any]) -> bool:
        """Whether inference is called without a tensor that it was compiled with, or with one that it was not."""
        if self._task.training or self.inputs is None:
            return False
        pairs = zip(self.inputs.args, arguments.values(), strict=True)
        # Of other changes, as in a number, `tensors_of` tells.
        return any({type(None), torch.Tensor} == {_kind(before), _kind(now)} for before, now in pairs)

    def tensors_of(self, compiled: CompiledModel, arguments: Mapping[str, Any]) -> list[torch.Tensor]:
        """The tensors in the arguments of a call, in the order of the program's inputs."""
        return compiled.exported.tensors_of(*self._signature.spread(arguments))

    @property
    def _signature(self) -> Signature:
        """The parameters of ``forward``; reading them this way fetches no weights."""
        return Signature(object.__getattribute__(self._task.module, "forward"))

    # -- compilation -------------------------------------------------------------------------------------------------

    def compile_as(self, compilation: Callable[[], CompiledModel]) -> None:
        """Compile, and say which options are without effect."""
        task = self._task
        unknown = set(task.options.updatable_named_buffers) - {name for name, _ in task.module.named_buffers()}
        if unknown:
            raise Error(f"Options.updatableNamedBuffers: the model has no buffer {', '.join(sorted(unknown))}")
        for note in task.options.effects():
            tell(note)
        with _progress(task.options.show_compilation_progress_bar):
            self.compiled = compilation()
        self.presence = Presence.ATTACHED

    def for_batch(self, arguments: Mapping[str, Any], name: str | None = None) -> CompiledModel:
        """The program for micro-batches of these arguments, made anew and not loaded.

        Args:
            arguments: one whole batch by name; tensors may be on ``meta``.
            name: in reports; default: from the options or the module.
        """
        samples = next((t.shape[0] for t in flatten(arguments)[1] if t.dim()), None)
        micro_batch = first_micro_batch(dict(arguments), self._task.options.samples_factor)
        return self.for_micro_batch(micro_batch, name=name, samples=samples)

    def for_micro_batch(
        self,
        arguments: Mapping[str, Any],
        *,
        name: str | None = None,
        samples: int | None = None,
        traced: Traced | None = None,
    ) -> CompiledModel:
        """The program for one micro-batch, from an export if one is given."""
        task = self._task
        hooks = RUN.of(CompileHooks)
        call_hooks(hooks.before)
        try:
            with plain(task.module), _modes_restored(task.module):
                # Submodules keep their own modes: a user freezes single norms by them.
                if task.training:
                    task.module.training = task.mode
                else:
                    task.module.eval()
                return compile_model(
                    task.module,
                    task.options,
                    *self._signature.spread(arguments),
                    training=task.training,
                    optimiser=task.optimiser,
                    grouped=task.grouped,
                    name=name or task.options.model_name or f"{type(task.module).__name__}-{task.kind}",
                    samples=samples,
                    traced=traced,
                )
        finally:
            call_hooks(hooks.after)

    def write_report(self) -> None:
        """Write the report that the options ask for."""
        folder = self._task.options.profiling_dir
        if folder is not None:
            from ipuperf.report import write_report

            write_report(self.require().executable.trace, Path(folder) / self._task.kind)


def _kind(value: Any) -> type:
    return torch.Tensor if isinstance(value, torch.Tensor) else type(value)


def warn_of_gradients(arguments: Mapping[str, Any]) -> None:
    """Say which inputs would have a gradient in PyTorch."""
    _, tensors, paths = flatten(arguments)
    for tensor, path in zip(tensors, paths, strict=True):
        if tensor.requires_grad:
            logger.warning(
                "Input %s has requires_grad=True: it is detached, because there is no backward pass to inputs.", path
            )


def _check_batch(options: Options, tensors: Sequence[torch.Tensor], paths: Sequence[str]) -> None:
    """Axis 0 of every input has to divide into micro-batches, and an input is dense."""
    factor = options.samples_factor
    for tensor, path in zip(tensors, paths, strict=True):
        require(
            tensor.layout is torch.strided,
            f"the input {path!r} is a tensor of layout {tensor.layout}; the IPU has dense tensors only: to_dense()",
        )
        size = tensor.shape[0] if tensor.dim() else 1
        require(
            size > 0,
            f"Invalid batch dimension: the input {path!r} of shape {tuple(tensor.shape)} has no samples, the batch "
            "dimension must be at least 1",
        )
        require(
            size % factor == 0,
            f"Invalid batch dimension: the input {path!r} of shape {tuple(tensor.shape)} is cut into {factor} "
            f"micro-batches along its first axis, and {factor} does not divide {size}: deviceIterations is "
            f"{options.device_iterations}, gradientAccumulation {options.Training.gradient_accumulation}, "
            f"replicationFactor {options.replication_factor}, in groups of {options.input_group_size} that share "
            "their input",
        )


def first_micro_batch(arguments: Any, factor: int) -> Any:
    """Arguments in which every tensor has only the first of the ``factor`` micro-batches along its axis 0."""

    def first(tensor: torch.Tensor) -> torch.Tensor:
        return (tensor if tensor.dim() == 0 else tensor[: tensor.shape[0] // factor]).detach()

    structure, tensors, _ = flatten(arguments)
    return rebuild(structure, lambda index: first(tensors[index]))


@dataclass(frozen=True)
class ExecutableInputs:
    """What a program was compiled for, by upstream's names (poptorch: ``python/_args_parser.py``).

    Attributes:
        args: values of ``forward``'s parameters in their order, tensors without numbers.
    """

    args: list[Any]

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> ExecutableInputs:
        """Those of one call."""
        structure, tensors, _ = flatten(dict(arguments))
        return cls(list(rebuild(structure, lambda index: tensors[index].detach().to("meta")).values()))


@contextmanager
def _modes_restored(module: torch.nn.Module) -> Iterator[None]:
    """Afterwards each submodule is in training or evaluation mode as before."""
    modes = [(member, member.training) for member in module.modules()]
    try:
        yield
    finally:
        for member, mode in modes:
            member.training = mode


@contextmanager
def _progress(show: bool) -> Iterator[None]:
    """Upstream's bar "Graph compilation", which here goes from nothing to done."""
    from tqdm import tqdm

    if not show or not logger.isEnabledFor(logging.WARNING):
        yield
        return
    with tqdm(total=100, desc="Graph compilation", leave=True) as bar:
        yield
        bar.update(100)


# -- hooks -------------------------------------------------------------------------------------------------------------


class CompileHooks:
    """The hooks registered in this process (``RUN.of(CompileHooks)``): called in order around each compilation."""

    def __init__(self) -> None:
        self.before: OrderedDict[int, Hook] = OrderedDict()
        self.after: OrderedDict[int, Hook] = OrderedDict()


def call_hooks(hooks: Mapping[int, Hook]) -> None:
    """Call all of them in order; one may remove itself."""
    for hook in list(hooks.values()):
        hook()


def registerPreCompileHook(hook: Hook) -> RemovableHandle:
    """Have ``hook()`` called before each compilation, until ``remove()`` of the result. RuntimeError: not callable."""
    return _register("Pre-compile", RUN.of(CompileHooks).before, hook)


def registerPostCompileHook(hook: Hook) -> RemovableHandle:
    """Have ``hook()`` called after each compilation, until ``remove()`` of the result. RuntimeError: not callable."""
    return _register("Post-compile", RUN.of(CompileHooks).after, hook)


def _register(name: str, hooks: OrderedDict[int, Hook], hook: Hook) -> RemovableHandle:
    if not callable(hook):
        raise RuntimeError(f"{name} hook must be callable")
    handle = RemovableHandle(hooks)
    hooks[handle.id] = hook
    return handle
