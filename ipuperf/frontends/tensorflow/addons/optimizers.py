"""Optimizers whose state and arithmetic have types of their own.

Upstream: ``ipu_tensorflow_addons: keras/optimizers``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import tensorflow as tf
import tf_keras
from tf_keras.src import backend
from tf_keras.src.optimizers.legacy import adam, gradient_descent
from tf_keras.src.optimizers.legacy.optimizer_v2 import OptimizerV2, _var_key

from ..keras.arguments import Configured


class IpuOptimizerBase(OptimizerV2):
    """Base of optimizers that compute in types of their own.

    Args:
        name: name of the ops.
        optimizer_compute_precisions: types that the stages of the update are computed in.
        outline_apply_gradients: write the update as a function (``ipu.outlined_function``).
        outline_apply_gradients_kwargs: arguments of that function.
        kwargs: of ``tf.keras.optimizers.legacy.Optimizer`` (``clipnorm``, ``gradient_transformers``, ``decay`` ...).
    """

    def __init__(
        self,
        name: str,
        optimizer_compute_precisions: Sequence[Any] = (tf.float32,),
        outline_apply_gradients: bool = False,
        outline_apply_gradients_kwargs: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name, **kwargs)
        self.opt_dtypes = optimizer_compute_precisions
        self.outline_apply_gradients = outline_apply_gradients
        self.outline_apply_gradients_kwargs = dict(outline_apply_gradients_kwargs or {})

    def get_slot_dtype(self, var: tf.Variable, slot_name: str) -> Any:
        """Type of the state ``slot_name`` of ``var``; None for that of the variable."""
        return var.dtype

    def add_slot(
        self,
        var: tf.Variable,
        slot_name: str,
        initializer: Any = "zeros",
        shape: Sequence[int] | None = None,
        dtype: Any = None,
    ) -> tf.Variable:
        """The state ``slot_name`` of ``var``, made if it is not there.

        Args:
            var: the variable that is trained.
            slot_name: for example ``m``.
            initializer: of Keras, or a value.
            shape: that of ``var`` by default.
            dtype: :meth:`get_slot_dtype` by default, else the type of ``var``.

        Raises:
            ValueError: ``var`` belongs to another distribution strategy.
        """
        if slot_name not in self._slot_names:
            self._slot_names.append(slot_name)
        slots = self._slots.setdefault(_var_key(var), {})
        if slot_name not in slots:
            slot_dtype = dtype or self.get_slot_dtype(var, slot_name) or var.dtype
            slots[slot_name] = slot = self._made(var, slot_name, initializer, shape, tf.as_dtype(slot_dtype))
            backend.track_variable(slot)
            # A checkpoint that was read before the state existed fills it now.
            self._restore_slot_variable(slot_name=slot_name, variable=var, slot_variable=slot)
            self._weights.append(slot)
        return slots[slot_name]

    def add_slots(self, var_list: Sequence[tf.Variable], *slot_names: str) -> None:
        """States of these names for all variables."""
        for slot in slot_names:
            for var in var_list:
                self.add_slot(var, slot)

    def add_slot_with_dtype(self, var: tf.Variable, slot_name: str, dtype: Any, initializer: Any = "zeros") -> Any:
        """:meth:`add_slot` of a type."""
        return self.add_slot(var, slot_name, initializer, dtype=dtype)

    def _made(self, var: tf.Variable, slot_name: str, initializer: Any, shape: Any, dtype: Any) -> tf.Variable:
        value = initializer
        if isinstance(initializer, str) or callable(initializer):
            from_checkpoint = tf.__internal__.tracking.CheckpointInitialValueCallable
            known = tf_keras.initializers.get(initializer)
            # A value from a checkpoint brings its own shape.
            slot_shape = shape if shape is not None or isinstance(known, from_checkpoint) else var.shape
            value = functools.partial(known, shape=slot_shape, dtype=dtype)
        with self._distribution_strategy_scope():
            strategy = tf.distribute.get_strategy()
            if not strategy.extended.variable_created_in_scope(var):
                raise ValueError(
                    f"{self._name}: variable {var.name} was made under another strategy than {strategy}; make the "
                    "state of an optimizer under the strategy of its variables"
                )
            with strategy.extended.colocate_vars_with(var):
                name = f"{var._shared_name}/{slot_name}"
                return tf.Variable(value, name=name, dtype=dtype, trainable=False)

    def coefficients(self, var: tf.Variable, apply_state: Any) -> Mapping[str, tf.Tensor]:
        """What ``_prepare_local`` derived from the hyperparameters for variables like ``var``."""
        key = var.device, var.dtype.base_dtype
        return (apply_state or {}).get(key) or self._fallback_apply_state(*key)

    def outlined(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """``step``, as an outlined function where the optimizer was asked for that."""
        from ..facade.tensors import outlined_function

        if not self.outline_apply_gradients:
            return step
        return outlined_function(step, **self.outline_apply_gradients_kwargs)

    def updated(self, step: Callable[..., Any], grad: Any, *variables: tf.Variable) -> Any:
        """Assign to a variable and its states what ``step(grad, *their values)`` gives."""
        values = self.outlined(step)(grad, *variables)
        return tf.group(*(variable.assign(new) for variable, new in zip(variables, values)))

    def _resource_apply_dense(self, grad: Any, handle: Any, apply_state: Any) -> Any:
        raise NotImplementedError("Must be implemented in subclasses.")

    def _resource_apply_sparse(self, grad: Any, handle: Any, indices: Any, apply_state: Any) -> NoReturn:
        raise NotImplementedError(
            f"{type(self).__name__}: variable {handle.name} has a gradient of single rows, which this optimizer does "
            "not take, as upstream's does not; use one of tf.keras.optimizers, or look rows up with "
            "ipu.embedding_ops.embedding_lookup"
        )

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        return super().get_config() | {
            "optimizer_compute_precisions": self.opt_dtypes,
            "outline_apply_gradients": self.outline_apply_gradients,
            "outline_apply_gradients_kwargs": self.outline_apply_gradients_kwargs,
        }


Coefficients = Mapping[str, tf.Tensor]


def prepared(optimizer: IpuOptimizerBase, epsilon: float) -> dict[str, tf.Tensor]:
    """Scalars of one update, in the first type that ``optimizer`` computes in: ``beta_1_t``, its power
    ``beta_1_power`` for the update's number (from 1), ``one_minus_beta_1_t``, the same of ``beta_2``, ``epsilon``."""
    dtype = optimizer.opt_dtypes[0]
    number = tf.cast(optimizer.iterations + 1, dtype)
    scalars = {"epsilon": tf.convert_to_tensor(epsilon, dtype)}
    for beta in ("beta_1", "beta_2"):
        value = tf.identity(optimizer._get_hyper(beta, dtype))
        scalars |= {f"{beta}_t": value, f"{beta}_power": tf.pow(value, number), f"one_minus_{beta}_t": 1 - value}
    return scalars


