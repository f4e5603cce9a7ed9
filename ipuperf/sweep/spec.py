"""What a sweep runs: a script or a model, factors with their values, constraints, seeds.

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

from ipuperf.kinds import checked
from ipuperf.machine import MachineError, load_machine, load_scaled
from ipuperf.runtime.settings import AUTO
from ipuperf.validation.cases import PROGRAM_KEYS
from ipuperf.version import __version__

from .constraints import Constraint
from .errors import SweepError
from .table import FORMAT, RESULTS

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Configuration: TypeAlias = Mapping[str, Any]
"""A value of each factor, ``seed`` among them."""

HOST_FACTORS = ("prefetch_depth", "callback_threads")
"""Factors of scripts that are options of the executable (:class:`~ipuperf.runtime.executable.Executable`)."""
SEED = "seed"
MACHINE = "machine"
FIGURE = f"{MACHINE}."
"""Begin of factors that a figure of the machine (:attr:`~ipuperf.machine.Machine.figures`) is multiplied by."""

_SYSTEM = "system."
"""How many IPUs there are is a matter of the machine, not a figure to multiply."""
_MOST = 1_000_000
"""Configurations, before constraints."""
_PLACE = re.compile(r"\{([A-Za-z_][\w.]*)(?:\?([^{}]*))?\}")
_FACTOR = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")


@dataclass(frozen=True)
class Sweep:
    """A sweep.

    Attributes:
        factors: name -> its values: numbers, texts, booleans, or lists of them. ``machine.KEY`` has numbers above 0
            that the machine's figure ``KEY`` is multiplied by.
        script: what runs, with ``arguments``: ``{name}`` in one stands for the value of a factor, ``{name?text}`` for
            the text where the value is true (an argument that becomes empty is left out).
        model: or a model of ``ipuperf.models``; factors are then the keys of a case that say which program it is.
        constraints: expressions over factors that hold for the configurations that are run.
        seeds: of Python's, NumPy's and PyTorch's generators; a factor named ``seed``.
        session: of the script's sessions the one that counts, in order of creation.
        folder: where relative paths begin.
        plots: figures, see :func:`.plots.draw`.

    Raises:
        SweepError: anything that is not as said.
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
        object.__setattr__(self, "factors", factors)
        for machine in factors.get(MACHINE, ()):
            self._check_machine(machine)
        for name in factors:
            self._check_factor(name)
        for argument in self.arguments:
            for name, _ in _PLACE.findall(argument):
                if name not in (*factors, SEED):
                    raise SweepError(f"argument {argument!r}: unknown factor {name!r}, allowed: {self._names()}")
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise SweepError(f"seeds: {list(self.seeds)}, allowed: whole numbers, at least one, each once")
        if self.script:
            self._check_script()

    def _names(self) -> str:
        return ", ".join((*self.factors, SEED))

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
                allowed = ", ".join(sorted(known))
                more = f"config.NAME, {FIGURE}FIGURE"
                raise SweepError(f"unknown factor {name!r} of model {self.model!r}, allowed: {allowed}, {more}")
            return
        placed = {place for argument in self.arguments for place, _ in _PLACE.findall(argument)}
        if name not in (MACHINE, *HOST_FACTORS, *placed):
            allowed = ", ".join((MACHINE, *HOST_FACTORS, f"{FIGURE}FIGURE"))
            raise SweepError(
                f"unknown factor {name!r}: no argument of the script has {{{name}}} in it, and it is not {allowed}"
            )

    def _check_machine(self, machine: Any) -> None:
        if not isinstance(machine, str):
            raise SweepError(f"factor machine: {machine!r}, allowed: names of presets and files")
        if machine != AUTO:
            try:
                load_machine(self.machine_of(machine))
            except MachineError as error:
                raise SweepError(f"factor machine: {error}") from error

    def _check_figure(self, name: str) -> None:
        """Each machine has the figure, and multiplying it changes it."""
        key, machines = name.removeprefix(FIGURE), self.factors.get(MACHINE, (AUTO,))
        if AUTO in machines:
            raise SweepError(f"factor {name!r} needs a factor {MACHINE!r} with names of machines other than {AUTO!r}")
        for machine in machines:
            figures = load_machine(self.machine_of(machine)).figures
            if key not in figures or key.startswith(_SYSTEM):
                allowed = ", ".join(f"{FIGURE}{each}" for each in figures if not each.startswith(_SYSTEM))
                raise SweepError(f"unknown factor {name!r}, machine {machine!r} has no such figure; allowed: {allowed}")
            for factor in self.factors[name]:
                if type(factor) not in (int, float) or not factor > 0:
                    raise SweepError(f"factor {name!r}: {factor!r}, allowed: numbers above 0 to multiply the figure by")
                now = self._multiplied(machine, key, factor)
                if factor != 1 and now == figures[key].value:
                    said = f"{factor} times {now} {figures[key].unit} of {machine!r} is rounded to {now}"
                    raise SweepError(f"factor {name!r}: {said}")

    def _multiplied(self, machine: str, key: str, factor: float) -> float:
        try:
            return load_scaled(self.machine_of(machine), {key: factor}).figures[key].value
        except MachineError as error:
            raise SweepError(f"factor '{FIGURE}{key}': {factor} times as much is no machine: {error}") from None

    def scaled(self, configuration: Configuration) -> dict[str, float]:
        """What figures of the machine are multiplied by in a configuration, by key; those that stay are left out."""
        said = ((name.removeprefix(FIGURE), value) for name, value in configuration.items() if name.startswith(FIGURE))
        return {key: value for key, value in said if value != 1}

    def _check_script(self) -> None:
        try:
            content = self.path.read_bytes()
        except OSError as error:
            raise SweepError(f"script {self.path}: cannot be read: {error.strerror}") from None
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

        def put(place: re.Match[str]) -> str:
            value = configuration[place[1]]
            return str(value) if place[2] is None else place[2] if value else ""

        made = ((argument, _PLACE.sub(put, argument)) for argument in self.arguments)
        return [now for before, now in made if now or before == now]

    def configurations(self) -> list[dict[str, Any]]:
        """Those that satisfy all constraints, the last factor changing fastest.

        Raises:
            SweepError: too many, or none.
        """
        values = {**self.factors, SEED: self.seeds}
        count = math.prod(len(each) for each in values.values())
        if count > _MOST:
            raise SweepError(f"{count:,} configurations, allowed: {_MOST:,}")
        constraints = [Constraint(text, values) for text in self.constraints]
        found: list[dict[str, Any]] = []
        broken: dict[str, int] = {}
        for chosen in itertools.product(*values.values()):
            each = dict(zip(values, chosen))
            text = next((c.text for c in constraints if not c.holds(each)), None)
            if text is None:
                found.append(each)
            else:
                broken[text] = broken.get(text, 0) + 1
        if not found:
            said = ", ".join(f"{text!r} rules out {number:,}" for text, number in broken.items())
            raise SweepError(f"no configuration of {count:,} satisfies the constraints: {said}")
        return found

    def key(self, configuration: Configuration) -> str:
        """The name of a configuration's folder: equal where the same is run by the same version of ipuperf."""
        what = (self.script, self._hash, self.arguments, self.model, self.session, FORMAT, __version__)
        said = json.dumps([*what, self._machine_file(configuration), sorted(configuration.items())], default=list)
        return hashlib.sha256(said.encode()).hexdigest()[:16]

    def _machine_file(self, configuration: Configuration) -> str:
        """The content of the machine's file, "" for a preset."""
        name = str(configuration.get(MACHINE, AUTO))
        return Path(self.machine_of(name)).read_text(encoding="utf-8") if name.endswith(".toml") else ""

    def program_key(self, configuration: Configuration) -> str:
        """Equal for configurations that run the same program, perhaps on other machines or with another host."""
        host = (MACHINE, *HOST_FACTORS) if self.script else (MACHINE,)
        elsewhere = {name for name in configuration if name in host or name.startswith(FIGURE)}
        placed = {place for argument in self.arguments for place, _ in _PLACE.findall(argument)}
        said = [(name, value) for name, value in configuration.items() if name not in elsewhere or name in placed]
        return json.dumps(sorted(said), default=list)


