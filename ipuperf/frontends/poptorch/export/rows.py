"""Rows that a mask selects while a model is exported: ``x[mask]``, ``torch.where(mask)`` and what is computed of them.

How many there are depends on data, but no more than the mask has places. So all places stay, each with the truth
whether it was selected (:class:`_Rows`). What treats rows one by one is computed of all of them. What joins them (sums,
means, losses, writing rows back) leaves out those that were not selected. These hold a harmless number, so that no
gradient of theirs is infinite. Anything else is refused, as its result would need the number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch.utils.weak import WeakIdKeyDictionary

from ..errors import UnsupportedError
from .lines import calling_line

#: In the place of rows that were not selected: logarithms, roots and inverse functions have finite slopes there.
_HARMLESS = 0.5

_EACH = frozenset("""
    abs add bitwise_and bitwise_not bitwise_or bool celu clamp clamp_max clamp_min clone contiguous cos detach
    div double dropout elu eq erf exp expm1 float floor ge gelu gt half hardsigmoid hardswish hardtanh int
    invert le leaky_relu log log1p log2 logical_and logical_not logical_or logsigmoid long lt maximum minimum
    mish mul ne neg one_hot pow reciprocal relu relu6 round rsqrt rsub selu sigmoid sign silu sin softplus sqrt
    square sub tan tanh to true_divide truediv type_as where
""".split())  # fmt: skip
#: Those of them whose slope is infinite somewhere. A product of that with the zero that comes back from a row which was
#: not selected is no number, and would reach the weights before.
_SINGULAR = frozenset("div log log1p log2 pow reciprocal rsqrt sqrt true_divide truediv".split())
#: What joins elements along axes; rows stay rows if their own axis is not one of these.
_ALONG = frozenset("""
    all amax amin any argmax argmin cumsum log_softmax logsumexp max mean min norm normalize prod softmax std
    sum topk var
