"""Replica symmetry: replicas that do the same at the same time are simulated once.

All replicas have one program; only where they are placed tells them apart. Where that makes no difference they are in
the same state in every instant, so the processes of one stand for those of all: the replicas are divided into *classes*
(:class:`.classes.ReplicaClasses`), and the first replica of each is simulated. What the others do is not assumed but
worked out with it:

- A transfer of a class (DDR, host, between IPUs of a replica) is one flow with the sends of all its replicas, each over
  its own route, and all of them share the links with everything else (:mod:`.network`): four replicas that load from
  one DDR channel get a quarter each. Their latencies and, at every change, their rates have to be equal.
- A collective begins for a group when the classes of all its members are there, with all their sends. The replicas of
  a class have to begin and leave it in the same cycle, and each round has to have taken them equally long
  (:class:`Seat`).
- Host servers that cost their replicas the same and have replicas of the same classes are one
  (:func:`.classes.by_servers`).

These are all the places where replicas can come to differ (a kind of step says that it has no other:
:attr:`.kinds.SharedKind.symmetric`). Where those of a class do, :class:`.errors.Asymmetric` is raised and says which
did the same; :func:`.simulate.simulate` begins again with smaller classes, in the end with one for each replica. The
trace is the same either way: the rows of the other replicas are made from those of the first when somebody asks for
them.
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
    """Whether the program has several replicas, and only steps in which one of them may stand for others."""
    return tree.program.replicas > 1 and all(kind.symmetric for kind in tree.kinds if issubclass(kind, SharedKind))


class Seat:
    """A party in a collective, with which it stands for the members of its class, in one group or in several.

    Args:
        guest: goes on when all of them have left.
        count: how many they are.
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
        """These members have left, for whom the collective began at ``begun`` and took these parts.

        Raises:
            Asymmetric: they are the last ones, and not all did the same.
        """
        time = self._events.now
        for begin, end, known_parts, members in self._courses:
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
