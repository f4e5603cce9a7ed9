"""``trainingModel`` and ``inferenceModel``: calls of a module that run on simulated IPUs.

The numbers are computed with NumPy, the time is simulated. Differences to upstream, all harmless to a program that runs
there: weights are copied at no simulated time; an inference model is compiled as the module is in ``eval()`` (a
training model as its submodules' modes say); ``compilationTime`` is the real time of this compilation; ``cycleCount``
needs no ``logCycleCount``. A loss scaling that is constant is compiled in: with another one the program is lowered
anew. Each replica has running statistics of its own; those of the first are written back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from os import PathLike
from typing import Any

import torch

from ipuperf.numerics import FloatingPointException
from ipuperf.trace import Trace

from ..blocks import module_repr, recorder
from ..enums import ConnectionType
from ..errors import Error, checked_kinds, require
from ..export.structure import rebuild
from ..log import logger
from ..optimisers.replica_groups import with_grouping
from ..options import Options
from . import executable_file
from .anchors import names_of
from .compilation import CompiledModel
from .data import CallData
from .executable_file import StoredModule, StoredProgram, optimiser_of
from .latency import Counters, Latencies, Latency, cycles_on_ipus, latencies_of
from .popart_ir import serialised
from .program import ExecutableInputs, Presence, Program, Task, warn_of_gradients
from .weights import Weights
from .wrapping import Ties


def _latency(measure: Callable[[Latencies], Latency]) -> Callable[[PoplarExecutor], Latency]:
    """A method that says one of the latencies of a call."""

    def method(self: PoplarExecutor) -> Latency:
        return measure(latencies_of(self._program.require()))

    method.__doc__ = measure.__doc__
    return method


class PoplarExecutor:
    """A module on simulated IPUs; made by :func:`trainingModel` and :func:`inferenceModel`.

    Attributes:
        per_replica_params: what ``replicaGrouping`` was told, by the parameters' names in the module; read by the
            compilation.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        options: Options | None,
        *,
        training: bool,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        self._run_task(Task.of(model, options, training, optimizer))

    def _run_task(self, task: Task) -> None:
        self._task = task
        self._program = Program(task)
        self._weights = Weights(task, self._program, Ties(self, task.module))
        self._data = CallData(task, self._program)
        self.per_replica_params = task.grouped

    # -- calls -------------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one batch: ``device iterations x gradient accumulation x replicas`` micro-batches along axis 0.

        Inference is compiled anew where a parameter of ``forward`` is None that was a tensor, or the other way round
        (poptorch: ``tests/inputs_test.py``); random numbers then begin at the seed.

        Raises:
            AssertionError: a batch that does not divide into micro-batches.
            Error: arguments unlike those the model was compiled with, or what :meth:`compile` raises; the call is in
                the forward of a model that is being compiled.
        """
        offline = self.options.connection_type == ConnectionType.Never
        require(not offline, "a model of ConnectionType.Never, without a device, can be compiled, but not called")
        if recorder() is not None:
            raise Error(
                f"a PopTorch model of {self._weights.ties.name} is called in the forward of another one: call the "
                "module itself there (the model's attribute `model`)"
            )
        arguments = self._program.bound(args, kwargs)
        if self._program.presence is Presence.NOT_COMPILED or self._program.has_other_optionals(arguments):
            self._compile(arguments)
        if self._program.presence is Presence.DETACHED:
            self.attachToDevice()
        # A state that was loaded into the optimiser may tell parameters apart that share their numbers so far.
        if self._weights.separate_numbers():
            # A new compilation starts at the seed, but random numbers go on where they are.
            random = self._weights.random_state
            self._load(lambda: self._program.for_batch(arguments))
            self._weights.random_state = random
        compiled = self._program.require()
        tensors = self._program.tensors_of(compiled, arguments)
        inputs = self._data.sent(tensors)
        # Everything that may be refused has been looked at: from here on the IPUs change.
        self._weights.before_call()
        try:
            results = compiled.executable.run({} if self.options._Popart.synthetic_data else inputs)
        except FloatingPointException as error:
            raise Error(f"Floating point exception: {error}") from error
        self._weights.after_call()
        return self._data.received(tensors, results)

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile for arguments like these; ignored with a warning when the model has been compiled.

        Raises:
            AssertionError: see :meth:`__call__`.
            Error: what cannot be exported, partitioned, scheduled or placed, or does not fit (with strict memory).
        """
        if self._program.compiled is not None:
            logger.warning("Call to compile() ignored: the executable is already compiled")
            return
        self._compile(self._program.bound(args, kwargs))

    def _compile(self, arguments: Mapping[str, Any]) -> None:
        warn_of_gradients(arguments)
        self._load(lambda: self._program.for_batch(arguments))
        self._program.inputs = ExecutableInputs.of(arguments)

    def _load(self, compilation: Callable[[], CompiledModel]) -> None:
        """Compile, and load the program."""
        self._program.compile_as(compilation)
        self._weights.load_program()
        self._program.write_report()

    @property
    def _executable_inputs(self) -> ExecutableInputs | None:
        """What the model was compiled for, by upstream's name."""
        return self._program.inputs

    # -- device ------------------------------------------------------------------------------------------------------

    def isCompiled(self) -> bool:
        """Whether the model has been compiled."""
        return self._program.compiled is not None

    def isAttachedToDevice(self) -> bool:
        """Whether the model is on its simulated device."""
        return self._program.attached

    def attachToDevice(self) -> None:
        """Take the device again after :meth:`detachFromDevice`."""
        self._program.require_presence(Presence.DETACHED)
        self._program.presence = Presence.ATTACHED
        self._weights.attach()

    def detachFromDevice(self) -> None:
        """Give the device back; simulated devices have no other user."""
        compiled = self._program.require_presence(Presence.ATTACHED)
        # The IPUs can be read only while the model counts as attached.
        self._weights.detach()
        self._program.presence = Presence.DETACHED
        compiled.executable.unload()

    def destroy(self) -> None:
        """Forget the compiled program; the module has the newest weights and is a plain one again."""
        # Weights and state come back before the ties go; afterwards nobody fetches them.
        if self._program.attached:
            self.copyWeightsToHostIfNeeded()
            if self._task.optimizer is not None:
                self._weights.read_optimizer(self._task.optimizer.device_state)
        self._weights.ties.loosen()
        self._program.forget()

    def __getstate__(self) -> dict[str, Any]:
        """What ``copy`` and ``pickle`` take: module, options and optimiser, but neither the program (a copy compiles
        its own) nor the optimiser's state on the IPUs."""
        if self._program.compiled is not None:
            self.copyWeightsToHostIfNeeded()
        return {"task": replace(self._task)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._run_task(state["task"])
        self.options._freeze()
        _tied(self)

    # -- the module --------------------------------------------------------------------------------------------------

    @property
    def model(self) -> torch.nn.Module:
        """The module."""
        return self._task.module

    _user_model = model  # upstream's name, which pipelines of Optimum Graphcore look at

    @property
    def options(self) -> Options:
        """The (frozen) options."""
        return self._task.options

    _options = options  # upstream's private name, by which PyTorch Lightning 2.0's strategy reads them

    def _debugGetPopartIR(self) -> str:
        """The program's ops as JSON in PopART's layout (:mod:`.popart_ir`); its name is upstream's.
        ``Error``: not compiled."""
        return serialised(self._program.require())

    def getTensorNames(self) -> list[str]:
        """Names of parameters, buffers, activations and gradients, which ``Options.anchorTensor`` takes.
        ``AssertionError``: not compiled."""
        require(self._program.compiled is not None, "getTensorNames: the model has not been compiled")
        return list(names_of(self._program.require().exported, self._task.training))

    def train(self, mode: bool = True) -> PoplarExecutor:
        """As of the module; the compiled program is a training one or an inference one and stays so.

        A training model compiles its module, though not the submodules, in the mode that this, or else the module when
        it was wrapped, had: as upstream, which wraps a shallow copy.
        """
        self._task.mode = mode
        self.model.train(mode)
        return self

    def eval(self) -> PoplarExecutor:
        """See :meth:`train`."""
        return self.train(False)

    def __getattr__(self, name: str) -> Any:
        # copy and pickle look up private names before `_task` exists; forwarding those would never end.
        if name.startswith("_"):
            raise AttributeError(name)
        value = getattr(self.model, name)
        return with_grouping(value, name, self.per_replica_params) if isinstance(value, torch.nn.Parameter) else value

    def __repr__(self) -> str:
        return f"PoplarExecutor({self._task.kind}): {module_repr(self.model)}"

    # -- weights -----------------------------------------------------------------------------------------------------

    def copyWeightsToDevice(self) -> None:
        """Load parameters and buffers of the module, also where the IPUs have newer ones."""
        self._weights.to_device()

    def copyWeightsToHost(self) -> None:
        """Write parameters and buffers back to the module; of those that another training model has, too, the ones that
        this one trains."""
        self._weights.to_host()

    def copyWeightsToHostIfNeeded(self) -> bool:
        """Write the weights back if the IPUs have newer ones; whether they had."""
        return self._weights.ties.fetch()

    def copyNamedBuffersToDevice(self) -> None:
        """Load the buffers named by ``updatableNamedBuffers``. ``Error``: it names none."""
        self._weights.buffers_to_device()

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Take over the numbers (learning rate ...) of ``optimizer``; its kind has to stay.

        If the model is on the IPUs and any number differs from those it has, the host runs the program that brings
        them, which takes simulated time (poptorch: python/_poplar_executor.py, ``setOptimizer``).
        """
        self._weights.set_optimizer(optimizer)

    @property
    def rng_state(self) -> list[int]:
        """The state of everything random on the IPUs: setting it again replays what came after.

        Upstream gives the device's seed and generator states; here it is the seed and the count of micro-batches of
        each stage that draws random numbers.
        """
        return self._weights.random_state

    @rng_state.setter
    def rng_state(self, state: Sequence[int]) -> None:
        self._weights.random_state = list(state)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The module's ``state_dict``."""
        return self.model.state_dict(*args, **kwargs)

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True) -> Any:
        """Load into the module, and onto the IPUs if compiled."""
        keys = self.model.load_state_dict(state_dict, strict)
        if self._program.compiled is not None:
            self.copyWeightsToDevice()
        return keys

    # -- files -------------------------------------------------------------------------------------------------------

    def compileAndExport(self, filename: str, *args: Any, export_model: bool = True, **kwargs: Any) -> None:
        """Compile for arguments like these and write the program into a file, see :meth:`save`."""
        if self._program.compiled is None:
            self._compile(self._program.bound(args, kwargs))
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
        compiled = self._program.require()
        self.copyWeightsToHostIfNeeded()
        random = self.rng_state if save_rng_state else None
        description = executable_file.description_of(self._task, random) if export_model else None
        executable_file.write(filename, compiled.exported, self._task.training, description)

    def loadExecutable(self, filename: str) -> None:
        """Compile from a file that :meth:`save` or :meth:`compileAndExport` has written, without exporting the module.

        Raises:
            Error: already compiled; a program of the other kind (training, inference) or of another module; a file that
                is not ours, is damaged, or of another version.
        """
        if self._program.compiled is not None:
            raise Error(f"loadExecutable({filename!r}): the model is already compiled")
        stored = executable_file.read(filename)
        if stored.kind != self._task.kind:
            raise Error(f"{filename}: holds a program for {stored.kind}, this is a model for {self._task.kind}")
        _load_stored(self, stored)

    # -- what a call tells -------------------------------------------------------------------------------------------

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """What the last call made of the tensor that ``Options.anchorTensor`` calls so.

        Raises:
            Error: there is no such anchor, or no call yet.
        """
        return self._data.anchored(short_name)

    @property
    def compiled_model(self) -> CompiledModel | None:
        """What a call runs: the program, its pipeline and, as ``executable``, both on the machine; None before the
        compilation."""
        return self._program.compiled

    _executable = compiled_model  # the private name by which applications ask whether there is one

    @property
    def simulated_trace(self) -> Trace:
        """The trace of one call, without a run that brings new values (:meth:`setOptimizer`). ``Error`` before the
        compilation."""
        return self._program.require().executable.trace

    def cycleCount(self) -> int:
        """Cycles of the tile clock that one call takes on the IPUs, from the first step of any to the last of any; what
        the host does before and after (the fixed cost of a call, the handling of the last outputs) is left out.
        ``Error``: not compiled, or with ``logCycleCount`` not called yet, as upstream."""
        compiled = self._program.compiled
        logged = bool(self.options._Popart.options["instrumentWithHardwareCycleCounter"])
        if compiled is None and not logged:
            raise Error(
                "cycleCount: the model has not been compiled, and Cycle count logging is disabled "
                "(poptorch.Options().logCycleCount(True)); compile or call the model first"
            )
        if compiled is None or (logged and not compiled.executable.runs):
            raise Error("cycleCount: with logCycleCount(True), run the model at least once first")
        return cycles_on_ipus(compiled.executable)

    def compilationTime(self) -> timedelta:
        """Real time that the compilation took."""
        if self._program.compiled is None:
            raise Error("compilationTime: the model has not been compiled")
        return self._program.compiled.compilation_time

    def getPerfCounters(self) -> Counters:
        """Seconds since the start of the call, of each slice (and replica) of each tensor, by event: ``input`` (an
        input is asked for), ``input_complete`` (it has arrived), ``output`` (an output is ready), ``output_complete``
        (it has left)."""
        if self._program.compiled is None:
            return {event: [[]] for event in ("input", "input_complete", "output", "output_complete")}
        return latencies_of(self._program.compiled).counters()

    getHostIpuLatency = _latency(Latencies.host_to_ipu)
    getComputeLatency = _latency(Latencies.compute)
    getIpuHostLatency = _latency(Latencies.ipu_to_host)
    getLatency = _latency(Latencies.total)


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
    return _tied(PoplarExecutor(_module_of(model), options, training=True, optimizer=optimizer))


def inferenceModel(model: torch.nn.Module | PoplarExecutor, options: Options | None = None) -> PoplarExecutor:
    """``model`` as an inference program; the module of a training program shares its weights."""
    return PoplarExecutor(_module_of(model), options, training=False)


def _tied(executor: PoplarExecutor) -> PoplarExecutor:
    """A module that is trained fetches its weights from its executor by itself. ``Error``: another one trains it."""
    if executor._task.training:
        executor._weights.ties.tie()
    return executor


def _load_stored(executor: PoplarExecutor, stored: StoredProgram) -> None:
    stored.check(executor._task)
    executor.options._freeze()
    arguments = rebuild(stored.arguments, stored.leaves.__getitem__)
    executor._load(lambda: executor._program.for_micro_batch(arguments, traced=stored.traced))


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
    executor = _tied(PoplarExecutor(module, options, training=stored.training))
    # The executor begins with the default optimiser; the stored description then takes its place.
    executor._task.optimiser = optimiser_of(stored.model["optimiser"], module)
    executor.per_replica_params.update({name: tuple(setting) for name, setting in stored.model["grouped"].items()})
    _load_stored(executor, stored)
    if stored.model["random"] is not None:
        executor.rng_state = stored.model["random"]
    return executor
