"""Intervals of predicted times: laws of the method, what they rest on, and how often they hold."""

import json
import math
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from ipuperf.report import (
    compare,
    comparison_page,
    comparison_text,
    comparison_values,
    interval,
    ratio_interval,
    summary_text,
    throughput,
    write_report,
)
from ipuperf.report.intervals import (
    COVERAGE,
    HOST,
    LEAST_ERROR,
    WIDENING,
    Evidence,
    RunProfile,
    conformal,
    distance,
    group_of,
    interval_from,
    novelty,
    profile,
    ratio_interval_from,
    validated,
)
from ipuperf.report.page.facts import page_facts
from ipuperf.tools.validation.cases import read_cases
from ipuperf.tools.validation.evidence import coverages
from ipuperf.trace import Trace
from ipuperf.trace.schema import KINDS

CHIP = "1472 tiles at 1.33 GHz"


def made(trains: bool = True, chip: str = CHIP, ipus: int = 1, **shares: float) -> RunProfile:
    return RunProfile(shares, trains, chip, ipus)


def test_nine_of_ten_new_scores_are_below() -> None:
    """Scores of one distribution, whatever it is: 1,000 drawings of 30 and a new one."""
    generator = np.random.default_rng(0)
    for draw in (generator.standard_exponential, generator.standard_normal, generator.random):
        scores = np.abs(draw((1000, 31)))
        inside = [new <= conformal(known) for *known, new in scores.tolist()]
        assert COVERAGE - 0.02 < np.mean(inside) < COVERAGE + 0.05


def test_few_scores_give_their_largest() -> None:
    assert [conformal(range(1, count + 1)) for count in (1, 8, 9, 10, 19, 20)] == [1, 8, 9, 10, 18, 19]
    assert conformal([]) == math.inf


def test_distances_of_profiles() -> None:
    """Those of shares: 0 from itself, 1 between runs that have nothing in common, never above the way around."""
    generator = np.random.default_rng(1)
    profiles = [made(**dict(zip("abcd", generator.dirichlet(np.ones(4)).tolist(), strict=True))) for _ in range(12)]
    for one in profiles:
        assert distance(one, one) == 0
        for other in profiles:
            assert distance(one, other) == distance(other, one) <= 1
            for third in profiles:
                assert distance(one, third) <= distance(one, other) + distance(other, third) + 1e-12
    assert distance(made(a=1.0), made(b=1.0)) == 1


def test_novelty() -> None:
    known = [Evidence("r", "f", "training", made(ipus=4, MatMul=0.6, **{"IPU-Links": 0.4}), 0.1)]
    same = known[0].profile
    assert novelty(same, known) == 0
    assert novelty(replace(same, chip="another"), known) == 1
    assert novelty(same, []) == 1
    assert novelty(replace(same, ipus=8), known) == pytest.approx(0.4)
    assert novelty(made(MatMul=0.6, Softmax=0.4), known) == pytest.approx(0.4)


@pytest.mark.parametrize(
    ("shares", "trains", "group"),
    [
        ({HOST: 0.5, "MatMul": 0.5}, True, "bound by the host"),
        ({HOST: 0.2, "MatMul": 0.5, "Add": 0.1, "Softmax": 0.1, "Gelu": 0.1}, True, "training"),
        ({HOST: 0.4, "MatMul": 0.6}, True, "kernel MatMul"),
        ({"MatMul": 0.9, "Add": 0.1}, False, "kernel MatMul"),
        ({"waiting": 1.0}, False, "kernel"),
        ({"MatMul": 0.4, "Add": 0.3, "Softmax": 0.2, "Gelu": 0.1}, False, "inference"),
    ],
    ids=lambda case: str(case)[:20],
)
def test_groups(shares: dict[str, float], trains: bool, group: str) -> None:
    assert group_of(made(trains, **shares)) == group


def test_an_interval_is_as_wide_as_the_errors_of_runs_like_it() -> None:
    """Nineteen runs with errors of 1 to 19 %: the eighteenth, by closed form; on an unknown chip wider as is named."""
    same = made(MatMul=0.4, Add=0.3, Softmax=0.2, Gelu=0.1)
    runs = [Evidence(f"r{n}", "f", "training", same, n / 100) for n in range(1, 20)]
    found = interval_from(same, runs)
    # The eighteenth error is compared with the mean of the others, and then multiplied by that of all.
    others = (1.9 - 0.18) / 18
    width = 0.18 * (0.1 + LEAST_ERROR) / (others + LEAST_ERROR)
    assert (found.above, found.group, found.runs, found.novelty) == (pytest.approx(width), "training", 19, 0)
    low, high = found.around(7.0)
    assert low * high == pytest.approx(49)
    assert math.log(high / 7) == pytest.approx(width)
    assert found.sentence() == "nine times of ten within -17 to +21 % (19 validated runs: training)"
    other = interval_from(replace(same, chip="another"), runs)
    assert other.below == other.above == pytest.approx(width * (1 + WIDENING))
    assert other.sentence().endswith("training; 100 % of the time is unlike all of them)")
    few = interval_from(made(trains=False, Gather=1.0), runs)
    assert (few.group, few.runs) == ("all", 19)


