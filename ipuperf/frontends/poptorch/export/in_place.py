"""Changes in place that autograd does not see: within ``no_grad``, of ``.data`` and of ``detach()``.

PyTorch then changes the numbers alone, and gradients flow to the tensor as before. An export makes a value of each
change, where a gradient would end; so the tensor gets a value with these numbers and the gradient that it had.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..errors import UnsupportedError

_DESCRIPTOR: Any = torch.Tensor.data
DATA, SET_DATA = _DESCRIPTOR.__get__, _DESCRIPTOR.__set__
#: What gives a tensor, or makes it one, that no gradient flows through.
DETACHING = (torch.Tensor.detach, torch.detach, torch.Tensor.detach_, DATA)

_CHANGING = frozenset(
    {"__setitem__", *(f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "pow"))}
)


#: What ends in an underscore and changes what a tensor is, not its numbers.
_NO_NUMBERS = frozenset(
    f"{name}_"
    for name in ("requires_grad", "squeeze", "unsqueeze", "t", "transpose", "swapaxes", "swapdims", "as_strided")
)


def set_data(x: torch.Tensor, value: torch.Tensor) -> None:
    """``x.data = value`` where only the numbers of ``x`` change.

    Raises:
        UnsupportedError: ``value`` has another shape or type.
    """
    if (x.shape, x.dtype) != (value.shape, value.dtype):
        raise UnsupportedError(
            f"data = ... in forward: {value.dtype} of shape {tuple(value.shape)} given; allowed is what the tensor is, "
            f"{x.dtype} of shape {tuple(x.shape)}"
        )
    x.detach().copy_(value)


def written(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
    """The tensor that ``func(*args, **kwargs)`` changes in place, if any."""
    name, x = getattr(func, "__name__", ""), kwargs.get("out", args[0] if args else None)
    # PyTorch marks a change in place with one underscore at the end; two are a dunder.
    in_place = name in _CHANGING or (name.endswith("_") and not name.endswith("__")) or func == SET_DATA
    changes = (in_place or kwargs.get("inplace") or "out" in kwargs) and func not in DETACHING
    if name in _NO_NUMBERS:
        return None
    return x if changes and isinstance(x, torch.Tensor) else None


def check_written(func: Any, x: torch.Tensor) -> None:
    """An export adds up what is written into elements that are one.

    Raises:
        UnsupportedError: ``x``, which ``func`` changes, is expanded (PyTorch refuses that of most functions, too).
    """
    if any(stride == 0 and size > 1 for size, stride in zip(x.shape, x.stride(), strict=True)):
        raise UnsupportedError(
            f"{getattr(func, '__name__', func)} changes in place a tensor of shape {tuple(x.shape)} several elements "
            "of which are one (a view by expand); allowed: change what was expanded, or a clone() of the view"
        )


class UnseenChanges:
    """The changes that autograd does not see, in the course of one export for training."""

    def __init__(self) -> None:
        self._sources: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._open: dict[int, torch.Tensor] = {}
        self._seen: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def changed(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> torch.Tensor | None:
        """The tensor with a gradient whose numbers ``func(*args, **kwargs)`` changes unseen, if any."""
        x = written(func, args, kwargs)
        if x is None:
            return None
        source = self._source(x)
        # Autograd sees a change of the tensor itself while gradients are on, and no other.
        if source is None or (torch.is_grad_enabled() and func != SET_DATA and source is x):
            return None
        whole = self._whole(source)
        if source is whole or (whole.numel() == source.numel() and self.flows(source)):
            return source
        return whole  # what is around a view keeps its gradient too

    def flows(self, x: torch.Tensor) -> bool:
        """Whether ``x`` was made where gradients flow."""
        return id(x) in self._open

    def note(self, func: Any, x: Any, result: Any) -> None:
        """Remember whose numbers ``result`` shows, which ``func(x)`` has given; and of a result that PyTorch itself
        makes as a view of something, that the export knows the result only."""
        memory = x if getattr(x, "_base", None) is None else x._base
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, torch.Tensor) and tensor.requires_grad:
                base = tensor if tensor._base is None else tensor._base
                if base is not memory:
                    self._seen.setdefault(id(base), (base, tensor))
                if torch.is_grad_enabled():
                    # The tensor is kept with its id: otherwise a later tensor could take the id over.
                    self._open[id(tensor)] = tensor
        source = self._source(x) if func in DETACHING and result is not x else None
        if source is not None:
            self._sources[id(result)] = (result, source)

    def _source(self, x: torch.Tensor) -> torch.Tensor | None:
        """``x``, or what it was detached from, if that has a gradient; parameters are the optimiser's."""
        _, source = self._sources.get(id(self._whole(x)), (x, x))
        whole = self._whole(source)
        return source if whole.requires_grad and not whole.is_leaf else None

    def _whole(self, x: torch.Tensor) -> torch.Tensor:
        """What ``x`` is a view of, or ``x``."""
        return x if x._base is None else self._seen.get(id(x._base), (x, x._base))[1]


def with_numbers(
    x: torch.Tensor, view: torch.Tensor | None, change: Callable[[], Any], gradients: Callable[[bool], Any]
) -> Any:
    """The result of ``change()``, which changes ``x`` unseen.

    Args:
        view: the view of ``x`` that is changed, if it is one with a gradient of its own.
        gradients: a context in which ops are made that gradients flow through, or not.
    """
    shown = [x] if view is None or view is x else [x, view]
    with torch.no_grad():
        with gradients(True):
            copies = [tensor.clone() for tensor in shown]
        result = change()
        for tensor, old in zip(shown, copies, strict=True):
            with gradients(False):
                numbers, nothing = tensor.detach(), old.detach()
            with gradients(True):
                # old - nothing is zero with the gradient of old, so the sum has the new numbers and the old gradient.
                tensor.copy_(numbers + (old - nothing))
    return result
