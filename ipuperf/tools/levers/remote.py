"""Levers on variables in Streaming Memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ipuperf.ir import Ir, RemoteBuffer, TensorSpec
from ipuperf.lowering import DeviceProgram, RemoteTransfer, Repeat, Sequence, Step
from ipuperf.pipelines import BuildRequest

from .change import ProgramChange
from .rerun import Rerun
from .sharding import SMALLEST, shard, shardable
from .trial import Lever, Trial, Untried, simulated


def _held(ir: Ir) -> dict[RemoteBuffer, int]:
    """The remote buffers of variables, and the bytes of each on one replica."""
    buffers = [variable.remote[0] for variable in ir.variables() if variable.remote is not None]
    # Several variables may lie in one buffer, which counts once.
    return {buffer: buffer.entries * _bytes(buffer) for buffer in dict.fromkeys(buffers)}


def _by_ipu(ir: Ir, buffer_bytes: dict[RemoteBuffer, int]) -> dict[int, int]:
    """Bytes of remote variables by IPU of the replica. Variables without an IPU count as those of IPU 0."""
    ipu_of_buffer = {
        variable.remote[0]: variable.ipu or 0 for variable in ir.variables() if variable.remote is not None
    }
    bytes_of_ipu: dict[int, int] = {}
    for buffer, total_bytes in buffer_bytes.items():
        bytes_of_ipu[ipu_of_buffer[buffer]] = bytes_of_ipu.get(ipu_of_buffer[buffer], 0) + total_bytes
    return bytes_of_ipu


def _bytes(buffer: RemoteBuffer) -> int:
    return TensorSpec(buffer.shape, buffer.dtype).bytes


class Sharding(Lever):
    """Each replica keeps a shard of the variables that are the same on all replicas."""

    change = "sharding over the replicas"

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        buffer_bytes = _held(run.executable.ir)
        if not buffer_bytes:
            return
        replicas = run.device_program.replicas
        if replicas == 1:
            yield self.untried("there is one replica")
            return
        # A front end that builds pipelines shards the optimiser's work too. Other programs have loads and stores
        # rewritten, and their updates stay whole.
        executable = run.with_change(ProgramChange("", of_pipeline=_sharding))
        if _sharded(executable.ir) > _sharded(run.executable.ir):
            advice = f"shard the optimiser state over the {replicas} replicas, and update shards"
            location = "poptorch.TensorLocationSettings().useOnChipStorage(False).useReplicatedTensorSharding()"
            diff = run.option("TensorLocations.setOptimizerLocation", location)
            change = ProgramChange(f"{advice} (replicated tensor sharding)", diff=diff, of_pipeline=_sharding)
            yield simulated(run, change)
            return
        buffers = shardable(executable.ir)
        if not buffers:
            yield self.untried(
                f"no remote variable of at least {SMALLEST:,} elements is whole and the same on all replicas"
            )
            return
        shards = f"{len(buffers)} remote variables of at least {SMALLEST:,} elements"
        what = f"shard what Streaming Memory holds over the {replicas} replicas: {shards}"
        yield simulated(run, ProgramChange(what, of_ir=lambda ir: shard(ir, shardable(ir))))


def _sharding(request: BuildRequest) -> BuildRequest:
    """Ask for replicated tensor sharding, in pipelines whose optimiser state is in Streaming Memory."""
    offload = request.offload
    return replace(request, offload=replace(offload, shard_optimiser_state=offload.optimiser_state))


def _sharded(ir: Ir) -> int:
    return sum(bool(buffer.meta_shape) for buffer in ir.remote_buffers)


class OnChip(Lever):
    """Remote variables stay on the IPU, so they are neither loaded nor stored."""

    change = "remote variables on chip"

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        buffer_bytes = _held(run.executable.ir)
        program = run.device_program
        buffer_ids = {buffer.id for buffer in buffer_bytes}
        transfers, transfers_left = _transfers(program), _transfers(without(program, buffer_ids))
        # Without transfers of these buffers nothing can be saved.
        if transfers == transfers_left:
            return
        fullest = max(_by_ipu(run.executable.ir, buffer_bytes).values())
        advice = (
            f"keep the {len(buffer_bytes)} remote variables on chip, {sum(buffer_bytes.values()):,} B of each replica, "
            "spread evenly"
        )
        # Bytes on each tile, rounded up: the trace does not know of variables that it has in Streaming Memory.
        more_bytes = -(-fullest // int(run.trace.meta["tiles_per_ipu"]))
        yield simulated(
            run,
            ProgramChange(
                advice,
                more_bytes=more_bytes,
                trades_memory=True,
                of_program=lambda program: without(program, buffer_ids),
            ),
        )


def _transfers(program: DeviceProgram) -> int:
    trees = [program.leaves(ipu) for ipu in range(len(program.ipus))]
    return sum(isinstance(step, RemoteTransfer) for leaves in trees for step in leaves)


def without(program: DeviceProgram, buffers: set[int]) -> DeviceProgram:
    """The program without the transfers of these buffers."""

    def sequence(steps: Sequence) -> Sequence:
        remaining = [
            step for step in steps.steps if not (isinstance(step, RemoteTransfer) and step.buffer_id in buffers)
        ]
        return replace(steps, steps=tuple(rewritten(step) for step in remaining))

    def rewritten(step: Step) -> Step:
        if isinstance(step, Repeat):
            return replace(step, body=sequence(step.body))
        return sequence(step) if isinstance(step, Sequence) else step

    functions = {name: sequence(body) for name, body in program.functions.items()}
    return replace(program, ipus=tuple(sequence(tree) for tree in program.ipus), functions=functions)
