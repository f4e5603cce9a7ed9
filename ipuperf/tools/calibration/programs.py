"""Programs of measurements, simulated again and again on machines with changed figures.

A program is named by words: a script (``.py``, ``.ipynb``) with its arguments; the id of a case; or a model of
``ipuperf validate`` with keys of a case as ``NAME=VALUE``, values as JSON or text. It is built once, and lowered once
for all machines that lowering cannot tell apart.
"""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ipuperf.base.near_names import did_you_mean, instead_of
from ipuperf.ir import IrError
from ipuperf.lowering.again import read_of
from ipuperf.machine import Machine, MachineError, load_machine
from ipuperf.runtime.reaching import NotReachedError, executable_of
from ipuperf.runtime.settings import RunSettings
from ipuperf.runtime.sources import ScriptError
from ipuperf.tools.errors import CalibrationError
from ipuperf.tools.validation import Case, CaseError, NotAvailable, Program, problem, read_cases
from ipuperf.tools.validation.benchmarks import BENCHMARKS
from ipuperf.tools.validation.cases import unmeasured_case
from ipuperf.tools.validation.programs import model_names, on_machines, prepared, program_of

from .measurements import Measurement

SCRIPTS = (".py", ".ipynb")
_KEPT = 4
"""Lowered programs that are kept of each program: those of the last chips."""
_WRONG = (CaseError, IrError, MachineError, NotAvailable, NotReachedError, ScriptError)

Values = Mapping[str, float]
"""Quantity -> value in its base unit."""
OnMachine = Callable[[Machine], Values]


class NamedPrograms:
    """What the rows of a file of measurements may name.

    Args:
        file: the file of measurements; scripts are looked for beside it.
        sources: scripts, and files of cases, that are named besides.

    Raises:
        CalibrationError: a source is neither. Errors of reading cases pass through.
    """

    def __init__(self, file: Path, sources: Sequence[Path]) -> None:
        self.file, self.folder = file.resolve(), file.resolve().parent
        for source in sources:
            if source.suffix not in (".toml", *SCRIPTS):
                raise CalibrationError(f"{source}: allowed: a script ({', '.join(SCRIPTS)}) or a file of cases (.toml)")
        scripts = [path for path in sources if path.suffix in SCRIPTS]
        self.scripts = {path.name: path for path in scripts}
        if len(self.scripts) < len(scripts):
            raise CalibrationError(f"{', '.join(map(str, scripts))}: allowed: scripts with different names")
        files = [path for path in sources if path.suffix == ".toml"]
        everything = [read_cases(known=problem), *(read_cases(path, known=problem) for path in files)]
        self.cases = {case.id: case for cases in everything for case in cases.cases}
        self._sources = {path: {case.id for case in cases.cases} for path, cases in zip(files, everything[1:])}
        self._sources |= {path: {path.name} for path in self.scripts.values()}
        self._used: set[str] = set()

    def check_used(self) -> None:
        """Raise :class:`CalibrationError` for a source that no row named so far."""
        for source, names in self._sources.items():
            if not names & self._used:
                raise CalibrationError(f"{source}: no measurement names it")

    def on_machines(self, measurement: Measurement, machine: str) -> OnMachine:
        """Build the program of a row for a machine and return a function that simulates it on that machine, or on one
        with changed figures.

        Raises:
            CalibrationError: there is no such program, or it cannot be built; the message names the row.
        """
        where, words = measurement.where, _words(measurement)
        self._used |= {words[0], Path(words[0]).name}
        try:
            if Path(words[0]).suffix in SCRIPTS:
                return self._told(where, _Lowered(self._script(where, words, machine)))
            case = replace(self._case(where, words, machine), machine=machine)
            if case.model in BENCHMARKS:
                on = prepared(case)
                return self._told(where, lambda changed: on(changed, False).values)
            return self._told(where, _Lowered(program_of(case), case.calls, case.overlapped_calls))
        except _WRONG as error:
            raise self._wrong(where, error) from error

    def _wrong(self, where: str, error: Exception) -> CalibrationError:
        """An error that names the row, once."""
        text = str(error).removeprefix(f"{where}: ").removeprefix(f"{self.file}: case {where!r}: ")
        return CalibrationError(f"{where}: {text}")

    def _told(self, where: str, on: OnMachine) -> OnMachine:
        """``on`` with errors that name the row."""

        def told(machine: Machine) -> Values:
            try:
                return on(machine)
            except _WRONG as error:
                raise self._wrong(where, error) from error

        return told

    def _script(self, where: str, words: Sequence[str], machine: str) -> Program:
        path = self.scripts.get(Path(words[0]).name, self.folder / words[0])
        if not path.is_file():
            raise CalibrationError(f"{where}: no script {words[0]!r}{did_you_mean(words[0], self._scripts_there())}")
        executable = executable_of(path, words[1:], RunSettings(load_machine(machine)), 0)
        samples = executable.options.samples_per_run
        return Program(executable, math.nan if samples is None else samples)

    def _scripts_there(self) -> list[str]:
        return [*self.scripts, *(path.name for path in self.folder.iterdir() if path.suffix in SCRIPTS)]

    def _case(self, where: str, words: Sequence[str], machine: str) -> Case:
        name, *keys = words
        if name in self.cases:
            if keys:
                raise CalibrationError(f"{where}: {keys[0]!r} behind the case {name!r}, allowed: nothing")
            return self.cases[name]
        models = [*BENCHMARKS, *model_names()]
        if name not in models:
            known = [*self.cases, *models, *self._scripts_there()]
            raise CalibrationError(
                f"{where}: no program {name!r}{did_you_mean(name, known)}, allowed: a script, the id of a case, "
                f"a model ({', '.join(models)})"
            )
        values = _values(where, keys, machine)
        case = unmeasured_case(
            {"mode": "kernel" if name in BENCHMARKS else "training", **values, "model": name}, where, self.file
        )
        wrong = problem(case)
        if wrong is not None:
            raise CalibrationError(f"{where}: {wrong}")
        return case


