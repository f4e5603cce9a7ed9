"""The space: what divides the global batch, and what is refused."""

import itertools
from pathlib import Path

import pytest

from ipuperf.sweep import Sweep, SweepError
from ipuperf.tuning import TuningError, TuningSpace, case_space, model_space, script_space
from ipuperf.tuning.splits import placed, splits

from .conftest import encoder_space

ENCODER = {"machine": ("pod4",), "micro_batch": (1, 2, 4), "replicas": (1, 2), "config.stages": (1, 2)}


@pytest.mark.parametrize(("layers", "ipus"), [(12, 4), (24, 16), (5, 8), (1, 4)])
def test_splits_place_every_layer(layers: int, ipus: int) -> None:
    found = splits(layers, ipus)
    assert (layers,) in found
    assert len(set(found)) == len(found)
    for split in found:
        assert sum(split) == layers
        assert len(split) in (1, 2, 4, 8, 16)
        assert len(split) <= ipus
        units = [unit for part in placed("bert", {"pipeline": split}) for unit in part]
        assert units == list(range(layers + 1))
    assert {(0, 4, 4, 4), (3, 3, 3, 3)} <= set(splits(12, 4))


def test_accumulation_follows_from_the_global_batch() -> None:
    space = TuningSpace(Sweep(ENCODER, model="encoder"), 8)
    assert space.names == ("micro_batch", "replicas", "config.stages")
    wanted = {(m, r, s, 8 // (m * r)) for m, r, s in itertools.product((1, 2, 4), (1, 2), (1, 2))}
    names = ("micro_batch", "replicas", "config.stages", "accumulation")
    assert {tuple(each[name] for name in names) for each in space.configurations} == wanted
    assert sorted(map(repr, space.sweep.configurations())) == sorted(map(repr, space.configurations))


def test_steps_change_as_little_as_possible() -> None:
    space = TuningSpace(Sweep(ENCODER, model="encoder", constraints=("replicas * config.stages <= 2",)), 8)
    here = space.place({"micro_batch": 2, "replicas": 1, "config.stages": 2})
    assert here is not None
    found = {(name, way): space.configurations[place] for name, way, place in space.steps(here)}
    assert {*found} == {("micro_batch", -1), ("micro_batch", 1), ("replicas", 1), ("config.stages", -1)}
    assert found["micro_batch", 1]["accumulation"] == 2
    assert (found["replicas", 1]["replicas"], found["replicas", 1]["config.stages"]) == (2, 1)
    assert (found["config.stages", -1]["micro_batch"], found["config.stages", -1]["replicas"]) == (2, 1)


def test_refused(tmp_path: Path) -> None:
    sweep = Sweep(ENCODER, model="encoder")
    with pytest.raises(TuningError, match=r"global batch 7 cannot be divided: no micro_batch of \[2, 4\]"):
        TuningSpace(Sweep({**ENCODER, "micro_batch": (2, 4)}, model="encoder"), 7)
    with pytest.raises(TuningError, match="micro_batch': 0, allowed: whole numbers"):
        TuningSpace(Sweep({**ENCODER, "micro_batch": (0,)}, model="encoder"), 8)
    with pytest.raises(TuningError, match=r"no configuration of 12 is possible: 'config.stages > 2' rules out 12"):
        TuningSpace(Sweep(ENCODER, model="encoder", constraints=("config.stages > 2",)), 8)
    with pytest.raises(TuningError, match="8 is not the product of any values"):
        TuningSpace(Sweep({**ENCODER, "accumulation": (3,)}, model="encoder"), 8)
    with pytest.raises(TuningError, match="for one machine"):
        TuningSpace(Sweep({**ENCODER, "machine": ("pod4", "pod16")}, model="encoder"), 8)
    with pytest.raises(TuningError, match="allowed: one"):
        TuningSpace(Sweep(ENCODER, model="encoder", seeds=(0, 1)), 8)
    with pytest.raises(TuningError, match="machine.chip.clock.*for one machine"):
        TuningSpace(Sweep({**ENCODER, "machine.chip.clock": (1, 2)}, model="encoder"), 8)
    assert TuningSpace(sweep, 8).impossible == {}
    assert TuningSpace(sweep, 2).impossible == {"micro_batch": (4,)}
    with pytest.raises(SweepError, match="unknown factor 'micro_bach' of model 'encoder' .did you mean micro_batch"):
        encoder_space(micro_bach=(1,))
    with pytest.raises(SweepError, match="factor machine: .*'pod5'"):
        TuningSpace(Sweep({**ENCODER, "machine": ("pod5",)}, model="encoder"), 8)
    for model in ("bart", "no model"):
        with pytest.raises(TuningError, match=f"model '{model}'"):
            model_space(model, "pod4", 8)


@pytest.mark.heavy
def test_presets_of_models() -> None:
    pytest.importorskip("torch")
    space = model_space("bert", "bow-pod4", 64, {"config.preset": ("base",), "micro_batch": (2, 4)})
    assert {sum(each["pipeline"]) for each in space.configurations} == {12}
    assert all(each["replicas"] * len(each["pipeline"]) <= 4 for each in space.configurations)
    assert all(each["sharding"] == 0 or each["replicas"] > 1 for each in space.configurations)
    assert {
        sum(s) for s in model_space("bert", "bow-pod4", 64, {"config.preset": ("large",)}).sweep.factors["pipeline"]
    } == {24}
    with pytest.raises(TuningError, match=r"config.preset: None; allowed: base, large; say it with --set"):
        model_space("bert", "bow-pod4", 64)


def test_scripts_need_a_factor_of_the_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    script = tmp_path / "s.py"
    script.write_text("")
    with pytest.raises(TuningError, match="none of the factors micro_batch, accumulation, replicas"):
        script_space(script, ("{a}",), "pod4", 8, {"a": (1, 2)})
    space = script_space(script, ("{micro_batch}", "{accumulation}"), "pod4", 8, {"micro_batch": (1, 3, 4)})
    assert [(each["micro_batch"], each["accumulation"]) for each in space.configurations] == [(1, 8), (4, 2)]
    assert space.impossible == {"micro_batch": (3,)}


def test_around_a_case() -> None:
    pytest.importorskip("torch")
    space, start = case_space("EIDF-BERTB-STEP", given={"micro_batch": (16, 32)})
    assert space.global_batch == 65536
    place = space.place(start)
    assert place is not None
    found = space.configurations[place]
    assert (found["pipeline"], found["accumulation"], found["replicas"]) == ((0, 4, 4, 4), 2048, 1)
    assert found["config.memory_proportions"] == (0.25,)
    assert {each["optimiser"] for each in space.configurations} == {"lamb"}
    with pytest.raises(TuningError, match="is of inference"):
        case_space("PRT-BB16")
