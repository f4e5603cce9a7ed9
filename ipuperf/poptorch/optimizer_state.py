"""What an optimiser has on the IPUs, as ``state_dict()`` shows it: ``ipu_state`` and ``ipu_param``.

``ipu_state`` holds moments, velocities and steps as ``Accl1___layer.weight``, ``ipu_param`` the numbers that the host
may rewrite as ``learningRate___specific___layer.weight`` (names of PopART where it has one), and ``lossScaling_FLOAT``.
Parameters of one group share their numbers. SGD's numbers are PyTorch's, not the products of them that PopART keeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ipuperf.ir import Variable

from .errors import Error
from .log import logger

if TYPE_CHECKING:
    from .compilation import CompiledModel

Tensors = dict[str, torch.Tensor]

_WORDS = {
    "rate": "learningRate", "step_size": "stepSize", "weight_decay": "weightDecay", "epsilon": "eps",
    "undamped": "dampening", "trust": "trustCoefficient",
}  # fmt: skip
_SPECIFIC = "___specific___"
_LOSS_SCALING = "lossScaling_FLOAT"
_STATES = {
    "exp_avg": "Accl1", "exp_avg_sq": "Accl2", "step": "Step", "square_avg": "Accl1", "grad_avg": "Accl2",
}  # fmt: skip
"""PopART's names of states; a velocity is ``Accl3`` beside average squares, else ``Accl1``."""


@dataclass
class DeviceState:
    """The state of an optimiser between host and device.

    Attributes:
        states, numbers: as last read or loaded; None: never.
        pending: they were loaded and are not on the device.
        dirty: the device has newer ones.
    """

    states: Tensors | None = None
    numbers: Tensors | None = None
    pending: bool = False
    dirty: bool = False

    def read(self, compiled: CompiledModel) -> None:
        """Take over what the device has."""
        logger.debug("Writing optimiser state tensors from IPU to host.")
        variables = dict(_states(compiled))
        compiled.executable.evaluator.store_variables(list(variables.values()))
        self.states = {name: _tensor(variable.data) for name, variable in variables.items()}
        self.numbers = {
            name: _tensor(_turned(name, v.data)) for name, members in _numbers(compiled) for v in members[:1]
        }
        if compiled.rule is not None:
            self.numbers[_LOSS_SCALING] = torch.tensor(compiled.rule.spec.loss_scaling)
        self.pending = self.dirty = False

    def write(self, compiled: CompiledModel, *, numbers: bool = True) -> None:
        """Load what was loaded onto the device; what it lacks stays as it is there.

        Raises:
            Error: a shape that differs, or parameters of one group with different numbers.
        """
        logger.debug("Writing optimiser state tensors from host to IPU memory")
        changed: list[Variable] = []
        for name, variable in _states(compiled):
            if name in (self.states or {}):
                changed.append(_set(name, variable, self.states[name]))  # type: ignore[index]
        if numbers:
            changed += self._write_numbers(compiled)
        compiled.executable.evaluator.load_variables(changed)
        self.pending, self.dirty = False, True

    def _write_numbers(self, compiled: CompiledModel) -> list[Variable]:
        scaling = (self.numbers or {}).get(_LOSS_SCALING)
        known_scaling = None if compiled.rule is None else compiled.rule.spec.loss_scaling
        if scaling is not None and float(scaling) != float(np.float32(known_scaling)):
            raise Error(
                f"ipu_param: {_LOSS_SCALING} is {float(scaling)}, the model has {known_scaling}; give the optimiser "
                "this loss_scaling first"
            )
        changed: list[Variable] = []
        given: dict[Variable, tuple[str, float]] = {}
        for name, members in _numbers(compiled):
            if name not in (self.numbers or {}):
                continue
            value = self.numbers[name]  # type: ignore[index]
            for variable in members:
                first, known = given.setdefault(variable, (name, float(value)))
                if known != float(value):
                    raise Error(
                        f"ipu_param: {first} is {known} and {name} is {float(value)}; the parameters of a group have "
                        "the same numbers"
                    )
                changed.append(_set(name, variable, torch.as_tensor(_turned(name, np.asarray(value)))))
        return changed


def _states(compiled: CompiledModel) -> Iterator[tuple[str, Variable]]:
    names = {compiled.exported.variables[name]: name for name in compiled.exported.parameters}
    for (weight, kind), variable in compiled.pipeline.state.items():
        if weight in names:
            velocity = "Accl3" if (weight, "square_avg") in compiled.pipeline.state else "Accl1"
            yield f"{_STATES.get(kind, velocity if kind == 'momentum' else kind)}___{names[weight]}", variable


def _numbers(compiled: CompiledModel) -> Iterator[tuple[str, list[Variable]]]:
    """Each number of each parameter with the scalars (one on each IPU) that hold it."""
    rule, exported = compiled.rule, compiled.exported
    if rule is None:
        return
    by_name: dict[str, list[Variable]] = {}
    for (scalar, _), variable in compiled.pipeline.scalars.items():
        by_name.setdefault(scalar, []).append(variable)
    for name in exported.parameters:
        group = rule.group_of(exported.variables[name])
        for scalar, members in by_name.items():
            kind, _, number = scalar.rpartition(".")
            if group is not None and number == str(group):
                yield f"{_WORDS.get(kind, kind)}{_SPECIFIC}{name}", members


def _turned(name: str, value: Any) -> np.ndarray:
    """Between a number and what the program computes with: ``-rate``, ``1 - dampening``; both ways are the same."""
    word = name.partition(_SPECIFIC)[0]
    array = np.asarray(value)
    return {"learningRate": lambda: -array, "dampening": lambda: 1 - array}.get(word, lambda: array)()


def _tensor(array: Any) -> torch.Tensor:
    return torch.from_numpy(np.array(array))


def _set(name: str, variable: Variable, value: torch.Tensor) -> Variable:
    data = np.asarray(variable.data)
    if tuple(value.shape) != data.shape:
        raise Error(f"ipu_state: {name} has shape {tuple(value.shape)}, the model's has {data.shape}")
    variable.data = np.array(value.detach().numpy(), data.dtype)
    return variable


def states_of(loaded: Mapping[str, Any]) -> tuple[Tensors | None, Tensors | None]:
    """``ipu_state`` and ``ipu_param`` of a ``state_dict``. ``RuntimeError``: it is not one of an optimiser on IPUs."""
    if "ipu_state" not in loaded or "ipu_param" not in loaded:
        raise RuntimeError("Only IPU optimizer states can be loaded onto the IPU.")
    found = []
    for key in ("ipu_state", "ipu_param"):
        value = loaded[key]
        good = value is None or (
            isinstance(value, Mapping)
            and all(isinstance(k, str) and isinstance(v, torch.Tensor) for k, v in value.items())
        )
        if not good:
            raise RuntimeError(f"{key} of the state_dict is no dictionary of tensors by name")
        found.append(None if value is None else {name: tensor.clone() for name, tensor in value.items()})
    return found[0], found[1]
