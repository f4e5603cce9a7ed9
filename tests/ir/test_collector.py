"""The garbage collector is left as it was found."""

import gc

import pytest

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
