"""Whether the remote buffers of a program fit into the Streaming Memory of the IPU-Machines that it runs on.

Each replica has a copy of every buffer (of its shards, where it is sharded), in the DDR of the IPU-Machines that its
IPUs are in (``docs/reference/popxl.md`` 5.1).
"""

from __future__ import annotations

import math

from ipuperf.base.kinds import checked
from ipuperf.ir import Ir, RemoteBuffer
from ipuperf.machine import Machine, MachineError

from .placement import ipus_per_replica


def check_streaming_memory(ir: Ir, machine: Machine) -> None:
    """Raise MachineError where a program has remote buffers and the machine too little Streaming Memory, or none."""
    if ir.remote_buffers:
        machine.ipu_machine.require_streaming_memory()
        check_capacity(ir, machine)


@checked()
def check_capacity(ir: Ir, machine: Machine) -> None:
    """Check that the buffers fit; :func:`check_streaming_memory` handles a machine without Streaming Memory.

    Raises:
        MachineError: the buffers of the replicas that share the IPU-Machines of one are larger than their DDR.
    """
    memory = machine.ipu_machine.streaming_memory
    if memory is None or not ir.remote_buffers:
        return
    ipus, ipus_per_machine = ipus_per_replica(ir), machine.num_ipus // machine.num_ipu_machines
    # Replicas that fit into one IPU-Machine share its DDR; a larger replica has the DDR of several.
    sharing_replicas, machines = (
        min(ir.replication_factor, max(1, ipus_per_machine // ipus)),
        math.ceil(ipus / ipus_per_machine),
    )
    demand = sharing_replicas * sum(_bytes(buffer) for buffer in ir.remote_buffers)
    limit = machines * memory.ddr_capacity_bytes
    if demand > limit:
        largest = sorted(ir.remote_buffers, key=_bytes, reverse=True)[:3]
        raise MachineError(
            f"{machine.name}: the remote buffers need {demand:,} bytes of Streaming Memory ({sharing_replicas} "
            f"replicas on {machines} IPU-Machines), there are {limit:,}; largest on a replica: "
            f"{', '.join(f'{buffer} {_bytes(buffer):,}' for buffer in largest)}; would help: fewer entries, or tensors "
            "sharded over the replicas (RTS)"
        )


def _bytes(buffer: RemoteBuffer) -> int:
    """Bytes of a buffer on one replica."""
    return buffer.entries * math.prod(buffer.shape) * buffer.dtype.size
