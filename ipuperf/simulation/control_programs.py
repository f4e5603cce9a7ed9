"""The control programs and leaves of a device program, in columns: a large one has a million of each."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

from ipuperf.lowering.steps import Step

from .instructions import LeafStep


class ControlPrograms:
    """Control programs, by number.

    Attributes:
        parents: the number of the program around each, -1 for none.
        types, names: the type by libpva's names, and the name.
        ops: the number of the op.
        ipus: the IPU of a replica, -1 where several IPUs run it.
    """

    def __init__(self) -> None:
        self.parents, self.ops, self.ipus = array("q"), array("q"), array("q")
        self.types: list[str] = []
        self.names: list[str] = []

    def __len__(self) -> int:
        return len(self.types)

    def add(self, parent: int, kind: str, name: str, op_id: int, ipu: int) -> int:
        """The number of a new control program."""
        self.parents.append(parent)
        self.types.append(kind)
        self.names.append(name)
        self.ops.append(op_id)
        self.ipus.append(ipu)
        return len(self.types) - 1


class Leaves:
    """The leaves, by number; the :class:`LeafStep` of one is made when somebody asks for it.

    Attributes:
        steps: the step of each.
        programs: the number of its first control program.
        lanes: its lane.
    """

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.programs, self.lanes = array("q"), bytearray()

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, number: int) -> LeafStep:
        return LeafStep(number, self.steps[number], self.programs[number], self.lanes[number])

    def __iter__(self) -> Iterator[LeafStep]:
        return map(self.__getitem__, range(len(self.steps)))

    def add(self, step: Step, program: int, lane: int) -> int:
        """The number of a new leaf."""
        self.steps.append(step)
        self.programs.append(program)
        self.lanes.append(lane)
        return len(self.steps) - 1
