"""PopTorch's optimisers as update rules of the pipeline builder: parameter groups and their numbers by PyTorch's names.

What an update computes is in :mod:`ipuperf.functions.updates`. Learning rate, momentum, weight decay and the other
numbers are scalars on each IPU that the host may rewrite between runs; betas and epsilon of the Adam family are among
them. A number that is 0 when the model is compiled leaves no op.

SGD's combined variant (``use_combined_accum``) needs momentum, gradient accumulation and both tensors on chip, and is
done as the separate one otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ipuperf.functions.updates import Adam, CombinedSgd, Lamb, Lars, RmsProp, Sgd, Step, Update, repeated
from ipuperf.ir import FLOAT32, ReplicaGrouping, Tensor, Variable

from ..errors import CompiledInError, Error
from .classes import OptimiserSpec

Values = Mapping[str, Any]

#: The update of a parameter group with these numbers, by the optimiser's kind.
UPDATES: Mapping[str, Callable[[OptimiserSpec, Values], Update]] = {
    "sgd": lambda spec, v: Sgd(bool(v["weight_decay"]), _has_momentum(spec, v), bool(v["nesterov"]), damped=True),
    "adam": lambda spec, v: Adam(bool(v["weight_decay"]), False, spec.bias_correction),
    "adamw": lambda spec, v: Adam(bool(v["weight_decay"]), True, spec.bias_correction),
    "lamb": lambda spec, v: Lamb(bool(v["weight_decay"]), True, spec.bias_correction, v.get("max_weight_norm")),
    "lars": lambda spec, v: Lars(bool(v["weight_decay"]), bool(v["trust_coefficient"]), bool(v["eps"])),
    "rmsprop": lambda spec, v: RmsProp(
        bool(v["weight_decay"]), bool(v["momentum"]), bool(v["centered"]), bool(v.get("use_tf_variant"))
    ),
}

#: What a description says once for all groups; none of it is a scalar that the host can rewrite.
_COMPILED_IN = ("bias_correction", "accum_dtype", "first_order_dtype", "second_order_dtype",
                "use_combined_accum", "max_grad_norm", "use_tf_variant")  # fmt: skip
#: Numbers of a parameter group that are compiled in.
_FIXED_NUMBERS = ("max_weight_norm", "centered", "nesterov", "velocity_scaling")


class TorchRule:
    """An :class:`~ipuperf.pipelines.UpdateRule` made from a description of a PyTorch optimiser.

    Args:
        spec: the description; each parameter group has its own scalars (``lr.0``, ``lr.1`` ...), or each parameter
            (``lr.0/0``, ``lr.0/1`` ...).
        group_of: number of the parameter group of each variable.
        divisor: what the sum of a weight update's gradients is divided by.
        automatic: whether the program changes the loss scale itself, which is then none of what is compiled in.
    """

    def __init__(
        self, spec: OptimiserSpec, group_of: Mapping[Variable, int], divisor: float = 1.0, *, automatic: bool = False
    ) -> None:
        self.spec = spec
        self.automatic = automatic
        self.divisor = divisor
        self._group_of = group_of
        self._updates = [UPDATES[spec.kind](spec, group.values) for group in spec.groups]
        numbered = enumerate(group_of.items())
        self._ends = {v: f"{group}/{i}" if spec.apart else str(group) for i, (v, group) in numbered}

    @property
    def trained(self) -> set[Variable]:
        """The variables that are updated."""
        return set(self._group_of)

    # -- what the builder asks ---------------------------------------------------------------------------------------

    def state(self, variable: Variable) -> Mapping[str, np.ndarray]:
        """Velocities, moments, averages and steps."""
        spec, update = self.spec, self._updates[self._group_of[variable]]
        return update.state(variable.shape, spec.first_order_dtype or FLOAT32, spec.second_order_dtype or FLOAT32)

    def scalars(self) -> Mapping[str, float]:
        """Every number that the ops of a parameter group read."""
        return {
            f"{name}.{end}": value
            for index, (group, update) in enumerate(zip(self.spec.groups, self._updates, strict=True))
            for end in self._ends_in(index)
            for name, value in _numbers(group.values).items()
            if name in update.numbers
        }

    def _ends_in(self, group: int) -> list[str]:
        """What the names of a group's scalars end in: the group's number, or one for each of its parameters."""
        if not self.spec.apart:
            return [str(group)]
        return [end for variable, end in self._ends.items() if self._group_of[variable] == group]

    def build(
        self,
        parameter: Variable,
        weight: Tensor,
        gradient: Tensor,
        state: Mapping[str, Tensor],
        scalars: Mapping[str, Tensor],
        shards: ReplicaGrouping | None,
    ) -> None:
        """One step."""
        numbers = self._numbers_of(parameter, scalars)
        step = Step(weight, gradient, state, numbers, shards)
        self._updates[self._group_of[parameter]].build(step)

    def _numbers_of(self, parameter: Variable, scalars: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The scalars of the parameter (or its group) by their names there."""
        # The dot keeps the end of group 1 from matching group 11.
        end = f".{self._ends[parameter]}"
        return {name.removesuffix(end): t for name, t in scalars.items() if name.endswith(end)}

    def combined(self, variable: Variable) -> tuple[str, np.ndarray, float] | None:
        """The velocity of SGD's combined variant, see :class:`~ipuperf.pipelines.CombinedRule`."""
        options = self.options(variable)
        if not (self.spec.use_combined_accum and _has_momentum(self.spec, options)):
            return None
        return "momentum", repeated(0, variable.shape, variable.dtype), _velocity_scaling(options)

    def build_combined(
        self, parameter: Variable, weight: Tensor, accumulated: Tensor, scalars: Mapping[str, Tensor], replicas: int
    ) -> None:
        """One step of SGD's combined variant."""
        options = self.options(parameter)
        update = CombinedSgd(bool(options["weight_decay"]), _velocity_scaling(options), replicas)
        update.build(weight, accumulated, self._numbers_of(parameter, scalars))

    def end_of(self, variable: Variable) -> str | None:
        """What the names of the variable's scalars end in, None for one that is not trained."""
        return self._ends.get(variable)

    def has_momentum(self, variable: Variable) -> bool:
        """Whether SGD has a velocity of the variable."""
        return _has_momentum(self.spec, self.options(variable))

    def options(self, variable: Variable) -> Values:
        """Numbers of the variable's parameter group."""
        return self.spec.groups[self._group_of[variable]].values

    def scalars_of(self, spec: OptimiserSpec) -> dict[str, float]:
        """The scalars with the numbers of another description of the same optimiser.

        Raises:
            Error: another kind of optimiser, other parameter groups, or a number that is compiled in and differs.
        """
        mine = self.spec
        if (spec.kind, len(spec.groups)) != (mine.kind, len(mine.groups)):
            raise Error(
                f"setOptimizer: the model was compiled for {mine.kind} with {len(mine.groups)} parameter group(s), "
                f"{spec.kind} with {len(spec.groups)} given; make a new model"
            )
        for name in _COMPILED_IN:
            _same(name, getattr(mine, name), getattr(spec, name))
        if not (mine.variable_loss_scaling or self.automatic):
            _same("loss_scaling", mine.loss_scaling, spec.loss_scaling)
        scalars: dict[str, float] = {}
        for number, (old, new) in enumerate(zip(mine.groups, spec.groups, strict=True)):
            if [id(p) for p in old.parameters] != [id(p) for p in new.parameters]:
                raise Error(f"setOptimizer: parameter group {number} has other parameters than at compilation")
            for name in _FIXED_NUMBERS:
                _same(name, old.values.get(name), new.values.get(name))
            for name in sorted(mine.constant & old.values.keys()):
                if old.values[name] != new.values[name]:
                    raise Error(
                        f"setOptimizer: {name} is constant: compiled in as {old.values[name]}, it cannot become "
                        f"{new.values[name]}; give it to the optimiser's constructor or see "
                        "VariableAttributes.markAsVariable"
                    )
            used = self._updates[number].numbers
            for name, value in _numbers(new.values).items():
                if name in used:
                    scalars.update({f"{name}.{end}": value for end in self._ends_in(number)})
                elif name in ("momentum", "weight_decay") and value:
                    raise Error(
                        f"setOptimizer: {name} was 0 when the model was compiled, which left no op for it, and cannot "
                        f"become {value:g}; compile with a value other than 0"
                    )
        return scalars


