"""``poptorch.optim``: PyTorch's optimisers with PopTorch's additional arguments, and what the executor needs to know.

The classes are real ``torch.optim`` classes, so they also step natively; the additional arguments matter only to the
executor, which reads them through :func:`optimiser_description`. Names, defaults and checks follow
``poptorch:python/optim.py`` and ``_optimizer_attributes.py``.
"""

from __future__ import annotations

import inspect
import math
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, cast

import torch

from ipuperf.ir import FLOAT16, FLOAT32, DType

from ..errors import ArgumentError, Error, UnsupportedError, checked_kinds, require
from ..log import logger
from .native_step import StepByParameter
from .state import DeviceState, states_of

#: Upstream's limit of LAMB's weight norm where none is given (close to the largest float16).
MAX_WEIGHT_NORM = 65500.0

_TYPES: Mapping[torch.dtype, DType] = {torch.float32: FLOAT32, torch.float16: FLOAT16}

_MOMENT_TYPES = ("accum_type", "first_order_momentum_accum_type", "second_order_momentum_accum_type")
_TYPES_OF_STATE = (*_MOMENT_TYPES, "velocity_accum_type")

#: What stands for additional arguments that are left out.
_UNLESS_GIVEN: Mapping[str, Any] = {
    **dict.fromkeys(_TYPES_OF_STATE, torch.float32),
    "bias_correction": True,
    "loss_scaling": 1.0,
    "max_grad_norm": math.inf,
    "use_combined_accum": False,
    "use_tf_variant": False,
}


class VariableAttributes:
    """Which numbers of an optimiser may change between runs: those its constructor was given, unless marked otherwise.

    Args:
        variable_attributes: names of the variable ones.
        allowed_attributes: names that there are.
    """

    @checked_kinds(*_TYPES_OF_STATE)
    def __init__(self, variable_attributes: Iterable[str], allowed_attributes: Iterable[str]) -> None:
        self._variable_attributes = list(variable_attributes)
        self._allowed_attributes = list(allowed_attributes)

    def isConstant(self, attr: str) -> bool:
        """Whether ``attr`` is compiled into the program."""
        return attr not in self._variable_attributes

    def markAsConstant(self, attr: str) -> None:
        """Compile ``attr`` into the program."""
        self._check(attr)
        self._variable_attributes = [name for name in self._variable_attributes if name != attr]

    def markAsVariable(self, attr: str) -> None:
        """Let ``attr`` change between runs."""
        self._check(attr)
        self._variable_attributes.append(attr)

    def _check(self, attr: str) -> None:
        require(
            attr in self._allowed_attributes, f"Unknown attribute {attr}, allowed values: {self._allowed_attributes}"
        )


