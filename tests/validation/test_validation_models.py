"""Cases of BERT, ResNet-50 and ViT: how they state what runs, two quick ones, slow ones, and without PyTorch."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from ipuperf.cli import cli
from ipuperf.validation import Case, CaseError, Figures, Program, figures, predict, problem, read_cases

CASES = {case.id: case for case in read_cases(known=problem).cases}


@pytest.fixture(scope="module")
def models(installed_front_ends: Callable[[], Any]) -> Iterator[SimpleNamespace]:
    """The modules of the models."""
    pytest.importorskip("torch")
    with installed_front_ends():
        from ipuperf.models import bert, ipu_run, resnet50, vit

        yield SimpleNamespace(bert=bert, ipu_run=ipu_run, resnet50=resnet50, vit=vit)


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["PRT-RNTAB-FP16-real_overlapIO-bs2", "PRT-VIT8"])
def test_quick_cases_within_40_percent(name: str) -> None:
    pytest.importorskip("torch")
    (row,), _ = predict([CASES[name]])
    assert abs(row.error) <= 0.40


def test_every_case_states_options(models: SimpleNamespace) -> None:
    for case in CASES.values():
        if case.model == "bert":
            options = models.ipu_run.options_of_case(case, {"base": models.bert.base(), "large": models.bert.large()})
            assert sum(options.layers_per_ipu) == options.layers, case.id
            assert options.samples_per_call == case.samples * options.device_iterations, case.id


def test_options_say_what_the_case_says(models: SimpleNamespace) -> None:
    options = models.ipu_run.options_of_case(
        CASES["GPP-BL2-384-A"], {"base": models.bert.base(), "large": models.bert.large()}
    )
    assert (options.micro_batch, options.gradient_accumulation, options.replicas) == (2, 2048, 4)
    assert (options.training, options.precision, options.optimiser) == (True, "16.16", "lamb")
    assert (options.sequence, options.masked_tokens, options.vocabulary) == (384, 56, 30400)
    assert options.memory_proportions == (0.15, 0.4)
    assert options.offload_optimiser
    assert options.sharding
    assert not options.offload_activations
    assert options.samples_per_call == 16384


def test_a_packed_row_counts_its_sequences(models: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models.ipu_run, "compiled_of", lambda *_: SimpleNamespace(executable=None))
    program: Program = models.bert.validation_program(CASES["MLP10-GR-ipu-pod16-POPART-closed-bert-STEP"])
    assert (program.samples, program.steps) == (3072, 1)
    program = models.bert.validation_program(CASES["PRT-BB16"])
    assert (program.samples, program.steps) == (16 * 64, 64)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("PRT-VIT8", {"io": "none"}, "io: 'none' is not supported by model 'vit', allowed: 'streams' or 'synthetic'"),
        ("PRT-VIT8", {"io_tiles": 33}, "io_tiles 33: an even number from 32 to 192, or 0"),
        ("PRT-VIT8", {"pipeline": (6, 6)}, r"io_tiles 32 with layers_per_ipu \(6, 6\): allowed on one IPU"),
        ("PRT-VIT8", {"precision": "f8.16"}, "precision: 'f8.16' is not supported"),
        ("PRT-VIT8", {"accumulation": 2}, "accumulation: 2 is not supported"),
        ("PRT-VIT8", {"pipeline": ()}, r"pipeline: \(\) is not supported"),
        ("PRT-VIT8", {"config": {}}, "config.preset: None is not supported by model 'vit', allowed: base, fine_tuning"),
        ("PRT-VIT8", {"config": {"preset": "base", "replicas": 2}}, "config.replicas: no such option"),
        ("PRT-VIT8", {"config": {"preset": "base", "layer": 2}}, "config.layer: no such option .did you mean layers"),
        ("PRT-VIT8", {"optimiser": "lamb"}, "optimiser: 'lamb' is not supported by model 'vit', allowed: 'none'"),
        ("GPP-RN50-P16", {"optimiser": "sgd"}, "optimiser: 'sgd' is not supported by model 'resnet50'"),
        (
            "GPP-RN50-P16",
            {"sharding": 1},
            "sharding: 1 is not supported by model 'resnet50', allowed: 0 or .* from 2 on",
        ),
        ("GPP-RN50-P16", {"offload": ("weights",)}, "offload: .* is not supported"),
        ("GPP-RN50-P16", {"config": {"preset": "pretraining", "norm": "layer"}}, "norm 'layer'; allowed: batch"),
    ],
)
def test_what_a_model_does_not_have_is_refused(name: str, changes: dict[str, Any], message: str) -> None:
    pytest.importorskip("torch")
    with pytest.raises(CaseError, match=message):
        figures(replace(CASES[name], **changes))


def test_slow_cases_wait_for_all() -> None:
    slow = CASES["GPP-BL1-A"]
    run: list[str] = []

    def simulated(case: Case) -> Figures:
        run.append(case.id)
        return Figures({"rate": 1.0}, 1.0)

    rows, (skipped,) = predict([slow], slow=False, simulate=simulated)
    assert (rows, run, skipped.reason) == ([], [], "slow, runs with --all")
    rows, none = predict([slow], slow=True, simulate=simulated)
    assert (len(rows), none, run) == (1, [], ["GPP-BL1-A"])


def test_the_command_lists_slow_cases_and_runs_them_with_all(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(
        '[[case]]\nid = "SLOW"\ncategory = "kernel"\nsource = "s"\nmachine = "bow-1"\nmode = "kernel"\nslow = true\n'
        'model = "matmul"\nprecision = "f16.16"\nconfig = { m = 64, k = 64, n = 64 }\n'
        'measured = { metric = "m", quantity = "flop rate", value = 1, unit = "TFLOP/s" }\n',
        encoding="utf-8",
    )
    done = CliRunner().invoke(cli, ["validate", "--cases", str(file)])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == "ipuperf: no case could run: SLOW: slow, runs with --all\n"
    done = CliRunner().invoke(cli, ["validate", "--cases", str(file), "--all"])
    assert "slow, runs" not in done.output
    assert "TFLOP/s" in done.output
    file.write_text(file.read_text(encoding="utf-8").replace("slow = true", "slow = 1"), encoding="utf-8")
    with pytest.raises(CaseError, match="slow: 1, allowed: true, false"):
        read_cases(file)


@pytest.mark.heavy
def test_without_pytorch_they_are_skipped() -> None:
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "from ipuperf.validation import predict, problem, read_cases\n"
        "cases = [case for case in read_cases(known=problem).cases if case.id in ('PRT-VIT8', 'PRT-BB16', 'PRT-RN1')]\n"
        "rows, skipped = predict(cases)\n"
        "print(len(rows), [item.reason for item in skipped])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("0 ")
    assert done.stdout.count("pip install 'torch<") == 3
