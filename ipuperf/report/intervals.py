"""The interval that holds the measured time of a run nine times of ten, from the errors of validated runs.

The method is split conformal prediction. A validated run has a score: how far its prediction was off, as the logarithm
of measured over predicted time, without sign, over the error to expect of such a run. The interval reaches as far as
nine tenths of the scores of runs of its group, corrected for their number, times the error to expect of the predicted
run (Lei and others, "Distribution-free predictive inference for regression", 2018, section 5.2).

Groups follow from the trace alone: runs bound by the host, training, inference, kernels (see :func:`group_of`). The
error to expect is that of validated runs that do alike (see :func:`expected_error`), and more for a run that does other
things than all of them (see :func:`novelty`). :data:`WIDENING` is a choice: with it an interval of a family that no run
is of is twice as wide, as errors of programs that nobody had worked on were two to three times the others'.

What no validated run contains is not covered: Python's work between two calls, other programs on the host.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ipuperf.report.arguments import checked
from ipuperf.trace import Trace

COVERAGE = 0.9
"""The share of runs whose measured time lies in the interval."""

WIDENING = 4.0
"""An interval is ``1 + WIDENING`` times as wide where all of the time goes to what no validated run does."""

ALIKE = 0.1
"""How fast the weight of a validated run falls with its distance: by a factor of e for a tenth of the time."""

OF_THE_GROUP = 3
"""The error to expect counts the mean of the group as that many runs like the predicted one."""

LEAST_ERROR = 0.02
"""It is added to each error to expect, so that a few lucky runs promise nothing."""

ENOUGH = 9
"""The least number of runs for an interval: the largest of fewer errors does not cover nine tenths."""

EVIDENCE = Path(__file__).with_name("evidence.json")
"""The validated runs; ``ipuperf.tools.validation.evidence`` writes them."""

BY_HOST = "bound by the host"
"""The group of runs whose measured time is mostly that of a script. Their errors do not follow from what IPUs do."""

HOST, LINKS = "host", "IPU-Links"
_PARTS = {
    HOST: ["host_begin", "host_mid", "host_end", "host_run"],
    LINKS: ["link"],
    "Streaming Memory": ["remote_load", "remote_store"],
    "waiting": ["sync_external", "idle"],
}
_ON_TILES = ["compute", "exchange", "sync"]
_FEW_KINDS = 3
_LEAST_SHARE = 0.002


@dataclass(frozen=True)
class RunProfile:
    """What a run spends its time on.

    Attributes:
        shares: shares of the time of all IPUs by type of op, and of what is no op: host, IPU-Links, Streaming Memory,
            waiting. They sum to 1, but for shares below 0.2 %.
        trains: whether the run computes gradients or updates weights.
        chip: its tiles and their clock, which a trace knows of it.
        ipus: the IPUs of all replicas.
    """

    shares: Mapping[str, float]
    trains: bool
    chip: str
    ipus: int

    def without_host(self) -> RunProfile:
        """The profile of the time on the device."""
        rest = {name: share for name, share in self.shares.items() if name != HOST}
        whole = sum(rest.values()) or 1.0
        return RunProfile({name: share / whole for name, share in rest.items()}, self.trains, self.chip, self.ipus)


@dataclass(frozen=True)
class Evidence:
    """A validated run.

    Attributes:
        run: its name in the case files.
        family: the model, such as ``bert``.
        group: see :func:`group_of`.
        profile: what it spends its time on.
        error: logarithm of measured over predicted time, the mean over the values of the run.
    """

    run: str
    family: str
    group: str
    profile: RunProfile
    error: float

    def as_dict(self) -> dict[str, Any]:
        """The run as JSON, shares and error to four digits."""
        shares = {name: round(share, 4) for name, share in self.profile.shares.items()}
        profile = {**vars(self.profile), "shares": shares}
        return {"run": self.run, "family": self.family, "group": self.group, "error": round(self.error, 4), **profile}


@dataclass(frozen=True)
class Interval:
    """An interval around a predicted time.

    Attributes:
        below: logarithm of the prediction over the lower bound of the time.
        above: logarithm of the upper bound over the prediction.
        group: the group of runs that it rests on.
        runs: the number of validated runs of that group.
        novelty: the share of the time that goes to what none of them does, 0 to 1.
    """

    below: float
    above: float
    group: str
    runs: int
    novelty: float

    def around(self, value: float) -> tuple[float, float]:
        """The bounds around a predicted time, in its unit."""
        return value * math.exp(-self.below), value * math.exp(self.above)

    def holds(self, error: float) -> bool:
        """Whether a time lies in the interval; ``error`` is the logarithm of it over the prediction."""
        return -self.below <= error <= self.above

    def sentence(self) -> str:
        """The relative bounds, and what they rest on."""
        low, high = (100 * (bound - 1) for bound in self.around(1.0))
        new = f"; {100 * self.novelty:.0f} % of the time is unlike all of them" if self.novelty >= 0.005 else ""
        script = ", with what their scripts do between calls" if self.group == BY_HOST else ""
        basis = f"{self.runs} validated runs: {self.group}{script}{new}"
        return f"nine times of ten within {low:+.0f} to {high:+.0f} % ({basis})"


@dataclass(frozen=True)
class Throughput:
    """How much a program processes in a second.

    Attributes:
        value: as predicted.
        low, high: bounds that hold nine times of ten; they follow from those of the time.
        of: ``samples``, or ``runs`` where the front end does not say how many samples a run takes.
    """

    value: float
    low: float
    high: float
    of: str

    @classmethod
    def from_run(cls, samples: int, seconds: float, interval: Interval) -> Throughput:
        """That of runs of so many seconds and samples (0: unknown)."""
        amount = samples or 1
        short, long = interval.around(seconds)
        value, low, high = (amount / time if time else 0.0 for time in (seconds, long, short))
        return cls(value, low, high, "samples" if samples else "runs")

    def sentence(self) -> str:
        """The throughput with its bounds."""
        value, low, high = (f"{x:,.0f}" if x >= 1_000 else f"{x:.4g}" for x in (self.value, self.low, self.high))
        return f"{value} {self.of}/s, nine times of ten {low} to {high}"


@checked
def profile(trace: Trace) -> RunProfile:
    """What a trace spends the time of all its IPUs on."""
    ops = trace.operations_by_ipu(of_each_class=True)
    times = ops["ipus"]
    spent = {name: float((ops[columns].sum(axis=1) * times).sum()) for name, columns in _PARTS.items()}
    on_tiles = (ops[_ON_TILES].sum(axis=1) * times).groupby(ops["type"]).sum()
    spent |= {str(kind) or "no op": float(cycles) for kind, cycles in on_tiles.items()}
    whole = sum(spent.values()) or 1.0
    shares = {name: cycles / whole for name, cycles in sorted(spent.items()) if cycles / whole >= _LEAST_SHARE}
    meta = trace.meta
    chip = f"{meta['tiles_per_ipu']} tiles at {meta['clock_hz'] / 1e9:g} GHz"
    trains = bool(ops["phase"].isin(["bwd", "update"]).any())
    return RunProfile(shares, trains, chip, int(meta["num_ipus"]))


def group_of(profile: RunProfile) -> str:
    """The group of a run: ``bound by the host`` from half of its time on, ``training``, ``inference``, or kernels.

    A run is of kernels where at most three types of ops are in its profile, also where one of them updates a variable.
    Its group is ``kernel`` and the type with most of the time.
    """
    if profile.shares.get(HOST, 0.0) >= 0.5:
        return BY_HOST
    others = {"no op", *_PARTS}
    kinds = {name: share for name, share in profile.shares.items() if name not in others}
    if len(kinds) > _FEW_KINDS:
        return "training" if profile.trains else "inference"
    return f"kernel {max(kinds, key=lambda name: kinds[name], default='')}".strip()


def distance(one: RunProfile, other: RunProfile) -> float:
    """The share of the time that two runs spend on different things (total variation), 0 to 1."""
    names = sorted(one.shares.keys() | other.shares.keys())  # sums of floats depend on their order
    return sum(abs(one.shares.get(name, 0.0) - other.shares.get(name, 0.0)) for name in names) / 2


def novelty(profile: RunProfile, evidence: Sequence[Evidence]) -> float:
    """The share of the time that goes to what no validated run does.

    It is the distance to the nearest run, and all of the time on a chip that none of them has. On more IPUs than any of
    them the time on IPU-Links counts too.
    """
    return _novelty(profile, evidence, [distance(profile, run.profile) for run in evidence])


def _novelty(profile: RunProfile, evidence: Sequence[Evidence], distances: Sequence[float]) -> float:
    if not evidence or profile.chip not in {run.profile.chip for run in evidence}:
        return 1.0
    beyond = profile.ipus > max(run.profile.ipus for run in evidence)
    links = profile.shares.get(LINKS, 0.0) if beyond else 0.0
    return 1 - (1 - min(distances)) * (1 - links)


def expected_error(profile: RunProfile, evidence: Sequence[Evidence]) -> float:
    """The error to expect of a run: the mean of validated ones, those that do alike first, and more where it is new.

    It is a logarithm of measured over predicted time, without sign.
    """
    errors = [abs(run.error) for run in evidence]
    distances = [distance(profile, run.profile) for run in evidence]
    weights = [math.exp(-apart / ALIKE) for apart in distances]
    mean = sum(errors) / len(errors) if errors else 0.0
    near = sum(weight * error for weight, error in zip(weights, errors, strict=True))
    alike = (near + OF_THE_GROUP * mean) / (sum(weights) + OF_THE_GROUP)
    return (alike + LEAST_ERROR) * (1 + WIDENING * _novelty(profile, evidence, distances))


def conformal(scores: Iterable[float], coverage: float = COVERAGE) -> float:
    """The score that a new one does not exceed with probability ``coverage``; their largest where they are too few.

    Without any score nothing is known, and it is infinite.
    """
    ordered = sorted(scores) or [math.inf]
    return ordered[min(math.ceil((len(ordered) + 1) * coverage), len(ordered)) - 1]


@dataclass(frozen=True)
class _Basis:
    """What intervals of a group rest on.

    Attributes:
        name: the group, or the wider one that stands in for it.
        runs: its validated runs.
        below, above: the bounds over the error to expect; of a script, logarithms of the bounds.
    """

    name: str
    runs: Sequence[Evidence]
    below: float
    above: float


def _basis(group: str, evidence: Sequence[Evidence]) -> _Basis:
    name, runs = _alike(group, evidence)
    if group == BY_HOST:
        # A script only adds to what was predicted, so each side has a twentieth of the errors beyond it.
        below, above = (conformal((sign * run.error for run in runs), (1 + COVERAGE) / 2) for sign in (-1, 1))
        return _Basis(name, runs, below, above)
    scores = []
    for run in runs:
        others = [other for other in runs if other.run != run.run]
        scores.append(abs(run.error) / expected_error(run.profile, others))
    limit = conformal(scores)
    return _Basis(name, runs, limit, limit)


def _alike(group: str, evidence: Sequence[Evidence]) -> tuple[str, Sequence[Evidence]]:
    """The runs of a group, or of the next wider one that has enough, with the name of that."""
    kind = group.split()[0]
    for name, alike in (
        (group, [run for run in evidence if run.group == group]),
        (f"all {kind}s", [run for run in evidence if run.group.split()[0] == kind]),
    ):
        if len(alike) >= ENOUGH:
            return name, alike
    return "all", evidence


def _around(profile: RunProfile, group: str, basis: _Basis) -> Interval:
    new, factor = 0.0, 1.0
    if group != BY_HOST:
        new, factor = novelty(profile, basis.runs), expected_error(profile, basis.runs)
    return Interval(basis.below * factor, basis.above * factor, basis.name, len(basis.runs), new)


def interval_from(profile: RunProfile, evidence: Sequence[Evidence], group: str = "") -> Interval:
    """The interval of a run from validated runs of its group (default: :func:`group_of`).

    Where nine tenths mean nothing, below nine runs, those of all groups with the same first word stand in, then all.
    """
    group = group or group_of(profile)
    return _around(profile, group, _basis(group, evidence))


@checked
def interval(trace: Trace) -> Interval:
    """The interval of the time of a trace's runs."""
    # Several views of a report ask for it.
    if interval not in trace.derived:
        run = profile(trace)
        group = group_of(run)
        trace.derived[interval] = _around(run, group, _validated_basis(group))
    found: Interval = trace.derived[interval]
    return found


