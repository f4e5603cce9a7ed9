"""How much host memory the values of a program take and how much is free, known before the values are written.

Arrays take address space when they are made and memory when they are written, so a compiled program's demand is known
before it uses the memory. Under a limit of address space (``ulimit -v``) making the arrays fails.
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
def room_for(program: Ir, byte_counts: list[int]) -> Iterator[None]:
    """Compile the values of ``program`` within the block, which adds to ``byte_counts`` the bytes that runs will write.

    Raises:
        HostMemoryError: the host has less memory free, or it ran out of memory in the block.
    """
    free, kind = free_bytes()
    try:
        yield
    except MemoryError as error:
        raise out_of_room(program, error) from None
    if sum(byte_counts) > free:
        needed = f"its values need {_gigabytes(sum(byte_counts))} and {_gigabytes(free)} are free ({kind})"
        raise HostMemoryError(f"the program does not fit this host: {needed}; {_advice(program)}")


def out_of_room(program: Ir, error: MemoryError) -> HostMemoryError:
    """The HostMemoryError for ``error``, which arose while values of ``program`` were made or computed."""
    free, kind = free_bytes()
    reason = " ".join(str(error).split()) or "out of memory"
    return HostMemoryError(
        f"the program does not fit this host: {reason} ({_gigabytes(free)} free: {kind}); {_advice(program)}"
    )


def variable_bytes(program: Ir) -> int:
    """Bytes of the variables on all replicas, wherever the IPUs keep them. All are written before the first run."""
    return program.replication_factor * sum(map(_bytes, program.variables()))


def free_bytes() -> tuple[int, str]:
    """The bytes that this process can still take, and the name of what limits them.

    The number is as good as infinite where no limit can be read.
    """
    limits = [(sys.maxsize, "no limit")]
    with suppress(OSError, ValueError, KeyError):
        lines = Path("/proc/meminfo").read_text().splitlines()
        host = {line.split(":")[0]: 1024 * int(line.split()[1]) for line in lines if line.endswith("kB")}
        limits.append((host["MemAvailable"] + host["SwapFree"], "memory of this host"))
    for limit_file, usage_file in _CONTROL_GROUPS:
        with suppress(OSError, ValueError):  # "max" is no limit
            limit_bytes, used_bytes = int(limit_file.read_text()), int(usage_file.read_text())
            statistics = dict(line.split() for line in limit_file.with_name("memory.stat").read_text().splitlines())
            cached = sum(
                int(statistics.get(name, 0)) for name in ("inactive_file", "active_file")
            )  # the kernel frees it on demand
            limits.append((limit_bytes - used_bytes + cached, "limit of the control group"))
    with suppress(ImportError, OSError):
        import resource

        limit_bytes, _ = resource.getrlimit(resource.RLIMIT_AS)
        if limit_bytes != resource.RLIM_INFINITY:
            # The limit is one of address space, so mapped pages count and not resident ones.
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            limits.append((limit_bytes - pages * resource.getpagesize(), "limit of address space, ulimit -v"))
    free, limit_name = min(limits)
    return max(free, 0), limit_name


_GROUP = Path("/sys/fs/cgroup")
_CONTROL_GROUPS = (
    (_GROUP / "memory.max", _GROUP / "memory.current"),
    (_GROUP / "memory" / "memory.limit_in_bytes", _GROUP / "memory" / "memory.usage_in_bytes"),
)
"""Files with limit and use of a container, as it sees them itself: control groups of version 2 and 1."""


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
