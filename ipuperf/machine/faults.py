"""What is wrong with a machine: slow IPUs and tiles, links at part of their rate or down, shared DDR, a jittery host.

A fault is one line of text: in a machine file (``faults = [...]``), on the command line (``ipuperf run --fault``) and
in Python (`Machine.with_faults`)::

    ipu 3 at 0.95                 all that IPU 3 does by itself takes 1 / 0.95 times as long
    ipu 3 tiles 0-99 at 0.9       so do compute phases on these tiles
    link ipu0-ipu1 at 0.5         half of the bandwidth, in both directions
    link ipu0-ipu1 down           no bandwidth: routes lead elsewhere
    ddr 0 at 0.7                  the part of the DDR of IPU-Machine 0 that a neighbour leaves
    host sync exponential 20us    time added to each host sync; also host callback, host run
    host run uniform 0 1ms        laws: constant T, uniform T T, exponential MEAN, lognormal MEDIAN SIGMA

Where several faults say something about one thing, the lowest rate holds, and times of the host add up. Faults come
after a program was compiled: it is lowered, and its collectives are planned, for the machine without them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from functools import cached_property
from statistics import NormalDist
from typing import TypeVar

from numpy import ndarray

from ipuperf.base.near_names import instead_of
from ipuperf.machine.errors import MachineError
from ipuperf.machine.topology import Topology

Cycles = TypeVar("Cycles", int, "ndarray")

HOST_PARTS = ("run", "sync", "callback")
"""Work of the host whose time varies: the start of a run, each host sync, the callback of each stream and replica."""

LAWS = {"constant": 1, "uniform": 2, "exponential": 1, "lognormal": 2}
"""Distributions of added times, and how many numbers each takes."""

_SECONDS = {"ns": Fraction(1, 10**9), "us": Fraction(1, 10**6), "ms": Fraction(1, 1000), "s": Fraction(1)}
_FORMS = (
    "ipu N at RATE",
    "ipu N tiles N-N at RATE",
    "link A-B at RATE",
    "link A-B down",
    "ddr N at RATE",
    f"host {'|'.join(HOST_PARTS)} LAW TIME",
)


@dataclass(frozen=True)
class SlowIpu:
    """IPU ``ipu`` works at ``rate`` of its speed: all of it, or compute phases on its ``tiles`` (first, last)."""

    text: str
    ipu: int
    rate: Fraction
    tiles: tuple[int, int] | None = None

    def cycles(self, cycles: Cycles) -> Cycles:
        """Cycles that work of ``cycles`` takes, rounded up."""
        return -(-cycles * self.rate.denominator // self.rate.numerator)


@dataclass(frozen=True)
class SlowLink:
    """The links between two nodes have ``rate`` of their bandwidth, 0: they are down."""

    text: str
    ends: tuple[str, str]
    rate: Fraction


@dataclass(frozen=True)
class Jitter:
    """Time that the host takes besides for ``part`` of its work, distributed by ``law`` (times in seconds)."""

    text: str
    part: str
    law: str
    numbers: tuple[float, ...]

    def seconds(self, place: float) -> float:
        """The time at this place of the distribution (above 0, below 1): the inverse of its distribution function."""
        first, second = (*self.numbers, 0.0)[:2]
        if self.law == "uniform":
            return first + (second - first) * place
        if self.law == "exponential":
            return -first * math.log1p(-place)
        if self.law == "lognormal":
            return first * math.exp(second * NormalDist().inv_cdf(place))
        return first

    @property
    def varies(self) -> bool:
        """Whether two times may differ."""
        first, second = (*self.numbers, 0.0)[:2]
        if self.law == "uniform":
            return first != second
        return first > 0 and (self.law == "exponential" or (self.law == "lognormal" and second > 0))


Fault = SlowIpu | SlowLink | Jitter


@dataclass(frozen=True)
class Faults:
    """The faults of a machine, in the order in which they were given. None: everything works as its figures say."""

    faults: tuple[Fault, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.faults)

    @property
    def texts(self) -> list[str]:
        """Each fault as it was given."""
        return [fault.text for fault in self.faults]

    @property
    def jitters(self) -> tuple[Jitter, ...]:
        """Those of the host."""
        return tuple(fault for fault in self.faults if isinstance(fault, Jitter))

    @cached_property
    def _slow_ipus(self) -> dict[int, tuple[SlowIpu, ...]]:
        slow: dict[int, tuple[SlowIpu, ...]] = {}
        for fault in self.faults:
            if isinstance(fault, SlowIpu):
                slow[fault.ipu] = (*slow.get(fault.ipu, ()), fault)
        return slow

    def of_ipu(self, ipu: int) -> tuple[SlowIpu, ...]:
        """The faults of an IPU of the machine and of its tiles."""
        return self._slow_ipus.get(ipu, ())

    def cycles_of(self, ipu: int, cycles: int) -> int:
        """Cycles that work of a whole IPU takes."""
        return max([cycles, *(fault.cycles(cycles) for fault in self.of_ipu(ipu) if fault.tiles is None)])

    def on_links(self, topology: Topology) -> Topology:
        """The links as the faults leave them; ``topology`` itself where no link is concerned.

        Raises:
            MachineError: a link that does not exist; links that are down leave no route.
        """
        rates: dict[tuple[str, str], tuple[Fraction, str]] = {}
        for fault in self.faults:
            if isinstance(fault, SlowLink):
                for ends in (fault.ends, fault.ends[::-1]):
                    try:
                        topology.link(*ends)
                    except MachineError as error:
                        raise _wrong(fault.text, str(error).removeprefix("topology: ")) from None
                    rates[ends] = min(rates.get(ends, (Fraction(1), "")), (fault.rate, fault.text))
        if not rates:
            return topology
        try:
            return topology.at_rates({ends: rate for ends, (rate, _) in rates.items()})
        except MachineError as error:
            raise _wrong(
                ", ".join(text for rate, text in dict.fromkeys(rates.values()) if not rate), str(error)
            ) from None

    def check(self, ipus: int, tiles: int) -> None:
        """Raise `MachineError` for an IPU or a tile that a machine of this size does not have."""
        for fault in self.faults:
            if isinstance(fault, SlowIpu):
                if fault.ipu >= ipus:
                    raise _wrong(fault.text, f"there is no IPU {fault.ipu}, the IPUs are 0 to {ipus - 1}")
                if fault.tiles and fault.tiles[1] >= tiles:
                    raise _wrong(fault.text, f"there is no tile {fault.tiles[1]}, the tiles are 0 to {tiles - 1}")


NO_FAULTS = Faults()


def parse_faults(texts: Iterable[str]) -> Faults:
    """The faults that these texts say (see the module's docstring).

    Raises:
        MachineError: a text says no fault, or a rate outside of (0, 1].
    """
    return Faults(tuple([_parse(text) for text in texts]))


def _parse(text: str) -> Fault:
    words = text.split()
    kind = words[0] if words else ""
    parsers = {"ipu": _ipu, "link": _link, "ddr": _ddr, "host": _host}
    if kind not in parsers:
        raise _wrong(text, f"{kind!r} cannot be at fault{instead_of(kind, parsers)}")
    return parsers[kind](" ".join(words))


def _wrong(text: str, problem: str) -> MachineError:
    return MachineError(f"fault {text!r}: {problem}")


def _malformed(text: str, kind: str) -> MachineError:
    return _wrong(text, f"not understood, allowed: {', '.join(form for form in _FORMS if form.startswith(kind))}")


def _ipu(text: str) -> Fault:
    matched = re.fullmatch(r"ipu (\d{1,9})(?: tiles (\d{1,9})-(\d{1,9}))? at (\S+)", text)
    if matched is None:
        raise _malformed(text, "ipu")
    ipu, first, last, rate = matched.groups()
    tiles = None if first is None else (int(first), int(last))
    if tiles and tiles[0] > tiles[1]:
        raise _wrong(text, f"tiles {first}-{last} go backwards, write {last}-{first}")
    return SlowIpu(text, int(ipu), _rate(text, rate), tiles)


def _link(text: str) -> Fault:
    matched = re.fullmatch(r"link ([a-z]+\d+)-([a-z]+\d+) (?:at (\S+)|down)", text)
    if matched is None:
        raise _malformed(text, "link")
    near, far, rate = matched.groups()
    return SlowLink(text, (near, far), Fraction(0) if rate is None else _rate(text, rate))


def _ddr(text: str) -> Fault:
    matched = re.fullmatch(r"ddr (\d{1,9}) at (\S+)", text)
    if matched is None:
        raise _malformed(text, "ddr")
    machine, rate = matched.groups()
    return SlowLink(text, (f"gateway{machine}", f"ddr{machine}"), _rate(text, rate))


def _host(text: str) -> Fault:
    _, part, law, *numbers = [*text.split(), "", ""][: max(3, len(text.split()))]
    if part not in HOST_PARTS or not law:
        raise _malformed(text, "host")
    if law not in LAWS:
        raise _wrong(text, f"no distribution {law!r}{instead_of(law, LAWS)}")
    if len(numbers) != LAWS[law]:
        raise _wrong(text, f"{law} takes {LAWS[law]} number{'s' if LAWS[law] > 1 else ''}, got {len(numbers)}")
    # The spread of a lognormal distribution has no unit.
    values = [
        _number(text, number) if law == "lognormal" and place else _time(text, number)
        for place, number in enumerate(numbers)
    ]
    if law == "uniform" and values[0] > values[1]:
        raise _wrong(text, f"uniform from {numbers[0]} to {numbers[1]} goes backwards")
    if law == "lognormal" and values[1] > 5:
        raise _wrong(text, f"a sigma of {numbers[1]}, allowed: 5 at most")
    return Jitter(text, part, law, tuple(map(float, values)))


def _rate(text: str, word: str) -> Fraction:
    rate = _number(text, word)
    if not 0 < rate <= 1:
        raise _wrong(text, f"a rate of {word}, allowed: above 0 and at most 1")
    # Cycles of tiles are multiplied by it as int64.
    if 10**6 % rate.denominator:
        raise _wrong(text, f"a rate of {word}, allowed: six digits after the point at most")
    return rate


def _time(text: str, word: str) -> Fraction:
    matched = re.fullmatch(r"([0-9.eE+-]+?)(ns|us|ms|s)?", word)
    if matched is None or (matched[2] is None and _number(text, matched[1]) != 0):
        raise _wrong(text, f"{word!r} is no time, write a number and a unit, as in 20us; units: {', '.join(_SECONDS)}")
    seconds = _number(text, matched[1]) * _SECONDS[matched[2] or "s"]
    if not 0 <= seconds <= 3600:
        raise _wrong(text, f"a time of {word}, allowed: 0 to 3600s")
    return seconds


def _number(text: str, word: str) -> Fraction:
    try:
        number = Decimal(word)
    except InvalidOperation:
        raise _wrong(text, f"{word!r} is no number") from None
    # The exponent is bounded, as a fraction writes it out.
    if not number.is_finite() or number < 0 or (number and not -20 <= number.adjusted() <= 6):
        raise _wrong(text, f"a number of {word}, allowed: from 1e-20 to 1e6, and 0")
    return Fraction(number)
