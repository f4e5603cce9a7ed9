"""``IpuOptimizerBase``: an optimizer of Keras whose state may have another type than the variables.

Upstream: ``ipu_tensorflow_addons: keras/optimizers/ipu_optimizer_base.py``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import tensorflow as tf
import tf_keras
from tf_keras.src import backend
from tf_keras.src.optimizers.legacy.optimizer_v2 import OptimizerV2, _var_key


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
            wanted = dtype or self.get_slot_dtype(var, slot_name) or var.dtype
            slots[slot_name] = made = self._made(var, slot_name, initializer, shape, tf.as_dtype(wanted))
            backend.track_variable(made)
            self._restore_slot_variable(slot_name=slot_name, variable=var, slot_variable=made)
            self._weights.append(made)
        return slots[slot_name]

    def add_slot_with_dtype(self, var: tf.Variable, slot_name: str, dtype: Any, initializer: Any = "zeros") -> Any:
        """:meth:`add_slot` of a type."""
        return self.add_slot(var, slot_name, initializer, dtype=dtype)

    def _made(self, var: tf.Variable, slot_name: str, initializer: Any, shape: Any, dtype: Any) -> tf.Variable:
        value = initializer
        if isinstance(initializer, str) or callable(initializer):
            from_checkpoint = tf.__internal__.tracking.CheckpointInitialValueCallable
            found = tf_keras.initializers.get(initializer)
            given = shape if shape is not None or isinstance(found, from_checkpoint) else var.shape
            value = functools.partial(found, shape=given, dtype=dtype)
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
        from ....python.ipu.ops.functional_ops import outlined_function

        if not self.outline_apply_gradients:
            return step
        return outlined_function(step, **self.outline_apply_gradients_kwargs)

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
