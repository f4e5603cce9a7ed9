"""Functions of the library to which PopXL gives other operands."""

from __future__ import annotations

from collections.abc import Callable

from ipuperf.functions import selection

from ..arguments import checked_arguments
from ..handle import Constant, Tensor
from .lifting import lifted

_onehot: Callable[..., Tensor] = lifted(selection.onehot)


@checked_arguments
def onehot(t: Tensor, num_classes: Tensor, values: Tensor, axis: int) -> Tensor:
    """See :func:`ipuperf.functions.selection.onehot`.

    Args:
        num_classes: a constant of one element, as upstream needs the length when it compiles.

    Raises:
        ValueError: ``num_classes`` is no constant of one element.
    """
    if not isinstance(num_classes, Constant) or num_classes.nelms != 1:
        raise ValueError(f"onehot: num_classes is {num_classes!r}; a constant of one element is needed")
    return _onehot(t, int(num_classes.data.reshape(())), values, axis)
