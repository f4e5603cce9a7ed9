"""Variables, variable scopes and initialisers, with TensorFlow 1's naming and sharing rules.

A variable has its initial value from the moment it is created (upstream a session has to run its initialiser; running
it here puts the initial value back). Random initialisers are keyed by seed and variable name, so the same program gets
the same values each time.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf.ir import FLOAT32, DType, Operators
from ipuperf.ir.operators import PYTHON

from .array import Array
from .dtypes import HostArray, as_dtype, to_host
from .effects import EFFECTS
from .state import OpenScope, state
from .tracing import Operation, current_frame, is_tracing

if TYPE_CHECKING:
    from .program import TracedProgram

AUTO_REUSE = "AUTO_REUSE"
Initializer = Callable[..., Any]


class Variable(Operators):
    """A value that lives across runs and programs.

    Attributes:
        name: full name with variable scopes, ``:0`` appended as upstream.
        trainable: whether optimisers change it.
        initial: initial value.
    """

    __array_priority__ = 1000

    def __init__(
        self,
        initial_value: Any,
        trainable: bool = True,
        name: str | None = None,
        dtype: Any = None,
        *,
        _full_name: str | None = None,
    ) -> None:
        value = initial_value() if callable(initial_value) else initial_value
        full = _full_name or state().unique_name(scoped(name or "Variable"))
        self._name = full
        self.trainable = trainable
        self.initial = to_host(value, dtype).copy()
        self._value = self.initial.copy()
        self._owner: TracedProgram | None = None  # the program whose device holds the newest value
        self.version = 0
        state().variables[full] = self

    # -- properties ------------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        """``scope/name:0``."""
        return f"{self._name}:0"

    @property
    def op_name(self) -> str:
        """``scope/name``."""
        return self._name

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape on one replica."""
        return self.initial.shape

    @property
    def dtype(self) -> DType:
        """Element type."""
        return as_dtype(self.initial.dtype)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.initial.ndim

    # -- host --------------------------------------------------------------------------------------------------------

    def numpy(self) -> np.ndarray:
        """The present value (of replica 0), fetched from the device that changed it last."""
        if self._owner is not None:
            self._owner.store_variables()
        return self._value.copy()

    def assign(self, value: Any) -> Any:
        """Set the value: on the host now, inside a program (of its own dtype and shape) where the call stands.

        Raises:
            ValueError: another shape.
        """
        if is_tracing():
            return current_frame().program.assign(current_frame(), self, value)
        array = to_host(value, self.dtype)
        if array.shape != self.shape:
            raise ValueError(f"variable {self.name!r} has shape {self.shape}; a value of shape {array.shape} was given")
        if self._owner is not None:
            self._owner.store_variables()
        self._value[...] = array
        self.version += 1
        return self

    load = assign

    def assign_add(self, delta: Any) -> Any:
        """Add to the value; see :meth:`assign`."""
        return self.assign(self + delta if is_tracing() else self.numpy() + delta)

    def assign_sub(self, delta: Any) -> Any:
        """Subtract from the value; see :meth:`assign`."""
        return self.assign(self - delta if is_tracing() else self.numpy() - delta)

    @property
    def initializer(self) -> Operation:
        """Puts the initial value back when a session runs it."""
        return Operation(f"{self._name}/Assign", lambda: self.assign(self.initial) and None)

    def eval(self, session: Any = None) -> np.ndarray:
        """The present value."""
        EFFECTS.given("Variable.eval(session)", session)
        return self.numpy().view(HostArray)

    def operate(self, function: str, *operands: Any) -> Any:
        """An operator: of the traced value, or of the host's value outside programs."""
        if is_tracing():
            return self.as_array().operate(function, *operands)
        return PYTHON[function](*(o.numpy() if isinstance(o, Variable) else o for o in operands))

    def __getitem__(self, key: Any) -> Any:
        return (self.as_array() if is_tracing() else self.numpy())[key]

    # -- in a program ------------------------------------------------------------------------------------------------

    def as_array(self) -> Array:
        """The value inside the program being traced."""
        frame = current_frame()
        return Array(frame.get(frame.program.variable(self)))

    value = read_value = as_array

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        if is_tracing():
            raise TypeError(f"variable {self.name!r} has no value while a program is built; use tf functions on it")
        return self.numpy() if dtype is None else self.numpy().astype(dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        if is_tracing():
            return self.as_array().__array_ufunc__(ufunc, method, *inputs, **kwargs)
        plain = [x.numpy() if isinstance(x, Variable) else x for x in inputs]
        return getattr(ufunc, method)(*plain, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in _ARRAY_NAMES:
            return getattr(self.as_array(), name)
        raise AttributeError(f"variable {self.__dict__.get('_name', '')!r} has no attribute {name!r}")

    def __repr__(self) -> str:
        return f"<Variable {self.name!r} shape={self.shape} dtype={self.dtype.name}>"


_ARRAY_NAMES = frozenset({"T", "reshape", "transpose", "flatten", "ravel", "astype", "sum", "mean", "max", "min"})

# -- scopes ------------------------------------------------------------------------------------------------------------


def scoped(name: str) -> str:
    """``name`` under the active variable scopes."""
    prefix = state().scopes[-1].name
    return f"{prefix}/{name}" if prefix else name


class VariableScope:
    """What ``with variable_scope(...) as scope`` gives."""

    def __init__(self, scope: OpenScope) -> None:
        self._scope = scope

    @property
    def name(self) -> str:
        """Full name."""
        return self._scope.name

    @property
    def reuse(self) -> object:
        """Whether variables are shared."""
        return self._scope.reuse

    def reuse_variables(self) -> None:
        """From here on variables of the scope must exist."""
        self._scope.reuse = True


@contextmanager
def variable_scope(
    name_or_scope: Any,
    default_name: str | None = None,
    values: Any = None,
    initializer: Any = None,
    reuse: Any = None,
    dtype: Any = None,
    use_resource: bool | None = None,
) -> Iterator[VariableScope]:
    """Prefix the names of variables with ``name_or_scope/``; ``reuse`` is True, False/None or AUTO_REUSE (inherited).

    ``initializer`` and ``dtype`` are the defaults of :func:`get_variable` inside.
    """
    EFFECTS.given("variable_scope(values)", values)
    EFFECTS.given("variable_scope(use_resource)", use_resource)
    outer = state().scopes[-1]
    if isinstance(name_or_scope, VariableScope):
        name = name_or_scope.name
    elif name_or_scope is None:
        if default_name is None:
            raise TypeError("If default_name is None then name_or_scope is required")
        name = state().unique_name(scoped(default_name))
    else:
        name = scoped(str(name_or_scope))
    scope = OpenScope(
        name, outer.reuse if reuse is None else reuse, initializer or outer.initializer, dtype or outer.dtype
    )
    state().scopes.append(scope)
    try:
        yield VariableScope(scope)
    finally:
        state().scopes.remove(scope)


def get_variable_scope() -> VariableScope:
    """The active scope."""
    return VariableScope(state().scopes[-1])


def get_variable(
    name: str,
    shape: Sequence[int] | None = None,
    dtype: Any = None,
    initializer: Any = None,
    regularizer: Any = None,
    trainable: bool = True,
    collections: Any = None,
    caching_device: Any = None,
    validate_shape: bool = True,
    use_resource: bool | None = None,
    aggregation: Any = None,
) -> Variable:
    """A new variable, or an existing one where the scope reuses.

    Args:
        dtype: default: that of the scope, else float32.
        initializer: a function ``(shape, dtype)``, or a value; default Glorot uniform for floats, else zeros.

    Raises:
        ValueError: it exists and the scope does not reuse, it does not exist and the scope only reuses, no shape, or
            another shape than the existing one's. NotImplementedError: a regulariser.
    """
    EFFECTS.given("get_variable(regularizer)", regularizer)
    EFFECTS.given("get_variable(collections)", collections)
    EFFECTS.given("get_variable(caching_device)", caching_device)
    EFFECTS.given("get_variable(validate_shape)", validate_shape)
    EFFECTS.given("get_variable(use_resource)", use_resource)
    EFFECTS.given("get_variable(aggregation)", aggregation)
    scope, full = state().scopes[-1], scoped(name)
    dtype = dtype or scope.dtype or FLOAT32
    found = state().variables.get(full)
    if found is not None:
        if not scope.reuse:
            raise ValueError(
                f"Variable {full} already exists, disallowed. Did you mean to set reuse=True or reuse=tf.AUTO_REUSE in "
                "VarScope?"
            )
        if shape is not None and tuple(shape) != found.shape:
            raise ValueError(
                f"Trying to share variable {full}, but specified shape {tuple(shape)} and found shape {found.shape}."
            )
        return found
    if scope.reuse is True:
        raise ValueError(
            f"Variable {full} does not exist, or was not created with tf.get_variable(). Did you mean to set "
            "reuse=tf.AUTO_REUSE in VarScope?"
        )
    initializer = initializer if initializer is not None else scope.initializer
    return Variable(_initial(full, shape, as_dtype(dtype), initializer), trainable, name, dtype, _full_name=full)


def _initial(name: str, shape: Sequence[int] | None, dtype: DType, initializer: Any) -> np.ndarray:
    if initializer is not None and not callable(initializer):
        value = to_host(initializer, dtype)
        if shape is not None and value.shape != tuple(shape):
            raise ValueError(f"Variable {name}: the initial value has shape {value.shape}, shape={tuple(shape)} given")
        return value
    if shape is None:
        raise ValueError(f"Shape of a new variable ({name}) must be fully defined, but instead was None.")
    if initializer is None:
        initializer = glorot_uniform_initializer() if dtype.is_floating_point else zeros_initializer()
    initializer = initializer() if isinstance(initializer, type) else initializer
    own = getattr(initializer, "named", None)
    value = own(name, tuple(shape), dtype) if own else initializer(tuple(shape), dtype=dtype.numpy)
    return to_host(value, dtype)


# -- initialisers ------------------------------------------------------------------------------------------------------


class _Initializer:
    """A function of shape and dtype; :meth:`named` also knows the variable's name, which keys random numbers."""

    seed: int | None = None
    dtype: Any = FLOAT32

    def draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """The values."""
        raise NotImplementedError

    def named(self, name: str, shape: tuple[int, ...], dtype: DType) -> np.ndarray:
        """The values for variable ``name``."""
        key = [state().seed, zlib.crc32(name.encode()) if self.seed is None else self.seed]
        return np.asarray(self.draw(np.random.default_rng(key), shape)).astype(dtype.numpy)

    def __call__(self, shape: Sequence[int], dtype: Any = None) -> np.ndarray:
        return self.named("", tuple(shape), as_dtype(self.dtype if dtype is None else dtype))


class zeros_initializer(_Initializer):
    """Zeros."""

    def __init__(self, dtype: Any = FLOAT32) -> None:
        self.dtype = dtype

    def draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Zeros."""
        return np.zeros(shape)


class ones_initializer(_Initializer):
    """Ones."""

    def __init__(self, dtype: Any = FLOAT32) -> None:
        self.dtype = dtype

    def draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Ones."""
        return np.ones(shape)


class constant_initializer(_Initializer):
    """A value, or as many values as the shape holds."""

    def __init__(self, value: Any = 0, dtype: Any = FLOAT32) -> None:
        self.value, self.dtype = value, dtype

    def draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """The value in the shape."""
        value = np.asarray(self.value)
        return np.broadcast_to(value, shape) if value.size == 1 else value.reshape(shape)


class random_normal_initializer(_Initializer):
    """Normal distribution."""

    def __init__(self, mean: float = 0.0, stddev: float = 1.0, seed: int | None = None, dtype: Any = FLOAT32) -> None:
        self.mean, self.stddev, self.seed, self.dtype = mean, stddev, seed, dtype

    def draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Random numbers."""
        return random.normal(self.mean, self.stddev, shape)


class truncated_normal_initializer(random_normal_initializer):
    """Normal distribution without what lies more than two standard deviations from the mean (drawn again)."""

    def draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Random numbers."""
        values = random.normal(size=shape)
        while (far := np.abs(values) > 2).any():
            values = np.where(far, random.normal(size=shape), values)
        return self.mean + self.stddev * values


class random_uniform_initializer(_Initializer):
    """Uniform distribution."""

    def __init__(
        self, minval: float = -0.05, maxval: float = 0.05, seed: int | None = None, dtype: Any = FLOAT32
    ) -> None:
        self.minval, self.maxval, self.seed, self.dtype = minval, maxval, seed, dtype

    def draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Random numbers."""
        return random.uniform(self.minval, self.maxval, shape)


class glorot_uniform_initializer(_Initializer):
    """Uniform in ``+- sqrt(6 / (fan_in + fan_out))``, TensorFlow's default."""

    def __init__(self, seed: int | None = None, dtype: Any = FLOAT32) -> None:
        self.seed, self.dtype = seed, dtype

    def draw(self, random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """Random numbers; the last two axes are in and out, those before them a receptive field."""
        field = math.prod(shape[:-2])
        fan_in = field * shape[-2] if len(shape) > 1 else math.prod(shape)
        fan_out = field * shape[-1] if shape else 1
        limit = math.sqrt(6 / max(1, fan_in + fan_out))
        return random.uniform(-limit, limit, shape)


# -- collections -------------------------------------------------------------------------------------------------------


def global_variables(scope: str | None = None) -> list[Variable]:
    """All variables, in order of creation; those whose name starts with ``scope``."""
    return [v for n, v in state().variables.items() if scope is None or n.startswith(scope)]


def trainable_variables(scope: str | None = None) -> list[Variable]:
    """The trainable ones of :func:`global_variables`."""
    return [v for v in global_variables(scope) if v.trainable]


def variables_initializer(variables: Sequence[Variable]) -> Operation:
    """Puts the initial values of ``variables`` back."""
    return Operation("init", lambda: [v.assign(v.initial) for v in variables] and None)


def global_variables_initializer() -> Operation:
    """Puts the initial values of all variables back: those that exist when it runs."""
    return Operation("init", lambda: [v.assign(v.initial) for v in global_variables()] and None)
