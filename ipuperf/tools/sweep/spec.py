"""The description of a sweep: a script or a model, factors with their values, constraints, seeds.

A file looks like this (instead of ``script`` and ``arguments``: ``model = "bert"``, whose factors are keys of a case of
``ipuperf validate``)::

    script = "train.py"
    arguments = ["--batch", "{batch}", "{recompute?--recompute}"]
    constraints = ["batch * replicas <= 64"]
    seeds = [0, 1]
    plots = ["lines:batch,samples_per_second,machine"]

    [factors]
    machine = ["pod4", "bow-pod16"]
    batch = [8, 16]
    recompute = [true, false]
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from ipuperf.base.kinds import checked
from ipuperf.base.near_names import instead_of
from ipuperf.base.version import __version__
from ipuperf.machine import MachineError, load_machine, load_scaled
from ipuperf.runtime.settings import AUTO
from ipuperf.tools.errors import SweepError
from ipuperf.tools.validation.cases import PROGRAM_KEYS

from .constraints import Constraint
from .table import FORMAT, RESULTS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Configuration: TypeAlias = Mapping[str, Any]
"""A value for each factor, including ``seed``."""

HOST_FACTORS = ("prefetch_depth", "callback_threads")
"""Factors of scripts that are options of the executable (:class:`~ipuperf.runtime.executable.Executable`)."""
SEED = "seed"
MACHINE = "machine"
FIGURE = f"{MACHINE}."
"""The prefix of factors that multiply a figure of the machine (:attr:`~ipuperf.machine.Machine.figures`)."""

_SYSTEM = "system."
"""The prefix of figures that cannot be multiplied: the number of IPUs belongs to the machine."""
_MOST = 1_000_000
"""The largest number of configurations before constraints."""
_PLACE = re.compile(r"\{([A-Za-z_][\w.]*)(?:\?([^{}]*))?\}")
_FACTOR = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True)
class Sweep:
    """A sweep over the configurations of a script or a model.

    Attributes:
        factors: the values of each factor by name: numbers, texts, booleans, or lists of them. ``machine.KEY`` has
            numbers above 0 that multiply the machine's figure ``KEY``.
        script: the script that runs.
        arguments: its arguments. ``{name}`` in one stands for the value of a factor, ``{name?text}`` for the text if
            the value is true. An argument that becomes empty is left out.
        model: instead of a script, a model of ``ipuperf.models``. Its factors are keys of a case that say which
            program it is.
        constraints: expressions over factors. Only configurations for which all of them hold are run.
        seeds: seeds of the generators of Python, NumPy and PyTorch; the values of a factor named ``seed``.
        session: the index of the script's session that counts, in order of creation.
        folder: the folder of relative paths.
        plots: figures, see :func:`.plots.draw`.

    Raises:
        SweepError: an attribute is not as described.
    """

    factors: Mapping[str, tuple[Any, ...]]
    script: str = ""
    arguments: tuple[str, ...] = ()
    model: str = ""
    constraints: tuple[str, ...] = ()
    seeds: tuple[int, ...] = (0,)
    session: int = 0
    folder: str = "."
    plots: tuple[str, ...] = ()
    _hash: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if bool(self.script) == bool(self.model):
            raise SweepError("a sweep has either a script or a model")
        factors = {name: _values(name, values) for name, values in self.factors.items()}
        # The class is frozen, so the checked values are set by the method of ``object``.
        object.__setattr__(self, "factors", factors)
        for machine in factors.get(MACHINE, ()):
            self._check_machine(machine)
        for name in factors:
            self._check_factor(name)
        known = (*factors, SEED)
        for argument in self.arguments:
            for name, _ in _PLACE.findall(argument):
                if name not in known:
                    raise SweepError(f"argument {argument!r}: unknown factor {name!r}{instead_of(name, known)}")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise SweepError(f"seeds: {list(self.seeds)}, allowed: whole numbers, at least one, each once")
        if self.script:
            self._check_script()

    def _check_factor(self, name: str) -> None:
        if not _FACTOR.fullmatch(name):
            raise SweepError(f"factor {name!r}: no name, allowed: letters, digits, _")
        if name in (SEED, *RESULTS):
            raise SweepError(f"factor {name!r}: a column of the table has this name; take another one")
        if name.startswith(FIGURE):
            self._check_figure(name)
            return
        if self.model:
            known = {*PROGRAM_KEYS} - {"model", "config"}
            if name not in known and not name.startswith("config."):
                instead = instead_of(name, (*sorted(known), "config.NAME", f"{FIGURE}FIGURE"))
                raise SweepError(f"unknown factor {name!r} of model {self.model!r}{instead}")
            return
        placed = {place for argument in self.arguments for place, _ in _PLACE.findall(argument)}
        if name not in (MACHINE, *HOST_FACTORS, *placed):
            instead = instead_of(name, (MACHINE, *HOST_FACTORS, f"{FIGURE}FIGURE", *placed))
            raise SweepError(f"unknown factor {name!r}: no argument of the script has {{{name}}} in it{instead}")

    def _check_machine(self, machine: Any) -> None:
        if not isinstance(machine, str):
            raise SweepError(f"factor machine: {machine!r}, allowed: names of presets and files")
        if machine != AUTO:
            try:
                load_machine(self.machine_of(machine))
            except MachineError as error:
                raise SweepError(f"factor machine: {error}") from error

    def _check_figure(self, name: str) -> None:
        """Check that each machine has the figure, and that multiplying changes it."""
        key, machines = name.removeprefix(FIGURE), self.factors.get(MACHINE, (AUTO,))
        if AUTO in machines:
            raise SweepError(f"factor {name!r} needs a factor {MACHINE!r} with names of machines other than {AUTO!r}")
        for machine in machines:
            figures = load_machine(self.machine_of(machine)).figures
            if key not in figures or key.startswith(_SYSTEM):
                known_figures = [f"{FIGURE}{figure}" for figure in figures if not figure.startswith(_SYSTEM)]
                instead = instead_of(name, known_figures)
                raise SweepError(f"unknown factor {name!r}, machine {machine!r} has no such figure{instead}")
            for factor in self.factors[name]:
                if type(factor) not in (int, float) or not factor > 0:
                    raise SweepError(f"factor {name!r}: {factor!r}, allowed: numbers above 0 to multiply the figure by")
                multiplied = self._multiplied(machine, key, factor)
                if factor != 1 and multiplied == figures[key].value:
                    rounding = (
                        f"{factor} times {multiplied} {figures[key].unit} of {machine!r} is rounded to {multiplied}"
                    )
                    raise SweepError(f"factor {name!r}: {rounding}")

    def _multiplied(self, machine: str, key: str, factor: float) -> float:
        try:
            return load_scaled(self.machine_of(machine), {key: factor}).figures[key].value
        except MachineError as error:
            raise SweepError(f"factor '{FIGURE}{key}': {factor} times as much is no machine: {error}") from None

    def scaled(self, configuration: Configuration) -> dict[str, float]:
        """The multipliers of the machine's figures in a configuration, by key, without those that are 1."""
        multipliers = (
            (name.removeprefix(FIGURE), value) for name, value in configuration.items() if name.startswith(FIGURE)
        )
        return {key: value for key, value in multipliers if value != 1}

    def _check_script(self) -> None:
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise SweepError(f"script {self.path}: cannot be read: {error.strerror}") from None
        # The hash is part of the names of folders, so a changed script runs again.
        object.__setattr__(self, "_hash", hashlib.sha256(content).hexdigest())

    @property
    def path(self) -> Path:
        """The file of the script."""
        return Path(self.folder, self.script).resolve()

    def machine_of(self, name: str) -> str:
        """The name of a preset, or the absolute path of a machine file."""
        return str(Path(self.folder, name).resolve()) if name.endswith(".toml") else name

    def command(self, configuration: Configuration) -> list[str]:
        """The arguments of the script for a configuration."""

        def filled_place(place: re.Match[str]) -> str:
            value = configuration[place[1]]
            return str(value) if place[2] is None else place[2] if value else ""

        # An argument that was empty from the start stays.
        filled = ((argument, _PLACE.sub(filled_place, argument)) for argument in self.arguments)
        return [new for template, new in filled if new or template == new]

    def configurations(self) -> list[dict[str, Any]]:
        """The configurations that satisfy all constraints. The last factor changes fastest.

        Raises:
            SweepError: there are too many, or none.
        """
        values = {**self.factors, SEED: self.seeds}
        count = math.prod(len(values_of_factor) for values_of_factor in values.values())
        if count > _MOST:
            raise SweepError(f"{count:,} configurations, allowed: {_MOST:,}")
        constraints = [Constraint(text, values) for text in self.constraints]
        satisfying: list[dict[str, Any]] = []
        broken: dict[str, int] = {}
        for combination in itertools.product(*values.values()):
            configuration = dict(zip(values, combination))
            # Only the first broken constraint counts, so that the numbers add up to all combinations.
            text = next((c.text for c in constraints if not c.holds(configuration)), None)
            if text is None:
                satisfying.append(configuration)
            else:
                broken[text] = broken.get(text, 0) + 1
        if not satisfying:
            reasons = ", ".join(f"{text!r} rules out {number:,}" for text, number in broken.items())
            raise SweepError(f"no configuration of {count:,} satisfies the constraints: {reasons}")
        return satisfying

    def key(self, configuration: Configuration) -> str:
        """The name of a configuration's folder. Equal runs by the same version of ipuperf have equal names."""
        program = (self.script, self._hash, self.arguments, self.model, self.session, FORMAT, __version__)
        identity = json.dumps(
            [*program, self._machine_file(configuration), sorted(configuration.items())], default=list
        )
        return hashlib.sha256(identity.encode()).hexdigest()[:16]

    def _machine_file(self, configuration: Configuration) -> str:
        """The content of the machine's file; "" for a preset."""
        # The content counts and not the name, because a file may change between two runs.
        name = str(configuration.get(MACHINE, AUTO))
        return Path(self.machine_of(name)).read_text(encoding="utf-8") if name.endswith(".toml") else ""

    def program_key(self, configuration: Configuration) -> str:
        """A key that is equal for configurations of one program, also on other machines or with other host options."""
        host = (MACHINE, *HOST_FACTORS) if self.script else (MACHINE,)
        elsewhere = {name for name in configuration if name in host or name.startswith(FIGURE)}
        placed = {place for argument in self.arguments for place, _ in _PLACE.findall(argument)}
        # A host option that is placed in an argument too may change the program.
        program_values = [
            (name, value) for name, value in configuration.items() if name not in elsewhere or name in placed
        ]
        return json.dumps(sorted(program_values), default=list)


