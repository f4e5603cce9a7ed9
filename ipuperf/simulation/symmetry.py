"""Replica symmetry: replicas that do the same at the same time are simulated once.

All replicas have one program; only where they are placed tells them apart. As long as that makes no difference they are
in the same state in every instant, so the processes of replica 0 stand for those of all. What the others do is not
assumed but worked out with it:

- A transfer of replica 0 (DDR, host, between its IPUs) is one flow with the sends of all replicas, each over its own
  route, and all of them share the links with everything else (:mod:`.network`): four replicas that load from one DDR
  channel get a quarter each. Their latencies and, at every change, their rates have to be equal.
- A collective begins for all groups at once, with all their sends. All members have to leave it in the same cycle, and
  each round has to have taken them equally long.
- A callback of the host has to take every host server equally long; replica 0 speaks for all replicas of all of them.

These are all the places where replicas can come to differ (a kind of step says that it has no other:
:attr:`.kinds.SharedKind.symmetric`). Where one of them does, :class:`.errors.Asymmetric` is
raised, and :func:`.simulate.simulate` begins again with the processes of all replicas. The trace is the same either
way: the rows of the other replicas are made from those of replica 0 when somebody asks for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .collectives import Members
from .errors import Asymmetric
from .gathering import Guest
from .instructions import StepPart
from .kinds import SharedKind, kind_of

if TYPE_CHECKING:
    from .walk import ProgramTree


def may_be_alike(tree: ProgramTree) -> bool:
    """Whether the program has several replicas, and only steps in which one of them may stand for all."""
    kinds = {kind_of(leaf.step) for leaf in tree.leaves}
    return tree.program.replicas > 1 and all(kind.symmetric for kind in kinds if issubclass(kind, SharedKind))


class AllAlike(Members):
    """One party stands for the ``count`` members of all groups.

    Both methods raise :class:`.errors.Asymmetric` when they do not do the same at the same time.
    """

    def __init__(self, guest: Guest, count: int) -> None:
        self._guest = guest
        self._events = guest.party.world.events
        self._left = count
        self._begun = self._ended = -1
        self._parts: list[StepPart] = []

    def begin(self) -> None:
        """All have waited until now."""
        if self._begun < 0:
            self._begun = self._events.now
            self._guest.party.parts.close("sync_external")
        self._require(self._begun == self._events.now)

    def leave(self, ipu: int, parts: list[StepPart]) -> None:
        """It is the same for every one; the party goes on with the last."""
        if self._ended < 0:
            self._ended, self._parts = self._events.now, parts
        self._require(self._ended == self._events.now and (parts is self._parts or parts == self._parts))
        self._left -= 1
        if not self._left:
            self._guest.party.parts.add(parts)
            self._guest.go_on()

    def _require(self, alike: bool) -> None:
        if not alike:
            raise Asymmetric(f"not all replicas go through {self._guest.leaf.step.name!r} alike")
