"""The operations of a user's program: libpva's ``OperationAnalysis``, from the table ``ops``.

Poplar keeps the facts about an operation (layer, file, line) in a file of its own, ``debug.cbor``; a trace holds them
itself. Names: graphcore/poptorch ``tests/profiling_test.py``.
"""

from __future__ import annotations

from functools import cached_property
from typing import ClassVar

from .absent import ReportPart
from .programs import Program
from .report import Report


class Location(ReportPart):
    """``fileName`` and ``lineNumber`` of the line that made an operation; "" and 0 if it is unknown."""

    def __init__(self, line: str) -> None:
        name, _, number = line.rpartition(":")
        self.fileName, self.lineNumber = (name, int(number)) if number.isdigit() else (line, 0)


class DebugContext(ReportPart):
    """``name``, ``layer`` (path of the user's module; the graph where none is known) and ``location``."""

    ABSENT: ClassVar = {
        "json": "name, layer and location have what is known",
        "parents": "layer has the path of the modules around it",
        "id": "operations are told apart by their names",
    }

    def __init__(self, name: str, layer: str, line: str) -> None:
        self.name = name
        self.layer = layer
        self.location = Location(line)


class AnalysedOperation(ReportPart):
    """``name`` (its type), ``debugContext``; ``replacedDebugContext``: always empty; ``programs()`` that it became."""

    ABSENT: ClassVar = {
        **dict.fromkeys(
            ("firstStepIndex", "lastStepIndex"), "programs() compare equal to step.program of execution.steps"
        ),
        "vars": "report.trace.table('variables') has the variables with their op_id",
    }

    def __init__(self, name: str, context: DebugContext, programs: list[Program]) -> None:
        self.name = name
        self.debugContext = context
        self.replacedDebugContext: tuple[DebugContext, ...] = ()
        self._programs = programs

    def programs(self) -> list[Program]:
        """Return its programs in the order of the table."""
        return list(self._programs)


class OperationAnalysis(ReportPart):
    """The operations of a report."""

    def __init__(self, report: Report) -> None:
        self._report = report

    @cached_property
    def operations(self) -> list[AnalysedOperation]:
        """Every op, in the order of the table ``ops``."""
        ops, by_op = self._report.trace.columns("ops"), self._programs_by_op
        columns = (ops[name].tolist() for name in ("op_id", "type", "name", "module", "line"))
        return [
            AnalysedOperation(str(kind), DebugContext(str(name), str(module), str(line)), by_op.get(op, []))
            for op, kind, name, module, line in zip(*columns, strict=True)
        ]

    @cached_property
    def _programs_by_op(self) -> dict[int, list[Program]]:
        programs_by_op: dict[int, list[Program]] = {}
        programs = self._report.compilation.programs
        for op, program in zip(self._report.trace.columns("programs")["op_id"].tolist(), programs, strict=True):
            # -1 marks a program that belongs to no op.
            if op >= 0:
                programs_by_op.setdefault(op, []).append(program)
        return programs_by_op
