"""What micro-benchmarks, differences of programs, sensitivity, fits and a whole measurement come to, kept as text."""

import json
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import digest
import pytest
from matplotlib.figure import Figure
from rows import Golden

from ipuperf.validation import (
    Case,
    by_class_left_out,
    figures,
    leave_one_out,
    left_out_text,
    predict,
    problem,
    processes,
    read_cases,
    runs,
    sensitivity,
    sensitivity_text,
)
from ipuperf.validation import results as kept_results
from ipuperf.validation.leaving_out import _least, groups
from ipuperf.validation.plot import draw
from ipuperf.validation.programs import CaseError, Figures, Program, _program_figures, front_ends
from ipuperf.validation.rows import Row
from ipuperf.validation.sensitivity import movable_figures, moves_bytes_only, only_simulated
from ipuperf.validation.units import QUANTITIES, UNITS, units_of

HEAD = '[defaults]\ncategory = "kernel"\nsource = "made up"\nmachine = "pod4"\nmode = "kernel"\n'


def made(tmp_path: Path, *cases: str) -> tuple[Case, ...]:
    """Cases of lines of TOML without their ids."""
    text = "".join(f'[[case]]\nid = "C{number}"\n{case}\n' for number, case in enumerate(cases))
    (tmp_path / "mine.toml").write_text(HEAD + text, encoding="utf-8")
    return read_cases(tmp_path / "mine.toml", known=problem).cases


def measured(quantity: str, value: float = 1.0, unit: str = "", more: str = "") -> str:
    unit = unit or units_of(quantity)[0]
    return f'measured = {{ metric = "m", quantity = "{quantity}", value = {value}, unit = "{unit}"{more} }}\n'


# -- micro-benchmarks --------------------------------------------------------------------------------------------------

BENCHMARKS: Mapping[str, tuple[str, ...]] = {
    "matmul": ('config = { m = 96, k = 64, n = 48 }\nprecision = "f16.32"', "config = { m = 7, k = 9, n = 1 }"),
    "tile_products": ('config = { rows = 7 }\nprecision = "f16.32"', "config = { rows = 24 }"),
    "tile_add": ("config = { tiles = 5, elements = 33 }", "config = { tiles = 1472, elements = 2048 }"),
    "stream_triad": ("config = { elements = 1 }", "config = { elements = 190 }", "config = { elements = 192 }"),
    "stream_triad_bytes": ("config = { elements = 33 }",),
    "tile_copy": ("config = { bytes = 64 }", "config = { bytes = 4096 }"),
    "tile_exchange": ("config = { bytes = 64 }", "config = { bytes = 5888 }"),
    "repeated_gather": ('config = { rows = 30, width = 20, indices = 7, trips = 3 }\nprecision = "f16.16"',
                        "config = { rows = 700, width = 4, indices = 300, trips = 2 }"),
    "repeated_scatter_add": ('config = { rows = 30, width = 20, indices = 7, trips = 3 }\nprecision = "f16.16"',
                             "config = { rows = 300, width = 4, indices = 700, trips = 2 }"),
    "repeated_interaction": ("config = { atoms = 12, edges = 30, width = 16, gaussians = 5, trips = 3 }",),
    "host_to_device": ("config = { bytes = 4096, ipus = 2 }", "config = { bytes = 40 }\nreplicas = 2\nprefetch = 3",
                       "config = { bytes = 4096 }\nprefetch = 0\ncalls = 4"),
    "device_to_host": ("config = { bytes = 4096, ipus = 2 }", "config = { bytes = 40 }\nreplicas = 2\nprefetch = 3"),
    "stream_copy_begin": ("config = { bytes = 4096 }\nprefetch = 0", "config = { bytes = 4096 }\nprefetch = 2"),
    "stream_copy_mid": ("config = { bytes = 4096 }\nprefetch = 0", "config = { bytes = 40 }"),
    "stream_copy_end": ("config = { bytes = 4096 }\nprefetch = 0", "config = { bytes = 40 }"),
    "trivial_multiply": ("config = { elements = 90, copies = 3 }", "config = { elements = 64, copies = 5, ipus = 3 }"),
    "trivial_sum": ("config = { elements = 90, terms = 3 }", "config = { elements = 64, terms = 5, ipus = 3 }"),
    "repeated_broadcast_add": ("config = { elements = 90, trips = 3 }",
                               "config = { elements = 64, trips = 5, ipus = 3 }"),
    "all_reduce": ("config = { bytes = 4000 }\nreplicas = 4", "config = { bytes = 400_000 }\nreplicas = 2"),
}  # fmt: skip


@pytest.mark.parametrize("name", BENCHMARKS)
def test_benchmark(name: str, tmp_path: Path, golden: Golden) -> None:
    said = []
    for case in made(tmp_path, *(f'model = "{name}"\n{case}\n{measured("cycles")}' for case in BENCHMARKS[name])):
        said += [f"{case.id} {dict(case.config)}", *digest.lines(figures(case))]
    golden(said)


