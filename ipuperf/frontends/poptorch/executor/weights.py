"""Parameters, buffers, optimiser state and random numbers, between the module and the IPUs."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch.utils.weak import WeakTensorKeyDictionary

from ipuperf.ir import Variable

from ..aten.lowering import real_view
from ..enums import ConnectionType
from ..errors import Error
from ..log import logger
from ..optimisers.classes import OptimiserSpec
from ..optimisers.state import DeviceState, current_loss_scaling
from .compilation import CompiledModel
from .program import Program, Task
from .wrapping import Newest, Ties, fetch_weights

#: Name, tensor of the module and variable of the program of a parameter or buffer.
State = tuple[str, torch.Tensor, Variable]

#: Version of each parameter and buffer that a training model wrote last.
_TRAINED = WeakTensorKeyDictionary()


class Weights:
    """What lives across calls of a program: weights, the optimiser's state and numbers, random numbers.

    Args:
        ties: of the module to the executor; they know where the newest weights are.
    """

    def __init__(self, task: Task, program: Program, ties: Ties) -> None:
        self.ties = ties
        self._task = task
        self._program = program
        self._versions: dict[str, int] = {}
        self._warned = False
        #: Whether the optimiser got numbers before the compilation: they count, not those of a loaded state.
        self._numbers_set = False

    def __del__(self) -> None:
        """Weights that go leave their values with the module, which is a plain one again."""
        # __init__ may have failed early, and at the interpreter's end modules may be gone.
        if not hasattr(self, "_program") or sys.is_finalizing():
            return
        if self.ties.newest is Newest.ON_IPUS and self._program.compiled is not None:
            self.to_host()
        self.ties.loosen()

    # -- weights -----------------------------------------------------------------------------------------------------

    def _states(self) -> Iterator[State]:
        """Every parameter and buffer of the program, each once."""
        compiled = self._program.require()
        module = self._task.module
        tensors: dict[str, torch.Tensor] = dict(module.named_parameters(remove_duplicate=False))
        tensors.update(module.named_buffers(remove_duplicate=False))
        # Tied parameters have several names and one variable.
        done: set[Variable] = set()
        for name, variable in compiled.exported.variables.items():
            if variable not in done:
                done.add(variable)
                yield name, tensors[name], variable

    def to_device(self) -> None:
        """Load all weights of the module."""
        compiled = self._program.require()
        # This comes first: reading the module's tensors would otherwise fetch the IPUs' weights over them.
        self.ties.newest = Newest.ON_HOST
        self._load(list(self._states()))
        compiled.copied_weights("h2d")
        self.ties.note_loaded()

    def buffers_to_device(self) -> None:
        """Load the buffers of ``updatableNamedBuffers``. ``Error``: it names none."""
        compiled = self._program.require()
        names = set(self._task.options.updatable_named_buffers)
        if not names:
            raise Error("copyNamedBuffersToDevice: Options.updatableNamedBuffers names no buffers")
        states = [state for state in self._states() if state[0] in names]
        self._load(states)
        compiled.copied_weights("h2d", [variable for _, _, variable in states])

    def to_host(self) -> None:
        """Write all weights back to the module; simulated time passes."""
        self.write_back()
        self._program.require().copied_weights("d2h")

    def write_back(self) -> None:
        """Write weights back to the module: of those that another training model shares, the ones trained here."""
        compiled = self._program.require()
        # This comes first: touching the tensors below would otherwise fetch the weights once more.
        self.ties.newest = Newest.ON_HOST
        # What another executor trains has newer values there; here it has only been read.
        trained = set() if compiled.rule is None else compiled.rule.trained
        states = [state for state in self._states() if state[2] in trained or not self.ties.others(state[1])]
        compiled.executable.evaluator.store_variables([variable for _, _, variable in states])
        with torch.no_grad():
            for name, tensor, variable in states:
                shown = real_view(tensor)
                shown.copy_(torch.from_numpy(np.asarray(variable.data, order="C")).reshape(shown.shape))
                # PyTorch counts changes in place: a later one of the user's gives another version.
                self._versions[name] = tensor._version
                if self._task.training:
                    _TRAINED[tensor] = tensor._version

    def _load(self, states: Sequence[State]) -> None:
        for name, tensor, variable in states:
            # same_kind lets 64-bit numbers of the host become the 32-bit ones of the IPU.
            numbers = real_view(tensor.detach()).cpu().numpy()
            np.copyto(variable.data, numbers.reshape(variable.data.shape), casting="same_kind")
            self._versions[name] = tensor._version
        self._program.require().executable.evaluator.load_variables([variable for _, _, variable in states])

    # -- calls -------------------------------------------------------------------------------------------------------

    def before_call(self) -> None:
        """Bring what the next call needs to the IPUs."""
        if self.ties.behind():
            self._warn(
                "another training model has changed parameters that this one has, too, and the IPUs hold the old "
                "values; copyWeightsToDevice() loads all weights"
            )
        optimizer = self._task.optimizer
        if not self._task.training:
            self._load_trained()
        elif optimizer is not None and optimizer.device_state.pending:
            self.to_host()
            optimizer.device_state.write(self._program.require())

    def after_call(self) -> None:
        """Note that the IPUs have changed weights and the optimiser's state."""
        if self._task.optimizer is not None:
            self._task.optimizer.device_state.dirty = True
        changed = self._task.training and not self._task.options._Popart.synthetic_data
        self.ties.note_call(Newest.ON_IPUS if changed else Newest.ON_HOST)
        if changed and not self.ties.tied:
            self.write_back()  # an untied module does not fetch its weights

    def _load_trained(self) -> None:
        """Before inference: load all weights when a training model has written some since the last load.

        What the program itself has changed stays on the host until it is copied (upstream's rule); a warning says so.
        """
        fetch_weights(self._task.module)
        states = list(self._states())
        if any(_TRAINED.get(tensor, -1) > self._versions[name] for name, tensor, _ in states):
            self.to_device()
            return
        changed = [name for name, tensor, _ in states if tensor._version != self._versions[name]]
        if changed:
            self._warn(
                "%s changed on the host and the IPUs hold the old values; copyWeightsToDevice() loads all weights, "
                "copyNamedBuffersToDevice() the buffers of Options.updatableNamedBuffers",
                ", ".join(changed),
            )

    def _warn(self, message: str, *arguments: str) -> None:
        """Warn, once for each executor."""
        if not self._warned:
            self._warned = True
            logger.warning(message, *arguments)

    # -- device ------------------------------------------------------------------------------------------------------

    def load_program(self) -> None:
        """Load everything into a program that has just been compiled."""
        self._program.require().executable.evaluator.load_variables()  # optimiser state, scalars, seeds
        self.to_device()
        self.adopt_optimizer(numbers=not self._numbers_set)
        self._numbers_set = False

    def attach(self) -> None:
        """Load everything into a program that is back on the device."""
        compiled = self._program.require()
        compiled.executable.evaluator.load_variables()
        self.to_device()
        if self._task.optimizer is not None:
            self._task.optimizer.device_state.give(compiled)

    def detach(self) -> None:
        """Bring everything to the host."""
        compiled, optimizer = self._program.require(), self._task.optimizer
        self.ties.fetch()
        # A pending state is newer than what the IPUs hold.
        if optimizer is not None and not optimizer.device_state.pending:
            optimizer.device_state.read(compiled)
        pipeline = compiled.pipeline
        compiled.executable.evaluator.store_variables(
            [*pipeline.state.values(), *pipeline.seeds, *pipeline.scalars.values()]
        )

    # -- optimiser ---------------------------------------------------------------------------------------------------

    def set_optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Take over the numbers of ``optimizer``; its kind has to stay."""
        task, compiled = self._task, self._program.compiled
        if not task.training:
            raise Error("setOptimizer: an inference model has no optimiser")
        new = replace(task)
        new.take(optimizer)
        assert new.optimiser is not None
        differs = new.optimiser.differs(task.optimiser)
        if compiled is None:
            self._numbers_set = self._numbers_set or differs
        else:
            self._load_numbers(compiled, new.optimiser)
            if self._program.attached and differs and not task.options._Popart.synthetic_data:
                compiled.executable.bring_values()
        task.optimiser, task.optimizer = new.optimiser, new.optimizer
        if task.optimizer is not None:
            task.optimizer.device_state.forget()
        self.adopt_optimizer(numbers=False)

    def _load_numbers(self, compiled: CompiledModel, spec: OptimiserSpec) -> None:
        assert compiled.rule is not None
        values = {**compiled.rule.scalars_of(spec), **compiled.pipeline.scaled(self._loss_scaling(compiled, spec))}
        for (name, _), variable in compiled.pipeline.scalars.items():
            variable.data[...] = values[name]
        compiled.executable.evaluator.load_variables(list(compiled.pipeline.scalars.values()))

    def _loss_scaling(self, compiled: CompiledModel, spec: OptimiserSpec) -> float:
        """The loss scaling with another description: an automatic one stays as far from the optimiser's as it is."""
        if self._task.options._Popart.automatic_loss_scale is None:
            return spec.loss_scaling
        assert self._task.optimiser is not None
        return current_loss_scaling(compiled) * spec.loss_scaling / self._task.optimiser.loss_scaling

    def adopt_optimizer(self, *, numbers: bool) -> None:
        """Let the optimiser's ``state_dict`` show what is on the IPUs; load onto them what it was given before."""
        optimizer, compiled = self._task.optimizer, self._program.compiled
        offline = self._task.options.connection_type == ConnectionType.Never
        if optimizer is None or compiled is None or offline:
            return
        optimizer.read_from(self)
        optimizer.device_state.give(compiled, numbers=numbers)
        optimizer.device_state.dirty = True

    def read_optimizer(self, state: DeviceState) -> None:
        """Take over the optimiser's state from the IPUs if theirs is newer."""
        compiled = self._program.compiled
        if compiled is None or not self._program.attached:
            return
        if state.pending or (state.states is not None and not state.dirty):
            logger.debug("The optimiser's state on the host is the newest one")
        else:
            state.read(compiled)

    def separate_numbers(self) -> bool:
        """Ask for numbers of each parameter where those that were loaded into the optimiser differ within a group;
        whether they do. The program then has to be compiled anew."""
        compiled, optimizer = self._program.require(), self._task.optimizer
        if optimizer is None or not optimizer.device_state.pending:
            return False
        if not optimizer.device_state.differs_within(compiled):
            return False
        assert self._task.optimiser is not None
        self.to_host()
        optimizer.device_state.complete(compiled)
        self._task.optimiser = replace(self._task.optimiser, apart=True)
        return True

    # -- random numbers ----------------------------------------------------------------------------------------------

    @property
    def random_state(self) -> list[int]:
        """The seed, and the count of micro-batches of each stage that draws random numbers."""
        compiled = self._program.require()
        compiled.executable.evaluator.store_variables(list(compiled.pipeline.seeds))
        return [int(n) for variable in compiled.pipeline.seeds for n in np.asarray(variable.data).reshape(-1)]

    @random_state.setter
    def random_state(self, state: Sequence[int]) -> None:
        compiled = self._program.require()
        seeds = compiled.pipeline.seeds
        count = sum(np.asarray(variable.data).size for variable in seeds)
        if len(state) != count:
            raise Error(f"rng_state: {len(state)} numbers given, this model has {count}")
        numbers = iter(state)
        for variable in seeds:
            data = np.asarray(variable.data)
            data[...] = np.array([next(numbers) for _ in range(data.size)], data.dtype).reshape(data.shape)
        compiled.executable.evaluator.load_variables(list(seeds))
