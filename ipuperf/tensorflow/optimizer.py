"""Optimisers with TensorFlow's formulas.

An optimiser works in two places: in the body of a loop, where it differentiates what has been traced so far and updates
variables at once, and in the weight update of a pipeline, where it gets one variable and its accumulated gradient at a
time (:class:`~ipuperf.tensorflow.pipeline_rule.PipelineRule`). Subclasses may override ``compute_gradients`` and
``apply_gradients``, for example to cast gradients.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ipuperf import ops as _k
from ipuperf.functions.updates import PoweredAdam, Sgd, Step, Update
from ipuperf.ir import CONTEXT, Tensor
from ipuperf.ir import Variable as IrVariable

from .array import Array, convert, is_traced
from .differentiation import gradients
from .effects import EFFECTS
from .tracing import Frame, Operation, current_frame
from .variables import Variable, trainable_variables

Hyper = float | Tensor


def check_gradient_options(
    gate_gradients: Any = None,
    aggregation_method: Any = None,
    colocate_gradients_with_ops: bool = False,
    grad_loss: Any = None,
) -> None:
    """Options of ``compute_gradients`` besides ``var_list``. NotImplementedError: ``grad_loss``."""
    EFFECTS.given("train.Optimizer.compute_gradients(gate_gradients)", gate_gradients)
    EFFECTS.given("train.Optimizer.compute_gradients(aggregation_method)", aggregation_method)
    EFFECTS.given("train.Optimizer.compute_gradients(colocate_gradients_with_ops)", colocate_gradients_with_ops)
    EFFECTS.given("train.Optimizer.compute_gradients(grad_loss)", grad_loss)


class Optimizer:
    """Base of the optimisers."""

    name = "Optimizer"
    #: What the rule calls states that have another name in TensorFlow.
    _state_names: Mapping[str, str] = {}

    def __init__(self, name: str | None = None) -> None:
        self.name = name or type(self).name
        self._slots: dict[tuple[str, str], Variable] = {}

    # -- what subclasses state ---------------------------------------------------------------------------------------

    def hyper_parameters(self) -> Mapping[str, Any]:
        """Numbers (or arrays, or variables) by name."""
        return {}

    def slot_values(self, variable: Any) -> dict[str, np.ndarray]:
        """Initial state for ``variable`` by name."""
        return {}

    def rule(self) -> Update:
        """The update of one variable."""
        raise NotImplementedError(f"{type(self).__name__} has no update rule")

    # -- TensorFlow's interface ----------------------------------------------------------------------------------------

    def compute_gradients(self, loss: Any, var_list: Sequence[Any] | None = None, **options: Any) -> list[Any]:
        """``(gradient, variable)`` for the trainable variables (or those of ``var_list``) that the program uses.

        Args:
            options: see :func:`check_gradient_options`.

        Raises:
            ValueError: there are none; NotImplementedError: ``grad_loss``.
        """
        check_gradient_options(**options)
        variables = list(var_list) if var_list is not None else trainable_variables()
        if not variables:
            raise ValueError("No variables to optimize.")
        return list(zip(gradients(loss, variables), variables))

    def apply_gradients(
        self, grads_and_vars: Sequence[tuple[Any, Any]], global_step: Any = None, name: str | None = None
    ) -> Operation:
        """Update variables by their gradients; pairs without gradient are left out.

        Raises:
            ValueError: no gradient at all; TypeError: a gradient of another type than its variable.
        """
        given = list(grads_and_vars)
        pairs = [(g, v) for g, v in given if g is not None]
        if not pairs:
            listed = [v.name for _, v in given]
            raise ValueError(f"No gradients provided for any variable: {listed}.")
        frame = current_frame()
        for grad, variable in pairs:
            array = convert(grad)
            if array.dtype != variable.dtype:
                raise TypeError(
                    f"optimizer {self.name!r}: the gradient of {variable.name!r} is {array.dtype.name}, the variable "
                    f"is {variable.dtype.name}; cast it in apply_gradients, or with MapGradientOptimizer"
                )
            self._update(frame, array, variable)
        if isinstance(global_step, Variable):
            global_step.assign_add(np.ones(global_step.shape, global_step.dtype.numpy))
        return Operation(name or self.name)

    def minimize(self, loss: Any, global_step: Any = None, var_list: Sequence[Any] | None = None) -> Operation:
        """Compute and apply gradients."""
        return self.apply_gradients(self.compute_gradients(loss, var_list), global_step)

    # -- in a loop or in a pipeline's update -------------------------------------------------------------------------

    def update(self, variable: Tensor, grad: Tensor, slots: Mapping[str, Tensor], hyper: Mapping[str, Hyper]) -> None:
        """Create the ops that change ``variable`` and ``slots`` in place, in the current frame."""
        rule = self.rule()
        rates = {"rate": lambda: -hyper["learning_rate"], "step_size": lambda: hyper["learning_rate"]}
        numbers = {name: rates[name]() if name in rates else hyper[name] for name in sorted(rule.numbers)}
        state = {self._state_names.get(name, name): slot for name, slot in slots.items()}
        rule.build(Step(variable, grad, state, numbers))

    def _update(self, frame: Frame, grad: Array, variable: Any) -> None:
        if frame.update is not None:
            frame.update.used = True
            self.update(frame.update.variable, grad.tensor, frame.update.state, frame.update.hyper(self))
            return
        program = frame.program
        tensor = frame.get(program.variable(variable))
        program.changed.add(variable)
        if not frame.reduced:
            program.unreduced.append(variable.name)
        handles = {name: self._slot(variable, name, value) for name, value in self.slot_values(variable).items()}
        program.changed.update(handles.values())
        with CONTEXT.on_ipu(tensor.ipu or 0), CONTEXT.phase("update"):
            places = {name: program.variable(handle, frame.offload) for name, handle in handles.items()}
            slots = {name: _load(frame, place) for name, place in places.items()}
            hyper = {k: _hyper(v) for k, v in self.hyper_parameters().items()}
            self.update(tensor, frame.get(grad.tensor), slots, hyper)
            for name, place in places.items():
                _store(frame, place, slots[name])

    def _slot(self, variable: Variable, name: str, value: np.ndarray) -> Variable:
        key = (variable.op_name, name)
        if key not in self._slots:
            full = f"{variable.op_name}/{self.name}" + ("" if name == "accumulator" else f"/{name}")
            self._slots[key] = Variable(value, False, _full_name=full)
        return self._slots[key]

    def get_slot(self, variable: Variable, name: str) -> Variable | None:
        """The state ``name`` of a variable that has been updated in a loop; None before."""
        return self._slots.get((variable.op_name, name))

    def get_slot_names(self) -> list[str]:
        """Names of the state kept for each variable."""
        return sorted({name for _, name in self._slots})


def _load(frame: Frame, place: IrVariable) -> Tensor:
    """State on chip: loaded when it lives in Streaming Memory."""
    if place.remote is None:
        return frame.get(place)
    buffer, entry = place.remote
    name = place.name.rsplit("/", 1)[-1]
    with CONTEXT.phase("io"):
        target = frame.create(_k.Init, [], [name], shape=place.shape, dtype=place.dtype, init="undefined").outputs[0]
    offset = frame.graph.constant(np.int32(entry), name="entry")
    return frame.create(_k.RemoteLoad, [target, offset], [f"{name}_loaded"], buffer=buffer).outputs[0]


def _store(frame: Frame, place: IrVariable, value: Tensor) -> None:
    if place.remote is not None:
        buffer, entry = place.remote
        offset = frame.graph.constant(np.int32(entry), name="entry")
        frame.create(_k.RemoteStore, [value, offset], [], buffer=buffer)


def _hyper(value: Any) -> Hyper:
    return convert(value).tensor if is_traced(value) else float(value)


class GradientDescentOptimizer(Optimizer):
    """``w -= lr * g``."""

    name = "GradientDescent"

    def __init__(self, learning_rate: Any, use_locking: bool = False, name: str | None = None) -> None:
        super().__init__(name)
        EFFECTS.given("train.GradientDescentOptimizer(use_locking)", use_locking)
        self.learning_rate = learning_rate

    def hyper_parameters(self) -> Mapping[str, Any]:
        """The learning rate."""
        return {"learning_rate": self.learning_rate}

    def rule(self) -> Update:
        """One scaled addition."""
        return Sgd()


class MomentumOptimizer(Optimizer):
    """``acc = momentum * acc + g``, ``w -= lr * acc``; with ``use_nesterov`` ``w -= lr * (g + momentum * acc)``."""

    name = "Momentum"
    _state_names: Mapping[str, str] = {"accumulator": "momentum"}

    def __init__(
        self,
        learning_rate: Any,
        momentum: Any,
        use_locking: bool = False,
        name: str | None = None,
        use_nesterov: bool = False,
    ) -> None:
        super().__init__(name)
        EFFECTS.given("train.MomentumOptimizer(use_locking)", use_locking)
        self.learning_rate, self.momentum, self.use_nesterov = learning_rate, momentum, use_nesterov

    def hyper_parameters(self) -> Mapping[str, Any]:
        """Learning rate and momentum."""
        return {"learning_rate": self.learning_rate, "momentum": self.momentum}

    def slot_values(self, variable: Any) -> dict[str, np.ndarray]:
        """A zero accumulator of the variable's shape and type."""
        return {"accumulator": np.zeros(variable.shape, variable.dtype.numpy)}

    def rule(self) -> Update:
        """Steps on the accumulator and on the variable."""
        return Sgd(momentum=True, nesterov=self.use_nesterov)


class AdamOptimizer(Optimizer):
    """TensorFlow's Adam, see :class:`ipuperf.functions.updates.PoweredAdam`."""

    name = "Adam"

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta1: float = 0.9,
        beta2: float = 0.999,
        epsilon: float = 1e-8,
        use_locking: bool = False,
        name: str | None = None,
    ) -> None:
        super().__init__(name)
        EFFECTS.given("train.AdamOptimizer(use_locking)", use_locking)
        self.learning_rate, self.beta1, self.beta2, self.epsilon = learning_rate, beta1, beta2, epsilon

    def hyper_parameters(self) -> Mapping[str, Any]:
        """The learning rate; betas and epsilon are fixed when the program is built."""
        return {"learning_rate": self.learning_rate}

    def slot_values(self, variable: Any) -> dict[str, np.ndarray]:
        """Zero moments of the variable's shape and type, and the powers of the betas (float32 scalars)."""
        return {k: v.copy() for k, v in self.rule().state(variable.shape, variable.dtype, variable.dtype).items()}

    def rule(self) -> Update:
        """TensorFlow's own formula."""
        return PoweredAdam(self.beta1, self.beta2, self.epsilon)
