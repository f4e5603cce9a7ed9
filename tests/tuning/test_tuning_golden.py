"""What a tuning knows, expects, chooses and says, kept as text (``tests/golden/tuning``)."""

import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import digest
import numpy as np
import pytest
from rows import Golden

from ipuperf.machine import load_machine
from ipuperf.sweep import Sweep
from ipuperf.tools.errors import CaseError
from ipuperf.tuning import TuningError, TuningSpace, probes, text_of
from ipuperf.tuning.answer import answer_of
from ipuperf.tuning.bounds import Bounds, machine_of
from ipuperf.tuning.defaults import factors_of
from ipuperf.tuning.estimates import Estimates, Forecast, forecast, worth
from ipuperf.tuning.evaluate import Fullest, Outcome, Outcomes
from ipuperf.tuning.files import json_of, poptorch_of, popxl_of, scenario_of
from ipuperf.tuning.probes import UnitCost
from ipuperf.tuning.search import TuningSearch
from ipuperf.tuning.splits import _says_layers, placed, splits, units_of
from ipuperf.tuning.workers import Workers

from .conftest import encoder_space

Said = dict[str, Any]


# -- units and values --------------------------------------------------------------------------------------------------

ENCODER = {"config.layers": (4,), "config.stages": (2,)}
PLACED = [
    ("encoder", {"config.layers": n, **({"config.stages": s} if s else {})}) for n in (1, 2, 3, 5, 8) for s in (0, 2, 3)
]
PLACED += [("bert", {"pipeline": p}) for p in ((), (3,), (0, 2), (2, 1, 3))]


def test_splits_and_units(golden: Golden) -> None:
    said: Said = {f"{n} layers, {ipus} IPUs": repr(splits(n, ipus)) for n in (1, 2, 3, 7, 12) for ipus in (1, 2, 4, 8)}
    for model, configuration in PLACED:
        units = units_of(model, configuration) if model == "encoder" else None
        where = repr(placed(model, configuration)) if configuration.get("pipeline", True) else "-"
        said[f"{model} {configuration}"] = f"{where} {units}"
    golden(digest.lines(said))


@pytest.mark.parametrize("model", ["encoder", "mnist_mlp", "bert", "gpt2", "resnet50", "swin"])
def test_usual_factors(model: str, golden: Golden) -> None:
    if model not in ("encoder", "mnist_mlp"):
        pytest.importorskip("torch")
    presets = {"gpt2": "small", "resnet50": "mlperf", "swin": "tiny"}
    given: dict[str, tuple[Any, ...]] = (
        {} if model in ("encoder", "mnist_mlp") else {"config.preset": (presets.get(model, "base"),)}
    )
    said: Said = {}
    for machine, batch in (("gc200-1", 24), ("pod4", 96), ("pod16", 1000)):
        for more in ({}, {"sharding": (0,)}):
            factors, constraints = factors_of(model, load_machine(machine), batch, {**given, **more})
            said[f"{machine} {batch} {more}"] = {**{k: repr(v) for k, v in factors.items()}, "where": str(constraints)}
    golden(digest.lines(said))


SPACES: Mapping[str, tuple[dict[str, tuple[Any, ...]], int, tuple[str, ...]]] = {
    "derived": ({"micro_batch": (1, 2, 4), "replicas": (1, 2), **ENCODER}, 8, ()),
    "said": ({"micro_batch": (1, 2, 4, 3), "accumulation": (1, 2, 4), "replicas": (1, 2)}, 8, ()),
    "constrained": ({"micro_batch": (4, 1, 2), "replicas": (1, 2), "recompute": ("none", "standard", "checkpoints"),
                     "pipeline": ((1, 1), (2,))},
                    16, ("replicas * len(pipeline) < 3", "micro_batch < 4 or replicas > 1")),
    "one": ({"micro_batch": (8,), "offload": ((), ("optimiser",))}, 8, ("'optimiser' in offload",)),
}  # fmt: skip


