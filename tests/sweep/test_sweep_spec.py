"""What a sweep says: files, factors, arguments, configurations."""

import dataclasses
import pickle
from pathlib import Path

import pytest

from ipuperf.sweep import Sweep, SweepError, read_sweep


def test_configurations_and_commands(script: Path) -> None:
    file = script.with_name("s.toml")
    file.write_text(
        'script = "train.py"\narguments = ["--width={width}", "{twice?--twice}", "{no}", ""]\nseeds = [3, 4]\n'
        "constraints = [\"width > 8 or machine == 'pod4'\"]\n"
        '[factors]\nmachine = ["pod4", "pod16"]\nwidth = [8, 16]\ntwice = [true, false]\nno = "x"\n'
    )
    sweep = read_sweep(file)
    found = sweep.configurations()
    assert len(found) == (2 * 2 - 1) * 2 * 2
    assert found[0] == {"machine": "pod4", "width": 8, "twice": True, "no": "x", "seed": 3}
    assert sweep.command(found[0]) == ["--width=8", "--twice", "x", ""]
    assert sweep.command(found[2]) == ["--width=8", "x", ""]
    assert len({sweep.key(each) for each in found}) == len(found)
    assert len({sweep.program_key(each) for each in found}) == 2 * 2 * 2  # whatever the machine
    again = pickle.loads(pickle.dumps(sweep))
    assert again == sweep
    assert [again.key(each) for each in found] == [sweep.key(each) for each in found]


def test_keys_follow_what_is_run(script: Path, tmp_path: Path) -> None:
    machine = tmp_path / "m.toml"
    machine.write_text('name = "m"\nextends = "pod4"\n')
    sweep = Sweep({"machine": ("m.toml",)}, "train.py", folder=str(tmp_path))
    one = sweep.configurations()[0]
    before = sweep.key(one)
    assert dataclasses.replace(sweep, constraints=("1 < 2",), plots=("lines:seed,cycles",)).key(one) == before
    assert dataclasses.replace(sweep, session=1).key(one) != before
    machine.write_text('name = "m"\nextends = "pod16"\n')
    changed = sweep.key(one)
    assert changed != before
    script.write_text(script.read_text() + "\n")
    assert dataclasses.replace(sweep, _hash="").key(one) not in (before, changed)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'script = "train.py"\n[factors]\nwidht = [1]',
            "unknown factor 'widht': no argument of the script has {widht}",
        ),
        ('script = "train.py"\narguments = ["{width}"]', "unknown factor 'width'; allowed: seed"),
        ('model = "encoder"\n[factors]\nstages = [1]', "unknown factor 'stages' of model 'encoder'; allowed: accum"),
        ('script = "train.py"\nconstraints = ["stages < 2"]', None),
        ('script = "nowhere.py"', "nowhere.py: cannot be read: No such file"),
        ('script = "train.py"\nmodel = "bert"', "either a script or a model"),
        ("", "either a script or a model"),
        ('script = "train.py"\n[factors]\nmachine = ["pod5"]', "factor machine: .*pod5"),
        ('script = "train.py"\n[factors]\nmachine = [4]', "factor machine: 4, allowed"),
        ('script = "train.py"\n[factors]\nmachine = []', "factor 'machine': no values"),
        ('script = "train.py"\n[factors]\nmachine = ["pod4", "pod4"]', "'pod4' is there twice"),
        ('script = "train.py"\n[factors]\nprefetch_depth = [nan]', "allowed: finite numbers"),
        ('script = "train.py"\narguments = ["{cycles}"]\n[factors]\ncycles = [1]', "a column of the table has"),
        ('script = "train.py"\nseeds = []', "seeds"),
        ('script = "train.py"\nseeds = [1, 1]', "each once"),
        ('script = "train.py"\nseeds = "1"', "seeds: '1', allowed: a list of whole numbers"),
        ('script = "train.py"\nsession = -1', "session: -1, allowed: a whole number"),
        ('script = "train.py"\nfactor = 1', r"unknown key 'factor' \(did you mean factors\?\); allowed: script"),
        ("script = ", "cannot be read as TOML"),
    ],
)
def test_refused(script: Path, text: str, message: str | None) -> None:
    file = script.with_name("s.toml")
    file.write_text(text)
    with pytest.raises(SweepError, match=message or "unknown factor 'stages'; allowed: seed"):
        read_sweep(file).configurations()


def test_too_many_or_none(script: Path) -> None:
    many = {name: tuple(range(200)) for name in ("a", "b", "c")}
    with pytest.raises(SweepError, match="8,000,000 configurations, allowed: 1,000,000"):
        Sweep(many, str(script), ("{a}{b}{c}",)).configurations()
    with pytest.raises(SweepError, match=r"no configuration of 200 satisfies the constraints: 'a < 0' rules out 200"):
        Sweep({"a": tuple(range(200))}, str(script), ("{a}",), constraints=("a < 0",)).configurations()


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        ({"machine": ("pod4",), "machine.exchange": (1,)}, "'machine.exchange', .*; allowed: machine.chip.tiles, "),
        ({"machine": ("pod4", "c600"), "machine.ipu_machine.ddr_bandwidth": (2,)}, "'c600' has no such figure"),
        ({"machine": ("pod4",), "machine.system.ipus": (2,)}, "no such figure"),
        ({"machine.chip.clock": (2,)}, "needs a factor 'machine'"),
        ({"machine": ("auto",), "machine.chip.clock": (2,)}, "needs a factor 'machine'"),
        ({"machine": ("pod4",), "machine.chip.clock": (0,)}, "0, allowed: numbers above 0"),
        ({"machine": ("pod4",), "machine.chip.clock": (True,)}, "True, allowed: numbers above 0"),
        ({"machine": ("pod4",), "machine.chip.clock": ("2 GHz",)}, "'2 GHz', allowed: numbers above 0"),
        ({"machine": ("pod4",), "machine.chip.exchange_rate": (1.1,)}, "1.1 times 4 bytes/cycle of 'pod4' is rounded"),
        ({"machine": ("pod4",), "machine.chip.interleaved": (2,)}, "2 times as much is no machine: .*interleaved make"),
    ],
)
def test_figures_refused(factors: dict, message: str) -> None:
    with pytest.raises(SweepError, match=message):
        Sweep(factors, model="encoder")


def test_figures_of_a_machine_as_factors() -> None:
    factors = {"machine": ("pod4",), "machine.chip.clock": (1, 2), "machine.ipu_machine.bundles.rung0.links": (1, 0.5)}
    sweep = Sweep(factors, model="encoder", constraints=("machine.chip.clock * 2 > 2 or machine == 'pod4'",))
    found = sweep.configurations()
    assert [sweep.scaled(each) for each in found] == [
        {},
        {"ipu_machine.bundles.rung0.links": 0.5},
        {"chip.clock": 2},
        {"chip.clock": 2, "ipu_machine.bundles.rung0.links": 0.5},
    ]
    assert len({sweep.key(each) for each in found}) == 4
    assert len({sweep.program_key(each) for each in found}) == 1