def _numbers(values: Values) -> dict[str, float]:
    """The numbers of a parameter group by the names the updates use."""
    beta1, beta2 = values.get("betas", (0.0, 0.0))
    return {
        "rate": -float(values["lr"]),
        "weight_decay": float(values.get("weight_decay", 0.0)),
        "beta1": float(beta1),
        "beta2": float(beta2),
        "alpha": float(values.get("alpha", 0.0)),
        "trust": float(values.get("trust_coefficient", 0.0)),
        "epsilon": float(values.get("eps", 0.0)),
        "step_size": float(values["lr"]),
        "momentum": float(values.get("momentum", 0.0)),
        "undamped": 1.0 - float(values.get("dampening", 0.0)),
    }


def _has_momentum(spec: OptimiserSpec, values: Values) -> bool:
    """Whether SGD has velocities: not where its momentum stays 0."""
    # A variable momentum may become other than 0 later, and then needs its velocity.
    return bool(values["momentum"]) or "momentum" in spec.variable


def _velocity_scaling(options: Values) -> float:
    return float(options.get("velocity_scaling", 1.0))


def _same(name: str, old: Any, new: Any) -> None:
    if old != new:
        raise CompiledInError(
            f"setOptimizer: {name} is already compiled in as {old} and cannot become {new}; make a new model"
        )
