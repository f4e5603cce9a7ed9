"""Execution strategies: which block is in which stage, on which IPU, in which phase.

``Stage``, ``Phase`` and the strategies have upstream's constructors. :meth:`ExecutionStrategy.resolver` gives what the
partition asks block by block. Where a block's IPU comes from: ``Stage.ipu``, else the block's ``ipu_id``, else the
number of its stage (``poptorch:python/_options_impl.py``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

from ..enums import AutoStage, Liveness
from ..errors import BlockError, PartitionError, require, require_bool, require_member


class Stage:
    """Blocks that run on one IPU, one after the other."""

    def __init__(self, *block_ids: str) -> None:
        require(all(isinstance(b, str) for b in block_ids), f"Block IDs are supposed to be strings but got {block_ids}")
        self._blocks = block_ids
        self._stage_id = -1
        self._phase_id = -1
        self._ipu: int | None = None

    @property
    def blocks(self) -> tuple[str, ...]:
        """Ids of the blocks."""
        return self._blocks

    def ipu(self, ipu: int) -> Stage:
        """Put the stage on IPU ``ipu`` of the replica."""
        require(
            isinstance(ipu, int) and not isinstance(ipu, bool) and ipu >= 0,
            f"Stage.ipu: {ipu!r} given, expected a number from 0",
        )
        self._ipu = ipu
        return self

    def __repr__(self) -> str:
        place = "" if self._ipu is None else f".ipu({self._ipu})"
        return f"Stage({', '.join(map(repr, self._blocks))}){place}"


class Phase:
    """Stages that run at the same time, as part of a phased execution. Strings make a single stage of those blocks."""

    def __init__(self, *stages: str | Stage) -> None:
        require(stages, "Phase: at least one Stage or block id is needed")
        if all(isinstance(stage, Stage) for stage in stages):
            self.stages: list[Stage] = [stage for stage in stages if isinstance(stage, Stage)]
        else:
            blocks = [stage for stage in stages if isinstance(stage, str)]
            kinds = [type(stage).__name__ for stage in stages]
            message = f"All arguments must either be block ids (strings) or Stages: {kinds}"
            require(len(blocks) == len(stages), message)
            self.stages = [Stage(*blocks)]

    def stage(self, idx: int) -> Stage:
        """The stage number ``idx``."""
        return self.stages[idx]

    def ipus(self, *ipus: int) -> Phase:
        """Put each stage on an IPU."""
        require(
            len(ipus) == len(self.stages),
            f"Phase contains {len(self.stages)} stages but you provided {len(ipus)} ipus",
        )
        for stage, ipu in zip(self.stages, ipus):
            stage.ipu(ipu)
        return self


class BlockPlace(NamedTuple):
    """Where a strategy puts a block and its ops: number of the stage from 0, IPU of the replica, and phase (-1
    unless the execution is phased)."""

    stage: int
    ipu: int
    phase: int


class Resolver:
    """Answers where the blocks of one program belong; automatic stages are numbered by first appearance.

    Args:
        block_map: the stage of each block that the program listed; empty for automatic stages.
        auto_stage: the rule for automatic stages.
    """

    def __init__(self, block_map: Mapping[str, Stage], auto_stage: AutoStage) -> None:
        self._block_map = block_map
        self._auto_stage = auto_stage
        self._automatic: dict[str, int] = {}

    def stage_of(self, block_id: str, ipu_id: int | None = None) -> BlockPlace:
        """Stage, IPU and phase of a block that was entered with ``ipu_id``.

        Raises :class:`~ipuperf.poptorch.errors.PartitionError` for a block that no stage lists, or without an IPU.
        """
        if not self._block_map:
            stage = self._automatic_stage(block_id, ipu_id)
            return BlockPlace(stage, stage if ipu_id is None else ipu_id, -1)
        listed = self._block_map.get(block_id)
        if listed is None:
            raise BlockError(f"Unknown Block '{block_id}' list of expected Blocks: {list(self._block_map)}")
        ipu = ipu_id if listed._ipu is None else listed._ipu
        if ipu is None and listed._phase_id >= 0:
            raise PartitionError(
                f"Block '{block_id}' of phase {listed._phase_id} has no IPU: call Phase.ipus(...) or Stage.ipu(...), "
                "or give the block an ipu_id"
            )
        return BlockPlace(listed._stage_id, listed._stage_id if ipu is None else ipu, listed._phase_id)

    def places(self, uses: Iterable[tuple[str, int | None]]) -> list[BlockPlace]:
        """:meth:`stage_of` for all entries into blocks, in the program's order."""
        return [self.stage_of(*use) for use in uses]

    def _automatic_stage(self, block_id: str, ipu_id: int | None) -> int:
        if block_id not in self._automatic:
            if self._auto_stage is AutoStage.AutoIncrement:
                self._automatic[block_id] = len(self._automatic)
            elif ipu_id is None:
                raise BlockError(
                    f"AutoStage.SameAsIpu takes the stage of a block from its IPU, and block {block_id} has none"
                )
            else:
                self._automatic[block_id] = ipu_id
        return self._automatic[block_id]


