"""PopTorch's optimisers as update rules of the pipeline builder.

Formulas are those of ``torch.optim`` (a run on the IPU and one on the CPU give the same weights up to rounding); LAMB
and the TensorFlow variant of RMSprop are those of ``popart:willow/include/popart/adam.hpp`` and ``adaptive.hpp``; LARS
is that of its paper (see :mod:`ipuperf.poptorch.lars`).
Learning rate, momentum, weight decay and the other numbers are scalars on each IPU that the host may rewrite between
runs; betas and epsilon of the Adam family are among them. A number that is 0 when the model is compiled leaves no op.

Differences to ``torch.optim`` that upstream has too: SGD's momentum starts from zero, so that with dampening its first
step is ``(1 - dampening) g`` and not ``g``.

SGD's combined variant (``use_combined_accum``) has one tensor ``a`` as accumulator and velocity, of the weight's type:
``a += scaling * g`` in each micro-batch, and in the weight update ``a += scaling * decay * w``,
``w -= rate * (1 - dampening) / scaling * a``, ``a *= momentum``. The numbers are those of the separate variant. It
needs momentum, gradient accumulation and both tensors on chip, and is done as the separate one otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ipuperf.ir import CONTEXT, FLOAT32, DType, Tensor, Variable
from ipuperf.ops import (
    Accumulate,
    AccumulatorScale,
    AdamUpdater,
    Add,
    Cast,
    Clip,
    Div,
    Mul,
    Op,
    ReduceL2,
    ReplicatedAllReduceInplace,
    ScaledAddLhsInplace,
    Sqrt,
    Where,
)
from ipuperf.ops import Greater as GreaterOp

from .aten_lowering import repeated
from .errors import Error
from .optim import OptimiserSpec

_COMPILED_IN = ("loss_scaling", "bias_correction", "accum_dtype", "first_order_dtype", "second_order_dtype",
                "use_combined_accum", "max_grad_norm", "use_tf_variant")  # fmt: skip
"""What a description says once for all groups; none of it is a scalar that the host can rewrite."""
_FIXED_NUMBERS = ("max_weight_norm", "centered", "nesterov", "velocity_scaling")
"""Numbers of a parameter group that are compiled in."""


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
        """Momentum of SGD (if any) and LARS, moments and step of the Adam family, averages of RMSprop."""
        options = self.options(variable)
        first = self._type(self.spec.first_order_dtype)
        second = self._type(self.spec.second_order_dtype)
        zeros = repeated(0, variable.shape, first)
        if self.spec.kind == "sgd":
            return {"momentum": zeros} if options["momentum"] else {}
        if self.spec.kind == "lars":
            return {"momentum": zeros}
        if self.spec.kind == "rmsprop":
            found = {"square_avg": repeated(bool(options.get("use_tf_variant")), variable.shape, second)}
            if options["momentum"]:
                found["momentum"] = zeros
            if options["centered"]:
                found["grad_avg"] = zeros
            return found
        moments = {"exp_avg": zeros, "exp_avg_sq": repeated(0, variable.shape, second)}
        if self.spec.bias_correction:
            moments["step"] = repeated(0, (), FLOAT32)
        return moments

    def scalars(self) -> Mapping[str, float]:
        """Every number of every parameter group, as the ops take it (the learning rate negated)."""
        found: dict[str, float] = {}
        for number, options in enumerate(self.spec.groups):
            used = _used(self.spec.kind, options.values)
            for name, value in _numbers(self.spec.kind, options.values).items():
                if name in used:
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
        options = self.spec.groups[group].values
        if gradient.dtype != weight.dtype and self.spec.kind in ("sgd", "rmsprop", "lars"):
            gradient = make(Cast, [gradient], "gradient", dtype=weight.dtype)
        if self.spec.kind in ("lamb", "lars"):
            whole = self._lamb if self.spec.kind == "lamb" else self._lars
            whole(weight, gradient, state, values, options, sharded=weight.shape != parameter.shape)
        else:
            rule = {"sgd": self._sgd, "rmsprop": self._rmsprop}.get(self.spec.kind, self._adam)
            rule(weight, gradient, state, values, options)

    def combined(self, variable: Variable) -> tuple[str, np.ndarray, float] | None:
        """The velocity of SGD's combined variant, see :class:`~ipuperf.pipelines.CombinedRule`."""
        options = self.options(variable)
        if not (self.spec.use_combined_accum and options["momentum"]):
            return None
        return "momentum", repeated(0, variable.shape, variable.dtype), float(options.get("velocity_scaling", 1.0))

    def build_combined(
        self, parameter: Variable, weight: Tensor, accumulated: Tensor, scalars: Mapping[str, Tensor], replicas: int
    ) -> None:
        """One step of SGD's combined variant."""
        group = self._group_of[parameter]
        s = {name.rsplit(".", 1)[0]: t for name, t in scalars.items() if name.endswith(f".{group}")}
        options = self.spec.groups[group].values
        scaling = float(options.get("velocity_scaling", 1.0))
        a = accumulated
        if options["weight_decay"]:
            decay = _times(s["weight_decay"], scaling, "scaled_decay")
            a = make(ScaledAddLhsInplace, [a, weight, decay], "decayed", a=1.0, b_input=2)
        rate = _times(make(Mul, [s["rate"], s["undamped"]], "damped_rate"), 1.0 / scaling, "scaled_rate")
        make(ScaledAddLhsInplace, [weight, a, rate], "weight", a=1.0, b_input=2)
        make(AccumulatorScale, [a, _times(s["momentum"], 1.0 / replicas, "momentum_share")], "velocity")

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
        found: dict[str, float] = {}
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
            used = _used(mine.kind, old.values)
            for name, value in _numbers(mine.kind, new.values).items():
                if name in used:
                    found[f"{name}.{number}"] = value
                elif name in ("momentum", "weight_decay") and value:
                    raise Error(
                        f"setOptimizer: {name} was 0 when the model was compiled, which left no op for it, and cannot "
                        f"become {value:g}; compile with a value other than 0"
                    )
        return found

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
        self,
        w: Tensor,
        g: Tensor,
        state: Mapping[str, Tensor],
        s: Mapping[str, Tensor],
        options: Mapping[str, Any],
        *,
        sharded: bool,
    ) -> None:
        """``w -= lr * min(|w|, max_weight_norm) / |u| * u``; the ratio is 1 where a norm is 0."""
        u = self._moments(w, g, state, s, decay=bool(options["weight_decay"]))
        norm_w = _norm(w, "weight_norm", sharded)
        norm_u = _norm(u, "update_norm", sharded)
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

    def _lars(
        self,
        w: Tensor,
        g: Tensor,
        state: Mapping[str, Tensor],
        s: Mapping[str, Tensor],
        options: Mapping[str, Any],
        *,
        sharded: bool,
    ) -> None:
        """``v = momentum v + rate (g + weight_decay w)``, ``w -= v``; see :class:`~ipuperf.poptorch.lars.LARS`."""
        rate = s["step_size"]
        if options["trust_coefficient"]:
            rate = make(Mul, [_trust(w, g, s, options, sharded), rate], "rate")
        if options["weight_decay"]:
            g = make(ScaledAddLhsInplace, [g, w, s["weight_decay"]], "decayed", a=1.0, b_input=2)
        inputs = [state["momentum"], g, s["momentum"], rate]
        velocity = make(ScaledAddLhsInplace, inputs, "velocity", a_input=2, b_input=3)
        make(ScaledAddLhsInplace, [w, velocity], "weight", a=1.0, b=-1.0)

    def _rmsprop(
        self, w: Tensor, g: Tensor, state: Mapping[str, Tensor], s: Mapping[str, Tensor], options: Mapping[str, Any]
    ) -> None:
        """``use_tf_variant`` puts epsilon under the root and the learning rate into the momentum."""
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
        if "momentum" not in state:
            make(ScaledAddLhsInplace, [w, step, s["rate"]], "weight", a=1.0, b_input=2)
        elif options.get("use_tf_variant"):
            inputs = [state["momentum"], step, s["momentum"], s["step_size"]]
            velocity = make(ScaledAddLhsInplace, inputs, "velocity", a_input=2, b_input=3)
            make(ScaledAddLhsInplace, [w, velocity], "weight", a=1.0, b=-1.0)
        else:
            inputs = [state["momentum"], step, s["momentum"]]
            velocity = make(ScaledAddLhsInplace, inputs, "velocity", a_input=2, b=1.0)
            make(ScaledAddLhsInplace, [w, velocity, s["rate"]], "weight", a=1.0, b_input=2)

    # -- helpers -----------------------------------------------------------------------------------------------------

    def options(self, variable: Variable) -> Mapping[str, Any]:
        """Numbers of the variable's parameter group."""
        return self.spec.groups[self._group_of[variable]].values

    def _type(self, dtype: DType | None) -> DType:
        return dtype or FLOAT32