# -- programs ----------------------------------------------------------------------------------------------------------

MNIST: Mapping[str, str] = {
    "adam": 'optimiser = "adam"\nreplicas = 4\naccumulation = 2\noffload = ["optimiser"]\nsharding = 9000'
}
MNIST |= {"adam off chip": 'optimiser = "adam"\nreplicas = 2\nmicro_batch = 8\noffload = ["optimiser"]'}
MNIST |= {"sgd": 'optimiser = "sgd"\nreplicas = 2\naccumulation = 3\nmicro_batch = 4'}
MNIST |= {"sgd off chip": 'optimiser = "sgd"\noffload = ["optimiser"]'}
MNIST |= {"sharded on chip": 'optimiser = "adam"\nreplicas = 2\nsharding = 64'}
MNIST |= {"inference": 'mode = "inference"\nmicro_batch = 16'}
MNIST |= {"inference of replicas": 'mode = "inference"\nreplicas = 2', "kernel": 'mode = "kernel"\noptimiser = "adam"'}
MNIST |= {"half": 'optimiser = "adam"\nprecision = "f16.16"'}
MNIST |= {"recomputed": 'optimiser = "adam"\nrecompute = "standard"'}
MNIST |= {"pipelined": 'optimiser = "adam"\npipeline = [1, 1]'}
MNIST |= {"options": 'optimiser = "adam"\nconfig = { hidden = 3 }', "lamb": 'optimiser = "lamb"'}
MNIST |= {"no streams": 'optimiser = "adam"\nio = "synthetic"'}


@pytest.mark.parametrize("name", MNIST)
def test_mnist(name: str, tmp_path: Path, golden: Golden) -> None:
    mode = "" if "mode" in MNIST[name] else 'mode = "training"\n'
    streams = "" if "io =" in MNIST[name] else 'io = "streams"\n'
    text = f'model = "mnist_mlp"\n{mode}{streams}{MNIST[name]}\n{measured("rate")}'
    (case,) = made(tmp_path, text)
    try:
        said = [str(case.samples), *digest.lines(figures(case))]
    except CaseError as error:
        said = [str(error).replace(str(tmp_path), "THERE")]
    golden(said)


def test_figures_of_several_runs_and_updates(golden: Golden) -> None:
    """Times and cycles are of one update, those of a run are not; memory is asked for by the name of the load."""
    with front_ends():
        from ipuperf.models.mnist_mlp import TrainingOptions, inference_session

        session = inference_session(8, TrainingOptions()).session
    plain = Program(session.executable, 8.0)
    said: dict[str, Any] = {}
    for name, change in (
        ("plain", {}),
        ("parts", {"steps": 5, "runs": 2, "samples": 30.0}),
        ("loads", {"loads": "image"}),
    ):
        for calls in (0, 4):
            said[f"{name} {calls}"] = dict(_program_figures(replace(plain, **change), calls, False).values)
    golden(digest.lines(said))


def test_units(golden: Golden) -> None:
    said = [f"{name}: {quantity}; {units_of(name)}" for name, quantity in QUANTITIES.items()]
    golden([*said, *(f"{name}: {dimension}, {scale:.12g}" for name, (dimension, scale) in UNITS.items())])


# -- sensitivity, fits, measurements -----------------------------------------------------------------------------------

SOME = (
    f'model = "host_to_device"\ncategory = "host-io"\nconfig = {{ bytes = 40_000_000 }}\n'
    f'{measured("device time", 0.009)}calibrates = ["host.pcie_bandwidth"]',
    f'model = "device_to_host"\ncategory = "host-io"\nconfig = {{ bytes = 4_000_000 }}\n'
    f'{measured("bandwidth", 3.1, "GB/s")}calibrates = ["host.pcie_bandwidth", "host.stream_latency"]\nrun = "R"',
    f'model = "device_to_host"\ncategory = "host-io"\nconfig = {{ bytes = 400_000 }}\n'
    f'{measured("time", 700.0, "us")}calibrates = ["host.stream_latency"]\nrun = "R"',
    f'model = "stream_triad"\nconfig = {{ elements = 640 }}\n{measured("cycles", 600.0)}calibrates = ["chip.launch"]',
    f'model = "tile_copy"\nconfig = {{ bytes = 8192 }}\n{measured("cycles", 1300.0)}calibrates = ["chip.launch"]\n'
    "minus = { config = { bytes = 64 } }",
    f'model = "host_to_device"\nconfig = {{ bytes = 2_000_000 }}\nslow = true\n{measured("time", 0.0008)}'
    'choices = [{ key = "config.bytes", others = [1_000_000, 3_000_000], why = "not stated" }]',
    f'model = "all_reduce"\ncategory = "collective"\nconfig = {{ bytes = 400_000 }}\nreplicas = 4\n'
    f"{measured('time', 0.0005)}",
)
MOVED = (
    "host.pcie_bandwidth",
    "host.stream_latency",
    "chip.launch",
    "ipu_machine.link_efficiency",
    "chip.code.runtime",
)


