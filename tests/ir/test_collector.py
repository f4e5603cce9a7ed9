"""The garbage collector is left as it was found."""

import gc
import weakref

import pytest

from ipuperf.base import collector
from ipuperf.base.collector import collector_paused
from ipuperf.ir import Ir, IrError
from ipuperf.lowering import lower
from ipuperf.machine import load_machine


@pytest.mark.parametrize("enabled", [True, False])
def test_state_comes_back(enabled):
    before = gc.isenabled()
    try:
        (gc.enable if enabled else gc.disable)()
        with collector_paused():
            assert not gc.isenabled()
        assert gc.isenabled() is enabled
        with pytest.raises(IrError, match="sync_pattern"):
            lower(Ir(), load_machine("gc200-1"), sync_pattern="never")
        assert gc.isenabled() is enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_garbage_of_sections_goes_before_it_is_much(monkeypatch):
    """Cycles that sections leave are collected; until then they are no work for younger collections."""

    class Ring:
        def __init__(self) -> None:
            self.rings = [[self] for _ in range(100)]

    monkeypatch.setattr(collector, "_MANY", 0)
    monkeypatch.setattr(collector, "_MOST", 1000)
    left = []
    for _ in range(20):
        with collector_paused():
            left.append(weakref.ref(Ring()))
    assert sum(ring() is not None for ring in left) < 12