@checked()
def read_sweep(path: str | Path) -> Sweep:
    """The sweep of a TOML file.

    Raises:
        SweepError: the file is missing, is no TOML, or has unknown keys; see also :class:`Sweep`.
    """
    path = Path(path)
    try:
        # Some editors begin a file with a byte order mark.
        data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise SweepError(f"{path}: cannot be read: {error.strerror}") from error
    # Tables that are nested too deep raise RecursionError.
    except (ValueError, RecursionError) as error:
        raise SweepError(f"{path}: cannot be read as TOML: {error}") from error
    for name, value in data.items():
        if name not in _KEYS:
            raise SweepError(f"{path}: unknown key {name!r}{instead_of(name, _KEYS)}")
        if not _is(value, _KEYS[name]):
            raise SweepError(f"{path}: {name}: {value!r}, allowed: {_KEYS[name]}")
    attributes: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in data.items()
    }
    try:
        return Sweep(attributes.pop("factors", {}), **attributes, folder=str(path.parent.resolve()))
    except SweepError as error:
        raise SweepError(f"{path}: {error}") from None


_KEYS = {"script": "a text", "model": "a text", "arguments": "a list of texts", "factors": "a table"}
_KEYS |= {"constraints": "a list of texts", "seeds": "a list of whole numbers", "session": "a whole number"}
_KEYS |= {"plots": "a list of texts"}