@checked
def throughput(trace: Trace) -> Throughput:
    """The throughput of a trace's last run."""
    seconds = float(trace.seconds(int(trace.columns("runs")["dur"][-1]))) if trace.rows("runs") else 0.0
    return Throughput.from_run(int(trace.meta.get("samples_per_run", 0)), seconds, interval(trace))


@checked
def ratio_interval(one: Trace, other: Trace) -> Interval:
    """The interval of the time of ``other`` over that of ``one``.

    Two runs of a program share a part of their errors. So the scores are differences between the errors of a validated
    run and the nearest one of its family, over the same factor for what the two do not share.
    """
    return ratio_interval_from(profile(one), profile(other), validated())


def ratio_interval_from(one: RunProfile, other: RunProfile, evidence: Sequence[Evidence]) -> Interval:
    """The interval of the ratio of two runs with these profiles, from validated runs with a peer of their family."""
    name, alike = _alike(group_of(other), evidence)
    scores = _differences(alike)
    if len(scores) < ENOUGH:
        name, scores = "all", _differences(evidence)
    # Nobody compared hardware of a chip that no validated run has with anything.
    strange = one.chip != other.chip and not {one.chip, other.chip} <= {run.profile.chip for run in evidence}
    apart = 1.0 if strange else distance(one, other)
    width = conformal(scores) * (1 + WIDENING * apart)
    return Interval(width, width, name, len(scores), apart)


def _differences(runs: Sequence[Evidence]) -> list[float]:
    """By how much the errors of each run and the nearest one of its family differ, for two that are alike."""
    scores = []
    for run in runs:
        family = [peer for peer in runs if peer.family == run.family and peer.run != run.run]
        if family:
            apart, error = min((distance(run.profile, peer.profile), peer.error) for peer in family)
            scores.append(abs(run.error - error) / (1 + WIDENING * apart))
    return scores


@cache
def _validated_basis(group: str) -> _Basis:
    return _basis(group, validated())


@cache
def validated() -> tuple[Evidence, ...]:
    """The validated runs that come with ipuperf."""
    return tuple(_evidence(entry) for entry in json.loads(EVIDENCE.read_text(encoding="utf-8")))


def _evidence(entry: dict[str, Any]) -> Evidence:
    names = ("shares", "trains", "chip", "ipus")
    return Evidence(
        profile=RunProfile(**{name: entry[name] for name in names}),
        **{name: value for name, value in entry.items() if name not in names},
    )