def moved(grad: Any, m: Any, v: Any, at: Coefficients) -> tuple[tf.Tensor, tf.Tensor]:
    """The moments after ``grad``, in the type of the coefficients ``at``."""
    dtype = at["beta_1_t"].dtype
    grad, m, v = (tf.cast(value, dtype) for value in (grad, m, v))
    beta_1, beta_2 = at["beta_1_t"], at["beta_2_t"]
    return m * beta_1 + grad * (1 - beta_1), v * beta_2 + tf.square(grad) * (1 - beta_2)


def unbiased(m: tf.Tensor, v: tf.Tensor, at: Coefficients) -> tuple[tf.Tensor, tf.Tensor]:
    """The moments without what the zeros that they begin with leave in them."""
    return m / (1 - at["beta_1_power"]), v / (1 - at["beta_2_power"])


class AdamIpuOptimizer(Configured, adam.Adam, IpuOptimizerBase):
    """Adam whose moments have types of their own.

    Args:
        learning_rate: a number, tensor or schedule.
        beta_1: decay of the first moment.
        beta_2: decay of the second moment.
        epsilon: added to the root of the (unbiased) second moment.
        amsgrad: divide by the root of the largest second moment so far.
        name: name of the ops.
        m_dtype: type of the first moment; that of the variable by default.
        v_dtype: type of the second moment.
        vhat_dtype: type of the largest second moment.
        debiasing: correct the moments for beginning at zero.
        kwargs: of :class:`.IpuOptimizerBase`; updates are computed in ``optimizer_compute_precisions[0]``.
    """

    arguments = "m_dtype v_dtype vhat_dtype debiasing"

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        amsgrad: bool = False,
        name: str = "Adam",
        m_dtype: Any = None,
        v_dtype: Any = None,
        vhat_dtype: Any = None,
        debiasing: bool = True,
        **kwargs: Any,
    ) -> None:
        adams: dict[str, Any] = {"beta_1": beta_1, "beta_2": beta_2, "epsilon": epsilon, "amsgrad": amsgrad}
        super().__init__(learning_rate=learning_rate, name=name, **adams, **kwargs)
        self.m_dtype, self.v_dtype, self.vhat_dtype = m_dtype, v_dtype, vhat_dtype
        self.debiasing = debiasing

    def get_slot_dtype(self, var: tf.Variable, slot_name: str) -> Any:
        """The type given for the moment."""
        return {"m": self.m_dtype, "v": self.v_dtype, "vhat": self.vhat_dtype}[slot_name]

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        self.add_slots(var_list, *("m", "v", "vhat")[: 3 if self.amsgrad else 2])

    def _prepare_local(self, var_device: str, var_dtype: Any, apply_state: Any) -> None:
        super()._prepare_local(var_device, var_dtype, apply_state)
        apply_state[(var_device, var_dtype)].update(prepared(self, self.epsilon))

    def _resource_apply_dense(self, grad: Any, var: tf.Variable, apply_state: Any = None) -> Any:
        at = self.coefficients(var, apply_state)
        state = [self.get_slot(var, slot) for slot in ("m", "v", "vhat")[: 3 if self.amsgrad else 2]]

        def step(grad: Any, value: Any, m: Any, v: Any, *largest: Any) -> list[tf.Tensor]:
            m, v = moved(grad, m, v, at)
            # The state keeps the plain moments; only the step takes the unbiased ones.
            moments = [m, v]
            if self.debiasing:
                m, v = unbiased(m, v, at)
            if largest:
                v = tf.maximum(tf.cast(largest[0], v.dtype), v)
                moments.append(v)
            change = tf.cast(at["lr_t"], m.dtype) * (m / (tf.sqrt(v) + at["epsilon"]))
            return [
                value - tf.cast(change, value.dtype),
                *(tf.cast(new, slot.dtype) for new, slot in zip(moments, state)),
            ]

        return self.updated(step, grad, var, *state)

    def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any, apply_state: Any = None) -> Any:
        return IpuOptimizerBase._resource_apply_sparse(self, grad, var, indices, apply_state)


