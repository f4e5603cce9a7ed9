"""The measured profile of the PopTorch pipelining tutorial, and what happens without PyTorch."""

from __future__ import annotations

import importlib.util

import pytest

from ipuperf.validation import Case, predict, problem, read_cases


def profile() -> Case:
    (case,) = [case for case in read_cases(known=problem).cases if case.id == "PTPIPE-PROFILE"]
    return case


def test_cycles_of_a_weight_update_within_20_percent() -> None:
    pytest.importorskip("torch")
    (row,), _ = predict([profile()])
    assert abs(row.error) <= 0.20


def test_without_pytorch_it_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else find(name, *rest))
    rows, (skipped,) = predict([profile()])
    assert rows == []
    assert "pip install 'ipuperf[torch]'" in skipped.reason
