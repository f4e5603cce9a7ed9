"""How far an IPU is in its loops."""

from __future__ import annotations


class LoopCounters:
    """The open loops, outermost first.

    ``begins`` has the index of the instruction that begins each loop, ``trips`` how many of its trips have ended.
    """

    def __init__(self) -> None:
        self.begins: list[int] = []
        self.trips: list[int] = []

    def enter(self, begin: int) -> None:
        """Open a loop."""
        self.begins.append(begin)
        self.trips.append(0)

    def again(self, count: int) -> bool:
        """End a trip of the innermost loop, and return whether another of its ``count`` trips begins.

        If not, the loop is closed.
        """
        if self.trips[-1] + 1 < count:
            self.trips[-1] += 1
            return True
        self.trips.pop()
        self.begins.pop()
        return False