@pytest.mark.parametrize("name", SPACES)
def test_space(name: str, golden: Golden) -> None:
    factors, batch, constraints = SPACES[name]
    space = TuningSpace(Sweep({"machine": ("pod4",), **factors}, model="encoder", constraints=constraints), batch)
    said: Said = {
        "names": repr(space.names),
        "impossible": repr(space.impossible),
        "where": repr(space.sweep.constraints),
    }
    for place, each in enumerate(space.configurations):
        said[f"{place}"] = (
            f"{list(each.values())} {space.levels[place].tolist()} {space.steps(place)} {space.place(each)}"
        )
    ranks = np.arange(len(space.configurations))[::-1]
    for wanted in ([0] * len(space.names), [1] * len(space.names)):
        said[f"near {wanted}"] = [space.nearest(wanted, np.arange(0, len(ranks), step), ranks) for step in (1, 2)]
    said["unknown"] = str(space.place(dict.fromkeys(space.names, "?")))
    golden(digest.lines(said))


# -- bounds and forecasts ----------------------------------------------------------------------------------------------

LEARNT: Mapping[str, dict[str, tuple[Any, ...]]] = {
    "schedules": {"config.schedule": ("popart_pipeline", "sequential", "grouped", "1f1b", "zb_h1", "interleaved_1f1b"),
                  "config.stages": (1, 2, 4), "micro_batch": (2,), "replicas": (1, 2), "recompute": ("none",)},
    "recomputed": {"config.schedule": ("popart_pipeline", "1f1b"), "config.stages": (1, 2, 4), "micro_batch": (1, 16),
                   "replicas": (1,), "recompute": ("standard", "none")},
    "many-layers": {"config.layers": (6,), "config.stages": (1, 3, 4), "replicas": (1,), "micro_batch": (4,)},
    "slow-links": {"machine.ipu_machine.link_bandwidth": (0.5,), "config.stages": (2, 4), "micro_batch": (4,),
                   "replicas": (1,)},
}  # fmt: skip


def learnt(space: TuningSpace) -> Bounds:
    bounds = Bounds(space.sweep, machine_of(space.sweep))
    list(bounds.learn(space.configurations, Workers()))
    return bounds


def known(bounds: Bounds, configuration: Mapping[str, Any]) -> Iterator[str]:
    """Bound, forecast and stages of a configuration."""
    bound = bounds.of(configuration)
    yield f"{bound.seconds:.6g} s {bound.bytes} B IPU {bound.ipu} {dict(bound.parts)} {bound.refused}"
    if not bound.refused:
        about = forecast(bounds, configuration)
        yield f"about {about.seconds:.6g} s {about.bytes:.6g} B; {bound.over(1000)}"
        for stage in bounds.stages(configuration):
            flows = ", ".join(f"{flow:.6g}" for flow in stage.flows)
            yield f"  {len(stage.units)} units, {stage.state} {stage.depth} {stage.again} {flows}"


@pytest.mark.heavy
@pytest.mark.parametrize("name", LEARNT)
def test_bounds(name: str, golden: Golden) -> None:
    space = encoder_space(**LEARNT[name])
    bounds = learnt(space)
    said = [f"probes {bounds.built}"]
    for costs in bounds._costs.values():
        said += [str(cost) for cost in costs] if costs else ["none"]
    for configuration in space.configurations:
        said += [", ".join(f"{name} {configuration[name]}" for name in space.names), *known(bounds, configuration)]
    golden(said)


# -- a search over costs that are made up ------------------------------------------------------------------------------

MADE_UP: Mapping[str, tuple[dict[str, tuple[Any, ...]], tuple[str, ...]]] = {
    "placed": ({"pipeline": ((3,), (0, 3), (1, 2), (2, 1), (0, 1, 1, 1)), "micro_batch": (1, 2, 8), "replicas": (1, 2),
                "recompute": ("none", "standard", "checkpoints"), "offload": (("optimiser",),)},
               ("replicas * len(pipeline) <= 4",)),
    "state": ({"pipeline": ((1, 1), (2,)), "micro_batch": (2,), "replicas": (1, 2, 4), "sharding": (0, 8),
               "offload": ((), ("optimiser",), ("activations",), ("activations", "optimiser"))},
              ("replicas * len(pipeline) <= 4",)),
    "proportions": ({"pipeline": ((1, 2), (3,)), "micro_batch": (4, 8), "replicas": (2,), "offload": (("optimiser",),),
                     "config.memory_proportions": ((0.2,), (0.2, 0.4), (0.6, 0.2), (0.9,))}, ("micro_batch < 8",)),
    "does-not-fit": ({"pipeline": ((1, 1), (2,)), "micro_batch": (2, 4), "offload": ((),), "config.hidden": (9,)}, ()),
    "cannot-be-built": ({"pipeline": ((1, 1), (2,)), "micro_batch": (3, 6), "offload": (("optimiser",),)}, ()),
    "nothing-known": ({"pipeline": ((1, 1),), "micro_batch": (2, 4, 8, 16), "config.halves": (1,)}, ()),
}  # fmt: skip


