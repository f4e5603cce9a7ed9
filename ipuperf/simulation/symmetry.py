"""Replica symmetry: replicas that do the same at the same time are simulated once.

All replicas have one program; they differ only in their placement. Where the placement makes no difference, they are in
the same state in every instant. The processes of one replica then stand for those of all. The replicas are divided into
*classes* (:class:`.classes.ReplicaClasses`), and the first replica of each class is simulated. What the other replicas
do is not assumed; it is worked out at the same time:

- A transfer of a class (DDR, host, between IPUs of a replica) is one flow with the sends of all its replicas, each over
  its own route. All these sends share the links with everything else (:mod:`.network`): four replicas that load from
  one DDR channel get a quarter each. Their latencies have to be equal, and so have their rates after every change.
- A collective begins for a group when the classes of all its members are there, with all their sends. The replicas of
  a class have to begin and leave it in the same cycle, and each round has to take equally long for them
  (:class:`Seat`).
- Host servers count as one if they cost their replicas the same and have replicas of the same classes
  (:func:`.classes.by_servers`).

Replicas can come to differ in no other place; each kind of step declares this
(:attr:`.kinds.SharedKind.symmetric`). Where the replicas of a class do differ, :class:`.errors.Asymmetric` is raised
and says which replicas did the same. :func:`.simulate.simulate` then begins again with smaller classes, in the end with
one class for each replica. The trace is the same either way: the rows of the other replicas are made from those of the
first when somebody asks for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .errors import Asymmetric
from .gathering import Guest
from .instructions import StepPart
from .kinds import SharedKind

if TYPE_CHECKING:
    from .walk import ProgramTree


def may_be_alike(tree: ProgramTree) -> bool:
    """Whether the program has several replicas, and only steps in which one replica may stand for others."""
    return tree.program.replicas > 1 and all(kind.symmetric for kind in tree.kinds if issubclass(kind, SharedKind))


class Seat:
    """A party in a collective. It stands for all members of its class, in one group or in several.

    Args:
        guest: the party, which goes on when all members have left.
        count: how many members there are.
    """

    def __init__(self, guest: Guest, count: int) -> None:
        self._guest = guest
        self._events = guest.party.world.events
        self._remaining = count
        self._begun = False
        self._courses: list[tuple[int, int, tuple[StepPart, ...], list[int]]] = []  # begin, end, parts, replicas

    def begin(self) -> None:
        """The collective of one of the groups begins."""
        if not self._begun:
            self._begun = True
            self._guest.party.parts.close("sync_external")

    def leave(self, begun: int, parts: tuple[StepPart, ...], replicas: Sequence[int]) -> None:
        """These members have left the collective.

        Args:
            begun: when the collective began for them.
            parts: what they did in it.
            replicas: the members.

        Raises:
            Asymmetric: they are the last ones, and not all members did the same.
        """
        time = self._events.now
        for begin, end, known_parts, members in self._courses:
            # Members of a group that did the same share the tuple, so identity mostly decides.
            if (begin, end) == (begun, time) and (known_parts is parts or known_parts == parts):
                members += replicas
                break
        else:
            self._courses.append((begun, time, parts, list(replicas)))
        self._remaining -= len(replicas)
        if self._remaining:
            return
        if len(self._courses) > 1:
            name = self._guest.leaf.step.name
            raise Asymmetric(f"not all replicas go through {name!r} alike", [members for *_, members in self._courses])
        self._guest.party.parts.add(parts)
        self._guest.go_on()