def _numbers(kind: str, values: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a parameter group by the names the rules use."""
    found = {"rate": -float(values["lr"]), "weight_decay": float(values.get("weight_decay", 0.0))}
    if kind in ("adam", "adamw", "lamb"):
        found["beta1"], found["beta2"] = (float(b) for b in values["betas"])
        found["epsilon"] = float(values["eps"])
    if kind == "rmsprop":
        found["alpha"], found["epsilon"] = float(values["alpha"]), float(values["eps"])
        found["step_size"] = float(values["lr"])
    if kind == "lars":
        found["trust"], found["epsilon"] = float(values["trust_coefficient"]), float(values["eps"])
        found["step_size"] = float(values["lr"])
    if kind in ("sgd", "rmsprop", "lars"):
        found["momentum"] = float(values.get("momentum", 0.0))
    if kind == "sgd":
        found["undamped"] = 1.0 - float(values.get("dampening", 0.0))
    return found


def _used(kind: str, values: Mapping[str, Any]) -> set[str]:
    """The names of those numbers that the ops of a parameter group read."""
    if kind == "lars":
        names = {"step_size", "momentum", *(["weight_decay"] if values["weight_decay"] else [])}
        return names | ({"trust", *(["epsilon"] if values["eps"] else [])} if values["trust_coefficient"] else set())
    names = set(_numbers(kind, values)) - {"step_size"}
    if not values.get("weight_decay"):
        names.remove("weight_decay")
    if kind in ("sgd", "rmsprop") and not values.get("momentum"):
        names -= {"momentum", "undamped"}
    elif values.get("use_tf_variant"):
        names = names - {"rate"} | {"step_size"}
    return names


def _same(name: str, old: Any, new: Any) -> None:
    if old != new:
        raise Error(f"setOptimizer: {name} is compiled in as {old} and cannot become {new}; make a new model")


def _trust(w: Tensor, g: Tensor, s: Mapping[str, Tensor], options: Mapping[str, Any], sharded: bool) -> Tensor:
    """``trust |w| / (|g| + weight_decay |w| + eps)``, and 1 where a norm is 0."""
    norm_w, norm_g = _norm(w, "weight_norm", sharded), _norm(g, "gradient_norm", sharded)
    zero = CONTEXT.graph.constant(np.zeros((), np.float32), FLOAT32, "zero")
    one = CONTEXT.graph.constant(np.ones((), np.float32), FLOAT32, "one")
    divisor = norm_g
    if options["weight_decay"]:
        divisor = make(Add, [divisor, make(Mul, [norm_w, s["weight_decay"]], "decay_norm")], "sum")
    if options["eps"]:
        divisor = make(Add, [divisor, s["epsilon"]], "sum")
    both = make(GreaterOp, [make(Mul, [norm_w, norm_g], "norms"), zero], "defined")
    safe = make(Where, [both, divisor, one], "divisor")
    ratio = make(Div, [make(Mul, [norm_w, s["trust"]], "trusted"), safe], "quotient")
    return make(Where, [both, ratio, one], "trust_ratio")


def _norm(tensor: Tensor, name: str, sharded: bool) -> Tensor:
    """The L2 norm of a tensor, of all its shards if ``sharded`` (then the sums of squares are all-reduced)."""
    axes = tuple(range(len(tensor.shape)))
    norm = make(ReduceL2, [_wide(tensor)], name, axes=axes, keepdims=False)
    if not sharded:
        return norm
    square = make(Mul, [norm, norm], f"{name}_square")
    group = CONTEXT.graph.ir.grouping()
    return make(Sqrt, [make(ReplicatedAllReduceInplace, [square], f"{name}_square", op="add", group=group)], name)


def _times(scalar: Tensor, factor: float, name: str) -> Tensor:
    """A scalar times a number."""
    if factor == 1.0:
        return scalar
    return make(Mul, [scalar, CONTEXT.graph.constant(np.array(factor, np.float32), FLOAT32, "factor")], name)


def _wide(tensor: Tensor) -> Tensor:
    return tensor if tensor.dtype is FLOAT32 else make(Cast, [tensor], "wide", dtype=FLOAT32)


def _as(tensor: Tensor, like: Tensor) -> Tensor:
    return tensor if tensor.dtype is like.dtype else make(Cast, [tensor], tensor.name, dtype=like.dtype)
