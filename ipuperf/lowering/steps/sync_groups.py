"""Which IPUs of a replica wait for each other when one of them communicates.

All IPUs of a replica run one program. Where one of them communicates, others may have to meet it at that place of their
lists (:class:`.external_sync.ExternalSync`), although they take no part in it. They then go on. Communication of
different IPUs therefore comes in the program's order. A step says itself who meets before it
(:meth:`.base.Step.meets`).
"""

from __future__ import annotations

#: Which IPUs stand while one of them copies to or from the host (PopART's ``SyncPattern``).
SYNC_PATTERNS = ("full", "single_pipeline", "replica_and_ladder")


class SyncGroups:
    """The IPUs of a replica under one of the :data:`SYNC_PATTERNS`. An IPU without others waits for nobody.

    Attributes:
        ipus: all IPUs of the replica.
        everyone: those that wait where all wait for each other; empty where there is only one.
    """

    def __init__(self, pattern: str, ipus: int) -> None:
        self._pattern = pattern
        self.ipus = tuple(range(ipus))
        self.everyone = self.ipus if ipus > 1 else ()

    def standing(self, ipu: int) -> tuple[int, ...]:
        """IPUs that stand while ``ipu`` does a stream copy, including ``ipu``; empty where no other does."""
        if self._pattern == "full":
            return self.everyone
        # The ladder has two sides: the IPUs with even numbers and those with odd ones.
        side = self.ipus[ipu % 2 :: 2] if self._pattern == "replica_and_ladder" else ()
        return side if len(side) > 1 else ()