""".split())  # fmt: skip
#: What works on the last axes, with parameters, which have no rows.
_WITH_WEIGHTS = frozenset("embedding layer_norm linear matmul rms_norm".split())
#: Losses that are a number for each element, and their mean.
_LOSSES = frozenset(
    "binary_cross_entropy binary_cross_entropy_with_logits huber_loss l1_loss mse_loss smooth_l1_loss".split()
)
_LABELLED = frozenset({"cross_entropy", "nll_loss"})
_OPERATORS = {
    name: getattr(torch, function)
    for name, function in {
        "add": "add", "and": "bitwise_and", "eq": "eq", "ge": "ge", "gt": "gt", "le": "le", "lt": "lt",
        "matmul": "matmul", "mul": "mul", "ne": "ne", "or": "bitwise_or", "pow": "pow", "sub": "sub", "truediv": "div",
    }.items()
}  # fmt: skip


def refuse(what: str) -> NoReturn:
    """``UnsupportedError``: what cannot be said of rows whose number is not known."""
    raise UnsupportedError(
        f"{calling_line()}: {what} of rows that a mask selects is unsupported: their number depends on data, and the "
        "program of an IPU is static; keep all elements and choose with torch.where(mask, a, b)"
    )


class _Sizes(tuple[int, ...]):
    """A shape of rows, how many of which is not known."""

    def __getitem__(self, place: Any) -> Any:
        whole = range(len(self))[place]
        if 0 in (whole if isinstance(whole, range) else (whole,)):
            refuse("the number")
        return super().__getitem__(place)

    def __iter__(self) -> Iterator[int]:
        refuse("the number")


class _Rows:
    """The rows of ``every`` where ``kept`` holds."""

    __hash__ = object.__hash__

    def __init__(self, every: torch.Tensor, kept: torch.Tensor) -> None:
        self.every, self.kept = every, kept

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return called(func, args, kwargs or {})

    @property
    def shape(self) -> _Sizes:
        """The shape; to ask for the number of rows is an error."""
        return _Sizes(self.every.shape)

    def size(self, dim: int | None = None) -> Any:
        """As :attr:`shape`."""
        return self.shape if dim is None else self.shape[dim]

    def dim(self) -> int:
        """The number of axes."""
        return self.every.dim()

    ndim = property(dim)
    dtype = property(lambda self: self.every.dtype)
    device = property(lambda self: self.every.device)
    requires_grad = property(lambda self: self.every.requires_grad)

    def __len__(self) -> int:
        refuse("the number")

    def __bool__(self) -> bool:
        refuse("the truth")

    def __iter__(self) -> NoReturn:
        refuse("a loop over each")

    def __getitem__(self, index: Any) -> Any:
        return called(torch.Tensor.__getitem__, (self, index), {})

    def __neg__(self) -> Any:
        return called(torch.neg, (self,), {})

    def __invert__(self) -> Any:
        return called(torch.bitwise_not, (self,), {})

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = getattr(torch.Tensor, name, None)
        if function is None or name.startswith("_"):
            raise AttributeError(f"rows that a mask selects have no attribute {name!r}")
        if not callable(function):
            refuse(name)
        return lambda *args, **kwargs: called(function, (self, *args), kwargs)

    def harmless(self) -> _Rows:
        """The same with numbers that do no harm in the other rows."""
        number = _HARMLESS if self.every.is_floating_point() else 0
        return _Rows(torch.where(_over(self.kept, self.every), self.every, number), self.kept)

    def zeroed(self) -> torch.Tensor:
        """All rows, the other ones of zeros."""
        return torch.where(_over(self.kept, self.every), self.every, 0)


def _operator(function: Callable[..., Any], swapped: bool = False) -> Callable[..., Any]:
    def run(self: _Rows, other: Any) -> Any:
        return called(function, (other, self) if swapped else (self, other), {})

    return run


for _name, _function in _OPERATORS.items():
    setattr(_Rows, f"__{_name}__", _operator(_function))
    if _name in ("add", "mul", "sub", "truediv", "pow"):
        setattr(_Rows, f"__r{_name}__", _operator(_function, swapped=True))


def _over(kept: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """``kept`` with as many axes as ``x``."""
    return kept.reshape(-1, *(1,) * (x.dim() - 1))


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return [leaf for member in value for leaf in _leaves(member)]
    return [value]


def has_rows(*values: Any) -> bool:
    """Whether there are selected rows among these."""
    return any(isinstance(leaf, _Rows) for leaf in _leaves(values))


def _plain(value: Any) -> Any:
    if isinstance(value, _Rows):
        return value.every
    return type(value)(map(_plain, value)) if isinstance(value, (list, tuple)) and has_rows(value) else value


def called(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """``func(*args, **kwargs)``, some of whose arguments are rows."""
    name = getattr(func, "__name__", "").strip("_")
    rows = [leaf for leaf in _leaves([*args, *kwargs.values()]) if isinstance(leaf, _Rows)]
    kept = rows[0].kept
    if any(row.kept is not kept for row in rows):
        refuse(f"{name} with rows of another mask")
    if not isinstance(args[0], _Rows) and name in _WRITING:
        return _WRITING[name](func, *args, **kwargs)
    if name in _SHAPED and isinstance(args[0], _Rows):
        return _Rows(_SHAPED[name](*args, **kwargs), kept)
    if name in _LOSSES:
        return _loss(func, kept, *args, **kwargs)
    if name in _LABELLED:
        return _labelled(func, *args, **kwargs)
    if name in _ALONG:
        return _along(func, name, *args, **kwargs)
    if name not in _EACH and name not in _WITH_WEIGHTS:
        refuse(name)
    _check_axes(name, [leaf for leaf in _leaves([*args, *kwargs.values()]) if isinstance(leaf, (_Rows, torch.Tensor))])
    if name in _SINGULAR:
        args = [operand.harmless() if isinstance(operand, _Rows) else operand for operand in args]
    return _Rows(func(*_plain(tuple(args)), **{key: _plain(value) for key, value in kwargs.items()}), kept)


def _check_axes(name: str, operands: Sequence[Any]) -> None:
    """Rows have to stand in the first axis of the result, and operands that are none must not have that axis."""
    first, *others = operands
    if name in _WITH_WEIGHTS:
        if not isinstance(first, _Rows) or has_rows(others) or first.dim() < 2 - (name == "embedding"):
            refuse(f"{name} with an operand")
        return
    axes = max(operand.dim() for operand in operands)
    for operand in operands:
        if operand.dim() < axes if isinstance(operand, _Rows) else operand.dim() == axes and operand.shape[0] > 1:
            refuse(f"{name} with other rows")


def _axes(x: _Rows, dim: Any) -> list[int]:
    axes = dim if isinstance(dim, (list, tuple)) else [dim]
    return [axis % x.dim() if isinstance(axis, int) else refuse("a comparison") for axis in axes]


def _along(func: Any, name: str, x: _Rows, *args: Any, **kwargs: Any) -> Any:
    """A function of axes: of others than the rows', or a sum or mean of all rows."""
    where = {"norm": 1, "topk": 1, "normalize": 1}.get(name, 0)
    dim = kwargs.get("dim", args[where] if len(args) > where else None)
    if name == "topk" and dim is None:
        dim = -1
    if name == "normalize" and dim is None:
        dim = 1
    if dim is not None and 0 not in _axes(x, dim):
        results = func(x.every, *args, **kwargs)
        if isinstance(results, torch.Tensor):
            return _Rows(results, x.kept)
        return type(results)([_Rows(each, x.kept) for each in results])
    if (
        name in ("sum", "mean")
        and (dim is None or _axes(x, dim) == [0])
        and not kwargs.keys() - {"dim"}
        and len(args) < 2
    ):
        total = x.zeroed().sum(*(() if dim is None else (0,)))
        if name == "sum":
            return total
        return total / (x.kept.sum() * (math.prod(x.every.shape[1:]) if dim is None else 1))
    refuse(f"{name} over all")


