"""``horovod.torch`` for one process: each collective returns its value in a job of size 1.

Sums, averages, extrema and gathers of one process's tensor equal that tensor. They are returned as a copy that shares
no memory with it; functions whose name ends in ``_`` return the tensor itself. In an instance that ``poprun`` launches
beside others, :func:`init` raises the error of :func:`ipuperf.popdist.init`.
Names and arguments: Horovod 0.28, ``horovod.torch``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ipuperf.frontends import popdist
from ipuperf.near_names import instead_of

_Named = Mapping[str, Any] | Iterable[tuple[str, Any]]

Average, Sum, Adasum, Min, Max, Product = "Average", "Sum", "Adasum", "Min", "Max", "Product"  # for op=
_OPS = (None, Average, Sum, Adasum, Min, Max, Product)
_started = False


def init(*_arguments: Any, **_named: Any) -> None:
    """Starts Horovod; RuntimeError in all instances but the first."""
    global _started
    popdist.init()
    _started = True


def shutdown() -> None:
    """Ends Horovod."""
    global _started
    _started = False


def is_initialized() -> bool:
    """Whether :func:`init` was called."""
    return _started


def _ready() -> None:
    if not _started:
        raise ValueError("Horovod has not been initialized; use hvd.init().")


def size() -> int:
    """1: the processes of the job. ValueError before :func:`init`, as for all that follow."""
    _ready()
    return 1


def rank() -> int:
    """0: this process."""
    _ready()
    return 0


local_size = cross_size = size
local_rank = cross_rank = rank


def _root(root_rank: int) -> None:
    _ready()
    if root_rank != 0:
        raise ValueError(f"horovod: root_rank={root_rank} in a job of 1 process; the root is 0")


def _checked(tensor: torch.Tensor, average: bool | None, op: str | None) -> torch.Tensor:
    _ready()
    if average is not None and op is not None:
        raise ValueError("horovod: the op parameter supersedes average; give one of them")
    if op not in _OPS:
        raise ValueError(f"horovod: op={op!r}{instead_of(op, _OPS[1:])}")
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"horovod: expected a torch.Tensor, got {type(tensor).__name__}")
    return tensor


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Any = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: Any = None,
) -> torch.Tensor:
    """Return ``tensor`` reduced over one process, times both factors.

    ``name``, ``compression`` (on the wire) and ``process_set`` make no difference with one process.
    """
    reduced = _checked(tensor, average, op).clone()
    factor = prescale_factor * postscale_factor
    # Integer tensors keep their type unless a factor changes them.
    return reduced if factor == 1.0 else reduced * factor


def allreduce_(tensor: torch.Tensor, *arguments: Any, **named: Any) -> torch.Tensor:
    """:func:`allreduce` in place."""
    with torch.no_grad():
        return tensor.copy_(allreduce(tensor, *arguments, **named))


def grouped_allreduce(tensors: Iterable[torch.Tensor], *arguments: Any, **named: Any) -> list[torch.Tensor]:
    """:func:`allreduce` of each tensor."""
    return [allreduce(tensor, *arguments, **named) for tensor in tensors]


def allgather(tensor: torch.Tensor, name: str | None = None, process_set: Any = None) -> torch.Tensor:
    """The tensors of all processes joined along axis 0: this one's."""
    gathered = _checked(tensor, None, None).clone()
    if gathered.dim() == 0:
        raise ValueError("horovod: allgather joins along axis 0, which a tensor of shape () does not have")
    return gathered


def broadcast(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = None) -> torch.Tensor:
    """The root's tensor. ValueError: the root is no process of the job."""
    _root(root_rank)
    return _checked(tensor, None, None).clone()


def broadcast_(tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: Any = None) -> torch.Tensor:
    """:func:`broadcast` in place."""
    _root(root_rank)
    return _checked(tensor, None, None)


def broadcast_parameters(params: _Named, root_rank: int, process_set: Any = None) -> None:
    """The root's ``state_dict()`` or ``named_parameters()`` in all processes, in place: nothing has to be moved."""
    _root(root_rank)


def broadcast_optimizer_state(
    optimizer: torch.optim.Optimizer, root_rank: int, model: torch.nn.Module | None = None, process_set: Any = None
) -> None:
    """The root's optimiser state in all processes, in place: nothing has to be moved."""
    _root(root_rank)


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None, process_set: Any = None) -> Any:
    """The root's object."""
    _root(root_rank)
    return obj


def allgather_object(obj: Any, name: str | None = None, process_set: Any = None) -> list[Any]:
    """The objects of all processes."""
    _ready()
    return [obj]


def barrier(process_set: Any = None) -> None:
    """Waits for all processes."""
    _ready()


def join(device: int = -1) -> int:
    """Waits for all processes to run out of data; the last one's rank."""
    _ready()
    return 0
