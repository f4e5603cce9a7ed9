"""PopTorch's optimisers as update rules of the pipeline builder.

Formulas are those of ``torch.optim`` (a run on the IPU and one on the CPU give the same weights up to rounding), LAMB's
those of the paper with PopTorch's bias correction. Learning rate, momentum, weight decay and the other numbers are
scalars on each IPU that the host may rewrite between runs; betas and epsilon of the Adam family are among them.

Differences to ``torch.optim`` that upstream has too: SGD's momentum starts from zero, so that with dampening its first
step is ``(1 - dampening) g`` and not ``g``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ipuperf.ir import CONTEXT, FLOAT32, DType, Tensor, Variable
from ipuperf.ops import (
    Accumulate,
    AdamUpdater,
    Add,
    Cast,
    Clip,
    Div,
    Mul,
    Op,
    ReduceL2,
    ScaledAddLhsInplace,
    Sqrt,
    Where,
)
from ipuperf.ops import Greater as GreaterOp

from .optim import OptimiserSpec


def make(op_class: type[Op], inputs: list[Tensor], name: str, **attributes: Any) -> Tensor:
    """A new single-output op in the active graph."""
    return CONTEXT.graph.create(op_class, inputs, [name], **attributes).outputs[0]


class TorchRule:
    """An :class:`~ipuperf.pipelines.UpdateRule` made from a description of a PyTorch optimiser.

    Args:
        spec: the description; each parameter group has its own scalars (``lr.0``, ``lr.1`` ...).
        group_of: number of the parameter group of each variable.
    """

    def __init__(self, spec: OptimiserSpec, group_of: Mapping[Variable, int]) -> None:
        self.spec = spec
        self._group_of = group_of

    # -- what the builder asks ---------------------------------------------------------------------------------------

    def state(self, variable: Variable) -> Mapping[str, np.ndarray]:
        """Momentum of SGD (if any), the two moments and the step of the Adam family, the averages of RMSprop."""
        options = self.options(variable)
        first = self._type(self.spec.first_order_dtype)
        second = self._type(self.spec.second_order_dtype)
        zeros = np.zeros(variable.shape, first.numpy)
        if self.spec.kind == "sgd":
            return {"momentum": zeros} if options["momentum"] else {}
        if self.spec.kind == "rmsprop":
            found = {"square_avg": np.zeros(variable.shape, second.numpy)}
            if options["momentum"]:
                found["momentum"] = zeros
            if options["centered"]:
                found["grad_avg"] = zeros
            return found
        moments = {"exp_avg": zeros, "exp_avg_sq": np.zeros(variable.shape, second.numpy)}
        if self.spec.bias_correction:
            moments["step"] = np.zeros((), np.float32)
        return moments

    def scalars(self) -> Mapping[str, float]:
        """Every number of every parameter group, as the ops take it (the learning rate negated)."""
        found: dict[str, float] = {}
        for number, options in enumerate(self.spec.groups):
            for name, value in _numbers(self.spec.kind, options.values).items():
                found[f"{name}.{number}"] = value
        return found

    def build(
        self,
        parameter: Variable,
        weight: Tensor,
        gradient: Tensor,
        state: Mapping[str, Tensor],
        scalars: Mapping[str, Tensor],
    ) -> None:
        """One step."""
        group = self._group_of[parameter]
        values = {name.rsplit(".", 1)[0]: t for name, t in scalars.items() if name.endswith(f".{group}")}
        if gradient.dtype != weight.dtype and self.spec.kind in ("sgd", "rmsprop"):
            gradient = make(Cast, [gradient], "gradient", dtype=weight.dtype)
        {"sgd": self._sgd, "rmsprop": self._rmsprop, "lamb": self._lamb}.get(self.spec.kind, self._adam)(
            weight, gradient, state, values, self.spec.groups[group].values
        )

    def with_numbers(self, spec: OptimiserSpec) -> dict[str, float]:
        """The scalars that another description of the same optimiser gives."""
        return dict(TorchRule(spec, self._group_of).scalars())

    # -- kinds -------------------------------------------------------------------------------------------------------

    def _sgd(
        self, w: Tensor, g: Tensor, state: Mapping[str, Tensor], s: Mapping[str, Tensor], options: Mapping[str, Any]
    ) -> None:
        if options["weight_decay"]:
            g = make(ScaledAddLhsInplace, [g, w, s["weight_decay"]], "decayed", a=1.0, b_input=2)
        if "momentum" in state:
            inputs = [state["momentum"], g, s["momentum"], s["undamped"]]
            v = make(ScaledAddLhsInplace, inputs, "velocity", a_input=2, b_input=3)
            if options["nesterov"]:
                g = make(ScaledAddLhsInplace, [g, v, s["momentum"]], "nesterov", a=1.0, b_input=2)
            else:
                g = v
        make(ScaledAddLhsInplace, [w, g, s["rate"]], "weight", a=1.0, b_input=2)

    def _adam(
        self, w: Tensor, g: Tensor, state: Mapping[str, Tensor], s: Mapping[str, Tensor], options: Mapping[str, Any]
    ) -> None:
        decoupled = self.spec.kind == "adamw"
        if options["weight_decay"] and not decoupled:
            g = make(ScaledAddLhsInplace, [g, w, s["weight_decay"]], "decayed", a=1.0, b_input=2)
        step = self._moments(w, g, state, s, decay=bool(options["weight_decay"]) and decoupled)
        make(ScaledAddLhsInplace, [w, step, s["rate"]], "weight", a=1.0, b_input=2)

    def _moments(
        self, w: Tensor, g: Tensor, state: Mapping[str, Tensor], s: Mapping[str, Tensor], *, decay: bool
    ) -> Tensor:
        """Update the two moments and give the step before the learning rate."""
        m = make(Accumulate, [state["exp_avg"], g, s["beta1"]], "m", kind="moving_average")
        v = make(Accumulate, [state["exp_avg_sq"], g, s["beta2"]], "v", kind="moving_average_square")
        inputs = [m, v, w]
        attributes: dict[str, Any] = {"has_weight": True}
        if "step" in state:
            inputs.append(state["step"])
            attributes["has_step"] = True
        for name in ("beta1", "beta2", "epsilon", *(["weight_decay"] if decay else [])):
            attributes[f"{name}_input"] = len(inputs)
            inputs.append(s[name])
        return make(AdamUpdater, inputs, "update", **attributes)

    def _lamb(
        self, w: Tensor, g: Tensor, state: Mapping[str, Tensor], s: Mapping[str, Tensor], options: Mapping[str, Any]
    ) -> None:
        """``w -= lr * min(|w|, max_weight_norm) / |u| * u``; the ratio is 1 where a norm is 0."""
        u = self._moments(w, g, state, s, decay=bool(options["weight_decay"]))
        axes = tuple(range(len(w.shape)))
        norm_w = make(ReduceL2, [_wide(w)], "weight_norm", axes=axes, keepdims=False)
        norm_u = make(ReduceL2, [_wide(u)], "update_norm", axes=axes, keepdims=False)
        limit = options.get("max_weight_norm")
        held = norm_w if limit is None else make(Clip, [norm_w], "limited", min=0.0, max=float(limit))
        graph = CONTEXT.graph
        zero = graph.constant(np.zeros((), np.float32), FLOAT32, "zero")
        one = graph.constant(np.ones((), np.float32), FLOAT32, "one")
        both = make(GreaterOp, [make(Mul, [norm_w, norm_u], "norms"), zero], "defined")
        safe = make(Where, [both, norm_u, one], "divisor")
        ratio = make(Where, [both, make(Div, [held, safe], "quotient"), one], "trust_ratio")
        rate = make(Mul, [ratio, s["rate"]], "rate")
        make(ScaledAddLhsInplace, [w, u, rate], "weight", a=1.0, b_input=2)

    def _rmsprop(
        self, w: Tensor, g: Tensor, state: Mapping[str, Tensor], s: Mapping[str, Tensor], options: Mapping[str, Any]
    ) -> None:
        """``use_tf_variant`` puts epsilon under the root."""
        if options["weight_decay"]:
            g = make(ScaledAddLhsInplace, [g, w, s["weight_decay"]], "decayed", a=1.0, b_input=2)
        square = make(Accumulate, [state["square_avg"], g, s["alpha"]], "square", kind="moving_average_square")
        if options["centered"]:
            mean = make(Accumulate, [state["grad_avg"], g, s["alpha"]], "mean", kind="moving_average")
            minus = make(Mul, [mean, mean], "mean_square")
            one = CONTEXT.graph.constant(np.array(-1.0, np.float32), FLOAT32, "minus_one")
            square = make(Add, [square, make(Mul, [minus, _as(one, minus)], "negative")], "variance")
        epsilon = _as(s["epsilon"], square)
        if options.get("use_tf_variant"):
            divisor = make(Sqrt, [make(Add, [square, epsilon], "sum")], "divisor")
        else:
            divisor = make(Add, [make(Sqrt, [square], "root"), epsilon], "divisor")
        step = make(Div, [g, divisor], "step")
        if "momentum" in state:
            inputs = [state["momentum"], step, s["momentum"]]
            step = make(ScaledAddLhsInplace, inputs, "velocity", a_input=2, b=1.0)
        make(ScaledAddLhsInplace, [w, step, s["rate"]], "weight", a=1.0, b_input=2)

    # -- helpers -----------------------------------------------------------------------------------------------------

    def options(self, variable: Variable) -> Mapping[str, Any]:
        """Numbers of the variable's parameter group."""
        return self.spec.groups[self._group_of[variable]].values

    def _type(self, dtype: DType | None) -> DType:
        return dtype or FLOAT32


def _numbers(kind: str, values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a parameter group by the names the rules use."""
    found = {"rate": -float(values["lr"])}
    if values.get("weight_decay"):
        found["weight_decay"] = float(values["weight_decay"])
    if kind in ("adam", "adamw", "lamb"):
        found["beta1"], found["beta2"] = (float(b) for b in values["betas"])
        found["epsilon"] = float(values["eps"])
    if kind == "rmsprop":
        found["alpha"], found["epsilon"] = float(values["alpha"]), float(values["eps"])
    if kind in ("sgd", "rmsprop") and values.get("momentum"):
        found["momentum"] = float(values["momentum"])
    if kind == "sgd" and values.get("momentum"):
        found["undamped"] = 1.0 - float(values.get("dampening", 0.0))
    return found


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is FLOAT32 else make(Cast, [tensor], "wide", dtype=FLOAT32)


def _as(tensor: Tensor, like: Tensor) -> Tensor:
    return tensor if tensor.dtype is like.dtype else make(Cast, [tensor], tensor.name, dtype=like.dtype)
