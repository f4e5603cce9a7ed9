"""From blocks in program order to stages, IPUs and phases.

Pipelined and sharded: a stage ends where the IPU changes, so successive blocks on one IPU are one stage and a return to
an IPU is a new stage on it (PopTorch counts ``IPU switches + 1`` forward stages). Phased: the stage is the phase, and
the stages of a phase are its IPUs. IPUs are reserved in powers of two up to 64, then in multiples of 64
(``poptorch:popart_compiler/source/CompilerImpl.cpp``, ``createDevice``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..blocks import BEFORE_FIRST_BLOCK, BlockUse
from ..errors import PartitionError
from ..log import logger
from ..options.strategies import BlockPlace, ExecutionStrategy, ParallelPhasedExecution, PhasedExecution

#: IPUs that one process of PopTorch drives at most.
IPUS_OF_A_PROCESS = 64


@dataclass(frozen=True)
class Partition:
    """The outcome of :func:`partition`.

    Attributes:
        places: one placement per block use, in program order.
        leading: placement of the ops before the first block: stage 0, and phase 0, on IPU 0.
        ipus_per_replica: highest IPU used plus one.
        num_ipus: IPUs reserved for all replicas.
    """

    places: tuple[BlockPlace, ...]
    leading: BlockPlace
    ipus_per_replica: int
    num_ipus: int
    has_leading: bool = False

    def place(self, tag: int) -> BlockPlace:
        """BlockPlace of the ops with ``tag``: an index into the uses, or ``BEFORE_FIRST_BLOCK``."""
        return self.leading if tag == BEFORE_FIRST_BLOCK else self.places[tag]

    @property
    def used(self) -> tuple[BlockPlace, ...]:
        """The different placements, in program order."""
        return tuple(dict.fromkeys(((self.leading,) if self.has_leading else ()) + self.places))

    @property
    def stages(self) -> int:
        """Number of forward stages; a phase on several IPUs has several."""
        return max(place.stage for place in self.used) + 1


def partition(
    strategy: ExecutionStrategy,
    blocks_in_program_order: Sequence[BlockUse | tuple[str, int | None]],
    *,
    leading_ops: bool = False,
    replication_factor: int = 1,
    auto_round_num_ipus: bool = False,
) -> Partition:
    """Place each block use.

    Args:
        strategy: the execution strategy of the options.
        blocks_in_program_order: ``(user_id, ipu_id)`` of each entry into a block.
        leading_ops: whether there are ops before the first block. Without any block all ops are such.
        replication_factor: replicas of the model.
        auto_round_num_ipus: reserve more IPUs than used instead of refusing.

    Raises:
        PartitionError: an unknown block, a block without an IPU, phases out of order or on IPUs they may not use, or a
            number of IPUs that cannot be reserved.
    """
    resolver = strategy.resolver()
    uses = [BlockUse(*use) for use in blocks_in_program_order]
    chosen = resolver.places(uses)
    leading = BlockPlace(0, 0, 0 if isinstance(strategy, PhasedExecution) else -1)
    leading_ops = leading_ops or not chosen
    places: list[BlockPlace] = [leading] if leading_ops else []
    if isinstance(strategy, PhasedExecution):
        _check_phases(strategy, uses, [(place.phase, place.ipu) for place in chosen])
        places += _stages(leading if leading_ops else None, [(place.ipu, place.phase) for place in chosen])
    else:
        _warn_of_disorder(uses, [place.stage for place in chosen])
        places += _stages(leading if leading_ops else None, [(place.ipu, -1) for place in chosen])
    ipus = max(place.ipu for place in places) + 1
    reserved = _reserve(ipus * replication_factor, auto_round_num_ipus)
    return Partition(tuple(places[1:] if leading_ops else places), leading, ipus, reserved, leading_ops)


def _stages(previous: BlockPlace | None, places_in_order: Iterable[tuple[int, int]]) -> list[BlockPlace]:
    """Count a new stage wherever the IPU or the phase changes."""
    places = []
    for ipu, phase in places_in_order:
        if previous is None:
            previous = BlockPlace(0, ipu, phase)
        elif (previous.ipu, previous.phase) != (ipu, phase):
            previous = BlockPlace(previous.stage + 1, ipu, phase)
        places.append(previous)
    return places


def _check_phases(strategy: PhasedExecution, uses: Sequence[BlockUse], chosen: Sequence[tuple[int, int]]) -> None:
    previous_phase = 0
    for use, (phase, ipu) in zip(uses, chosen):
        if isinstance(strategy, ParallelPhasedExecution) and ipu % 2 != phase % 2:
            raise PartitionError(
                f"Block '{use.user_id}' of phase {phase} is on IPU {ipu}: in a ParallelPhasedExecution even phases run "
                "on even IPUs and odd phases on odd IPUs"
            )
        if phase < previous_phase:
            raise PartitionError(
                f"Block '{use.user_id}' of phase {phase} runs after a block of phase {previous_phase}: "
                "phases run in order"
            )
        previous_phase = phase


def _warn_of_disorder(uses: Sequence[BlockUse], stages: Sequence[int]) -> None:
    """Stages listed in an order other than the program's: here the program counts, PopART would refuse data flowing
    to an earlier stage."""
    for (earlier, earlier_stage), (later, later_stage) in zip(zip(uses, stages), zip(uses[1:], stages[1:])):
        if later_stage < earlier_stage:
            logger.warning(
                "Block '%s' of stage %d runs after block '%s' of stage %d: it becomes a stage of its own here, PopART "
                "refuses data that flow from a later stage to an earlier one",
                *(later.user_id, later_stage, earlier.user_id, earlier_stage),
            )


def _reserve(used: int, auto_round: bool) -> int:
    if used > IPUS_OF_A_PROCESS:
        reserved = -(-used // IPUS_OF_A_PROCESS) * IPUS_OF_A_PROCESS
    else:
        reserved = 1 << (used - 1).bit_length()
    if reserved == used:
        return used
    if not auto_round:
        raise PartitionError(
            f"Number of IPUs: the model is on {used}, and a device has a power of two (up to {IPUS_OF_A_PROCESS}), "
            f"here {reserved}. Place the blocks on as many IPUs, or let poptorch.Options().autoRoundNumIPUs(True) "
            f"reserve {reserved}"
        )
    logger.warning("Reserving %d IPUs when the model uses only %d; the others stand idle.", reserved, used)
    return reserved
