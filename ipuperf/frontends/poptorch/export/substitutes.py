"""Functions of PyTorch that an export cannot follow, written with others that it can.

The length of a result would depend on data (``bincount``), the check of an argument would read it (the validation of
distributions, whether a mask is the causal one), a name is a keyword of Python (``random_``'s ``from``), or what the
function does with ``out=`` is lost.

Operands of float16 and float32 in one op: PopTorch's rule for every op is PyTorch's for ``+``, the result and all
operands are float32 (``poptorch: docs/user_guide/supported_ops.rst``, 16-bit float migration; ``poptorch:
scripts/PopParse.py``, the ops that cast). So a model after ``half()`` takes images of float32. Products,
convolutions and norms, for which PyTorch wants one type, get float32 here. The result of a linear layer or convolution
has the type of its data: float16 data and float32 weights give float16. What PyTorch itself computes with mixed
operands is left to it.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NoReturn

import torch
from torch.nn.modules import transformer
from torch.nn.modules.batchnorm import _BatchNorm

from ipuperf.runtime.replacing import replaced

from ..aten.marks import ctc_losses
from ..errors import Error, UnsupportedError
from . import rows
from .formulas import FORMULAS, grouped_mm


def _random(x: torch.Tensor, *bounds: int, **named: int) -> torch.Tensor:
    """``x.random_(...)`` by ``randint``."""
    limits = [*bounds, *(named[key] for key in ("from", "to") if named.get(key) is not None)]
    if len(limits) == 2:
        low, high = limits
    elif x.is_floating_point():
        # Up to there each whole number has a value of its own: float16 has 11 bits for it, float32 24.
        low, high = 0, limits[0] if limits else 1 + 2 ** (11 if x.element_size() == 2 else 24)
    else:
        # 64-bit integers are 32-bit ones on the IPU, so they have the limits of those.
        low, high = 0, limits[0] if limits else torch.iinfo(x.dtype if x.element_size() < 8 else torch.int32).max
    return x.copy_(torch.randint(low, high, x.shape, dtype=x.dtype))


def _bincount(x: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    """Counts of the numbers below ``minlength``, which is needed, as it says the length; others are not counted."""
    if minlength <= 0:
        raise UnsupportedError("bincount: minlength must be given: the length of the result would depend on values")
    matches = x.reshape(1, -1) == torch.arange(minlength, dtype=x.dtype).reshape(-1, 1)
    if weights is None:
        return matches.sum(1)
    kind = weights.dtype if weights.is_floating_point() else torch.float32
    return torch.where(matches, weights.reshape(1, -1).to(kind), torch.zeros((), dtype=kind)).sum(1)


def _histc(x: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor:
    """``histc``, of whole numbers too: PyTorch has that on other devices than the CPU, where the export runs."""
    return torch.histc(x if x.is_floating_point() else x.float(), *arguments, **named).to(x.dtype)


def _one_hot(x: torch.Tensor, num_classes: int = -1) -> torch.Tensor:
    """``one_hot``, which needs the number of classes."""
    if not isinstance(num_classes, int) or num_classes < 0:
        raise Error("one_hot: num_classes is the length of an axis of the result, so give it as a whole number from 0")
    return torch.nn.functional.one_hot(x, num_classes)


def _dropout(x: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    """``dropout``, which gives the tensor itself where nothing is dropped."""
    return torch.nn.functional.dropout(x, p, training, inplace) if training and p else x


def _detach_(x: torch.Tensor) -> torch.Tensor:
    """``detach_``: the tensor's own numbers, from where no gradient flows back, take its place."""
    return x.copy_(x.detach())