class MadeUp(Outcomes):
    """Outcomes a bit beside the forecasts: some do not fit, some cannot be built, some are only lowered."""

    def __init__(self, space: TuningSpace, bounds: Bounds) -> None:
        super().__init__(space.sweep, space.global_batch)
        self.bounds = bounds
        self.order: list[str] = []

    def of(self, configurations: Mapping[int, Any], best: float) -> Iterator[Outcome]:
        self.order.append(f"{list(configurations)} below {best:.6g} s")
        for place, configuration in configurations.items():
            yield self.outcome(place, configuration, best)

    def outcome(self, place: int, configuration: Mapping[str, Any], best: float) -> Outcome:
        bound, about = self.bounds.of(configuration), forecast(self.bounds, configuration)
        seconds = (1.1 + 0.03 * (place * 7 % 5)) * (about.seconds if about.seconds > 0 else 1e-3 * (place % 5 + 1))
        seconds = float(f"{seconds:.6g}")
        if configuration["micro_batch"] in (3, 6) or place % 11 == 10:
            return Outcome(place, f"made up: {configuration['micro_batch'] % 2}")
        over = place % 7 == 6 or "config.hidden" in configuration
        full = Fullest(place % 2, 640_000 + place if over else 400_000 + place, 638_976, {"a": 3}, ("x 3", "y 2"))
        least = max(bound.seconds, (0.6 if place % 2 else 0.9) * seconds)
        ran = {} if over or least >= best else {"seconds": seconds, "cycles": int(1e9 * seconds)}
        return Outcome(place, fullest=full, least_seconds=least, ipus=2, busiest=place % 3, took_seconds=0.5, **ran)


def made_up_costs(sweep: Sweep, chip: Any, configuration: Mapping[str, Any], ipus: int) -> tuple[UnitCost, ...] | None:
    """Figures that follow from what a probe sees."""
    if configuration.get("config.memory_proportions") == (0.9,):
        return None
    batch, share = configuration["micro_batch"], configuration.get("config.memory_proportions", (0.5,))[0]
    state = 0 if "optimiser" in configuration["offload"] else 5_000_000
    kept = "activations" not in configuration["offload"]
    return tuple(
        UnitCost(
            int((200 + 20 * ipu) * batch / share), 150 * batch, 1500.5 * batch + 70 * ipu, 400 * batch,
            330 + ipu, (128 * batch * ipu, 64 * ipu), (256 * batch, 96 * batch),
            (40_000_000 + state) * (1 + ipu), 20_000_000 + ipu, kept * 3_000_000 * batch * (1 + ipu % 2),
            int(9_000_000 * share) + ipu, 70_000 + 9 * ipu, 30_000,
        )
        for ipu in range(ipus)
    )  # fmt: skip


def searched(name: str, monkeypatch: pytest.MonkeyPatch, jobs: int, trials: int) -> tuple[TuningSearch, list[str]]:
    """A search that is ready to run, and the probes that it asked for."""
    factors, constraints = MADE_UP[name]
    probes: list[str] = []

    def costs(sweep: Sweep, chip: Any, configuration: Mapping[str, Any], ipus: int) -> Any:
        probes.append(f"{ipus} IPUs, {configuration}")
        return made_up_costs(sweep, chip, configuration, ipus)

    monkeypatch.setattr("ipuperf.tuning.bounds.costs_of_probe", costs)
    sweep = Sweep({"machine": ("pod4",), **factors}, model="bert", constraints=constraints)
    space = TuningSpace(sweep, 48 if name == "cannot-be-built" else 64)
    bounds = Bounds(sweep, machine_of(space.sweep))
    search = TuningSearch(space, bounds, MadeUp(space, bounds), trials, start_places=(1,))
    assert list(search.learn())[-1] == 0
    search.evaluator.workers.jobs = jobs
    return search, probes