def test_sensitivity(tmp_path: Path, golden: Golden) -> None:
    cases = made(tmp_path, *SOME)
    told: list[tuple[int, int]] = []
    moved = [key for key in MOVED if key in movable_figures(["pod4"])]
    effects = sensitivity(cases, figures=moved, progress=lambda done, of: told.append((done, of)))
    golden([*digest.lines(effects), *sensitivity_text(effects).splitlines(), f"{told}"])


def test_figures_that_are_moved(golden: Golden) -> None:
    kinds = movable_figures(["pod4", "c600", "gc2-1"])
    said = [f"{key}: {kind}, {only_simulated(key)}, {moves_bytes_only(key)}" for key, kind in kinds.items()]
    golden(said)


@pytest.mark.heavy
def test_leave_one_out(tmp_path: Path, golden: Golden) -> None:
    cases = made(tmp_path, *SOME)
    told: list[tuple[int, int]] = []
    left = leave_one_out(cases, progress=lambda done, of: told.append((done, of)))
    known, _ = predict(cases, slow=True)
    classes = by_class_left_out(runs(known), left)
    said = [*digest.lines(left), *digest.lines([one.as_dict() for one in classes]), f"{told}"]
    golden([*said, *left_out_text(left, classes).splitlines()])


def test_groups_of_figures(golden: Golden) -> None:
    found = groups(read_cases().cases)
    golden([f"{[f.key for f in figures]}: {[case.id for case in some]}" for figures, some in found])


@pytest.mark.parametrize("best", [0.26, 0.5, 1.0, 1.7, 3.9])
def test_the_least_misfit_is_found(best: float) -> None:
    """Ten steps of the golden section leave a 120th of what lies between a quarter and four."""
    asked: list[float] = []

    def misfit(factor: float) -> float:
        asked.append(factor)
        return abs(factor - best)

    assert _least(misfit) == pytest.approx(best, rel=0.023)
    assert len(asked) == 12
    assert all(0.25 < factor < 4 for factor in asked)


def test_a_measurement(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    """Its files, what it tells, and what it puts aside; a second one simulates no program anew."""
    found = read_cases(tmp_path / "mine.toml") if made(tmp_path, *SOME) else None
    monkeypatch.setattr(kept_results, "read_cases", lambda: found)
    for name in ("sensitivity", "leave_one_out"):
        monkeypatch.setattr(kept_results, name, lambda cases, jobs, progress: progress(len(cases), jobs) or [])
    monkeypatch.setattr(kept_results, "fingerprint", lambda: "now")
    said: list[str] = []

    def say(*words: Any) -> None:
        said.append(f"{words}")

    for slow, folder in ((True, "all"), (False, "quick")):
        kept_results.measure(tmp_path / folder, slow=slow, jobs=1, aside=tmp_path / "aside", say=say)
        for file in sorted((tmp_path / folder).iterdir()):
            said += [f"{folder} {file.name}", *digest.lines(json.loads(file.read_text()))]
        assert len((tmp_path / folder / kept_results.ROWS).read_text().splitlines()) == 2 + 6 + slow
        monkeypatch.setattr(kept_results, "figures", lambda case: pytest.fail(f"{case.id} is simulated twice"))
    aside = [file.name for file in (tmp_path / "aside" / "now").iterdir()]
    golden([*said, f"{len(aside)} files, names of {max(map(len, aside))}"])


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_of_several_processes(jobs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads here: each item once, and none that has not begun after one that fails."""
    monkeypatch.setattr(processes, "ProcessPoolExecutor", lambda count, context: ThreadPoolExecutor(count))
    assert sorted(processes.each(abs, [-3, 2, -1], jobs)) == [(0, 3), (1, 2), (2, 1)]
    begun = []

    def fails(item: int) -> None:
        begun.append(item)
        time.sleep(0.02)
        raise ValueError(item)

    with pytest.raises(ValueError, match="[01]"):
        list(processes.each(fails, range(40), jobs))
    assert len(begun) < 20


def test_panels_that_stay_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four classes, three in a line: two panels have no axes."""
    made_up: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path, **_: made_up.append(self) or Path(path).touch())
    text = (
        f'model = "tile_copy"\nconfig = {{ bytes = 64 }}\ncategory = "{name}"\n{measured("cycles", 9.0)}'
        for name in ("kernel", "host-io", "memory", "collective")
    )
    rows = [Row(case, 10.0, Figures({}, 1.0)) for case in made(tmp_path, *text)]
    draw(rows, tmp_path / "x.svg")
    assert [axes.axison for axes in made_up[0].axes] == [True] * 4 + [False] * 2
    assert made_up[0].get_size_inches().tolist() == [pytest.approx(14.4), pytest.approx(7.4)]