class Optimizer:
    """What the optimisers of this module share: additional attributes (``_additional``: those that are no arguments of
    PyTorch's class) that survive copying and pickling."""

    variable_attrs: VariableAttributes
    loss_scaling: float
    _additional: ClassVar[tuple[str, ...]] = ()
    _reader: Callable[[], Any] | None = None

    @property
    def device_state(self) -> DeviceState:
        """What the IPUs have of this optimiser, as far as the host knows."""
        state: DeviceState = self.__dict__.setdefault("_device_state", DeviceState())
        return state

    def read_from(self, reader: Any) -> None:
        """Let ``reader.read_optimizer`` bring the newest state from the IPUs; it is not kept alive."""
        self._reader = weakref.ref(reader)

    def state_dict(self) -> dict[str, Any]:
        """PyTorch's, with ``ipu_state`` and ``ipu_param`` (tensors by name; None: the model that has the optimiser is
        not compiled, or for an offline target), see :mod:`~ipuperf.poptorch.optimisers.state`."""
        content: dict[str, Any] = torch.optim.Optimizer.state_dict(cast(torch.optim.Optimizer, self))
        reader = None if self._reader is None else self._reader()
        if reader is not None:
            reader.read_optimizer(self.device_state)
        shown = (self.device_state.states, self.device_state.numbers)
        states, numbers = (None if tensors is None else dict(tensors) for tensors in shown)
        return {**content, "ipu_state": states, "ipu_param": numbers}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load a ``state_dict`` of a PopTorch optimiser; what it says of the IPUs is on them before the next call.

        Raises:
            RuntimeError: a state of an optimiser that ran on the host.
        """
        states, numbers = states_of(state_dict)
        native = {key: value for key, value in state_dict.items() if key not in ("ipu_state", "ipu_param")}
        torch.optim.Optimizer.load_state_dict(cast(torch.optim.Optimizer, self), native)
        self.device_state.states, self.device_state.numbers = states, numbers
        self.device_state.pending = states is not None or numbers is not None
        self.device_state.dirty = False

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with options of their own."""
        add: Any = torch.optim.Optimizer.add_param_group
        # A decorator there imports PyTorch's compiler, which takes a second, to tell it not to compile this.
        getattr(add, "__wrapped__", add)(self, param_group)

    def _begin(self, native: Callable[..., None], params: Iterable[Any], **arguments: Any) -> None:
        """Be made by ``native``, a constructor of PyTorch, with those of the constructor's ``arguments`` that are its
        own, and keep the additional ones, checked. None: left out."""
        values = {name: value for name, value in arguments.items() if value is not None}
        native_values = {name: value for name, value in values.items() if name not in self._additional}
        betas = native_values.get("betas", (0.9, 0.999))
        require(len(betas) == 2, f"{type(self).__name__}: betas is {betas!r}, expected two numbers")
        native(self, params, **native_values)
        for name in self._additional:
            value = values.get(name, _UNLESS_GIVEN[name])
            if name.endswith("accum_type"):
                require(
                    isinstance(value, torch.dtype) and value in _TYPES,
                    f"{name} is {value!r}, expected torch.float32 or torch.float16",
                )
            setattr(self, name, value)
        variable = [name for name in values if name in native_values or name == "loss_scaling"]
        self.variable_attrs = VariableAttributes(variable, [*getattr(self, "defaults", {}), "loss_scaling"])

    def __getstate__(self) -> dict[str, Any]:
        state = torch.optim.Optimizer.__getstate__(cast(torch.optim.Optimizer, self))
        return {**state, **{name: getattr(self, name) for name in (*self._additional, "variable_attrs")}}