def _running(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``cumsum`` or ``cumprod``: with ``out=`` it is computed in the type of that tensor."""

    def run(x: torch.Tensor, dim: int, *, dtype: Any = None, out: torch.Tensor | None = None) -> torch.Tensor:
        if out is None:
            return function(x, dim, dtype=dtype)
        return out.copy_(function(x, dim, dtype=dtype or out.dtype))

    return run


def _ctc_loss(
    logs: torch.Tensor,
    labels: torch.Tensor,
    times: Any,
    lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> torch.Tensor:
    """``ctc_loss`` of padded labels; the mean is that of losses over the lengths of their labels."""
    if labels.dim() + (logs.dim() == 2) != 2:
        raise UnsupportedError("ctc_loss: labels behind each other are unsupported; pad them: (N, S)")
    single = logs.dim() == 2
    whole = [torch.as_tensor(t, dtype=torch.int32).reshape(-1) for t in (times, lengths)]
    rows = (logs.unsqueeze(1), labels.unsqueeze(0)) if single else (logs, labels)
    losses: torch.Tensor = ctc_losses(*rows, *whole, blank, zero_infinity).to(logs.dtype)
    if reduction == "sum":
        return losses.sum()
    if reduction == "mean":
        # An empty label counts as one of length 1, as in PyTorch.
        return (losses / whole[1].clamp(min=1)).mean()
    return losses[0] if single else losses


def _as_strided(x: torch.Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> torch.Tensor:
    """``as_strided``; where the memory of a view begins is not kept, so its own strides may be asked for, no offset."""
    if storage_offset is not None and x.storage_offset():
        raise UnsupportedError(
            "as_strided: storage_offset of a view that does not begin where its memory does; clone() it first"
        )
    return torch.as_strided(x, size, stride, storage_offset)


def _gaussian_nll(
    x: torch.Tensor, target: torch.Tensor, var: Any, full: bool = False, eps: float = 1e-6, reduction: str = "mean"
) -> torch.Tensor:
    """``gaussian_nll_loss`` without the check that no variance is negative: it is at least ``eps`` in any case, by a
    limit that gradients do not see."""
    var = torch.as_tensor(var, dtype=x.dtype).expand(x.shape) if not isinstance(var, torch.Tensor) else var
    if var.shape != x.shape and var.shape == x.shape[:-1]:
        var = var.unsqueeze(-1)
    var = var + (var.clamp(min=eps) - var).detach()
    losses: torch.Tensor = 0.5 * (torch.log(var) + (x - target) ** 2 / var)
    if full:
        losses = losses + 0.5 * math.log(2 * math.pi)
    return losses.mean() if reduction == "mean" else losses.sum() if reduction == "sum" else losses


def _instance_norm(
    x: torch.Tensor,
    running_mean: torch.Tensor | None = None,
    running_var: torch.Tensor | None = None,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> torch.Tensor:
    """``instance_norm``, whose running statistics are changed, or used, by ops of their own."""
    functional = torch.nn.functional
    if running_mean is not None and running_var is not None:
        if not use_input_stats:
            return functional.batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
        with torch.no_grad():
            var, mean = torch.var_mean(x, list(range(2, x.dim())))
            for running, statistic in ((running_mean, mean), (running_var, var)):
                running.mul_(1 - momentum).add_(statistic.mean(0), alpha=momentum)
    return functional.instance_norm(x, None, None, weight, bias, True, momentum, eps)


def _cov(
    x: torch.Tensor,
    *,
    correction: int = 1,
    fweights: torch.Tensor | None = None,
    aweights: torch.Tensor | None = None,
) -> torch.Tensor:
    """``cov`` without the check that more observations are weighed than ``correction``: with fewer, by 0 as there."""
    rows = x.reshape(1, -1) if x.dim() < 2 else x
    rows = rows if rows.is_floating_point() else rows.float()
    ones = torch.ones(rows.shape[1], dtype=rows.dtype)
    counts = ones if fweights is None else fweights.to(rows.dtype)
    weights = counts if aweights is None else counts * aweights.to(rows.dtype)
    total = weights.sum()
    apart = rows - (rows * weights).sum(1, keepdim=True) / total
    lost = correction if aweights is None else correction * (weights * aweights).sum() / total
    return (apart @ (apart * weights).T / (total - lost).clamp(min=0)).squeeze()


def _corrcoef(x: torch.Tensor) -> torch.Tensor:
    """``corrcoef`` by :func:`_cov`."""
    covariance = _cov(x)
    if not covariance.dim():
        return covariance / covariance
    deviation = covariance.diagonal().sqrt()
    return (covariance / deviation.unsqueeze(1) / deviation).clamp(-1, 1)


def _with_masks(function: Callable[..., Any]) -> Callable[..., Any]:
    """Indexing, in which ``uint8`` tensors are masks, as PyTorch has it (an export takes them for positions)."""

    def mask(index: Any) -> Any:
        if isinstance(index, (list, tuple)):
            return type(index)(map(mask, index))
        if not isinstance(index, torch.Tensor) or index.dtype != torch.uint8:
            return index
        warnings.warn("indexing with a uint8 tensor is deprecated; use one of dtype torch.bool", stacklevel=4)
        return index.to(torch.bool)

    def run(x: torch.Tensor, indices: Any, *values: Any, **named: Any) -> Any:
        indices = mask(indices)
        if rows.has_rows(x, indices, values):
            return rows.called(function, (x, indices, *values), named)
        if function is torch.Tensor.__getitem__ and rows.is_mask(indices):
            return rows.selected(x, indices)
        return function(x, indices, *values, **named)

    return run


def _from_coordinates(indices: Any, values: Any, size: Any = None, **named: Any) -> torch.Tensor:
    """``sparse_coo_tensor``: the whole matrix, as the IPU computes with nothing else. The size has to be given."""
    if size is None:
        raise UnsupportedError("sparse_coo_tensor: size must be given: the shape of the result would depend on values")
    values = torch.as_tensor(values, dtype=named.get("dtype"))
    return torch.zeros(size, dtype=values.dtype).index_put(tuple(torch.as_tensor(indices)), values, accumulate=True)


def _whole(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    """What turns a sparse tensor into one with the same elements."""
    return x


def _packed(*_: Any, **__: Any) -> NoReturn:
    raise UnsupportedError(
        "packed sequences (pack_padded_sequence) are unsupported: how many rows there are would depend on the lengths; "
        "give the layer the padded batch, and choose its results by the lengths: out[torch.arange(n), lengths - 1], or "
        "torch.where(mask, out, 0)"
    )


def _backward(*_: Any, **__: Any) -> NoReturn:
    raise UnsupportedError("backward() within a model is unsupported: poptorch.trainingModel makes the backward pass")


#: What stands for a function while a module is exported.
SUBSTITUTES: Mapping[Any, Callable[..., Any]] = {
    **FORMULAS,
    **{
        function: _with_masks(function)
        for function in (
            torch.Tensor.__getitem__,
            torch.Tensor.__setitem__,
            torch.Tensor.index_put,
            torch.Tensor.index_put_,
            torch.index_put,
            torch.index_put_,
        )
    },
    **dict.fromkeys((torch.masked_select, torch.Tensor.masked_select), rows.masked_select),
    **dict.fromkeys((torch.nonzero, torch.argwhere, torch.Tensor.nonzero, torch.Tensor.argwhere), rows.nonzero),
    torch.Tensor.as_strided: _as_strided,
    torch.Tensor.backward: _backward,
    torch.Tensor.bincount: _bincount,
    torch.Tensor.corrcoef: _corrcoef,
    torch.Tensor.cov: _cov,
    torch.Tensor.detach_: _detach_,
    torch.Tensor.histc: _histc,
    torch.Tensor.random_: _random,
    torch._VF._pack_padded_sequence: _packed,
    torch.Tensor.coalesce: _whole,
    torch.Tensor.to_dense: _whole,
    torch.Tensor.to_sparse: _whole,
    torch.as_strided: _as_strided,
    torch.bincount: _bincount,
    torch.corrcoef: _corrcoef,
    torch.cov: _cov,
    torch.ctc_loss: _ctc_loss,
    torch.cumprod: _running(torch.cumprod),
    torch.cumsum: _running(torch.cumsum),
    torch.histc: _histc,
    torch.nn.functional.ctc_loss: _ctc_loss,
    torch.sparse.mm: torch.matmul,
    torch.sparse_coo_tensor: _from_coordinates,
    torch.where: rows.where,
    torch.nn.functional.dropout: _dropout,
    torch.nn.functional.gaussian_nll_loss: _gaussian_nll,
    torch.nn.functional.instance_norm: _instance_norm,
    torch.nn.functional.one_hot: _one_hot,
}

LIBRARY_OPS: Mapping[str, Callable[..., Any]] = {"transformers::grouped_mm_fallback": grouped_mm}
"""Ops of libraries whose Python reads data, by qualified name (transformers: integrations/moe.py)."""


def substitute_of(func: Any) -> Callable[..., Any]:
    """What is called in place of ``func``, which may be ``func``."""
    substitute: Callable[..., Any] = SUBSTITUTES.get(func, func)
    return LIBRARY_OPS.get(getattr(func, "_qualified_op_name", ""), substitute)


_REPLACED: dict[tuple[Any, str], Any] = {}
_AROUND: list[Callable[[], AbstractContextManager[Any]]] = []


def surround_exports(make: Callable[[], AbstractContextManager[Any]]) -> None:
    """Let models be exported within ``make()``: for front ends of libraries over PyTorch."""
    _AROUND.append(make)


def replace_during_exports(place: Any, name: str, value: Any) -> None:
    """Let ``place.name``, of a module or a class, be ``value`` during exports; see :func:`surround_exports`."""
    _REPLACED[place, name] = value


@contextmanager
def front_ends_in_force() -> Iterator[None]:
    """What :func:`replace_during_exports` and :func:`surround_exports` were told is in force within the block."""
    with ExitStack() as stack:
        for (place, name), value in _REPLACED.items():
            stack.enter_context(replaced(place, **{name: value}))
        for make in _AROUND:
            stack.enter_context(make())
        yield


def cumulative_statistics() -> AbstractContextManager[None]:
    """Batch norms with ``momentum=None`` average over all batches so far; the layer itself would ask for the number of
    batches as a Python number, to give it to ``batch_norm`` as momentum."""
    plain = _BatchNorm.forward

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        averaged = self.training and self.track_running_stats and self.momentum is None
        return _averaging(self, x) if averaged and self.num_batches_tracked is not None else plain(self, x)

    return replaced(_BatchNorm, forward=forward)


def _averaging(norm: Any, x: torch.Tensor) -> torch.Tensor:
    """A batch norm in training, whose running statistics are the means of those of all batches."""
    norm._check_input_dim(x)
    norm.num_batches_tracked.add_(1)
    running = (norm.running_mean, norm.running_var)
    mean, var = [torch.zeros(r.shape, dtype=r.dtype) for r in running]
    y = torch.nn.functional.batch_norm(x, mean, var, norm.weight, norm.bias, True, 1.0, norm.eps)
    with torch.no_grad():
        for average, statistic in zip(running, (mean, var), strict=True):
            average.add_((statistic - average) / norm.num_batches_tracked.to(average.dtype))
    return y


def unchecked_distributions() -> AbstractContextManager[None]:
    """Parameters of ``torch.distributions`` are not validated, which would need their values; a distribution that asks
    for it itself still is."""
    return replaced(torch.distributions.Distribution, _validate_args=False)


def masks_as_given() -> AbstractContextManager[None]:
    """``torch.nn.Transformer`` and its encoders and decoders take a mask as it is, instead of comparing its values with
    those of the causal one: that would choose a faster kernel and gives the same numbers."""

    def told(mask: torch.Tensor | None, is_causal: bool | None = None, size: int | None = None) -> bool:
        return is_causal is True

    return replaced(transformer, _detect_is_causal_mask=told)


#: Names of functions all of whose operands become float32.
PRODUCTS = frozenset({
    "__matmul__", "__rmatmul__", "addbmm", "addmm", "addmv", "baddbmm", "bilinear", "bmm", "conv1d", "conv2d", "conv3d",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "dot", "einsum", "linear", "matmul", "mm", "mv",
    "prelu", "scaled_dot_product_attention", "vdot",
})  # fmt: skip

#: Those of layers, whose result has the type of their data all the same: PyTorch infers it so without values, and
#: upstream asks it (``poptorch: poptorch/source/dispatch_tracer/TypeInferenceHandler.cpp``, ``tests/half_test.py``).
LAYERS = frozenset({"linear", *(f"conv{kind}{axes}d" for kind in ("", "_transpose") for axes in (1, 2, 3))})

#: Names of functions whose parameters become float32 when the first operand is. (That float16 is normalised with
#: parameters of float32 is PyTorch's own rule.)
NORMS = frozenset({"batch_norm", "group_norm", "instance_norm", "layer_norm"})


#: Where the running mean, followed by the running variance, stands among positional arguments.
_FIRST_STATISTIC = {
    torch.nn.functional.batch_norm: 1,
    torch.nn.functional.instance_norm: 1,
    torch.batch_norm: 3,
    torch.instance_norm: 3,
}
#: Where it is said that they are to be changed.
_TRAINING = 5


def call_with_one_type(func: Any, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """``func(*args, **kwargs)``, with float32 where the function ``name`` is given float16 and float32."""
    if not _is_mixed(name, (*args, *kwargs.values())):
        return func(*args, **kwargs)
    raised, named = [_raised(value) for value in args], {key: _raised(value) for key, value in kwargs.items()}
    result = func(*raised, **named)
    if name in LAYERS:
        return result.to((args[0] if args else kwargs["input"]).dtype)
    if func in _FIRST_STATISTIC and _in_training(args, kwargs):
        position = _FIRST_STATISTIC[func]
        pairs = [*zip(args, raised, strict=True)][position : position + 2]
        pairs += [(kwargs[key], named[key]) for key in ("running_mean", "running_var") if key in kwargs]
        for statistic, raised_statistic in pairs:
            if statistic is not raised_statistic:
                statistic.copy_(raised_statistic)
    return result


def _is_mixed(name: str, values: Iterable[Any]) -> bool:
    if (name not in PRODUCTS and name not in NORMS) or torch.is_autocast_enabled("cpu"):
        return False
    kinds = [tensor.dtype for tensor in _tensors(values)]
    return {torch.float16, torch.float32} <= set(kinds) and (name in PRODUCTS or kinds[0] == torch.float32)


def _in_training(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether a normalisation changes its running statistics."""
    named = kwargs.get("training", kwargs.get("use_input_stats", False))
    return bool(args[_TRAINING] if len(args) > _TRAINING else named)


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _raised(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.float() if value.dtype == torch.float16 else value
    if isinstance(value, (list, tuple)):
        return type(value)(_raised(member) for member in value)
    return value
