"""Which numbers of an optimiser the host sends to the IPUs when they change: PopART's optimiser tensors.

PopTorch gives PopART the values of each parameter group for every tensor of the group (``optimizer->insertSpecific``,
poptorch: popart_compiler/source/CompilerImpl.cpp, ``updateGroups``). PopART then has tensors of their own for each
parameter, one for each scalar that its update reads and that is not constant; a scalar is constant if all numbers that
it is made of are (popart: willow/src/compoundscalarhelper.cpp, willow/src/sgd.cpp, ``getOptimizerInputs``, adam.cpp,
adaptive.cpp). A loss scaling that may change has one more, at the loss. Assumed: what Nesterov's two
factors are made of, and that an optimiser which PopART has not (LARS) has a scalar for each number.

Which numbers are constant: those that the constructor of a PopTorch optimiser was not given, or that are marked so; of
an optimiser of PyTorch's those with certain values (poptorch: python/_optimizer_attributes.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from ipuperf.lowering import NewValues
from ipuperf.pipelines import LOSS_SCALE, Pipeline

from ..export.module import ExportedModel
from .classes import OptimiserSpec
from .update_rules import TorchRule

#: PopART's name of the control program.
OPTIMISER_RUN = "OptimizerFromHost"

#: Scalars of a parameter, and the numbers each is made of.
_Scalars = Mapping[str, tuple[str, ...]]

_SGD0: _Scalars = {
    "scaledLearningRate0": ("lr", "loss_scaling", "dampening"),
    "weightDecayScaleFactor0": ("weight_decay", "lr", "dampening"),
}
_SGD_MOMENTUM: _Scalars = {
    "scaledWeightDecay": ("dampening", "weight_decay", "velocity_scaling"),
    "scaledLearningRate": ("lr", "velocity_scaling"),
    "scaledMomentum": ("momentum",),
    "dampeningScaleFactor": ("dampening", "velocity_scaling", "loss_scaling"),
}
_SGD_NESTEROV: _Scalars = {
    **_SGD_MOMENTUM,
    "momentum": ("momentum",),
    "weightDecay": ("weight_decay",),
    "nesterovGradScaleFactor": ("loss_scaling", "velocity_scaling"),
    "nesterovDampeningScaleFactor": ("dampening", "velocity_scaling", "loss_scaling"),
}
_ADAM: _Scalars = {
    "learningRate": ("lr",),
    "weightDecay": ("weight_decay",),
    "beta1": ("betas",),
    "beta2": ("betas",),
    "eps": ("eps",),
    "lossScaling": ("loss_scaling",),
}
_SCALARS: Mapping[str, _Scalars] = MappingProxyType(
    {
        "adam": _ADAM,
        "adamw": _ADAM,
        "lamb": {**_ADAM, "maxWeightNorm": ("max_weight_norm",)},
        "rmsprop": {
            "learningRate": ("lr",),
            "weightDecay": ("weight_decay",),
            "alpha": ("alpha",),
            "momentum": ("momentum",),
            "eps": ("eps",),
            "lossScaling": ("loss_scaling",),
        },
    }
)
#: Values with which a number of a PyTorch optimiser is constant (AdamW's weight decay: 0.01).
_CONSTANT_AT: Mapping[str, float] = MappingProxyType(
    {"weight_decay": 0.0, "momentum": 0.0, "velocity_scaling": 1.0, "dampening": 0.0, "eps": 1e-8, "loss_scaling": 1.0}
)
_ALWAYS_CONSTANT = ("betas", "alpha", "max_weight_norm")


def new_values_of(exported: ExportedModel, pipeline: Pipeline, rule: TorchRule) -> NewValues:
    """What a run that brings new values of the optimiser copies."""
    scalars = [0] * exported.num_ipus
    for name in exported.parameters:
        variable = exported.variables[name]
        if rule.end_of(variable) is not None and variable in pipeline.updated_on:
            scalars[pipeline.updated_on[variable]] += len(list(_variable(rule.spec, rule.options(variable))))
    for scalar, ipu in pipeline.scalars:
        scalars[ipu] += scalar == LOSS_SCALE
    return NewValues(OPTIMISER_RUN, tuple(scalars))


def _variable(spec: OptimiserSpec, values: Mapping[str, Any]) -> Iterator[str]:
    """The scalars of a parameter of a group with these values that can change."""
    for scalar, numbers in _scalars(spec, values).items():
        if not all(_is_constant(spec, values, name) for name in numbers):
            yield scalar


def _scalars(spec: OptimiserSpec, values: Mapping[str, Any]) -> _Scalars:
    if spec.kind != "sgd":
        return _SCALARS.get(spec.kind) or {name: (name,) for name in values}
    if values["nesterov"]:
        return _SGD_NESTEROV
    return _SGD_MOMENTUM if values["momentum"] or "momentum" in spec.variable else _SGD0


def _is_constant(spec: OptimiserSpec, values: Mapping[str, Any], name: str) -> bool:
    if name == "velocity_scaling" and not spec.use_combined_accum:
        name = "loss_scaling"  # PopTorch takes it for the velocity scaling where the velocity is a tensor of its own
    if spec.constant or spec.variable:
        return not (spec.variable_loss_scaling if name == "loss_scaling" else name in spec.variable)
    value = spec.loss_scaling if name == "loss_scaling" else values.get(name)
    constant_at = 0.01 if spec.kind == "adamw" and name == "weight_decay" else _CONSTANT_AT.get(name)
    return name in _ALWAYS_CONSTANT or value is None or value == constant_at