class LAMBIpuOptimizer(IpuOptimizerBase):
    """LAMB (https://arxiv.org/abs/1904.00962): Adam's step, whose length follows the norm of the variable.

    Args:
        learning_rate: a number, tensor or schedule.
        beta_1: decay of the first moment.
        beta_2: decay of the second moment.
        epsilon: added to the root of the second moment.
        weight_decay_rate: part of a variable that joins its step.
        exclude_from_weight_decay: expressions; variables in whose names one is found have no weight decay.
        exclude_from_layer_adaptation: the same for the norms.
        name: name of the ops.
        debiasing: correct the moments for beginning at zero.
        m_dtype: type of the first moment; that of the variable by default.
        v_dtype: type of the second moment.
        weight_norm_clip: largest norm of a variable that counts.
        optimizer_compute_precisions: types of the step, and of its product with the learning rate.
        kwargs: of :class:`.IpuOptimizerBase`.

    Raises:
        ValueError: there are not two ``optimizer_compute_precisions``.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay_rate: float = 0.0,
        exclude_from_weight_decay: Sequence[str] | None = None,
        exclude_from_layer_adaptation: Sequence[str] | None = None,
        name: str = "LAMB",
        debiasing: bool = True,
        m_dtype: Any = None,
        v_dtype: Any = None,
        weight_norm_clip: float | None = None,
        optimizer_compute_precisions: Sequence[Any] = (tf.float32, tf.float32),
        **kwargs: Any,
    ) -> None:
        if len(optimizer_compute_precisions) != 2:
            raise ValueError(
                "LAMBIpuOptimizer: optimizer_compute_precisions needs two types, one of the step and one of its "
                f"product with the learning rate; it has {len(optimizer_compute_precisions)}"
            )
        super().__init__(name, optimizer_compute_precisions, **kwargs)
        self._set_hyper("weight_decay_rate", weight_decay_rate)
        self._set_hyper("learning_rate", kwargs.get("lr", learning_rate))
        self._set_hyper("decay", self._initial_decay)
        self._set_hyper("beta_1", beta_1)
        self._set_hyper("beta_2", beta_2)
        self.epsilon = epsilon or tf_keras.backend.epsilon()
        self.exclude_from_weight_decay = exclude_from_weight_decay
        self.exclude_from_layer_adaptation = exclude_from_layer_adaptation
        self.weight_norm_clip = weight_norm_clip
        self.m_dtype, self.v_dtype = m_dtype, v_dtype
        self.debiasing = debiasing

    def get_slot_dtype(self, var: tf.Variable, slot_name: str) -> Any:
        """The type given for the moment."""
        return {"m": self.m_dtype, "v": self.v_dtype}[slot_name]

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        self.add_slots(var_list, "m", "v")

    def _prepare_local(self, var_device: str, var_dtype: Any, apply_state: Any) -> None:
        super()._prepare_local(var_device, var_dtype, apply_state)
        decay = tf.identity(self._get_hyper("weight_decay_rate", self.opt_dtypes[0]))
        apply_state[(var_device, var_dtype)].update(prepared(self, self.epsilon) | {"weight_decay_rate": decay})

    def _resource_apply_dense(self, grad: Any, handle: tf.Variable, apply_state: Any = None) -> Any:
        at = self.coefficients(handle, apply_state)
        slots = self.get_slot(handle, "m"), self.get_slot(handle, "v")
        name = handle.name.rpartition(":")[0] or handle.name

        def step(grad: Any, value: Any, m: Any, v: Any) -> list[tf.Tensor]:
            m, v = moved(grad, m, v, at)
            # The state keeps the plain moments; only the step takes the unbiased ones.
            moments = [tf.cast(new, slot.dtype) for new, slot in zip((m, v), slots)]
            if self.debiasing:
                m, v = unbiased(m, v, at)
            update = m / (tf.sqrt(v) + at["epsilon"])
            if not _named(name, self.exclude_from_weight_decay):
                update += tf.cast(value, update.dtype) * at["weight_decay_rate"]
            rate = tf.cast(at["lr_t"], update.dtype) * self._trust(name, value, update)
            change = tf.cast(rate, self.opt_dtypes[1]) * tf.cast(update, self.opt_dtypes[1])
            return [value - tf.cast(change, value.dtype), *moments]

        return self.updated(step, grad, handle, *slots)

    def _trust(self, name: str, value: Any, update: tf.Tensor) -> Any:
        """The norm of the variable over that of its step; 1 where either is 0 or the variable is excluded."""
        if _named(name, self.exclude_from_layer_adaptation):
            return tf.ones((), update.dtype)
        weight, step = tf.norm(tf.cast(value, update.dtype)), tf.norm(update)
        if self.weight_norm_clip is not None:
            weight = tf.minimum(weight, tf.cast(self.weight_norm_clip, weight.dtype))
        return tf.where((weight > 0) & (step > 0), weight / step, tf.ones_like(weight))

    def get_config(self) -> dict[str, Any]:
        """The arguments."""
        hyper = ("learning_rate", "weight_decay_rate", "decay", "beta_1", "beta_2")
        names = (
            *("epsilon", "m_dtype", "v_dtype", "debiasing", "weight_norm_clip"),
            *("exclude_from_weight_decay", "exclude_from_layer_adaptation"),
        )
        hyperparameters = {name: self._serialize_hyperparameter(name) for name in hyper}
        return super().get_config() | hyperparameters | {name: getattr(self, name) for name in names}


def _named(name: str, expressions: Sequence[str] | None) -> bool:
    """Whether one of the regular expressions is found in ``name``."""
    return any(re.search(expression, name) is not None for expression in expressions or ())


class SGDIpuOptimizer(Configured, gradient_descent.SGD, IpuOptimizerBase):
    """Stochastic gradient descent whose momentum has a type of its own.

    Args:
        learning_rate: a number, tensor or schedule.
        momentum: what is kept of the last change; 0 keeps no state.
        nesterov: Nesterov's momentum.
        name: name of the ops.
        momentum_accum_dtype: type of the momentum; that of the variable by default.
        kwargs: of :class:`.IpuOptimizerBase`; momentum is computed in ``optimizer_compute_precisions[0]``.
    """

    arguments = "momentum_accum_dtype"

    def __init__(
        self,
        learning_rate: Any = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        name: str = "SGD",
        momentum_accum_dtype: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate=learning_rate, momentum=momentum, nesterov=nesterov, name=name, **kwargs)
        self.momentum_accum_dtype = momentum_accum_dtype

    def _create_slots(self, var_list: Sequence[tf.Variable]) -> None:
        if self._momentum:
            for var in var_list:
                self.add_slot_with_dtype(var, "momentum", self.momentum_accum_dtype)

    def _prepare_local(self, var_device: str, var_dtype: Any, apply_state: Any) -> None:
        super()._prepare_local(var_device, var_dtype, apply_state)
        momentum = tf.identity(self._get_hyper("momentum", self.opt_dtypes[0]))
        apply_state[(var_device, var_dtype)]["momentum"] = momentum

    def _resource_apply_dense(self, grad: Any, var: tf.Variable, apply_state: Any = None) -> Any:
        if not self._momentum:
            return super()._resource_apply_dense(grad, var, apply_state)
        at = self.coefficients(var, apply_state)
        accum = self.get_slot(var, "momentum")

        def step(grad: Any, value: Any, momentum_before: Any) -> tuple[tf.Tensor, tf.Tensor]:
            momentum = at["momentum"]
            scaled = tf.cast(at["lr_t"], momentum.dtype) * tf.cast(grad, momentum.dtype)
            moving = tf.cast(momentum_before, momentum.dtype) * momentum - scaled
            change = moving * momentum - scaled if self.nesterov else moving
            return value + tf.cast(change, value.dtype), tf.cast(moving, accum.dtype)

        return self.updated(step, grad, var, accum)

    def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any, apply_state: Any = None) -> Any:
        return IpuOptimizerBase._resource_apply_sparse(self, grad, var, indices, apply_state)