def _arguments(local_values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a constructor, of its local values at its begin."""
    return {name: value for name, value in local_values.items() if name not in ("self", "__class__")}


class SGD(Optimizer, torch.optim.SGD):
    """Stochastic gradient descent.

    Args:
        loss_scaling: factor on the loss, taken out of the gradients again.
        velocity_scaling: factor on the velocity (only with ``use_combined_accum``).
        use_combined_accum: one tensor as gradient accumulator and velocity; no optimiser state then.
        accum_type: type of the gradient accumulator.
        velocity_accum_type: type of the velocity.
        max_grad_norm: limit of the norm of all gradients together; default: none.
    """

    _additional = ("loss_scaling", "use_combined_accum", "accum_type", "velocity_accum_type", "max_grad_norm")

    @checked_kinds(*_TYPES_OF_STATE)
    def __init__(
        self,
        params: Iterable[Any],
        lr: float,
        momentum: float | None = None,
        dampening: float | None = None,
        weight_decay: float | None = None,
        nesterov: bool | None = None,
        maximize: bool | None = None,
        foreach: bool | None = None,
        differentiable: bool | None = None,
        loss_scaling: float | None = None,
        velocity_scaling: float | None = None,
        use_combined_accum: bool | None = None,
        accum_type: torch.dtype | None = None,
        velocity_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        self._begin(partial(_begin_sgd, combined=bool(use_combined_accum)), **_arguments(locals()))


def _begin_sgd(
    optimizer: SGD, params: Iterable[Any], combined: bool, velocity_scaling: float | None = None, **own: Any
) -> None:
    torch.optim.SGD.__init__(optimizer, params, **own)
    if velocity_scaling is not None and not combined:
        logger.warning(
            "SGD: velocity_scaling is without effect, as use_combined_accum=False keeps the velocity in a tensor of "
            "its own"
        )
    if combined:
        scaling = 1.0 if velocity_scaling is None else velocity_scaling
        optimizer.defaults["velocity_scaling"] = scaling
        for group in optimizer.param_groups:
            group.setdefault("velocity_scaling", scaling)


class Adam(Optimizer, torch.optim.Adam):
    """Adam, with types of its states.

    Args:
        loss_scaling: factor on the loss, taken out of the gradients again.
        accum_type: type of the gradient accumulator.
        first_order_momentum_accum_type: type of the first moment.
        second_order_momentum_accum_type: type of the second moment.
        max_grad_norm: limit of the norm of all gradients together; default: none.
    """

    _additional = ("loss_scaling", *_MOMENT_TYPES, "max_grad_norm")

    @checked_kinds(*_TYPES_OF_STATE)
    def __init__(
        self,
        params: Iterable[Any],
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        foreach: bool | None = None,
        maximize: bool | None = None,
        capturable: bool | None = None,
        differentiable: bool | None = None,
        fused: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        self._begin(torch.optim.Adam.__init__, **_arguments(locals()))


class AdamW(Optimizer, torch.optim.AdamW, StepByParameter):
    """Adam with decoupled weight decay; arguments as for :class:`Adam`.

    Args:
        bias_correction: False leaves out Adam's correction of the first steps, in a native step too.
    """

    bias_correction: bool
    _additional = ("loss_scaling", *_MOMENT_TYPES, "bias_correction", "max_grad_norm")

    @checked_kinds(*_TYPES_OF_STATE)
    def __init__(
        self,
        params: Iterable[Any],
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        amsgrad: bool | None = None,
        maximize: bool | None = None,
        foreach: bool | None = None,
        capturable: bool | None = None,
        differentiable: bool | None = None,
        fused: bool | None = None,
        loss_scaling: float | None = None,
        bias_correction: bool | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        max_grad_norm: float | None = None,
    ) -> None:
        self._begin(torch.optim.AdamW.__init__, **_arguments(locals()))

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One native step on the gradients that the parameters hold."""
        chosen = torch.optim.AdamW if self.bias_correction else StepByParameter
        return chosen.step(self, closure)

    def _step(self, parameter: torch.Tensor, gradient: torch.Tensor, group: Mapping[str, Any]) -> None:
        """Without correction of the first steps."""
        state = self.state[parameter]
        if not state:
            state.update(
                {name: torch.zeros_like(parameter) for name in ("exp_avg", "exp_avg_sq")}, step=torch.zeros(())
            )
            if group["amsgrad"]:
                state["max_exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        gradient = -gradient if group["maximize"] else gradient
        beta1, beta2 = group["betas"]
        mean = state["exp_avg"].lerp_(gradient, 1 - beta1)
        second = state["exp_avg_sq"].lerp_(gradient * gradient, 1 - beta2)
        if group["amsgrad"]:
            second = torch.maximum(state["max_exp_avg_sq"], second, out=state["max_exp_avg_sq"])
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.addcdiv_(mean, second.sqrt() + group["eps"], value=-group["lr"])


class RMSprop(Optimizer, torch.optim.RMSprop):
    """RMSprop.

    Args:
        loss_scaling: factor on the loss, taken out of the gradients again.
        accum_type: type of the gradient accumulator.
        first_order_momentum_accum_type: type of the momentum.
        second_order_momentum_accum_type: type of the averages.
        use_tf_variant: TensorFlow's RMSprop (averages begin at one, epsilon under the root, learning rate in the
            momentum) instead of PyTorch's; not so in a native step.
    """

    _additional = ("loss_scaling", *_MOMENT_TYPES, "use_tf_variant")

    @checked_kinds(*_TYPES_OF_STATE)
    def __init__(
        self,
        params: Iterable[Any],
        lr: float | None = None,
        alpha: float | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        momentum: float | None = None,
        centered: bool | None = None,
        foreach: bool | None = None,
        maximize: bool | None = None,
        differentiable: bool | None = None,
        loss_scaling: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
        use_tf_variant: bool | None = None,
    ) -> None:
        self._begin(torch.optim.RMSprop.__init__, **_arguments(locals()))


class LAMB(Optimizer, StepByParameter):
    """Layer-wise adaptive moments (You et al., "Large batch optimization for deep learning", arXiv 1904.00962).

    The step of a parameter ``w`` is ``lr * min(|w|, max_weight_norm) / |u| * u`` with Adam's direction plus decay
    ``u``; the ratio is 1 where a norm is 0.

    Args:
        bias_correction: apply Adam's correction of the first steps.
        max_weight_norm: limit of the weight norm; default :data:`MAX_WEIGHT_NORM`.
    """

    bias_correction: bool
    _additional = ("loss_scaling", *_MOMENT_TYPES, "bias_correction")

    @checked_kinds(*_TYPES_OF_STATE)
    def __init__(
        self,
        params: Iterable[Any],
        lr: float | None = None,
        betas: tuple[float, float] | None = None,
        eps: float | None = None,
        weight_decay: float | None = None,
        bias_correction: bool | None = None,
        loss_scaling: float | None = None,
        max_weight_norm: float | None = None,
        accum_type: torch.dtype | None = None,
        first_order_momentum_accum_type: torch.dtype | None = None,
        second_order_momentum_accum_type: torch.dtype | None = None,
    ) -> None:
        self._begin(self._begin_lamb, **_arguments(locals()))

    @staticmethod
    def _begin_lamb(optimizer: LAMB, params: Iterable[Any], **own: Any) -> None:
        defaults = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 1e-2}
        torch.optim.Optimizer.__init__(optimizer, params, {**defaults, "max_weight_norm": MAX_WEIGHT_NORM, **own})

    def _step(self, parameter: torch.Tensor, gradient: torch.Tensor, group: Mapping[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state.update(step=0, exp_avg=torch.zeros_like(parameter), exp_avg_sq=torch.zeros_like(parameter))
        state["step"] += 1
        beta1, beta2 = group["betas"]
        mean = state["exp_avg"].lerp_(gradient, 1 - beta1)
        second = state["exp_avg_sq"].lerp_(gradient * gradient, 1 - beta2)
        if self.bias_correction:
            mean, second = mean / (1 - beta1 ** state["step"]), second / (1 - beta2 ** state["step"])
        update = mean / (second.sqrt() + group["eps"]) + group["weight_decay"] * parameter
        weight_norm = float(parameter.norm().clamp(max=group["max_weight_norm"]))
        update_norm = float(update.norm())
        trust = weight_norm / update_norm if weight_norm and update_norm else 1.0
        parameter.sub_(update, alpha=group["lr"] * trust)


# -- for the executor ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class OptimiserGroup:
    """One parameter group.

    Attributes:
        values: the numbers by PyTorch's names: ``lr``, ``weight_decay``, and by kind ``momentum``, ``dampening``,
            ``nesterov``, ``velocity_scaling`` (sgd), ``betas``, ``eps`` (adam, adamw, lamb), ``max_weight_norm``
            (lamb), ``alpha``, ``eps``, ``momentum``, ``centered``, ``use_tf_variant`` (rmsprop).
        parameters: the PyTorch parameters.
    """

    values: Mapping[str, Any]
    parameters: tuple[torch.Tensor, ...] = field(compare=False)


@dataclass(frozen=True)
class OptimiserSpec:
    """A PyTorch or PopTorch optimiser as the executor sees it.

    Attributes:
        kind: ``sgd``, ``adam``, ``adamw``, ``rmsprop``, ``lamb`` or ``lars``.
        groups: the parameter groups in order.
        loss_scaling: factor on the loss.
        variable_loss_scaling: whether it can change between runs (not with ``use_combined_accum``).
        bias_correction: Adam's correction of the first steps.
        accum_dtype: type of the gradient accumulators.
        first_order_dtype: type of the velocity, the momentum or the first moment.
        second_order_dtype: type of the second moment.
        use_combined_accum: SGD's gradient accumulator and velocity are one tensor.
        max_grad_norm: limit of the norm of all gradients together, infinity for none.
        use_tf_variant: RMSprop as in TensorFlow.
        constant: names of the numbers that cannot change between runs.
        variable: names of the numbers that a PopTorch optimiser lets change between runs, so that they have ops even
            where they are 0.
        apart: the parameters of a group have numbers of their own on the device.
    """

    kind: str
    groups: tuple[OptimiserGroup, ...]
    loss_scaling: float = 1.0
    variable_loss_scaling: bool = False
    bias_correction: bool = True
    accum_dtype: DType = FLOAT32
    first_order_dtype: DType = FLOAT32
    second_order_dtype: DType = FLOAT32
    use_combined_accum: bool = False
    max_grad_norm: float = math.inf
    use_tf_variant: bool = False
    constant: frozenset[str] = frozenset()
    variable: frozenset[str] = frozenset()
    apart: bool = False

    def differs(self, previous: OptimiserSpec | None) -> bool:
        """Whether another description has other numbers, or lets others change."""
        return previous is None or replace(self, apart=False) != replace(previous, apart=False)


#: Kinds, their classes (AdamW before Adam, of which it may be a subclass) and the numbers of a parameter group.
_KINDS: Mapping[str, tuple[type[torch.optim.Optimizer], tuple[str, ...]]] = {
    "sgd": (torch.optim.SGD, ("lr", "momentum", "dampening", "weight_decay", "nesterov", "velocity_scaling")),
    "adamw": (torch.optim.AdamW, ("lr", "betas", "eps", "weight_decay")),
    "adam": (torch.optim.Adam, ("lr", "betas", "eps", "weight_decay")),
    "rmsprop": (torch.optim.RMSprop, ("lr", "momentum", "weight_decay", "alpha", "eps", "centered")),
    "lamb": (LAMB, ("lr", "betas", "eps", "weight_decay", "max_weight_norm")),
}

_ALLOWED = (
    "poptorch.optim.SGD, Adam, AdamW, RMSprop or LAMB, or torch.optim.SGD, Adam, AdamW or RMSprop, "
    "or subclasses that do not change step()"
)
_REFUSED = {
    "amsgrad": "Only non-amsgrad Adam/AdamW optimizers are supported.",
    "maximize": "maximize=True is not supported.",
}


def optimiser_description(optimizer: torch.optim.Optimizer) -> OptimiserSpec:
    """What the executor needs to know of ``optimizer``, with its numbers as they are now.

    An optimiser that is not PopTorch's may describe itself (``ipu_description``), see :mod:`.lars`.

    Raises :class:`~ipuperf.poptorch.errors.Error` for a class that PopTorch does not know and ``ValueError`` for
    ``amsgrad`` or ``maximize``, as upstream does (``maximize`` is ignored there).
    """
    if hasattr(optimizer, "ipu_description"):
        described: OptimiserSpec = optimizer.ipu_description()
        return described
    kind = _with_decay(_kind_of(optimizer), optimizer)
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        raise UnsupportedError(
            f"a hook of the step of {type(optimizer).__name__} is unsupported: it would not be called, as the weights "
            "are updated on the IPU; do what it does after the call of the model"
        )
    names = _KINDS[kind][1]
    if getattr(optimizer, "use_combined_accum", False) and any(g.get("nesterov") for g in optimizer.param_groups):
        raise ValueError("nesterov=True is not supported with use_combined_accum=True.")
    variant = bool(getattr(optimizer, "use_tf_variant", False))
    if kind == "rmsprop":
        _check_centered(optimizer)
    attributes: VariableAttributes | None = getattr(optimizer, "variable_attrs", None)
    marked = [] if attributes is None else [n for n in (*names, "loss_scaling") if attributes.isConstant(n)]
    combined = bool(getattr(optimizer, "use_combined_accum", False))
    moment = "velocity_accum_type" if kind == "sgd" else "first_order_momentum_accum_type"
    return OptimiserSpec(
        kind=kind,
        groups=tuple(_group(group, names, variant if kind == "rmsprop" else None) for group in optimizer.param_groups),
        loss_scaling=float(getattr(optimizer, "loss_scaling", 1.0)),
        variable_loss_scaling=attributes is not None and "loss_scaling" not in marked and not combined,
        bias_correction=bool(getattr(optimizer, "bias_correction", True)),
        accum_dtype=_type_of(optimizer, "accum_type"),
        first_order_dtype=_type_of(optimizer, moment),
        second_order_dtype=_type_of(optimizer, "second_order_momentum_accum_type"),
        use_combined_accum=combined,
        max_grad_norm=float(getattr(optimizer, "max_grad_norm", math.inf)),
        use_tf_variant=variant,
        constant=frozenset(marked),
        variable=frozenset() if attributes is None else frozenset(names) - frozenset(marked),
    )


def _kind_of(optimizer: torch.optim.Optimizer) -> str:
    name = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
    for kind, (known, _) in _KINDS.items():
        if isinstance(optimizer, known):
            ours: Any = next((base for base in type(optimizer).__mro__ if base.__module__ == __name__), known)
            if inspect.unwrap(type(optimizer).step) not in (inspect.unwrap(known.step), inspect.unwrap(ours.step)):
                raise Error(f"Unsupported optimizer type {name}: its step() is its own; allowed are {_ALLOWED}")
            return kind
    raise ArgumentError(f"Unsupported optimizer type {name}; allowed are {_ALLOWED}")


def _with_decay(kind: str, optimizer: torch.optim.Optimizer) -> str:
    """``adam`` or ``adamw`` as the parameter groups say how their weights decay (``decoupled_weight_decay``)."""
    if kind not in ("adam", "adamw"):
        return kind
    apart = {bool(group.get("decoupled_weight_decay", kind == "adamw")) for group in optimizer.param_groups}
    require(len(apart) == 1, "decoupled_weight_decay differs between parameter groups; one program has one of both")
    return "adamw" if apart == {True} else "adam"


def _group(group: Mapping[str, Any], names: Iterable[str], variant: bool | None) -> OptimiserGroup:
    for name, complaint in _REFUSED.items():
        if group.get(name):
            raise ValueError(complaint)
    values = {name: _number(name, group[name]) for name in names if name in group}
    if variant is not None:
        values["use_tf_variant"] = variant
    return OptimiserGroup(values, tuple(group["params"]))


def _number(name: str, value: Any) -> Any:
    if name == "betas":
        require(isinstance(value, tuple) and len(value) == 2, f"betas is {value!r}; a pair (tuple) is needed")
        return tuple(_number("beta", beta) for beta in value)
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value.item()
    require(isinstance(value, int | float), f"Expected a number for {name} but got {value!r} instead")
    return value


def _check_centered(optimizer: torch.optim.Optimizer) -> None:
    kinds = [bool(group["centered"]) for group in optimizer.param_groups]
    require(len(set(kinds)) == 1, f"centered differs between parameter groups: {kinds}; one program has one of both")


def _type_of(optimizer: torch.optim.Optimizer, name: str) -> DType:
    return dtype_of(getattr(optimizer, name, torch.float32))


def dtype_of(dtype: torch.dtype) -> DType:
    """The type of accumulators and optimiser state that PyTorch calls ``dtype``: float16 or float32."""
    return _TYPES[dtype]
