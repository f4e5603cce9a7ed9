"""What an optimiser has on the IPUs, as ``state_dict()`` shows it: ``ipu_state`` and ``ipu_param``.

``ipu_state`` holds moments, velocities and steps as ``Accl1___layer.weight``, ``ipu_param`` the numbers that the host
may rewrite as ``learningRate___specific___layer.weight`` (names of PopART where it has one), and ``lossScaling_FLOAT``.
Parameters of one group share their numbers until others are loaded for one of them: the program is then compiled anew,
with numbers for each (:attr:`~.optim.OptimiserSpec.apart`).

An optimiser's numbers as ``ipu_param`` shows them: PopART's words for what the program's scalars hold.

For all but SGD they are the numbers themselves. PopART keeps for SGD products of them: with ``ls`` the loss scaling,
``vs`` the velocity scaling, ``n`` what sums of gradients are divided by, ``dm`` the dampening and ``wd`` the decay

- without momentum: ``scaledLearningRate0 = lr / ls``, ``weightDecayScaleFactor0 = 1 - lr wd``;
- with momentum: ``scaledLearningRate = lr / vs``, ``scaledWeightDecay1 = (1 - dm) vs wd``,
  ``dampeningScaleFactor = (1 - dm) vs / (ls n)``, ``scaledMomentum = momentum / r``; the names end in 1 where the
  velocity is the accumulator too (then ``r`` replicas share it) and in 2 (``r`` is 1) where it is not.

Source: popart: willow/include/popart/sgd.hpp, willow/src/compoundscalarhelper.cpp.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from ipuperf.ir import Variable
from ipuperf.pipelines import LOSS_SCALE

from ..errors import Error
from ..log import logger

if TYPE_CHECKING:
    from ..executor.compilation import CompiledModel

Numbers = Mapping[str, float]

_WORDS = {"rate": "learningRate", "step_size": "stepSize", "weight_decay": "weightDecay", "epsilon": "eps"}
_WORDS |= {"undamped": "dampening", "trust": "trustCoefficient"}


class Wording(Protocol):
    """Between the scalars of a parameter and what is shown of them."""

    def shown(self, scalars: Numbers) -> dict[str, float]:
        """Words and values of these scalars."""
        ...

    def scalars(self, shown: Numbers, known: Numbers) -> dict[str, float]:
        """The scalars with these words and values. ``Error``: there are none."""
        ...


class Plain:
    """Each scalar is one number; of a rate its negative is kept, and ``1 - dampening``."""

    @staticmethod
    def _turned(kind: str, value: float) -> float:
        return {"rate": -value, "undamped": 1 - value}.get(kind, value)

    def shown(self, scalars: Numbers) -> dict[str, float]:
        """See :class:`Wording`."""
        return {_WORDS.get(kind, kind): self._turned(kind, value) for kind, value in scalars.items()}

    def scalars(self, shown: Numbers, known: Numbers) -> dict[str, float]:
        """See :class:`Wording`."""
        return {kind: self._turned(kind, shown[_WORDS.get(kind, kind)]) for kind in known}


@dataclass(frozen=True)
class SgdProducts:
    """PopART's products of SGD's numbers.

    Attributes:
        loss_scaling, velocity_scaling: as of the optimiser.
        divisor: what the sum of a weight update's gradients is divided by.
        sharing: replicas that share a velocity which is the accumulator too; 0: velocities are apart.
    """

    loss_scaling: float
    velocity_scaling: float
    divisor: float
    sharing: int

    def shown(self, scalars: Numbers) -> dict[str, float]:
        """See :class:`Wording`."""
        lr, decay = -scalars["rate"], scalars.get("weight_decay", 0.0)
        if "momentum" not in scalars:
            products = {"scaledLearningRate0": lr / self.loss_scaling}
            return {**products, "weightDecayScaleFactor0": 1 - lr * decay} if "weight_decay" in scalars else products
        undamped, vs = scalars["undamped"], self.velocity_scaling
        products = {
            f"scaledLearningRate{self._number}": lr / vs,
            f"dampeningScaleFactor{self._number}": undamped * vs / (self.loss_scaling * self.divisor),
            f"scaledMomentum{self._number}": scalars["momentum"] / (self.sharing or 1),
        }
        return {**products, "scaledWeightDecay1": undamped * vs * decay} if "weight_decay" in scalars else products

    @property
    def _number(self) -> int:
        return 1 if self.sharing else 2

    def scalars(self, shown: Numbers, known: Numbers) -> dict[str, float]:
        """See :class:`Wording`."""
        if "momentum" not in known:
            lr = shown["scaledLearningRate0"] * self.loss_scaling
            numbers = {"rate": -lr}
            if "weight_decay" in known:
                numbers["weight_decay"] = _quotient(1 - shown["weightDecayScaleFactor0"], lr, "weightDecayScaleFactor0")
            return numbers
        vs = self.velocity_scaling
        undamped = shown[f"dampeningScaleFactor{self._number}"] * self.loss_scaling * self.divisor / vs
        numbers = {
            "rate": -shown[f"scaledLearningRate{self._number}"] * vs,
            "undamped": undamped,
            "momentum": shown[f"scaledMomentum{self._number}"] * (self.sharing or 1),
        }
        if "weight_decay" in known:
            numbers["weight_decay"] = _quotient(shown["scaledWeightDecay1"] / vs, undamped, "scaledWeightDecay1")
        return numbers


def _quotient(value: float, by: float, word: str) -> float:
    if by == 0 and value != 0:
        raise Error(f"ipu_param: {word} says that weights decay, but its other factor is 0")
    return value / by if value else 0.0


Tensors = dict[str, torch.Tensor]

_SPECIFIC = "___specific___"
_LOSS_SCALING = "lossScaling_FLOAT"
#: PopART's names of states; a velocity is ``Accl3`` beside average squares, else ``Accl1``.
_STATES = {"exp_avg": "Accl1", "exp_avg_sq": "Accl2", "step": "Step", "square_avg": "Accl1", "grad_avg": "Accl2"}


@dataclass
class DeviceState:
    """The state of an optimiser between host and device.

    Attributes:
        states, numbers: as last read or loaded; None: never.
        pending: they were loaded and are not on the device.
        dirty: the device has newer ones.
        exact: numbers that were loaded, exactly as they were; :meth:`forget` them when the device gets others.
    """

    states: Tensors | None = None
    numbers: Tensors | None = None
    pending: bool = False
    dirty: bool = False
    exact: Tensors = field(default_factory=dict)

    def forget(self) -> None:
        """The device has other numbers than those that were loaded."""
        self.exact = {}

    def read(self, compiled: CompiledModel) -> None:
        """Take over what the device has."""
        logger.debug("The optimiser's state comes from the IPUs")
        variables = dict(_states(compiled))
        compiled.executable.evaluator.store_variables(list(variables.values()))
        compiled.copied_weights("d2h")
        self.states = {name: torch.from_numpy(np.array(variable.data)) for name, variable in variables.items()}
        scaling = current_loss_scaling(compiled)
        # Loaded numbers are shown as they were given: the way through products and back would round them.
        self.numbers = {**_shown_numbers(compiled), **self.exact}
        if compiled.rule is not None:
            self.numbers[_LOSS_SCALING] = torch.tensor(scaling)
        self.pending = self.dirty = False

    def give(self, compiled: CompiledModel, *, numbers: bool = True) -> None:
        """:meth:`write` what waits, unless its numbers need another program (:meth:`differs_within`)."""
        if self.pending and not (numbers and self.differs_within(compiled)):
            self.write(compiled, numbers=numbers)

    def write(self, compiled: CompiledModel, *, numbers: bool = True) -> None:
        """Load what was loaded onto the device; what it lacks stays as it is there.

        Raises:
            Error: a shape that differs.
        """
        logger.debug("The optimiser's state goes to the IPUs")
        states = self.states or {}
        changed = [_set(name, variable, states[name]) for name, variable in _states(compiled) if name in states]
        # Numbers that a program set later count, not those of the state.
        if numbers:
            changed += self._write_numbers(compiled)
        compiled.executable.evaluator.load_variables(changed)
        compiled.copied_weights("h2d")
        self.pending, self.dirty = False, True

    def differs_within(self, compiled: CompiledModel) -> bool:
        """Whether the numbers that were loaded differ among parameters that share theirs on the device."""
        first_values: dict[tuple[str, str], float] = {}
        for name, shared, scalars in _scalars(compiled):
            for word in _words(compiled, name).shown(_values(scalars)):
                value = (self.numbers or {}).get(f"{word}{_SPECIFIC}{name}")
                if value is not None and first_values.setdefault((shared, word), float(value)) != float(value):
                    return True
        return False

    def complete(self, compiled: CompiledModel) -> None:
        """Take over from the device what was not loaded."""
        device = DeviceState()
        device.read(compiled)
        self.states = {**(device.states or {}), **(self.states or {})}
        self.numbers = {**(device.numbers or {}), **(self.numbers or {})}

    def _write_numbers(self, compiled: CompiledModel) -> list[Variable]:
        loaded = self.numbers or {}
        changed = _set_loss_scaling(compiled, loaded.get(_LOSS_SCALING))
        for name, _, scalars in _scalars(compiled):
            words, known = _words(compiled, name), _values(scalars)
            shown = words.shown(known)
            changes = {word: float(loaded[key]) for word in shown if (key := f"{word}{_SPECIFIC}{name}") in loaded}
            # The device holds float32, so a difference below that is none.
            if all(np.float32(shown[word]) == np.float32(value) for word, value in changes.items()):
                continue
            for kind, value in words.scalars({**shown, **changes}, known).items():
                for variable in scalars[kind]:
                    np.asarray(variable.data)[...] = value
                    changed.append(variable)
        self.exact = {key: value for key, value in loaded.items() if key in _shown_numbers(compiled)}
        return changed


def _states(compiled: CompiledModel) -> Iterator[tuple[str, Variable]]:
    names = {compiled.exported.variables[name]: name for name in compiled.exported.parameters}
    for (weight, kind), variable in compiled.pipeline.state.items():
        if weight in names:
            velocity = "Accl3" if (weight, "square_avg") in compiled.pipeline.state else "Accl1"
            yield f"{_STATES.get(kind, velocity if kind == 'momentum' else kind)}___{names[weight]}", variable


def _scalars(compiled: CompiledModel) -> Iterator[tuple[str, str, dict[str, list[Variable]]]]:
    """Each parameter with the scalars (of each kind one on each IPU) that hold its numbers, and what their names end
    in, which is the same for parameters that share them."""
    rule, exported = compiled.rule, compiled.exported
    if rule is None:
        return
    by_end: dict[str, dict[str, list[Variable]]] = {}
    for (scalar, _), variable in compiled.pipeline.scalars.items():
        kind, _, end = scalar.rpartition(".")
        by_end.setdefault(end, {}).setdefault(kind, []).append(variable)
    for name in exported.parameters:
        ending = rule.end_of(exported.variables[name])
        if ending is not None:
            yield name, ending, by_end.get(ending, {})


def _values(scalars: Mapping[str, list[Variable]]) -> dict[str, float]:
    return {kind: float(np.asarray(members[0].data)) for kind, members in scalars.items()}


def _words(compiled: CompiledModel, name: str) -> Wording:
    """How the numbers of a parameter are shown."""
    rule, variable = compiled.rule, compiled.exported.variables[name]
    assert rule is not None
    if rule.spec.kind != "sgd":
        return Plain()
    apart = rule.combined(variable) is None or (variable, "momentum") not in compiled.pipeline.state
    sharing = 0 if apart else variable.grouping.group_size
    scaling = float(rule.options(variable).get("velocity_scaling", 1.0))
    return SgdProducts(_loss_scaling(compiled), scaling, rule.divisor, sharing)


def _shown_numbers(compiled: CompiledModel) -> Tensors:
    numbers = {
        f"{word}{_SPECIFIC}{name}": torch.tensor(value, dtype=torch.float32)
        for name, _, scalars in _scalars(compiled)
        for word, value in _words(compiled, name).shown(_values(scalars)).items()
    }
    return numbers if compiled.rule is None else {**numbers, _LOSS_SCALING: torch.tensor(_loss_scaling(compiled))}


def _loss_scaling(compiled: CompiledModel) -> float:
    """What the program multiplies the loss with."""
    scales = [v for (scalar, _), v in compiled.pipeline.scalars.items() if scalar == LOSS_SCALE]
    assert compiled.rule is not None
    return float(np.asarray(scales[0].data)) if scales else float(compiled.rule.spec.loss_scaling)


def current_loss_scaling(compiled: CompiledModel) -> float:
    """What the program on the device multiplies the loss with."""
    compiled.executable.evaluator.store_variables(
        [v for (scalar, _), v in compiled.pipeline.scalars.items() if scalar == LOSS_SCALE]
    )
    return _loss_scaling(compiled)


def _set_loss_scaling(compiled: CompiledModel, value: torch.Tensor | None) -> list[Variable]:
    """Rewrite the loss scaling where it is no part of the program. ``Error``: it is, and another one is wanted."""
    if value is None or compiled.rule is None or float(value) == float(np.float32(_loss_scaling(compiled))):
        return []
    scales = compiled.pipeline.scaled(float(value))
    if not scales:
        raise Error(
            f"ipu_param: {_LOSS_SCALING} is {float(value)}, the model has {_loss_scaling(compiled)}; give the "
            "optimiser this loss_scaling first"
        )
    changed = []
    for (scalar, _), variable in compiled.pipeline.scalars.items():
        if scalar in scales:
            np.asarray(variable.data)[...] = scales[scalar]
            changed.append(variable)
    return changed


def _set(name: str, variable: Variable, value: torch.Tensor) -> Variable:
    data = np.asarray(variable.data)
    if tuple(value.shape) != data.shape:
        raise Error(f"ipu_state: {name} has shape {tuple(value.shape)}, the model's has {data.shape}")
    variable.data = np.array(value.detach().numpy(), data.dtype)
    return variable


def states_of(loaded: Mapping[str, Any]) -> tuple[Tensors | None, Tensors | None]:
    """``ipu_state`` and ``ipu_param`` of a ``state_dict``. ``RuntimeError``: it is not one of an optimiser on IPUs."""
    if "ipu_state" not in loaded or "ipu_param" not in loaded:
        raise RuntimeError("this state_dict has no ipu_state and ipu_param: it is of an optimiser that ran on the host")
    parts = []
    for key in ("ipu_state", "ipu_param"):
        value = loaded[key]
        good = value is None or (
            isinstance(value, Mapping)
            and all(isinstance(k, str) and isinstance(v, torch.Tensor) for k, v in value.items())
        )
        if not good:
            raise RuntimeError(f"{key} of the state_dict is no dictionary of tensors by name")
        parts.append(None if value is None else {name: tensor.clone() for name, tensor in value.items()})
    return parts[0], parts[1]
