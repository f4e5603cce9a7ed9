"""Cases: published measurements with the program and the machine that they belong to, read strictly from TOML.

A file looks like this; ``[defaults]`` holds keys that all its cases share::

    [defaults]
    category = "kernel"
    machine = "bow-1"
    model = "matmul"
    mode = "kernel"
    precision = "f16.16"
    source = "where the numbers were published"

    [[case]]
    id = "MINE-1024"
    config = { m = 1024, k = 1024, n = 4 }
    measured = { metric = "throughput", quantity = "flop rate", value = 6.1, unit = "TFLOP/s" }
    choices = [{ key = "precision", others = ["f16.32"], why = "the type of the partial sums is not stated" }]

    [[case]]
    config = { m = 2048, k = 2048 }
    measured = { metric = "throughput", quantity = "flop rate", unit = "TFLOP/s" }

    [[case.row]]
    id = "MINE-2048x4"
    config = { n = 4 }
    measured = { value = 11.3 }

    [[case.row]]
    id = "MINE-2048x8"
    config = { n = 8 }
    measured = { value = 14.8 }

    [[not_expressed]]
    ids = ["OTHER-1"]
    reason = "why a published row is no case"

Each ``[[case.row]]`` is a case; what stands in its ``[[case]]`` holds for all of its rows.

``model`` is a micro-benchmark (:mod:`.benchmarks`), a program of :mod:`.programs`, or the name of a module
``ipuperf.models.NAME`` with a function ``validation_program`` (see :class:`~ipuperf.validation.programs.Program`).
``machine`` is a preset or a TOML file beside the file of cases.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from ipuperf.base.kinds import checked
from ipuperf.base.near_names import did_you_mean, instead_of
from ipuperf.machine import MachineError, load_machine
from ipuperf.tools.errors import CaseError
from ipuperf.tools.validation.units import QUANTITIES, UNITS, units_of

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

BUILT_IN = Path(__file__).parent / "cases"
CATEGORIES = ("micro-benchmark", "kernel", "host-io", "collective", "memory", "model training", "inference", "spec")
"""Classes of measurements, spelled as in the published table."""
CHOICES: Mapping[str, tuple[str, ...]] = {
    "category": CATEGORIES,
    "mode": ("kernel", "training", "inference"),
    "precision": ("f32", "f16.16", "f16.32", "f8.16"),
    "optimiser": ("none", "sgd", "momentum", "adam", "adamw", "lamb", "lars"),
    "recompute": ("none", "standard", "checkpoints"),
    "io": ("none", "streams", "synthetic", "overlapped"),
}
OFFLOADS = ("optimiser", "weights", "activations", "accumulators")


@dataclass(frozen=True)
class Measured:
    """The measured value.

    Attributes: metric: its name in the words of the publication. quantity: one of
    :data:`~ipuperf.validation.units.QUANTITIES`. value, unit: the number and its unit. harness_cycles, harness_source:
    cycles that the measuring itself adds to the measured time (a cycle counter), and the source of this number; they
    are added to the prediction of a time.
    """

    metric: str
    quantity: str
    value: float
    unit: str
    harness_cycles: int = 0
    harness_source: str = ""


@dataclass(frozen=True)
class Choice:
    """A setting that no source states, so that the case had to choose it.

    Attributes:
        key: key of the case; ``config.NAME`` for one of the program's own.
        why: what is not stated.
        others: other values that it could have.
        cases: the case with each of the other values.
    """

    key: str
    why: str
    others: tuple[Any, ...]
    cases: tuple[Case, ...]


@dataclass(frozen=True)
class Case:
    """One measured value with its program.

    Attributes: id, category, source, confidence, note: as published; ``note`` explains a choice made to express it.
    machine: preset or absolute path of a TOML file. model: the program that runs; ``config`` has its own parameters.
    mode, precision, optimiser, recompute, io: one of :data:`CHOICES` each. ``precision`` is the type of the data, then
    of the partial sums (``f16.32``: half data, float partial sums). io_tiles: with overlapped I/O, the tiles of each
    IPU that load and store while the others compute. prefetch: slices of an input that the host prepares ahead
    (Graphcore's stream buffering depth); 0 only in micro-benchmarks. calls: the time is the mean of this many calls,
    beginning with the first one after loading; 0: of later calls.
    overlapped_calls: the host starts a call while the IPUs still run the one before, so that its start counts only
    where it takes longer than they do. micro_batch, accumulation, replicas: of one step.
    pipeline: layers of each stage; empty: no pipeline. offload: the tensors in Streaming Memory. sharding: number of
    elements from which such a tensor is sharded over the replicas (0: never). slow: the build takes so long that
    ``ipuperf validate`` runs the case only with ``--all``. host_bound: the measured time is mostly a script's on the
    host, which is not modelled; such rows are a class of their own. calibrates: figures of the machine that were fitted
    to this very value. run: the measured run, if several values belong to it (step and rate, or divisions of a
    competition that run the same program); a run counts once. Without a name, the case is a run of its own. choices:
    settings that no source states. minus: the program whose value is subtracted, where a difference of two programs was
    published. measured: the value. file: the file that has the case.
    """

    id: str
    category: str
    source: str
    machine: str
    model: str
    mode: str
    measured: Measured
    confidence: str = ""
    note: str = ""
    config: Mapping[str, Any] = field(default_factory=dict)
    micro_batch: int = 1
    accumulation: int = 1
    replicas: int = 1
    pipeline: tuple[int, ...] = ()
    precision: str = "f32"
    optimiser: str = "none"
    recompute: str = "none"
    offload: tuple[str, ...] = ()
    sharding: int = 0
    io: str = "none"
    io_tiles: int = 0
    prefetch: int = 1
    calls: int = 0
    overlapped_calls: bool = False
    slow: bool = False
    host_bound: bool = False
    calibrates: tuple[str, ...] = ()
    run: str = ""
    choices: tuple[Choice, ...] = ()
    minus: Case | None = None
    file: str = ""

    @property
    def run_name(self) -> str:
        """Name of the run, equal for all cases of one run."""
        return self.run or self.id

    @property
    def programs(self) -> tuple[Case, ...]:
        """The case itself, the case that is subtracted, and the case with each other choice."""
        others = (alternative for choice in self.choices for alternative in choice.cases)
        return (self, *((self.minus,) if self.minus else ()), *others)

    @property
    def samples(self) -> int:
        """Samples of one step."""
        return self.micro_batch * self.accumulation * self.replicas

    @property
    def group(self) -> str:
        """The class in which its error counts."""
        return "bound by the host" if self.host_bound else self.category

    @property
    def program_key(self) -> str:
        """Equal for cases that run the same program on the same machine."""
        left_out = (
            "id",
            "category",
            "source",
            "measured",
            "confidence",
            "note",
            "slow",
            "host_bound",
            "calibrates",
            "run",
            "choices",
            "minus",
            "file",
        )
        return repr([(f.name, getattr(self, f.name)) for f in fields(self) if f.name not in left_out])


@dataclass(frozen=True)
class NotExpressed:
    """Published rows that are no case, and why; ``model`` names the model that is not written yet, if that is why."""

    ids: tuple[str, ...]
    reason: str
    model: str = ""


@dataclass(frozen=True)
class Cases:
    """Everything read from files of cases."""

    cases: tuple[Case, ...]
    not_expressed: tuple[NotExpressed, ...]


@checked()
def read_cases(path: str | Path = BUILT_IN, *, known: Callable[[Case], str | None] = lambda case: None) -> Cases:
    """Read a file of cases, or all ``*.toml`` of a folder that are not machine files.

    Args:
        path: file or folder.
        known: what is wrong with a case's model and config, or None; see :func:`ipuperf.validation.programs.problem`.

    Raises:
        CaseError: no such file, no cases, unknown or missing key, wrong type, value or unit, unknown machine or model,
            an id twice.
    """
    path = Path(path)
    if not path.exists():
        raise CaseError(f"{path}: no such file or folder of cases")
    # Machine files lie in the same folder, beside the cases that name them.
    files = sorted(p for p in path.glob("*.toml") if not p.name.startswith("machine-")) if path.is_dir() else [path]
    cases: list[Case] = []
    others: list[NotExpressed] = []
    for file in files:
        file_cases, listed = _read_file(file, known)
        cases += file_cases
        others += listed
    if not cases and not others:
        raise CaseError(f"{path}: no cases; a file of cases has tables [[case]]")
    _check_ids(path, [c.id for c in cases] + [name for not_expressed in others for name in not_expressed.ids])
    return Cases(tuple(cases), tuple(others))


@checked()
def select(found: Cases, names: Sequence[str]) -> Cases:
    """Return the cases, and the rows that are no case, whose id contains one of ``names``, in upper or lower case.

    Raises:
        CaseError: a name is empty, or no case has it; the message says why rows of that name are no case, or which ids
            are close to it.
    """

    def named(ids: Iterable[str]) -> tuple[str, ...]:
        return tuple(i for i in ids if any(name.lower() in i.lower() for name in names))

    for name in names:
        if not name.strip():
            raise CaseError(f"-k {name!r}: allowed: a part of an id")
        if not any(name.lower() in case.id.lower() for case in found.cases):
            raise CaseError(f"no case has {name!r} in its id{_why_no_case(found, name)}")
    others = (NotExpressed(named(rows.ids), rows.reason, rows.model) for rows in found.not_expressed)
    case_ids = set(named(case.id for case in found.cases))
    return Cases(tuple(c for c in found.cases if c.id in case_ids), tuple(rows for rows in others if rows.ids))


def _why_no_case(cases: Cases, name: str) -> str:
    for rows in cases.not_expressed:
        ids = [i for i in rows.ids if name.lower() in i.lower()]
        if ids:
            return f"; {', '.join(ids[:3])}: {rows.reason}"
    return did_you_mean(name, [case.id for case in cases.cases]) or "; `ipuperf validate` lists the cases"


def _check_ids(path: Path, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise CaseError(f"{path}: case {name!r} is there twice; every id stands for one measured value")
        seen.add(name)


def _read_file(file: Path, known: Callable[[Case], str | None]) -> tuple[list[Case], list[NotExpressed]]:
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise CaseError(f"{file}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # no UTF-8, no TOML, a number of too many digits, tables too deep
        raise CaseError(f"{file}: cannot be read as TOML: {error}") from error
    _only_keys(data, ("defaults", "case", "not_expressed"), f"{file}")
    defaults = _table(data.get("defaults", {}), f"{file}: defaults")
    _only_keys(defaults, _CASE_KEYS, f"{file}: defaults")
    cases = []
    for number, entry in enumerate(_rows(_tables(data.get("case", []), f"{file}: case"), f"{file}: case"), start=1):
        where = f"{file}: case {entry['id']!r}" if isinstance(entry.get("id"), str) else f"{file}: case number {number}"
        case = _case(_merged(defaults, entry, where), where, file)
        # The subtracted program and the alternatives run too, so each has to exist.
        for program in case.programs:
            problem = known(program)
            if problem is not None:
                raise CaseError(f"{where}: {problem}")
        cases.append(case)
    others = [
        _not_expressed(entry, f"{file}: not_expressed number {number}")
        for number, entry in enumerate(_tables(data.get("not_expressed", []), f"{file}: not_expressed"), start=1)
    ]
    return cases, others


def _rows(entries: Iterable[Mapping[str, Any]], where: str) -> Iterator[dict[str, Any]]:
    """The cases: an entry, or each of its rows on top of what they share."""
    for entry in entries:
        shared = {key: value for key, value in entry.items() if key != "row"}
        rows = _tables(entry.get("row", [{}]), f"{where}: row")
        if not rows:
            raise CaseError(f"{where}: row: [], allowed: a list of tables, at least one")
        for row in rows:
            yield _merged(shared, row, f"{where}: row")


def _merged(defaults: Mapping[str, Any], entry: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the case on top of the defaults; tables ``config`` and ``measured`` are merged key by key."""
    merged = {**defaults, **entry}
    for key in ("config", "measured"):
        if key in defaults and key in entry:
            merged[key] = {**_table(defaults[key], f"{where}: {key}"), **_table(entry[key], f"{where}: {key}")}
    return merged


_CASE_KEYS = tuple(f.name for f in fields(Case) if f.name != "file")
_NEEDED = ("id", "category", "source", "machine", "model", "mode", "measured")
PROGRAM_KEYS = tuple(
    "machine model mode precision optimiser recompute offload sharding io io_tiles prefetch micro_batch "
    "accumulation replicas pipeline config".split()
)
"""Keys that define the program of a case, as opposed to its measurement."""
_MEASURED_KEYS = tuple(f.name for f in fields(Measured))
_TEXTS = tuple("id category source machine model mode confidence note precision optimiser recompute io run".split())


def _case(data: Mapping[str, Any], where: str, file: Path) -> Case:
    _only_keys(data, _CASE_KEYS, where)
    _all_keys(data, _NEEDED, where)
    plain = {key: value for key, value in data.items() if key not in ("choices", "minus")}
    case = _plain_case(plain, where, file)
    choices = [
        _choice(entry, plain, f"{where}: choices number {number}", file)
        for number, entry in enumerate(_tables(data.get("choices", []), f"{where}: choices"), start=1)
    ]
    minus = None
    # A choice would leave open which of the two programs it changes.
    if choices and "minus" in data:
        raise CaseError(f"{where}: choices and minus, allowed: one of them")
    if "minus" in data:
        changed = _table(data["minus"], f"{where}: minus")
        _only_keys(changed, PROGRAM_KEYS, f"{where}: minus")
        minus = _plain_case(_merged(plain, changed, f"{where}: minus"), f"{where}: minus", file)
        # The difference of a program with itself would be zero.
        if minus.program_key == case.program_key:
            raise CaseError(f"{where}: minus: {changed!r} is the same program; say what is different")
    return replace(case, choices=tuple(choices), minus=minus)


def _choice(data: Mapping[str, Any], plain: Mapping[str, Any], where: str, file: Path) -> Choice:
    """Read a choice and build the case with each other value."""
    _only_keys(data, ("key", "why", "others"), where)
    _all_keys(data, ("key", "why", "others"), where)
    key = _text(data["key"], f"{where}: key", None)
    option = key.removeprefix("config.")
    if option == key:
        _text(key, f"{where}: key", (*PROGRAM_KEYS, "config.NAME"))
    others = _list(data["others"], f"{where}: others")
    if not others:
        raise CaseError(f"{where}: others: [], allowed: a list of values, at least one")
    cases = []
    # An alternative that changes nothing about the program would be simulated for nothing.
    unchanged = _plain_case(plain, where, file).program_key
    for value in others:
        # A key of the program's own stands in the table `config`.
        changed = {key: value} if option == key else {"config": {option: value}}
        alternative = _plain_case(_merged(plain, changed, where), f"{where}: {key} = {value!r}", file)
        if alternative.program_key == unchanged:
            raise CaseError(f"{where}: others: {value!r} is what the case has; say what it could have as well")
        cases.append(alternative)
    return Choice(key, _text(data["why"], f"{where}: why", None), tuple(others), tuple(cases))


def _plain_case(data: Mapping[str, Any], where: str, file: Path) -> Case:
    """A case without choices."""
    values: dict[str, Any] = {}
    for key, value in data.items():
        place = f"{where}: {key}"
        if key in _TEXTS:
            values[key] = _text(value, place, CHOICES.get(key))
        elif key in ("micro_batch", "accumulation", "replicas"):
            values[key] = _whole(value, place, 1)
        elif key in ("slow", "host_bound", "overlapped_calls"):
            values[key] = _yes_or_no(value, place)
        elif key in ("sharding", "io_tiles", "prefetch", "calls"):
            values[key] = _whole(value, place, 0)
        elif key == "pipeline":
            values[key] = tuple(_whole(v, place, 0) for v in _list(value, place))
        elif key == "offload":
            values[key] = tuple(_text(v, place, OFFLOADS) for v in _list(value, place))
        elif key == "calibrates":
            values[key] = tuple(_text(v, place, None) for v in _list(value, place))
        elif key == "config":
            values[key] = _table(value, place)
        else:
            values[key] = _measured(_table(value, place), place)
    if (values.get("io") == "overlapped") != bool(values.get("io_tiles", 0)):
        raise CaseError(
            f"{where}: io = {values.get('io', 'none')!r} with io_tiles = {values.get('io_tiles', 0)}; overlapped I/O "
            "needs a number of I/O tiles, and nothing else has one"
        )
    # Read last, so that simpler mistakes are reported first.
    values["machine"] = _machine(values["machine"], f"{where}: machine", file)
    return Case(**values, file=str(file))


def unmeasured_case(data: Mapping[str, Any], where: str, file: Path) -> Case:
    """Read a program without a measurement: ``data`` has only the keys :data:`PROGRAM_KEYS`.

    Args:
        where: names the case in messages.
        file: machine files are looked for beside it.

    Raises:
        CaseError: a key is unknown or missing, a type or value is wrong, or the machine is unknown.
    """
    _only_keys(data, PROGRAM_KEYS, where)
    _all_keys(data, ("machine", "model", "mode"), where)
    # A case needs a measurement to be checked; nothing reads this one.
    nothing = {"metric": "none", "quantity": "time", "value": 1.0, "unit": "s"}
    return _plain_case({"id": where, "category": "spec", "source": where, "measured": nothing, **data}, where, file)


def _measured(data: Mapping[str, Any], where: str) -> Measured:
    _only_keys(data, _MEASURED_KEYS, where)
    _all_keys(data, ("metric", "quantity", "value", "unit"), where)
    quantity = _text(data["quantity"], f"{where}.quantity", tuple(QUANTITIES))
    unit = _text(data["unit"], f"{where}.unit", tuple(UNITS))
    if unit not in units_of(quantity):
        raise CaseError(
            f"{where}.unit: {unit!r} is no unit of the quantity {quantity!r}{instead_of(unit, units_of(quantity))}"
        )
    value = data["value"]
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (number and 0 < value <= sys.float_info.max):
        raise CaseError(f"{where}.value: {value!r}, allowed: a finite number above 0")
    harness = _whole(data.get("harness_cycles", 0), f"{where}.harness_cycles", 0)
    source = _text(data["harness_source"], f"{where}.harness_source", None) if "harness_source" in data else ""
    # Cycles without a source would be a free correction of any measurement.
    if harness and not source:
        raise CaseError(f"{where}: harness_cycles = {harness} without harness_source; say who measured it")
    if harness and not QUANTITIES[quantity].less_is_faster:
        raise CaseError(f"{where}.harness_cycles: only for times and cycles, the quantity is {quantity!r}")
    return Measured(_text(data["metric"], f"{where}.metric", None), quantity, float(value), unit, harness, source)


def _not_expressed(data: Mapping[str, Any], where: str) -> NotExpressed:
    _only_keys(data, ("ids", "reason", "model"), where)
    _all_keys(data, ("ids", "reason"), where)
    ids = tuple(_text(v, f"{where}: ids", None) for v in _list(data["ids"], f"{where}: ids"))
    model = _text(data["model"], f"{where}: model", None) if "model" in data else ""
    return NotExpressed(ids, _text(data["reason"], f"{where}: reason", None), model)


def _machine(name: str, where: str, file: Path) -> str:
    """The preset's name, or the absolute path of a machine file beside the file of cases."""
    path = str((file.parent / name).resolve()) if name.endswith(".toml") else name
    try:
        load_machine(path)
    except MachineError as error:
        raise CaseError(f"{where}: {error}") from error
    return path


# -- values ------------------------------------------------------------------------------------------------------------


def _only_keys(data: Mapping[str, Any], allowed: Sequence[str], where: str) -> None:
    for key in data:
        if key not in allowed:
            raise CaseError(f"{where}: unknown key {key!r}{instead_of(key, allowed)}")


def _all_keys(data: Mapping[str, Any], needed: Sequence[str], where: str) -> None:
    for key in needed:
        if key not in data:
            raise CaseError(f"{where}: key {key!r} is missing, needed: {', '.join(needed)}")


def _text(value: object, where: str, allowed: Sequence[str] | None) -> str:
    if not isinstance(value, str) or not value.strip():
        raise CaseError(f"{where}: {value!r}, allowed: a text that is not empty")
    if allowed is not None and value not in allowed:
        raise CaseError(f"{where}: {value!r}{instead_of(value, allowed)}")
    return value


def _whole(value: object, where: str, least: int) -> int:
    # True is an int in Python.
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise CaseError(f"{where}: {value!r}, allowed: a whole number of {least} or more")
    return value


def _yes_or_no(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise CaseError(f"{where}: {value!r}, allowed: true, false")
    return value


def _list(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise CaseError(f"{where}: {value!r}, allowed: a list")
    return value


def _table(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise CaseError(f"{where}: {value!r}, allowed: a table")
    return value


def _tables(value: object, where: str) -> list[dict[str, Any]]:
    return [_table(entry, where) for entry in _list(value, where)]
