"""How far an IPU is in its loops."""

from __future__ import annotations


class LoopCounters:
    """The open loops, outermost first: ``begins`` (index of the instruction that begins each) and its ``trips`` that
    are over."""

    def __init__(self) -> None:
        self.begins: list[int] = []
        self.trips: list[int] = []

    def enter(self, begin: int) -> None:
        """A loop begins."""
        self.begins.append(begin)
        self.trips.append(0)

    def again(self, count: int) -> bool:
        """A trip of the innermost loop is over: whether another one of ``count`` begins; else the loop is left."""
        if self.trips[-1] + 1 < count:
            self.trips[-1] += 1
            return True
        self.trips.pop()
        self.begins.pop()
        return False
