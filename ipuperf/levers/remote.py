"""Levers on what lives in Streaming Memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ipuperf.ir import Ir, RemoteBuffer, TensorSpec
from ipuperf.lowering import DeviceProgram, RemoteTransfer, Repeat, Sequence, Step
from ipuperf.pipelines import BuildRequest

from .rerun import Rerun
from .sharding import SMALLEST, shard, shardable
from .trial import Lever, Trial, Untried


def _held(ir: Ir) -> dict[RemoteBuffer, int]:
    """Remote buffers that hold variables, and the bytes of each on one replica."""
    buffers = [variable.remote[0] for variable in ir.variables() if variable.remote is not None]
    return {b: b.entries * _bytes(b) for b in dict.fromkeys(buffers)}


def _by_ipu(ir: Ir, held: dict[RemoteBuffer, int]) -> dict[int, int]:
    """Bytes of remote variables by the IPU of the replica that has them; 0 where the program does not say."""
    place = {variable.remote[0]: variable.ipu or 0 for variable in ir.variables() if variable.remote is not None}
    found: dict[int, int] = {}
    for buffer, size in held.items():
        found[place[buffer]] = found.get(place[buffer], 0) + size
    return found


def _bytes(buffer: RemoteBuffer) -> int:
    return TensorSpec(buffer.shape, buffer.dtype).bytes


class Sharding(Lever):
    """Every replica keeps a part of what is the same on all of them."""

    what = "sharding over the replicas"

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        held = _held(run.executable.ir)
        if not held:
            return
        replicas = run.device_program.replicas
        if replicas == 1:
            yield self.untried("there is one replica")
            return
        executable = run.fresh(_sharding)
        if _sharded(executable.ir) > _sharded(run.executable.ir):
            what = f"shard the optimiser state over the {replicas} replicas, and update shards"
            yield Trial(f"{what} (replicated tensor sharding)", executable.trace)
            return
        buffers = shardable(executable.ir)
        if not buffers:
            yield self.untried(
                f"no remote variable of at least {SMALLEST:,} elements is whole and the same on all replicas"
            )
            return
        shard(executable.ir, buffers)
        which = f"{len(buffers)} remote variables of at least {SMALLEST:,} elements"
        yield Trial(f"shard what Streaming Memory holds over the {replicas} replicas: {which}", executable.trace)


def _sharding(request: BuildRequest) -> BuildRequest:
    """Replicated tensor sharding, of pipelines whose optimiser state is in Streaming Memory."""
    offload = request.offload
    return replace(request, offload=replace(offload, shard_optimiser_state=offload.optimiser_state))


def _sharded(ir: Ir) -> int:
    return sum(bool(buffer.meta_shape) for buffer in ir.remote_buffers)


class OnChip(Lever):
    """Remote variables stay on the IPU, so that nothing is loaded or stored."""

    what = "remote variables on chip"

    def tries(self, run: Rerun) -> Iterator[Trial | Untried]:
        held = _held(run.executable.ir)
        program = run.device_program
        numbers = {buffer.id for buffer in held}
        before, after = _transfers(program), _transfers(without(program, numbers))
        if before == after:
            return
        other = run.executable.on(run.executable.machine)
        vars(other)["device_program"] = without(program, numbers)
        fullest = max(_by_ipu(run.executable.ir, held).values())
        what = f"keep the {len(held)} remote variables on chip, {sum(held.values()):,} B of each replica, spread evenly"
        more = -(-fullest // int(run.trace.meta["tiles_per_ipu"]))
        yield Trial(what, other.trace, more_bytes=more, trades_memory=True)


def _transfers(program: DeviceProgram) -> int:
    trees = [program.leaves(ipu) for ipu in range(len(program.ipus))]
    return sum(isinstance(step, RemoteTransfer) for leaves in trees for step in leaves)


def without(program: DeviceProgram, buffers: set[int]) -> DeviceProgram:
    """The program without transfers of these buffers."""

    def sequence(steps: Sequence) -> Sequence:
        kept = [step for step in steps.steps if not (isinstance(step, RemoteTransfer) and step.buffer_id in buffers)]
        return replace(steps, steps=tuple(rewritten(step) for step in kept))

    def rewritten(step: Step) -> Step:
        if isinstance(step, Repeat):
            return replace(step, body=sequence(step.body))
        return sequence(step) if isinstance(step, Sequence) else step

    functions = {name: sequence(body) for name, body in program.functions.items()}
    return replace(program, ipus=tuple(sequence(tree) for tree in program.ipus), functions=functions)
