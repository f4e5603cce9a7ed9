"""The measured profile of the PopTorch pipelining tutorial, and what happens without PyTorch."""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ipuperf.validation import Case, predict, problem, read_cases


@pytest.fixture(autouse=True)
def _front_ends(installed_front_ends: Callable[[], Any]) -> Iterator[None]:
    """Predictions install the front ends."""
    with installed_front_ends():
        yield


def profile() -> Case:
    (case,) = [case for case in read_cases(known=problem).cases if case.id == "PTPIPE-PROFILE"]
    return case


def test_cycles_of_a_weight_update_within_20_percent() -> None:
    pytest.importorskip("torch")
    (row,), _ = predict([profile()])
    assert abs(row.error) <= 0.20


@pytest.mark.heavy
def test_the_profile_has_one_prediction() -> None:
    """``ipuperf validate`` and the scenario (the notebook, ``docs/accuracy/tutorials.md``) say the same cycles."""
    pytest.importorskip("torch")
    from ipuperf.scenarios import pipeline_mnist

    (row,), _ = predict([profile()])
    (found,), _ = pipeline_mnist.run(pipeline_mnist.VARIANTS[:1])
    assert row.predicted == found["cycles"] == 1_230_799
    assert found["cycle"]["links"] == pytest.approx(8_700, abs=50)


def test_without_pytorch_it_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("ipuperf.models.mnist_cnn", "ipuperf.poptorch"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    rows, (skipped,) = predict([profile()])
    assert rows == []
    assert "pip install 'torch<" in skipped.reason
