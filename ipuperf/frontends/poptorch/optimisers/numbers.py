"""An optimiser's numbers as ``ipu_param`` shows them: PopART's words for what the program's scalars hold.

For all but SGD they are the numbers themselves. PopART keeps for SGD products of them: with ``ls`` the loss scaling,
``vs`` the velocity scaling, ``n`` what sums of gradients are divided by, ``dm`` the dampening and ``wd`` the decay

- without momentum: ``scaledLearningRate0 = lr / ls``, ``weightDecayScaleFactor0 = 1 - lr wd``;
- with momentum: ``scaledLearningRate = lr / vs``, ``scaledWeightDecay1 = (1 - dm) vs wd``,
  ``dampeningScaleFactor = (1 - dm) vs / (ls n)``, ``scaledMomentum = momentum / r``; the names end in 1 where the
  velocity is the accumulator too (then ``r`` replicas share it) and in 2 (``r`` is 1) where it is not.

Source: popart: willow/include/popart/sgd.hpp, willow/src/compoundscalarhelper.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from ..errors import Error

Numbers = Mapping[str, float]

_WORDS = {
    "rate": "learningRate", "step_size": "stepSize", "weight_decay": "weightDecay", "epsilon": "eps",
    "undamped": "dampening", "trust": "trustCoefficient",
}  # fmt: skip


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
            found = {"scaledLearningRate0": lr / self.loss_scaling}
            return {**found, "weightDecayScaleFactor0": 1 - lr * decay} if "weight_decay" in scalars else found
        undamped, vs = scalars["undamped"], self.velocity_scaling
        found = {
            f"scaledLearningRate{self._number}": lr / vs,
            f"dampeningScaleFactor{self._number}": undamped * vs / (self.loss_scaling * self.divisor),
            f"scaledMomentum{self._number}": scalars["momentum"] / (self.sharing or 1),
        }
        return {**found, "scaledWeightDecay1": undamped * vs * decay} if "weight_decay" in scalars else found

    @property
    def _number(self) -> int:
        return 1 if self.sharing else 2

    def scalars(self, shown: Numbers, known: Numbers) -> dict[str, float]:
        """See :class:`Wording`."""
        if "momentum" not in known:
            lr = shown["scaledLearningRate0"] * self.loss_scaling
            found = {"rate": -lr}
            if "weight_decay" in known:
                found["weight_decay"] = _quotient(1 - shown["weightDecayScaleFactor0"], lr, "weightDecayScaleFactor0")
            return found
        vs = self.velocity_scaling
        undamped = shown[f"dampeningScaleFactor{self._number}"] * self.loss_scaling * self.divisor / vs
        found = {
            "rate": -shown[f"scaledLearningRate{self._number}"] * vs,
            "undamped": undamped,
            "momentum": shown[f"scaledMomentum{self._number}"] * (self.sharing or 1),
        }
        if "weight_decay" in known:
            found["weight_decay"] = _quotient(shown["scaledWeightDecay1"] / vs, undamped, "scaledWeightDecay1")
        return found


def _quotient(value: float, by: float, word: str) -> float:
    if by == 0 and value != 0:
        raise Error(f"ipu_param: {word} says that weights decay, but its other factor is 0")
    return value / by if value else 0.0
