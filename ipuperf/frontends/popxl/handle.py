"""``Tensor`` and its two kinds with data, ``Variable`` and ``Constant``: handles on :class:`ipuperf.ir.Tensor`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ipuperf import ir as _ir
from ipuperf.base.kinds import told

from .arguments import wholes
from .dtypes import dtype as _dtype
from .errors import UndefinedValue
from .placement import ipu_of, place_of
from .replica_grouping import ReplicaGrouping
from .spec import TensorSpec

if TYPE_CHECKING:
    from .ir import Ir


class Tensor(_ir.Operators["Tensor"]):
    """A value of a program under construction. Equal and hashed by id and Ir; arithmetic builds ops.

    ``repr`` is ``Tensor[<id> <dtype> <shape>]``, that of a variable ``Variable[...]`` (the tutorials' texts are older
    and print ``Tensor[...]`` for both).
    """

    # Otherwise Python would iterate by __getitem__, which makes an op for every row.
    __iter__ = None
    __contains__ = None

    def __init__(self, tensor: _ir.Tensor | None = None) -> None:
        if not isinstance(tensor, _ir.Tensor):
            raise RuntimeError(
                f"popxl.{type(self).__name__} cannot be constructed of {told(tensor)}; use popxl.variable, "
                "popxl.constant, or an op"
            )
        self._ir_tensor = tensor

    @staticmethod
    def _from_pb_tensor(tensor: _ir.Tensor) -> Tensor:
        """The tensor of an output of a :class:`~ipuperf.frontends.popxl.bindings.Binding`'s op."""
        return wrap(tensor)

    # -- properties ------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """Unique id: graph scope, name scopes, name."""
        return self._ir_tensor.id

    @property
    def name(self) -> str:
        """Id without the graph's scope."""
        return self._ir_tensor.name

    @property
    def scope(self) -> str:
        """Scope of the tensor's graph, without the trailing slash."""
        return self._ir_tensor.graph.scope.rstrip("/")

    @property
    def dtype(self) -> _dtype:
        """Element type."""
        return _dtype.as_dtype(self._ir_tensor.dtype)

    @property
    def spec(self) -> TensorSpec:
        """Shape, dtype and meta shape."""
        return TensorSpec._from_ir(self._ir_tensor.spec)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape on one replica."""
        return self._ir_tensor.shape

    @property
    def meta_shape(self) -> tuple[int, ...]:
        """Unsharded shape of an RTS tensor, else ``()``."""
        return self._ir_tensor.meta_shape

    @property
    def rank(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def nelms(self) -> int:
        """Number of elements on one replica."""
        return math.prod(self.shape)

    @property
    def location_info(self) -> str:
        """``file:line`` of the program that created the tensor's op, or ``""``."""
        producer = self._ir_tensor.producer
        return producer.location if producer is not None else ""

    @property
    def ir(self) -> Ir:
        """The program that the tensor belongs to."""
        from .ir import Ir

        return Ir._from_ir(self._ir_tensor.graph.ir)

    @property
    def ipu(self) -> int:
        """IPU of the replica, stated or following from producer and readers; UndefinedValue when nothing says."""
        with self._ir_tensor.graph.ir.deep_calls():
            number = ipu_of(self._ir_tensor)
        if number is None:
            raise UndefinedValue(f"tensor {self.id!r} was not given an IPU; create it inside `popxl.ipu(n)`")
        return number

    @property
    def tile_set(self) -> str:
        """``compute`` or ``io``, following from producer, callers or readers; UndefinedValue when nothing says."""
        with self._ir_tensor.graph.ir.deep_calls():
            tiles = place_of(self._ir_tensor).tile_set
        if tiles is None:
            raise UndefinedValue(f"the tile set of tensor {self.id!r} is not defined: no op makes or reads it")
        return tiles

    @property
    def in_sync_with_ipu(self) -> bool:
        """Whether the host's copy is up to date: False after a run until ``weights_to_host``. Constants always are.

        Raises:
            ValueError: a tensor without host data, that is neither a variable nor a constant.
        """
        if isinstance(self._ir_tensor, _ir.Variable):
            return self._ir_tensor.in_sync
        if isinstance(self._ir_tensor, _ir.Constant):
            return True
        raise ValueError(f"tensor {self.id!r} has no host data; only variables and constants have")

    def strides(self, shape: Sequence[int] | None = None) -> tuple[int, ...]:
        """Row-major strides of ``shape`` (default: of the tensor) in bytes, as :attr:`numpy.ndarray.strides`."""
        lengths = self.shape if shape is None else wholes(shape, "strides: shape", 0)
        return tuple(math.prod(lengths[i + 1 :]) * self._ir_tensor.dtype.size for i in range(len(lengths)))

    def _op(self, function: str, *arguments: Any) -> Tensor:
        """Call the function of :mod:`popxl.ops` with this tensor."""
        return _FUNCTIONS[function](self, *arguments)

    # -- shape ops -------------------------------------------------------------------------------------------------

    @property
    def T(self) -> Tensor:
        """Axes reversed."""
        return self.transpose()

    @property
    def T_(self) -> Tensor:
        """Axes reversed, sharing storage."""
        return self.transpose_()

    def transpose(self, permutation: Any = None) -> Tensor:
        """See :func:`popxl.ops.transpose`."""
        return self._op("transpose", permutation)

    def transpose_(self, permutation: Any = None) -> Tensor:
        """See :func:`popxl.ops.transpose_`."""
        return self._op("transpose_", permutation)

    def reshape(self, shape: Any) -> Tensor:
        """See :func:`popxl.ops.reshape`."""
        return self._op("reshape", shape)

    def reshape_(self, shape: Any) -> Tensor:
        """See :func:`popxl.ops.reshape_`."""
        return self._op("reshape_", shape)

    def flatten(self) -> Tensor:
        """See :func:`popxl.ops.flatten`."""
        return self._op("flatten")

    def flatten_(self) -> Tensor:
        """See :func:`popxl.ops.flatten_`."""
        return self._op("flatten_")

    def detach(self) -> Tensor:
        """See :func:`popxl.ops.detach`."""
        return self._op("detach")

    def detach_(self) -> Tensor:
        """See :func:`popxl.ops.detach_`."""
        return self._op("detach_")

    def diag(self) -> Tensor:
        """The elements of the main diagonal of a matrix.

        Raises:
            ValueError: not two axes.
        """
        if self.rank != 2:
            raise ValueError(f"diag of {self.id!r} {self.shape}: a matrix (two axes) is needed")
        # Elements of the diagonal are `columns + 1` apart in the flat matrix.
        columns = self.shape[1]
        return self.flatten()[: min(self.shape) * (columns + 1) : columns + 1]

    # -- placement -------------------------------------------------------------------------------------------------

    def copy_to_ipu(self, destination: int, source: int | None = None) -> Tensor:
        """See :func:`popxl.ops.ipu_copy`."""
        return self._op("ipu_copy", destination, source)

    # -- arithmetic ------------------------------------------------------------------------------------------------

    def operate(self, function: str, *operands: Any) -> Any:
        """The function of :mod:`popxl.ops` that an operator stands for."""
        if function not in _FUNCTIONS:
            # Python then asks the other operand.
            return NotImplemented
        for operand in operands:
            if not isinstance(operand, Tensor) and not _ir.is_host_data(operand):
                return NotImplemented
        return _FUNCTIONS[function](*operands)

    def __iadd__(self, other: Any) -> Tensor:
        updated: Tensor = self.operate("add_", self, other)
        return updated

    def __getitem__(self, key: Any) -> Tensor:
        """A copy of a part: by integers and slices, by a list, array or tensor of integers (``gather`` along axis 0),
        or by one of booleans (a mask: zeros where it is false, as upstream).

        Raises:
            TypeError: another index; IndexError: an integer outside of its axis.
        """
        if isinstance(key, (Tensor, np.ndarray, list)):
            return self._picked(key)
        if any(part is None for part in (key if isinstance(key, tuple) else (key,))):
            raise TypeError(f"index of {self.id!r}: None is not allowed; allowed: int, slice, ...")
        return self._op("getitem", key)

    def _picked(self, key: Any) -> Tensor:
        index = _FUNCTIONS["ensure_tensor"](key)
        if index.dtype.name == "bool":
            return self._mask(index)
        if not index.dtype.is_int:
            raise TypeError(f"index of {self.id!r}: {index.dtype} is not allowed; allowed: integers and booleans")
        return self._op("gather", index)

    def _mask(self, mask: Tensor) -> Tensor:
        return _FUNCTIONS["where"](mask, self, np.zeros((), self.dtype.as_numpy()))

    def __len__(self) -> int:
        if not self.shape:
            raise ValueError(f"tensor {self.id!r} is a scalar and has no length")
        return self.shape[0]

    # -- identity --------------------------------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tensor) and other._ir_tensor is self._ir_tensor

    def __hash__(self) -> int:
        return hash((self.id, id(self._ir_tensor.graph.ir)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}[{self.id} {self.dtype!r} {self.shape}]"


class Variable(Tensor):
    """Data of the main graph that lives across runs.

    Args:
        whole: for an RTS variable: shape and spec are those of the whole value, as upstream, not those of the shard.
            A remote variable is always whole: its shard is what a load gives.
    """

    def __init__(self, tensor: _ir.Tensor, whole: bool = False) -> None:
        super().__init__(tensor)
        assert isinstance(tensor, _ir.Variable)
        self._whole = whole or tensor.remote is not None

    @property
    def spec(self) -> TensorSpec:
        """Shape and dtype of the value, or of the shard with its meta shape."""
        return TensorSpec(self.shape, self.dtype, self.meta_shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the value on one replica, or of the shard."""
        return self._variable.replica_shape if self._whole else self._variable.shape

    @property
    def meta_shape(self) -> tuple[int, ...]:
        """Shape of the whole value of a shard, else ``()``."""
        return () if self._whole else self._variable.meta_shape

    @property
    def _variable(self) -> _ir.Variable:
        assert isinstance(self._ir_tensor, _ir.Variable)
        return self._ir_tensor

    def copy_to_ipu(self, dst: int, src: int) -> Tensor:  # type: ignore[override]  # upstream names and rule
        """See :func:`popxl.ops.ipu_copy`; where the variable is has to be given."""
        return super().copy_to_ipu(dst, src)

    @property
    def replica_grouping(self) -> ReplicaGrouping:
        """Which replicas hold the same value."""
        return ReplicaGrouping._from_ir(self._variable.grouping)

    @property
    def retrieval_mode(self) -> str:
        """``one_per_group`` or ``all_replicas``."""
        return self._variable.retrieval

    @property
    def shape_on_replica(self) -> tuple[int, ...]:
        """Shape of the whole (unsharded) value on one replica."""
        return self._variable.replica_shape

    @property
    def shape_on_host(self) -> tuple[int, ...]:
        """Shape of the data that the host reads and writes."""
        return self._variable.host_shape


class Constant(Tensor):
    """Data fixed when the program is built."""

    @property
    def data(self) -> np.ndarray:
        """The values."""
        assert isinstance(self._ir_tensor, _ir.Constant)
        return self._ir_tensor.data

    def copy_to_ipu(self, dst: int, src: int) -> Tensor:  # type: ignore[override]  # upstream names and rule
        """See :func:`popxl.ops.ipu_copy`; where the constant is has to be given."""
        return super().copy_to_ipu(dst, src)


_FUNCTIONS: dict[str, Callable[..., Tensor]] = {}


def use(functions: Mapping[str, Callable[..., Any]]) -> None:
    """Let tensors call these functions, by name; :mod:`popxl.ops` stands above this module."""
    _FUNCTIONS.update(functions)


def wrap(tensor: _ir.Tensor) -> Tensor:
    """The PopXL handle of an IR tensor."""
    if type(tensor) is _ir.Tensor:
        return Tensor(tensor)
    if isinstance(tensor, _ir.Variable):
        return Variable(tensor)
    if isinstance(tensor, _ir.Constant):
        return Constant(tensor)
    return Tensor(tensor)


def wrap_all(tensors: Any) -> tuple[Tensor, ...]:
    """Handles of several IR tensors."""
    return tuple(wrap(t) for t in tensors)
