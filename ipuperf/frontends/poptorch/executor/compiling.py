"""From arguments to a program on the IPUs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ipuperf.runtime.effects import tell
from ipuperf.runtime.run_context import RUN

from ..errors import Error, require
from ..export.structure import Signature, flatten
from ..export.trace import Traced
from ..log import logger
from .calls import ExecutableInputs, first_micro_batch, modes_kept
from .compilation import CompiledModel, compile_model
from .hooks import CompileHooks, call_hooks
from .weights import HeldWeights
from .wrapping import plain


class Compiling(HeldWeights):
    """Compiles a program and loads it."""

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

    def _compile(self, arguments: Mapping[str, Any]) -> None:
        _, tensors, paths = flatten(arguments)
        for tensor, path in zip(tensors, paths, strict=True):
            if tensor.requires_grad:
                logger.warning(
                    "Input %s has requires_grad=True: it is detached, because there is no backward pass to inputs.",
                    path,
                )
        self._finish(lambda: self._program(arguments, None))
        self._executable_inputs = ExecutableInputs.of(arguments)

    def _give_numbers_apart(self, arguments: Mapping[str, Any]) -> None:
        """Compile the program anew, with numbers for each parameter, when those that were loaded into the optimiser
        differ within a group. Weights, the optimiser's state and the random numbers go on."""
        old = self._compiled
        if old is None or self._optimizer is None or not self._optimizer.device_state.pending:
            return
        held = self._optimizer.device_state
        if not held.differs_within(old):
            return
        assert self._optimiser is not None
        self.copyWeightsToHost()
        held.complete(old)
        old.executable.evaluator.store_variables(old.pipeline.seeds)
        self._optimiser = replace(self._optimiser, apart=True)
        self._finish(lambda: self._program(arguments, None))
        new = self._require()
        for seed, kept in zip(new.pipeline.seeds, old.pipeline.seeds, strict=True):
            np.asarray(seed.data)[...] = kept.data
        new.executable.evaluator.load_variables(new.pipeline.seeds)

    def _finish(self, compilation: Callable[[], CompiledModel]) -> None:
        """Compile, tell what options do not do, and load the program."""
        unknown = set(self._options.updatable_named_buffers) - {name for name, _ in self._model.named_buffers()}
        if unknown:
            raise Error(f"Options.updatableNamedBuffers: the model has no buffer {', '.join(sorted(unknown))}")
        for note in self._options.effects():
            tell(note)
        with _progress(self._options.show_compilation_progress_bar):
            compiled = compilation()
        self._compiled, self._attached, self._ran = compiled, True, False
        compiled.executable.evaluator.load_variables()  # optimiser state, scalars, seeds
        self.copyWeightsToDevice()
        self._adopt_optimizer(numbers=not self._renumbered)
        self._renumbered = False
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
                if self._training:
                    self._model.training = self._mode
                else:
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
        """Axis 0 of every input has to divide into micro-batches, and an input is dense."""
        options, factor = self._options, self._options.samples_factor
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