class _Lowered:
    """A program, lowered once for each chip that it meets."""

    def __init__(self, program: Program, calls: int = 0, overlapped: bool = False) -> None:
        self.program, self.calls, self.overlapped = program, calls, overlapped
        self.known: dict[Any, Callable[[Machine, bool], Any]] = {}

    def __call__(self, machine: Machine) -> Values:
        key = read_of(machine)
        if key not in self.known:
            # The oldest goes, so that a long fit does not keep every chip's program.
            for oldest in [*self.known][: 1 - _KEPT]:
                del self.known[oldest]
            lowered = replace(self.program, executable=self.program.executable.on(machine))
            self.known[key] = on_machines(lowered, self.calls, overlapped=self.overlapped)
        values: Values = self.known[key](machine, True).values
        return {name: value for name, value in values.items() if not math.isnan(value)}


def predicted(measurement: Measurement, values: Values) -> float:
    """Return the quantity of a row, in its base unit.

    Raises:
        CalibrationError: the program has no such quantity, or it is 0.
    """
    if measurement.quantity not in values:
        quantities = [name for name in values if not name.startswith("memory")]
        raise CalibrationError(
            f"{measurement.where}: quantity: {measurement.quantity!r} is not defined for {measurement.program!r}"
            f"{instead_of(measurement.quantity, quantities)}"
        )
    value = values[measurement.quantity]
    if not value > 0:
        raise CalibrationError(
            f"{measurement.where}: {measurement.quantity!r} of {measurement.program!r} is predicted as {value}, which "
            "no factor changes; measure another quantity"
        )
    return value


def _words(measurement: Measurement) -> list[str]:
    try:
        words = shlex.split(measurement.program)
    except ValueError as error:
        raise CalibrationError(f"{measurement.where}: program: {measurement.program!r}: {error}") from error
    if not words:
        raise CalibrationError(
            f"{measurement.where}: program: {measurement.program!r}, allowed: a script, a case, a model"
        )
    return words


def _values(where: str, words: Sequence[str], machine: str) -> dict[str, Any]:
    """Return the keys of a case that ``NAME=VALUE`` words say."""
    values: dict[str, Any] = {"machine": machine, "config": {}}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals or not name or not text:
            raise CalibrationError(f"{where}: {word!r}, allowed: NAME=VALUE")
        if name in ("machine", "model"):
            raise CalibrationError(f"{where}: {word!r}, the {name} is named elsewhere")
        if name == "config":
            raise CalibrationError(f"{where}: {word!r}, allowed: config.NAME=VALUE")
        option = name.removeprefix("config.")
        (values if option == name else values["config"])[option] = _json(text)
    return values


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