@checked()
def read_sweep(path: str | Path) -> Sweep:
    """The sweep of a TOML file.

    Raises:
        SweepError: no such file, no TOML, unknown keys, and see :class:`Sweep`.
    """
    path = Path(path)
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise SweepError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise SweepError(f"{path}: cannot be read as TOML: {error}") from error
    for name, value in data.items():
        if name not in _KEYS:
            raise SweepError(f"{path}: unknown key {name!r}, allowed: {', '.join(_KEYS)}")
        if not _is(value, _KEYS[name]):
            raise SweepError(f"{path}: {name}: {value!r}, allowed: {_KEYS[name]}")
    given: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in data.items()}
    try:
        return Sweep(given.pop("factors", {}), **given, folder=str(path.parent.resolve()))
    except SweepError as error:
        raise SweepError(f"{path}: {error}") from None


_KEYS = {
    "script": "a text", "model": "a text", "arguments": "a list of texts", "factors": "a table",
    "constraints": "a list of texts", "seeds": "a list of whole numbers", "session": "a whole number",
    "plots": "a list of texts",
}  # fmt: skip


def _is(value: Any, kind: str) -> bool:
    if kind.startswith("a list of "):
        return isinstance(value, list) and all(_is(each, f"a {kind.split()[-1].rstrip('s')}") for each in value)
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    return {"a text": isinstance(value, str), "a table": isinstance(value, dict)}.get(kind, whole)


@checked()
def script_sweep(
    script: str | Path, arguments: Sequence[str], factors: Mapping[str, Sequence[Any]], **how: Any
) -> Sweep:
    """The sweep of a script in the current folder; ``how``: other attributes of :class:`Sweep`."""
    given: dict[str, Any] = {name: tuple(values) for name, values in factors.items()}
    return Sweep(given, str(script), tuple(arguments), folder=str(Path.cwd()), **how)


def _values(name: str, values: Any) -> tuple[Any, ...]:
    """The values of a factor; one value that is no list stands for itself."""
    found = tuple(values) if isinstance(values, (list, tuple)) else (values,)
    if not found:
        raise SweepError(f"factor {name!r}: no values, allowed: at least one")
    seen = []
    for value in found:
        if not all(_is_plain(each) for each in _leaves(value)):
            raise SweepError(f"factor {name!r}: {value!r}, allowed: finite numbers, texts, true, false, lists of them")
        said = json.dumps(value)
        if said in seen:
            raise SweepError(f"factor {name!r}: {value!r} is there twice")
        seen.append(said)
    return found


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _leaves(each)
    else:
        yield value


def _is_plain(value: Any) -> bool:
    return isinstance(value, (str, int)) or (isinstance(value, float) and math.isfinite(value))