@pytest.mark.parametrize("name", MADE_UP)
def test_bounds_of_made_up_costs(name: str, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    pytest.importorskip("optuna")
    search, said = searched(name, monkeypatch, 1, 1)
    for configuration in search.space.configurations:
        changed = [str(configuration[name]) for name in (*search.space.names, "accumulation")]
        said += [", ".join(changed), *known(search.bounds, configuration)]
    golden(said)


FITTED = re.compile(r'(about |"times": )(\d+\.\d+)')
"""Figures that follow from a fit, whose last digits depend on the library."""


@pytest.mark.heavy
@pytest.mark.parametrize("jobs", [1, 3])
@pytest.mark.parametrize("name", [name for name in MADE_UP if name != "nothing-known"])
def test_answer(name: str, jobs: int, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    """The order in which five are tried and the answer, then the answer when nothing is left."""
    pytest.importorskip("optuna")
    said: list[str] = []
    for trials in (5, 1000):
        search, _ = searched(name, monkeypatch, jobs, trials)
        list(search.run())
        assert isinstance(search.evaluator, MadeUp)
        said += [*search.evaluator.order[: trials % 1000], f"open {search.open.tolist()}"]
        try:
            answer = answer_of(search)
        except TuningError as error:
            said.append(f"refused: {error}")
            continue
        said += text_of(answer, search.space.names).splitlines()
        if jobs == 1 and trials == 5:
            said += [line for line in json_of(answer).splitlines() if '"ipuperf":' not in line]
    said = [FITTED.sub(lambda found: f"{found[1]}{float(found[2]):.2g}", line) for line in said]
    golden(said)


# -- what is expected --------------------------------------------------------------------------------------------------


def test_estimates(golden: Golden) -> None:
    """Means and spreads of a few configurations: with and without forecasts, told little, told more, under way."""
    space = encoder_space(micro_batch=(1, 2), replicas=(1, 2), recompute=("none",))
    count = len(space.configurations)
    said: Said = {}
    for name, forecasts in (("all", range(count)), ("some", range(0, count, 3)), ("none", ())):
        estimates = Estimates(space)
        for place in forecasts:
            estimates.expect(place, Forecast(0.001 * (1 + place % 4), 1000.0 + place))
        estimates.expect(0, Forecast())
        for told in (0, 1, 3):
            for place in range(told):
                estimates.tell(place, 0.002 * (1 + place) if place % 3 else None, 1500 * place)
            for pending in ((), (2, 5)):
                seconds, size = estimates.seconds(pending), estimates.bytes(pending)
                gains = worth(seconds, size, math.inf if told < 3 else 0.003, 1200)
                said[f"{name} {told} {pending}"] = {
                    "known": estimates.known,
                    "seconds": [f"{m:.5g} {s:.5g}" for m, s in zip(*seconds)][:8],
                    "bytes": [f"{m:.5g} {s:.5g}" for m, s in zip(*size)][:8],
                    "worth": [f"{g:.5g}" for g in gains][:8],
                }
    golden(digest.lines(said))


# -- files -------------------------------------------------------------------------------------------------------------

CHOICES: Mapping[str, Said] = {
    "plain": {},
    "stages": {"config.stages": 4, "config.memory_proportions": (0.2,), "config.device_iterations": 3},
    "pipeline": {"pipeline": (0, 4, 4), "micro_batch": 16, "accumulation": 32, "replicas": 4, "sharding": 8192,
                 "recompute": "checkpoints", "offload": ("optimiser",), "precision": "f16.16", "prefetch": 3,
                 "config.memory_proportions": (0.15, 0.25)},
    "one": {"pipeline": (12,), "recompute": "checkpoints", "offload": ("activations",), "precision": "f16.32",
            "io": "synthetic", "io_tiles": 32},
    "again": {"pipeline": (12,), "recompute": "standard", "sharding": 1},
}  # fmt: skip


@pytest.mark.parametrize("name", CHOICES)
def test_settings(name: str, tmp_path: Path, golden: Golden) -> None:
    configuration = {"machine": "pod4", **CHOICES[name], "seed": 7}
    of_model = Sweep({"machine": ("pod4",)}, model="bert")
    (tmp_path / "train.py").touch()
    of_script = Sweep({"machine": ("pod4",)}, "train.py", ("--x", "{machine}"), session=2, folder=str(tmp_path))
    texts = [poptorch_of(configuration), popxl_of(configuration), scenario_of(configuration, of_model)]
    texts += [scenario_of(configuration, of_script)]
    golden("\n".join(texts).replace(str(tmp_path), "THERE").splitlines())


# -- what no program above has -----------------------------------------------------------------------------------------


def test_bytes_of_a_probe() -> None:
    """Of temporaries only those of products, and of these the largest."""
    plain = {"ipu": 0, "bytes": SimpleNamespace(total=5), "group": "temporaries", "name": "a/x"}
    changes = ({}, {"bytes": SimpleNamespace(total=9)}, {"bytes": SimpleNamespace(total=7), "name": "a/y"})
    changes += ({"name": "b/x"}, {"group": "variables"}, {"group": "variables", "name": "b"}, {"ipu": 1, "name": "a"})
    variables = [SimpleNamespace(**{**plain, **change}) for change in changes]
    ops = [SimpleNamespace(name="a", op_id=1), SimpleNamespace(name="b", op_id=2)]
    program = SimpleNamespace(ipus=[0, 1], ops=ops, plans={1: 0}, memory=SimpleNamespace(variables=variables))
    with mock.patch("ipuperf.tuning.probes.group_of", lambda variable: variable.group):
        held = probes._held(program)
    assert held == {0: {"temporaries": 9, "variables": 10}, 1: {}}


@pytest.mark.parametrize(
    ("missing", "extra"), [("torch", "torch"), ("torch_geometric.nn", "geometric"), ("other", None)]
)
def test_models_that_need_a_package(missing: str, extra: str | None) -> None:
    error = ModuleNotFoundError("no", name=missing)
    kind, said = (
        (TuningError, rf"^model 'bert' needs {missing}: pip install 'torch<")
        if extra
        else (ModuleNotFoundError, "^no$")
    )
    with mock.patch("importlib.import_module", side_effect=error), pytest.raises(kind, match=said):
        factors_of("bert", load_machine("pod4"), 8, {})


def test_layers_that_nobody_says() -> None:
    """A model that refuses its options, or has other layers than were asked for, is split as it is."""
    for layers, alike in (
        (lambda config: 2, True),
        (lambda config: 3, False),
        (mock.Mock(side_effect=CaseError), False),
    ):
        with mock.patch("importlib.import_module", lambda name, found=layers: SimpleNamespace(placed_layers=found)):
            _says_layers.cache_clear()
            assert _says_layers("made_up", None) is alike
    _says_layers.cache_clear()


@pytest.mark.heavy
def test_outcomes_of_an_earlier_tuning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there is taken, but for what was not simulated and could be faster than the best by now."""
    kinds: Mapping[int, Said] = {0: {"seconds": 1.0, "cycles": 7, "ipus": 2}, 1: {"least_seconds": 2.0}}
    kinds |= {2: {"least_seconds": 0.5, "busiest": 1}, 3: {"fullest": Fullest(1, 9, 5, {"a": 1}, ("b 2",))}}
    kinds |= {4: {"failure": "x"}, 5: {"least_seconds": 1.5}}
    made: list[int] = []

    def outcome_of(sweep: Sweep, batch: int, place: int, configuration: Said, best: float) -> Outcome:
        made.append(place)
        return Outcome(place, took_seconds=0.5, **kinds[place])

    monkeypatch.setattr("ipuperf.tuning.evaluate.outcome_of", outcome_of)
    space = encoder_space(micro_batch=(1, 2, 4), replicas=(1, 2), **{"config.stages": (1,)})
    given = {place: space.configurations[place] for place in (4, 0, 2, 1, 5, 3)}
    for best, again in ((1.5, [4, 0, 2, 1, 5, 3]), (1.5, [2]), (0.5, []), (math.inf, [2, 1, 5])):
        outcomes = Outcomes(space.sweep, 64, tmp_path)
        assert list(outcomes.of(given, best)) == [Outcome(p, took_seconds=0.5, **kinds[p]) for p in given]
        assert made == again
        made.clear()
    (row, *_) = sorted(tmp_path.glob("runs/*/row.json"))
    row.write_text(row.read_text().replace('"outcome"', '"another"'))
    list(Outcomes(space.sweep, 64, tmp_path).of(given, 0.5))
    assert len(made) == 1