def _loss(func: Any, kept: torch.Tensor, *args: Any, reduction: str = "mean", **kwargs: Any) -> Any:
    plain = {key: _plain(value) for key, value in kwargs.items()}
    each = _Rows(func(*_plain(tuple(args)), **plain, reduction="none"), kept)
    return each if reduction == "none" else _along(getattr(torch, reduction), reduction, each)


def _labelled(func: Any, x: Any, target: Any, *args: Any, ignore_index: int = -100, **kwargs: Any) -> Any:
    """A loss of labels: those of other rows are to be ignored."""
    if not isinstance(x, _Rows) or not isinstance(target, _Rows) or target.dtype.is_floating_point or len(args) > 1:
        refuse("a loss of probabilities")
    labels = torch.where(_over(target.kept, target.every), target.every, ignore_index)
    losses = func(x.every, labels, *args, ignore_index=ignore_index, **kwargs)
    return _Rows(losses, x.kept) if kwargs.get("reduction") == "none" else losses


# -- shapes ------------------------------------------------------------------------------------------------------------


def _index_of_rows(x: _Rows, index: Any) -> torch.Tensor:
    parts = index if isinstance(index, tuple) else (index,)
    if not parts or not (parts[0] == slice(None) or parts[0] is Ellipsis) or has_rows(index):
        refuse("an index")
    if parts[0] is Ellipsis and sum(part is not None for part in parts[1:]) >= x.dim():
        refuse("an index")
    return x.every[index]


def _viewed(x: _Rows, *shape: Any) -> torch.Tensor:
    sizes = tuple(shape[0]) if len(shape) == 1 and isinstance(shape[0], (list, tuple)) else shape
    if not sizes or sizes[0] != -1 or math.prod(sizes[1:]) != math.prod(x.every.shape[1:]):
        refuse("a view that joins or divides")
    return x.every.reshape(x.every.shape[0], *sizes[1:])


def _flattened(x: _Rows, start_dim: int = 0, end_dim: int = -1) -> torch.Tensor:
    if start_dim == 0 and x.dim() > 1:
        refuse("flatten")
    return x.every.flatten(start_dim, end_dim)


def _squeezed(x: _Rows, dim: int) -> torch.Tensor:
    return refuse("squeeze") if dim % x.dim() == 0 else x.every.squeeze(dim)


def _unsqueezed(x: _Rows, dim: int) -> torch.Tensor:
    return refuse("unsqueeze") if dim in (0, -x.dim() - 1) else x.every.unsqueeze(dim)


_SHAPED: dict[str, Callable[..., torch.Tensor]] = {
    "flatten": _flattened,
    "getitem": _index_of_rows,
    "reshape": _viewed,
    "squeeze": _squeezed,
    "unsqueeze": _unsqueezed,
    "view": _viewed,
}


# -- rows are selected -------------------------------------------------------------------------------------------------


def is_mask(index: Any) -> bool:
    """Whether an index begins with a mask."""
    first = index[0] if isinstance(index, (list, tuple)) and index else index
    return isinstance(first, torch.Tensor) and first.dtype == torch.bool and first.dim() > 0


_FLAT: Any = WeakIdKeyDictionary()


def _kept(mask: torch.Tensor) -> torch.Tensor:
    """The mask in one axis: one tensor for all that it selects, until it is changed."""
    version, known = _FLAT.get(mask, (-1, mask))
    flat: torch.Tensor = known
    if version != mask._version:
        flat = mask.reshape(-1).clone()
        _FLAT[mask] = mask._version, flat
    return flat


