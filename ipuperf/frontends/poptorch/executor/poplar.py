"""``trainingModel`` and ``inferenceModel``: calls of a module that run on simulated IPUs.

The numbers are computed with NumPy, the time is simulated. Differences to upstream, all harmless to a program that runs
there: weights are copied at no simulated time; an inference model is compiled as the module is in ``eval()`` (a
training model as its submodules' modes say); ``compilationTime`` is the real time of this compilation; ``cycleCount``
needs no ``logCycleCount``. A loss scaling that is constant is compiled in: with another one the program is lowered
anew. Each replica has running statistics of its own; those of the first are written back.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from os import PathLike
from typing import Any

import torch

from ipuperf.numerics import FloatingPointException

from ..blocks import module_repr, recorder
from ..enums import ConnectionType
from ..errors import Error, require
from ..kinds import checked_kinds
from ..log import logger
from ..optimisers.replica_groups import with_grouping
from ..options import Options
from . import executable_file
from .anchors import names_of
from .data import CallData
from .executable_file import StoredModule, optimiser_of
from .files import Files
from .popart_ir import serialised
from .times import Times
from .wrapping import Ties


class PoplarExecutor(CallData, Times, Files):
    """A module on simulated IPUs; made by :func:`trainingModel` and :func:`inferenceModel`."""

    def __init__(
        self,
        model: torch.nn.Module,
        options: Options | None,
        *,
        training: bool,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        super().__init__(model, options, training=training, optimizer=optimizer)
        self._ties = Ties(self, self._model)

    # -- calls -------------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one batch: ``device iterations x gradient accumulation x replicas`` micro-batches along axis 0.

        Raises:
            AssertionError: a batch that does not divide into micro-batches.
            Error: arguments unlike those the model was compiled with, or what :meth:`compile` raises; the call is in
                the forward of a model that is being compiled.
        """
        offline = self._options.connection_type == ConnectionType.Never
        require(not offline, "a model of ConnectionType.Never, without a device, can be compiled, but not called")
        if recorder() is not None:
            raise Error(
                f"a PopTorch model of {self._ties.name} is called in the forward of another one: call the module "
                "itself there (the model's attribute `model`)"
            )
        arguments = self._arguments(args, kwargs)
        if self._compiled is None:
            self._compile(arguments)
        if not self._attached:
            self.attachToDevice()
        self._give_numbers_apart(arguments)
        compiled = self._require()
        given = compiled.exported.tensors_of(*self._spread(arguments))
        tensors = [self._checked(spec, tensor) for spec, tensor in zip(compiled.exported.inputs, given, strict=True)]
        inputs = {
            spec.stream: self._slices(spec, tensor)
            for spec, tensor in zip(compiled.exported.inputs, tensors, strict=True)
            if spec.stream is not None
        }
        synthetic = self._options._Popart.synthetic_data
        self._warn_of_others()
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
        self._ties.trained += 1
        if not self._ties.tied and self._ties.dirty:
            self._store()  # nothing else will
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
        if self._optimizer is not None:
            self._optimizer.device_state.give(self._require())

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
        self._compiled = self._executable_inputs = None
        self._attached = False

    def __del__(self) -> None:
        """An executor that goes leaves its weights with the module, which is a plain one again."""
        ties = self.__dict__.get("_ties")
        if ties is None or sys.is_finalizing():
            return
        if ties.dirty and self._compiled is not None:
            self.copyWeightsToHost()
        ties.loosen()

    def __getstate__(self) -> dict[str, Any]:
        """What ``copy`` and ``pickle`` take: module, options and optimiser, but neither the program (a copy compiles
        its own) nor the optimiser's state on the IPUs."""
        if self._compiled is not None:
            self.copyWeightsToHostIfNeeded()
        fresh: dict[str, Any] = {"_compiled": None, "_attached": False, "_ran": False, "_seen": {}, "_anchored": {}}
        return {**{name: value for name, value in self.__dict__.items() if name != "_ties"}, **fresh}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._options._freeze()
        self._ties = Ties(self, self._model)
        self._tied()

    def _tied(self) -> PoplarExecutor:
        """A module that is trained fetches its weights from here by itself. ``Error``: another executor trains it."""
        if self._training:
            self._ties.tie()
        return self

    # -- the module --------------------------------------------------------------------------------------------------

    @property
    def model(self) -> torch.nn.Module:
        """The module."""
        return self._model

    @property
    def _user_model(self) -> torch.nn.Module:
        """Upstream's name of :attr:`model`, which pipelines of Optimum Graphcore look at."""
        return self._model

    @property
    def options(self) -> Options:
        """The (frozen) options."""
        return self._options

    def _debugGetPopartIR(self) -> str:
        """The program's ops as JSON in PopART's layout (:mod:`.popart_ir`); its name is upstream's.
        ``Error``: not compiled."""
        return serialised(self._require())

    def getTensorNames(self) -> list[str]:
        """Names of parameters, buffers, activations and gradients, which ``Options.anchorTensor`` takes.
        ``AssertionError``: not compiled."""
        require(self._compiled is not None, "getTensorNames: the model has not been compiled")
        return list(names_of(self._require().exported, self._training))

    def train(self, mode: bool = True) -> PoplarExecutor:
        """As of the module; the compiled program is a training one or an inference one and stays so.

        A training model compiles its module, though not the submodules, in the mode that this, or else the module when
        it was wrapped, had: as upstream, which wraps a shallow copy.
        """
        self._mode = mode
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


@checked_kinds()
def load(filename: str | PathLike[str], edit_opts_fn: Callable[[Options], None] | None = None) -> PoplarExecutor:
    """The model of a file that ``compileAndExport`` or ``save`` has written with ``export_model=True``, compiled.

    Its module (``model``) runs the exported ops: the user's class is not stored, see
    :mod:`~ipuperf.poptorch.executor.executable_file`.

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
    made = PoplarExecutor(module, options, training=stored.training)._tied()
    made._optimiser = optimiser_of(stored.model["optimiser"], module)
    made.per_replica_params = {name: tuple(given) for name, given in stored.model["grouped"].items()}
    made._compile_stored(stored)
    if stored.model["random"] is not None:
        made.rng_state = stored.model["random"]
    return made
