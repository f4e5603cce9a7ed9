"""A job of one process: what Horovod says about it, whichever library the program uses."""

from __future__ import annotations

from typing import Any

from ipuperf.base.near_names import instead_of
from ipuperf.frontends import popdist

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


def ready() -> None:
    """Raise ValueError before :func:`init`."""
    if not _started:
        raise ValueError("Horovod has not been initialized; use hvd.init().")


def size() -> int:
    """1: the processes of the job. ValueError before :func:`init`, as for all that follow."""
    ready()
    return 1


def rank() -> int:
    """0: this process."""
    ready()
    return 0


local_size = cross_size = size
local_rank = cross_rank = rank


def has_root(root_rank: int) -> None:
    """Raise ValueError if the root is no process of the job."""
    ready()
    if root_rank != 0:
        raise ValueError(f"horovod: root_rank={root_rank} in a job of 1 process; the root is 0")


def known_op(average: bool | None, op: str | None) -> None:
    """Raise ValueError if a reduction is said twice, or is none."""
    ready()
    if average is not None and op is not None:
        raise ValueError("horovod: the op parameter supersedes average; give one of them")
    if op not in _OPS:
        raise ValueError(f"horovod: op={op!r}{instead_of(op, _OPS[1:])}")


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None, process_set: Any = None) -> Any:
    """The root's object."""
    has_root(root_rank)
    return obj


def allgather_object(obj: Any, name: str | None = None, process_set: Any = None) -> list[Any]:
    """The objects of all processes."""
    ready()
    return [obj]


def barrier(process_set: Any = None) -> None:
    """Waits for all processes."""
    ready()


def join(device: int = -1) -> int:
    """Waits for all processes to run out of data; the last one's rank."""
    ready()
    return 0


#: What is the same for every library.
__all__ = [
    *("Adasum", "Average", "Max", "Min", "Product", "Sum", "allgather_object", "barrier", "broadcast_object"),
    *("cross_rank", "cross_size", "init", "is_initialized", "join", "local_rank", "local_size", "rank", "shutdown"),
    "size",
]