def selected(x: torch.Tensor, index: Any) -> _Rows:
    """``x[mask]``, or ``x[mask, ...]`` with slices and new axes."""
    parts = tuple(index) if isinstance(index, (list, tuple)) else (index,)
    mask, others = parts[0], parts[1:]
    if any(isinstance(part, torch.Tensor) or has_rows(part) for part in others):
        refuse("another index")
    if mask.shape != x.shape[: mask.dim()]:
        raise IndexError(f"a mask of shape {tuple(mask.shape)} does not fit a tensor of shape {tuple(x.shape)}")
    rest = (slice(None), *others)
    return _Rows(x.reshape(-1, *x.shape[mask.dim() :])[rest], _kept(mask)).harmless()


def masked_select(x: torch.Tensor, mask: torch.Tensor) -> _Rows:
    """``torch.masked_select``."""
    return selected(x, mask) if x.shape == mask.shape else selected(*torch.broadcast_tensors(x, mask))


def where(condition: Any, *values: Any, **named: Any) -> Any:
    """``torch.where``; of a mask alone the positions."""
    return torch.where(condition, *values, **named) if values or named else nonzero(condition, as_tuple=True)


def nonzero(mask: torch.Tensor, *, as_tuple: bool = False) -> Any:
    """``torch.nonzero``."""
    kept = _kept(mask if mask.dtype == torch.bool else mask != 0)
    places = torch.unravel_index(torch.arange(mask.numel()), mask.shape)
    return tuple(_Rows(place, kept) for place in places) if as_tuple else _Rows(torch.stack(places, 1), kept)


# -- tensors are read and written at rows ------------------------------------------------------------------------------


def _read(func: Any, x: torch.Tensor, index: Any) -> _Rows:
    parts = index if isinstance(index, tuple) else (index,)
    others = [part for part in parts if isinstance(part, torch.Tensor)]
    positions = [place for place, part in enumerate(parts) if isinstance(part, _Rows)]
    if others or positions != list(range(len(positions))):
        refuse("an index beside that")
    kept = parts[0].kept
    places = tuple(part.zeroed() if isinstance(part, _Rows) else part for part in parts)
    return _Rows(x[places], kept).harmless()


def _index_select(func: Any, x: torch.Tensor, dim: int, index: _Rows) -> _Rows:
    return refuse("index_select") if dim % x.dim() else _Rows(x.index_select(0, index.zeroed()), index.kept).harmless()


def _index_add(func: Any, x: torch.Tensor, dim: int, index: _Rows, source: _Rows, *, alpha: Any = 1) -> torch.Tensor:
    if dim % x.dim() or not isinstance(index, _Rows) or not isinstance(source, _Rows):
        refuse("index_add")
    summed: torch.Tensor = func(x, 0, index.zeroed(), source.zeroed() * alpha)
    return summed


def _write(func: Any, x: torch.Tensor, index: Any, value: Any) -> None:
    """``x[index] = value`` with selected rows among ``index`` or as ``value``."""
    if is_mask(index):
        mask = index[0] if isinstance(index, (list, tuple)) else index
        if (
            not isinstance(value, _Rows)
            or (isinstance(index, (list, tuple)) and len(index) > 1)
            or value.kept is not _kept(mask)
        ):
            refuse("another index")
        shown = value.every.reshape(*mask.shape, *value.every.shape[1:])
        x.copy_(torch.where(mask.reshape(*mask.shape, *(1,) * (x.dim() - mask.dim())), shown, x))
        return
    rows = index[0] if isinstance(index, tuple) and len(index) == 1 else index
    if not isinstance(rows, _Rows) or rows.dim() != 1:
        refuse("another index")
    # Rows that were not selected are written behind the end.
    place = torch.where(rows.kept, rows.every, x.shape[0])
    given = value.every if isinstance(value, _Rows) else torch.as_tensor(value, dtype=x.dtype)
    given = given.to(x.dtype).expand(place.shape[0], *x.shape[1:])
    x.copy_(torch.cat([x, torch.zeros_like(x[:1])]).index_put((place,), given)[:-1])


_WRITING: dict[str, Callable[..., Any]] = {
    "getitem": _read,
    "index_add": _index_add,
    "index_select": _index_select,
    "setitem": _write,
}