class ExecutionStrategy:
    """Base of the strategies. ``name`` is ``pipelined``, ``sharded``, ``parallel phased`` or ``serial phased``.

    Upstream numbers automatic stages from 1 in its code and from 0 in its documentation; here it is 0.
    """

    name = ""
    _execution_mode = 0

    def __init__(self, block_map: Mapping[str, Stage], auto_stage: AutoStage) -> None:
        self._block_map = dict(block_map)
        self._auto_stage = auto_stage

    def stage(self, block_id: str) -> Stage:
        """The stage that lists ``block_id``."""
        require(isinstance(block_id, str) and block_id in self._block_map, f"Unknown block {block_id}")
        return self._block_map[block_id]

    def resolver(self) -> Resolver:
        """A fresh :class:`Resolver`, for one program."""
        return Resolver(self._block_map, self._auto_stage)

    def backendOptions(self) -> dict[str, Any]:
        """What upstream hands to its compiler."""
        return {"execution_mode": self._execution_mode}

    def __repr__(self) -> str:
        stages = list(dict.fromkeys(map(repr, self._block_map.values())))
        return f"{type(self).__name__}({', '.join(stages) if stages else self._auto_stage.name})"


class PipelinedExecution(ExecutionStrategy):
    """Stages work on successive micro-batches at the same time.

    Args:
        args: stages, block ids or lists of block ids, in order; or one ``AutoStage``; or nothing, which is
            ``AutoStage.SameAsIpu``.
    """

    name = "pipelined"

    def __init__(self, *args: AutoStage | Stage | str | Iterable[str]) -> None:
        if len(args) == 1 and isinstance(args[0], AutoStage):
            super().__init__({}, args[0])
            return
        block_map: dict[str, Stage] = {}
        for number, arg in enumerate(args):
            stage = _as_stage(arg)
            stage._stage_id = number
            _add_blocks(block_map, stage)
        super().__init__(block_map, AutoStage.SameAsIpu)


class ShardedExecution(PipelinedExecution):
    """Stages work one after the other on one micro-batch. Arguments as for :class:`PipelinedExecution`."""

    name = "sharded"
    _execution_mode = 1


class PhasedExecution(ExecutionStrategy):
    """Base of the phased strategies (upstream: ``_IPhasedExecution``; no program names it).

    Args:
        phases: each a :class:`Phase`, a list of stages, or a list of block ids (one stage).
    """

    _execution_mode = 2
    _serial = False

    def __init__(self, *phases: Phase | Stage | str | list[Stage] | list[str]) -> None:
        if len(phases) == 1 and isinstance(phases[0], list) and any(isinstance(p, Phase) for p in phases[0]):
            phases = tuple(phases[0])  # upstream's documentation passes one list of phases
        require(phases, "A phased execution has no AutoStage: list its phases")
        self._tensors_liveness = Liveness.AlwaysLive
        self._separate_backward_phase = False
        self._phases: list[Phase] = []
        block_map: dict[str, Stage] = {}
        for number, arg in enumerate(phases):
            phase = arg if isinstance(arg, Phase) else Phase(*(arg if isinstance(arg, list) else [arg]))
            self._phases.append(phase)
            for stage in phase.stages:
                stage._stage_id = stage._phase_id = number
                _add_blocks(block_map, stage)
        super().__init__(block_map, AutoStage.SameAsIpu)

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The forward phases in order."""
        return tuple(self._phases)

    @property
    def liveness(self) -> Liveness:
        """When tensors leave the chip."""
        return self._tensors_liveness

    @property
    def separate_backward_phase(self) -> bool:
        """Whether the backward pass begins in a phase of its own."""
        return self._separate_backward_phase

    def phase(self, phase: int) -> Phase:
        """The phase number ``phase``."""
        require(isinstance(phase, int) and phase >= 0, "Phases are identified by positive integers")
        return self._phases[phase]

    def useSeparateBackwardPhase(self, use: bool = True) -> PhasedExecution:
        """Let the end of the forward and the beginning of the backward pass be two phases instead of one."""
        require_bool("useSeparateBackwardPhase", use)
        self._separate_backward_phase = use
        return self

    def backendOptions(self) -> dict[str, Any]:
        """See :class:`ExecutionStrategy`."""
        return {
            **super().backendOptions(),
            "separate_backward_phase": self._separate_backward_phase,
            "tensors_liveness": self._tensors_liveness.value,
            "serial_phases_execution": self._serial,
        }


class ParallelPhasedExecution(PhasedExecution):
    """Phases alternate between two groups of IPUs: even phases on even IPUs, odd phases on odd ones."""

    name = "parallel phased"

    def sendTensorsOffChipAfterFwd(self, off_chip: bool = True) -> ParallelPhasedExecution:
        """Whether tensors leave the chip between the forward and the backward pass."""
        require_bool("sendTensorsOffChipAfterFwd", off_chip)
        self._tensors_liveness = Liveness.OffChipAfterFwd if off_chip else Liveness.AlwaysLive
        return self


class SerialPhasedExecution(PhasedExecution):
    """All phases run one after the other on one group of IPUs."""

    name = "serial phased"
    _serial = True

    def setTensorsLiveness(self, liveness: Liveness) -> SerialPhasedExecution:
        """When tensors leave the chip."""
        require_member("setTensorsLiveness", liveness, Liveness)
        self._tensors_liveness = liveness
        return self


def _as_stage(arg: AutoStage | Stage | str | Iterable[str]) -> Stage:
    if isinstance(arg, Stage):
        return arg
    if isinstance(arg, str):
        return Stage(arg)
    require(
        isinstance(arg, Iterable) and not isinstance(arg, AutoStage),
        f"{arg!r} given as a stage, expected a poptorch.Stage, a block id or a list of block ids",
    )
    return Stage(*cast(Iterable[str], arg))


def _add_blocks(block_map: dict[str, Stage], stage: Stage) -> None:
    for block in stage.blocks:
        require(block not in block_map, f"{block} associated with more than one stage")
        block_map[block] = stage
