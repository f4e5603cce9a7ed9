"""Which IPUs of a replica wait for each other when one of them communicates.

All IPUs of a replica run one program. Where one of them communicates, others may have to meet it at that place of their
lists (:class:`.steps.ExternalSync`), although they take no part in it. They then go on. Communication of different IPUs
therefore comes in the program's order. A step says itself who meets before it (:meth:`.steps.Step.meets`).
"""

from __future__ import annotations

#: Which IPUs stand while one of them copies to or from the host (PopART's ``SyncPattern``).
SYNC_PATTERNS = ("full", "single_pipeline", "replica_and_ladder")


class SyncGroups:
    """The IPUs of a replica under one of the :data:`SYNC_PATTERNS`.

    Attributes:
        everyone: all IPUs of the replica.
    """

    def __init__(self, pattern: str, ipus: int) -> None:
        self._pattern = pattern
        self.everyone = tuple(range(ipus))

    def standing(self, ipu: int) -> tuple[int, ...]:
        """IPUs that stand while ``ipu`` does a stream copy, including ``ipu``."""
        if self._pattern == "full":
            return self.everyone
        if self._pattern == "replica_and_ladder":
            # The ladder has two sides: the IPUs with even numbers and those with odd ones.
            return self.everyone[ipu % 2 :: 2]
        return (ipu,)