def _is(value: Any, kind: str) -> bool:
    if kind.startswith("a list of "):
        # Each element is checked by the singular of the kind, such as "a text" for texts.
        return isinstance(value, list) and all(_is(element, f"a {kind.split()[-1].rstrip('s')}") for element in value)
    is_whole_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return {"a text": isinstance(value, str), "a table": isinstance(value, dict)}.get(kind, is_whole_number)


@checked()
def script_sweep(
    script: str | Path, arguments: Sequence[str], factors: Mapping[str, Sequence[Any]], **attributes: Any
) -> Sweep:
    """The sweep of a script in the current folder. ``attributes`` are other attributes of :class:`Sweep`."""
    factor_values: dict[str, Any] = {name: tuple(values) for name, values in factors.items()}
    return Sweep(factor_values, str(script), tuple(arguments), folder=str(Path.cwd()), **attributes)


def _values(name: str, values: Any) -> tuple[Any, ...]:
    """The values of a factor. A value that is no list stands for a list of one."""
    factor_values = tuple(values) if isinstance(values, (list, tuple)) else (values,)
    if not factor_values:
        raise SweepError(f"factor {name!r}: no values, allowed: at least one")
    seen = []
    for value in factor_values:
        if not all(_is_plain(leaf) for leaf in _leaves(value)):
            raise SweepError(f"factor {name!r}: {value!r}, allowed: finite numbers, texts, true, false, lists of them")
        # Compared as JSON, because Python takes 1, 1.0 and True for the same value.
        text = json.dumps(value)
        if text in seen:
            raise SweepError(f"factor {name!r}: {value!r} is there twice")
        seen.append(text)
    return factor_values


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for element in value:
            yield from _leaves(element)
    else:
        yield value


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value))
