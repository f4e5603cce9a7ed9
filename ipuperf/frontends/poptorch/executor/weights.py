"""Parameters, buffers, optimiser state and random numbers, between the module and the IPUs."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.weak import WeakTensorKeyDictionary

from ipuperf.ir import Variable

from ..enums import ConnectionType
from ..errors import Error
from ..log import logger
from ..optimisers import classes as optim
from ..optimisers.classes import OptimiserSpec, optimiser_description
from ..optimisers.state import DeviceState, current_loss_scaling
from .state import ExecutorState
from .wrapping import fetch_weights

#: Version of each parameter and buffer that a training model wrote last.
_TRAINED = WeakTensorKeyDictionary()


class HeldWeights(ExecutorState):
    """What lives across calls."""

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
        self._require().copied_weights("h2d")
        self._ties.note_loaded()

    def copyWeightsToHost(self) -> None:
        """Write parameters and buffers back to the module; of those that another training model has, too, the ones that
        this one trains."""
        self._store()
        self._require().copied_weights("d2h")

    def _store(self) -> None:
        self._ties.dirty = False
        rule = self._require().rule
        trained = set() if rule is None else rule.trained
        states = [state for state in self._states() if state[2] in trained or not self._ties.others(state[1])]
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
        """Load the buffers named by ``updatableNamedBuffers``. ``Error``: it names none."""
        self._require()
        wanted = set(self._options.updatable_named_buffers)
        if not wanted:
            raise Error("copyNamedBuffersToDevice: Options.updatableNamedBuffers names no buffers")
        states = [state for state in self._states() if state[0] in wanted]
        self._load(states)
        self._require().copied_weights("h2d", [variable for _, _, variable in states])

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

    def _warn_of_others(self) -> None:
        """Before training: say once that another model has trained parameters that both have, as upstream then goes on
        with those of before."""
        if self._ties.behind() and not self._warned:
            self._warned = True
            logger.warning(
                "another training model has changed parameters that this one has, too, and the IPUs hold the old "
                "values; copyWeightsToDevice() loads all weights"
            )

    def setOptimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Take over the numbers (learning rate ...) of ``optimizer``; its kind has to stay.

        If the model is on the IPUs and any number differs from those it has, the host runs the program that brings
        them, which takes simulated time (poptorch: python/_poplar_executor.py, ``setOptimizer``).
        """
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
            if self._attached and not self._options._Popart.synthetic_data and spec.differs(self._optimiser):
                self._compiled.executable.bring_values()
        elif spec.differs(self._optimiser):
            self._renumbered = True  # they count, not those of a state that the optimiser was given before
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
        held.give(self._compiled, numbers=numbers)
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
