"""What CI guards: the cycles and bytes of the program, whether it fits, and how fast it is."""

import pytest
from program import BATCH, inference_session

from ipuperf.testing import assert_fits, assert_throughput


@pytest.fixture(scope="module")
def session():
    return inference_session()


def test_cycles(session, cycle_baseline):
    cycle_baseline.check(session, "forward")


def test_fits_and_is_fast(session):
    assert_fits(session)
    assert_throughput(session, at_least=1_000, samples_per_run=BATCH)
