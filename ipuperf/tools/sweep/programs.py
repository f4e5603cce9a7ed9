"""Executables of configurations. Parts that configurations have in common are built, lowered and simulated once."""

from __future__ import annotations

from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

from ipuperf.lowering.again import read_of
from ipuperf.machine import Machine, MachineError, load_machine, load_scaled
from ipuperf.runtime.executable import Executable
from ipuperf.runtime.reaching import executable_of
from ipuperf.runtime.settings import AUTO, RunSettings
from ipuperf.tools.errors import SweepError
from ipuperf.tools.levers.host import with_host_options
from ipuperf.tools.validation.cases import unmeasured_case
from ipuperf.tools.validation.programs import program_of

from .spec import FIGURE, HOST_FACTORS, MACHINE, SEED, Configuration, Sweep


@dataclass(frozen=True)
class Built:
    """The program of a configuration, and the samples of one run (None: unknown)."""

    executable: Executable
    samples: float | None


class SweepPrograms:
    """The programs of a sweep, one configuration after the other.

    Successive configurations of one program (:meth:`.spec.Sweep.program_key`) share it, on all machines for which it
    is lowered alike. If a machine refuses the shared program, the program is built for that machine, so that the
    failure does not depend on the order of the configurations.
    """

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self._key = ""
        self._built: dict[tuple[Any, ...], Built] = {}
        self._machines: dict[tuple[Any, ...], Machine] = {}

    def of(self, configuration: Configuration) -> Built:
        """The program of a configuration. Raises whatever building it raises."""
        # Only the programs of the last key are kept: configurations of one program come one after the other.
        key = self.sweep.program_key(configuration)
        if key != self._key:
            self._key, self._built = key, {}
        built = self._on_its_machine(configuration)
        host = {name: configuration[name] for name in HOST_FACTORS if self.sweep.script and name in configuration}
        for name, value in host.items():
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise SweepError(f"{name}: {value!r}, allowed: a whole number of 1 or more")
        return Built(with_host_options(built.executable, **host), built.samples) if host else built

    def _on_its_machine(self, configuration: Configuration) -> Built:
        machine = self._machine(configuration)
        # Machines that agree in all that lowering reads have equal keys.
        alike = ("auto",) if machine is None else read_of(machine)
        known = self._built.get(alike)
        if known is not None and machine is None:
            return known
        if known is not None and machine is not None:
            try:
                return Built(known.executable.on(machine, lowered_alike=True), known.samples)
            except MachineError:
                return self._made(configuration, machine)
        built = self._built[alike] = self._made(configuration, machine)
        return built

    def _machine(self, configuration: Configuration) -> Machine | None:
        """The machine of a configuration with its figures multiplied; None: the program's own choice."""
        name = configuration.get(MACHINE, AUTO)
        if name == AUTO:
            return None
        path, factors = self.sweep.machine_of(name), self.sweep.scaled(configuration)
        if not factors:
            return load_machine(path)
        key = (path, *sorted(factors.items()))
        if key not in self._machines:
            self._machines[key] = load_scaled(path, factors)
        return self._machines[key]

    def _made(self, configuration: Configuration, machine: Machine | None) -> Built:
        built = self._of_model(configuration, machine) if self.sweep.model else self._of_script(configuration, machine)
        # Other configurations may differ in counts alone, and those need no lowering of their own.
        lowering = replace(built.executable.lowering, again=True)
        return replace(built, executable=built.executable.changed(lowering=lowering))

    def _of_script(self, configuration: Configuration, machine: Machine | None) -> Built:
        settings = RunSettings(AUTO if machine is None else machine)
        executable = executable_of(self.sweep.path, self.sweep.command(configuration), settings, self.sweep.session)
        return Built(executable, executable.options.samples_per_run)

    def _of_model(self, configuration: Configuration, machine: Machine | None) -> Built:
        if machine is None:
            raise SweepError(f"a model needs a factor {MACHINE!r} with names of machines")
        stated = {name: value for name, value in configuration.items() if not name.startswith(FIGURE)}
        values: dict[str, Any] = {"mode": "training", **stated}
        del values[SEED]
        config = {name.removeprefix("config."): values.pop(name) for name in [*values] if name.startswith("config.")}
        values[MACHINE] = self.sweep.machine_of(values[MACHINE])
        listed = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
        case = unmeasured_case(
            {**listed, "model": self.sweep.model, "config": config}, "sweep", Path(self.sweep.folder, "sweep")
        )
        with redirect_stderr(StringIO()):  # remarks of a front end would disturb the progress bar
            program = program_of(case, machine)
        return Built(program.executable, program.samples)