def test_runs_that_do_alike_count_before_others() -> None:
    """Of two kinds of programs, one predicted within 2 % and one within 20, each has the interval of its own."""
    sure, unsure = (
        [Evidence(f"{name}{n}", name, "training", made(**{name: 0.9, "Add": 0.1}), error) for n in range(12)]
        for name, error in (("MatMul", 0.02), ("Conv", 0.2))
    )
    near, far = (interval_from(kind[0].profile, sure + unsure).above for kind in (sure, unsure))
    assert 0.02 < near < 0.1 < 0.2 < far
    assert interval_from(sure[0].profile, sure[1:]).above == pytest.approx(0.02)


def test_a_script_only_adds_time() -> None:
    """Of runs bound by the host each side has its own errors."""
    runs = [Evidence(f"r{n}", "f", "bound by the host", made(host=1.0), n / 10 - 0.1) for n in range(12)]
    found = interval_from(made(host=1.0), runs)
    assert (found.below, found.above) == (pytest.approx(0.1), pytest.approx(1.0))


def test_a_ratio_is_surer_than_its_runs() -> None:
    """Runs of one family that are all 10 % off say nothing against a comparison of two of them."""
    runs = [Evidence(f"r{n}", "f", "training", made(MatMul=1.0), 0.1 + n / 1000) for n in range(12)]
    assert interval_from(made(MatMul=1.0), runs).above > 0.1
    alike = ratio_interval_from(made(MatMul=1.0), made(MatMul=1.0), runs).above
    assert alike < 0.012
    strange = ratio_interval_from(made(MatMul=1.0), made(MatMul=1.0, chip="of another design"), runs)
    assert strange.above == pytest.approx((1 + WIDENING) * alike)


def test_the_profile_of_a_trace(trace: Trace) -> None:
    """Its shares are those of the cycles of all steps, as the table of the trace has them."""
    found, totals = profile(trace), trace.totals()
    assert sum(found.shares.values()) == pytest.approx(1, abs=0.02)
    of_kind = totals[list(KINDS)].sum()
    host = of_kind[[kind for kind in KINDS if kind.startswith("host_")]].sum() / of_kind.sum()
    assert found.shares.get(HOST, 0.0) == pytest.approx(host if host >= 0.002 else 0)
    assert found.ipus == trace.meta["num_ipus"]
    assert interval(trace).above > 0
    assert ratio_interval(trace, trace).novelty == 0


# -- the validated runs ------------------------------------------------------------------------------------------------


def test_every_run_is_of_a_case() -> None:
    names = {case.run_name for case in read_cases().cases}
    runs = validated()
    assert len(runs) > 170
    assert {run.run for run in runs} <= names
    for run in runs:
        assert 0.9 < sum(run.profile.shares.values()) < 1.001, run.run
        assert run.group == "bound by the host" or run.group == group_of(run.profile), run.run


def test_intervals_hold_for_runs_that_they_do_not_rest_on() -> None:
    """Nine times of ten, and about twice as wide for a family that no run is of."""
    kinds = {kind.kind: kind for kind in coverages(validated())}
    for name, wider in (("training", 2), ("inference", 2), ("kernel", 1.7)):
        kind = kinds[name]
        assert 0.85 <= kind.holds <= 0.95, kind
        assert kind.family_holds >= 0.85, kind
        assert kind.family_width >= wider * kind.width, kind
    assert kinds["training"].width <= 0.145
    assert kinds["inference"].width <= 0.125


@pytest.mark.parametrize("samples", [0, 64])
def test_views_say_the_throughput_with_the_bounds_of_the_time(samples: int, synthetic: ModuleType, tmp_path: Path):
    trace = synthetic.pipeline_trace(ipus=2, micro_batches=2, layers=1)
    trace.meta.update({"samples_per_run": samples} if samples else {})
    seconds = float(trace.seconds(int(trace.columns("runs")["dur"][-1])))
    low, high = interval(trace).around(seconds)
    found = throughput(trace)
    amount = samples or 1
    assert (found.value, found.low, found.high) == pytest.approx((amount / seconds, amount / high, amount / low))
    assert found.of == ("samples" if samples else "runs")
    sentence = found.sentence()
    assert f"Last run, {sentence}\n" in summary_text(trace)
    assert page_facts(trace, 1000)["throughput"] == sentence
    write_report(trace, tmp_path)
    assert json.loads((tmp_path / "summary.json").read_text())["throughput"] == vars(found)
    comparison = compare({"a": trace, "b": trace})
    assert [run["throughput"] for run in comparison_values(comparison)["runs"]] == [vars(found)] * 2
    assert comparison_text(comparison).count(sentence) == comparison_page(comparison).count(sentence) == 2
