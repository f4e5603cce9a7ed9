"""How much memory the values of a program take, and how much there is: said before the values are there.

Arrays take address space when they are made and memory when they are written, so what a compiled program will take is
known before it takes it. Under a limit of address space (``ulimit -v``) making them fails.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ipuperf.ir import Ir, Tensor

from .errors import HostMemoryError

_LISTED = 3
REMEDY = (
    "simulate without numbers ('ipuperf run --no-numbers', ipuperf.simulate_session), take fewer replicas or smaller "
    "batches"
)


@contextmanager
def room_for(program: Ir, taken: list[int]) -> Iterator[None]:
    """Compile the values of ``program`` within the block, which puts into ``taken`` the bytes that runs will write.

    Raises:
        HostMemoryError: the host has not as much, or it ran out of memory in the block.
    """
    free, kind = free_bytes()
    try:
        yield
    except MemoryError as error:
        raise out_of_room(program, error) from None
    if sum(taken) > free:
        needed = f"its values need {_gigabytes(sum(taken))} and {_gigabytes(free)} are free ({kind})"
        raise HostMemoryError(f"the program does not fit this host: {needed}; {_advice(program)}")


def out_of_room(program: Ir, error: MemoryError) -> HostMemoryError:
    """What ``error`` means for a program whose values are made or computed."""
    free, kind = free_bytes()
    reason = " ".join(str(error).split()) or "out of memory"
    return HostMemoryError(
        f"the program does not fit this host: {reason} ({_gigabytes(free)} free: {kind}); {_advice(program)}"
    )


def variable_bytes(program: Ir) -> int:
    """What the variables take on all replicas, wherever the IPUs keep them: all are written before the first run."""
    return program.replication_factor * sum(map(_bytes, program.variables()))


def free_bytes() -> tuple[int, str]:
    """The bytes that this process can still take, and what limits them; as good as no limit where none can be read."""
    found = [(sys.maxsize, "no limit")]
    with suppress(OSError, ValueError, KeyError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        host = {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines if line.endswith("kB")}
        found.append((host["MemAvailable"] + host["SwapFree"], "memory of this host"))
    for limit, used in _CONTROL_GROUPS:
        with suppress(OSError, ValueError):  # "max" is no limit
            most, now = int(limit.read_text()), int(used.read_text())
            stat = dict(line.split() for line in limit.with_name("memory.stat").read_text().splitlines())
            cached = sum(int(stat.get(name, 0)) for name in ("inactive_file", "active_file"))  # given up when needed
            found.append((most - now + cached, "limit of the control group"))
    with suppress(ImportError, OSError):
        import resource

        most, _ = resource.getrlimit(resource.RLIMIT_AS)
        if most != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            found.append((most - pages * resource.getpagesize(), "limit of address space, ulimit -v"))
    least, what = min(found)
    return max(least, 0), what


_GROUP = Path("/sys/fs/cgroup")
_CONTROL_GROUPS = (
    (_GROUP / "memory.max", _GROUP / "memory.current"),
    (_GROUP / "memory" / "memory.limit_in_bytes", _GROUP / "memory" / "memory.usage_in_bytes"),
)
"""Limit and use, as a container sees its own: control groups of version 2 and 1."""


def _advice(program: Ir) -> str:
    sizes = [(_bytes(tensor) * program.replication_factor, tensor.id) for tensor in _tensors(program)]
    largest = [f"{name} {_gigabytes(size)}" for size, name in sorted(sizes, reverse=True)[:_LISTED]]
    return f"largest: {', '.join(largest)}; {REMEDY}"


def _tensors(program: Ir) -> list[Tensor]:
    results = [tensor for graph in program.callees_first() for op in graph.ops for tensor in op.outputs]
    return [*program.variables(), *results]


def _bytes(tensor: Tensor) -> int:
    return tensor.spec.elements * tensor.dtype.numpy.itemsize


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:,.2f} GB"
