"""The compiled programs of a report as a tree, and the visitor that goes through it.

Names: libpva (``docs/reference/traces.md`` 2; graphcore/examples
``tutorials/tutorials/popvision/libpva/walkthrough.py``).
"""

from __future__ import annotations

from enum import Enum
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from ipuperf.trace import Trace

from .absent import ReportPart

TYPES = (
    "OnTileExecute",
    "DoExchange",
    "GlobalExchange",
    "StreamCopyBegin",
    "StreamCopyMid",
    "StreamCopyEnd",
    "Sync",
    "Sequence",
    "Repeat",
    "Call",
)
"""Types of programs that a trace holds."""

NEVER_HERE = ("SyncAns", "Sans", "OnEveryTileSwitch")
"""Types of libpva that scripts compare with but no program of a trace has; the comparison is then False."""


class ProgramVisitor:
    """One method for each type of program (``visitOnTileExecute(program)``, ...); each does nothing unless overridden.

    ``program.accept(visitor)`` calls the method of the program's own type, once. To go through a tree, a method visits
    ``program.children`` itself.
    """

    def visitOnTileExecute(self, program: Program) -> None:
        """A compute set."""

    def visitDoExchange(self, program: Program) -> None:
        """An exchange between the tiles of an IPU."""

    def visitGlobalExchange(self, program: Program) -> None:
        """An exchange between IPUs."""

    def visitStreamCopyBegin(self, program: Program) -> None:
        """The wait for the host before a stream copy."""

    def visitStreamCopyMid(self, program: Program) -> None:
        """The transfer of a stream copy, or from or to Streaming Memory."""

    def visitStreamCopyEnd(self, program: Program) -> None:
        """The end of a stream copy."""

    def visitSync(self, program: Program) -> None:
        """A sync."""

    def visitSequence(self, program: Program) -> None:
        """Programs one after the other."""

    def visitRepeat(self, program: Program) -> None:
        """A loop."""

    def visitCall(self, program: Program) -> None:
        """A call of a function, which is a ``Sequence`` of the same name."""

    def visitSyncAns(self, program: Program) -> None:
        """A kind of sync that only libpva distinguishes; never called here."""

    def visitSans(self, program: Program) -> None:
        """A kind of sync that only libpva distinguishes; never called here."""

    def visitOnEveryTileSwitch(self, program: Program) -> None:
        """The programs that the host can start; never called here: they are the roots of ``compilation.programs``."""


class VertexType(ReportPart):
    """``name``: the type's name."""

    ABSENT: ClassVar = {"size": "the code of all vertices of a tile is tile.memory.category.vertexCode.total"}

    def __init__(self, name: str) -> None:
        self.name = name


class Vertex(ReportPart):
    """``type``: the type of a compute set's vertices."""

    ABSENT: ClassVar = {"countByTile": "step.ipus[i].activeTileBalance says how evenly a compute set is spread"}

    def __init__(self, name: str) -> None:
        self.type = VertexType(name)


class ComputeSet(ReportPart):
    """``name``; ``vertices``: a compute set of ipuperf's programs has vertices of one type and bears its name."""

    ABSENT: ClassVar = {"estimatedCyclesByTile": "step.ipus[i].cycles are the cycles of its slowest tile"}

    def __init__(self, name: str) -> None:
        self.name = name
        self.vertices = [Vertex(name)]


class Program(ReportPart):
    """One program. Two objects are equal if they are the same program of the same report.

    Attributes:
        name, type: its name and type.
        children: the programs within a Sequence or Repeat. A Call has none: it calls the Sequence of its name.
    """

    Type = Enum("Type", (*TYPES, *NEVER_HERE))  # type: ignore[misc]  # names are data
    ABSENT: ClassVar = {
        "vars": "which variables are live is in compilation.livenessProgramSteps",
        "controlCodeByTile": "control code by tile is tile.memory.category.controlCode.total",
        "codeBytesByTile": "exchange code by tile is tile.memory.category.internalExchangeCode.total",
        "estimatedCyclesByTile": "step.ipus[i].cycles are the cycles of its slowest tile",
        "computeset": "only a program of type OnTileExecute has one",
    }

    def __init__(self, programs: Programs, row: int) -> None:
        columns = programs.columns
        self._programs = programs
        self._id = int(columns["program_id"][row])
        self.name = str(columns["name"][row])
        self.type: Any = Program.Type[str(columns["type"][row])]
        if self.type.name == "OnTileExecute":
            self.computeset = ComputeSet(self.name)

    @property
    def children(self) -> list[Program]:
        """The programs within this one, in order."""
        return self._programs.children(self._id)

    def accept(self, visitor: ProgramVisitor) -> None:
        """Call the method of ``visitor`` for the type of this program."""
        getattr(visitor, f"visit{self.type.name}")(self)

    def __repr__(self) -> str:
        return f"<{self.type.name} {self.name!r}>"


class Programs:
    """All programs of a trace; each object is made once."""

    def __init__(self, trace: Trace) -> None:
        self.columns = trace.columns("programs")
        ids = self.columns["program_id"].tolist()
        self.row = {program: row for row, program in enumerate(ids)}

    @cached_property
    def all(self) -> list[Program]:
        """Every program, roots and programs within others, in the order of the table."""
        return [Program(self, row) for row in range(len(self.row))]

    def of(self, program_id: int) -> Program:
        """Return the program with this id."""
        return self.all[self.row[program_id]]

    @cached_property
    def _children(self) -> dict[int, list[int]]:
        children: dict[int, list[int]] = {}
        # Sorted by parent, then by order within it, so each list of children is in program order.
        for row in np.lexsort((self.columns["order"], self.columns["parent"])).tolist():
            children.setdefault(int(self.columns["parent"][row]), []).append(row)
        return children

    def children(self, program_id: int) -> list[Program]:
        """The programs within one, in order."""
        return [self.all[row] for row in self._children.get(program_id, [])]
