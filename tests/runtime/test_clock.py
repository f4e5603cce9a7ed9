"""The simulated clock moves by what is asked of it and by nothing else."""

import math
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipuperf.runtime.clock import QUERY_COST_NS, SimulatedClock, activate, active_clock


def test_each_query_costs_and_increases() -> None:
    clock = SimulatedClock(epoch=1_000)
    assert clock.now == 0
    assert clock.perf_counter_ns() == QUERY_COST_NS
    assert clock.monotonic_ns() == 2 * QUERY_COST_NS
    assert clock.time_ns() == 1_000 * 10**9 + 3 * QUERY_COST_NS
    assert clock.perf_counter() == 4 * QUERY_COST_NS / 1e9
    assert clock.monotonic() == 5 * QUERY_COST_NS / 1e9
    assert clock.time() == pytest.approx(1_000 + 6 * QUERY_COST_NS / 1e9, abs=1e-9)
    assert clock.now == clock.now == 6 * QUERY_COST_NS / 1e9


def test_seconds_since_the_epoch_increase_though_a_float_resolves_less_than_a_query_costs() -> None:
    clock = SimulatedClock(epoch=1.7e9)
    answers = [clock.time() for _ in range(100)]
    assert all(later > earlier for earlier, later in zip(answers, answers[1:]))
    assert clock.now < 1e-4
    assert clock.time_ns() / 1e9 >= answers[-1]


def test_a_measured_duration_is_the_advance() -> None:
    clock = SimulatedClock(epoch=0)
    start = clock.perf_counter_ns()
    clock.advance(0.0035)
    assert clock.perf_counter_ns() - start == 3_500_000 + QUERY_COST_NS
    start = clock.perf_counter_ns()
    clock.sleep(2)
    assert clock.perf_counter_ns() - start == 2_000_000_000 + QUERY_COST_NS


def test_polling_ends() -> None:
    clock = SimulatedClock(epoch=0)
    end, polls = clock.monotonic() + 1e-5, 0
    while clock.monotonic() < end:
        polls += 1
    assert polls == pytest.approx(1e-5 / (QUERY_COST_NS * 1e-9), abs=1)


@given(steps=st.lists(st.floats(0, 1e-6), max_size=300))
def test_short_advances_do_not_drift(steps: list[float]) -> None:
    clock = SimulatedClock(epoch=0)
    for step in steps:
        clock.advance(step)
    assert clock.now == pytest.approx(math.fsum(steps), abs=1.001e-9)


def test_fractions_of_a_nanosecond_are_kept() -> None:
    clock = SimulatedClock(epoch=0)
    for _ in range(1850):  # 1,850 cycles of a tile clock of 1.85 GHz
        clock.advance(1 / 1.85e9)
    assert clock.now == pytest.approx(1e-6, abs=1e-9)


@pytest.mark.parametrize("seconds", [-1e-9, math.nan, math.inf])
def test_bad_advances(seconds: float) -> None:
    clock = SimulatedClock()
    with pytest.raises(ValueError, match="advance"):
        clock.advance(seconds)
    with pytest.raises(ValueError):
        clock.sleep(seconds)
    assert clock.now == 0
    with pytest.raises(ValueError, match="epoch"):
        SimulatedClock(epoch=math.nan)


def test_default_epoch_is_the_present() -> None:
    before = time.time_ns()
    assert before <= SimulatedClock().time_ns() <= time.time_ns() + QUERY_COST_NS


def test_proxy_module() -> None:
    clock = SimulatedClock(epoch=86_400)
    module = clock.time_module()
    assert clock.time_module() is module
    assert module.__name__ == "time"
    clock.advance(5)
    assert module.time() == pytest.approx(86_405, abs=1e-6)
    module.sleep(10)
    assert module.perf_counter() == pytest.approx(15, abs=1e-6)
    assert module.time_ns() // 10**9 == 86_415
    assert module.monotonic() < module.monotonic()
    assert module.strftime is time.strftime
    assert module.process_time is time.process_time
    assert module.struct_time is time.struct_time
    assert set(dir(time)) <= set(dir(module))
    with pytest.raises(AttributeError):
        _ = module.no_such_thing
    everything: dict[str, object] = {}
    exec("from proxied import *", {"__builtins__": {"__import__": lambda *_: module}}, everything)
    assert everything["strftime"] is time.strftime
    assert everything["sleep"] == clock.sleep


def test_activation_nests_and_ends() -> None:
    outer, inner = SimulatedClock(), SimulatedClock()
    assert active_clock() is None
    with activate(outer) as given:
        assert given is outer
        with activate(inner):
            assert active_clock() is inner
        with pytest.raises(ValueError), activate(inner):
            inner.advance(-1)
        assert active_clock() is outer
        seen: list[SimulatedClock | None] = []
        thread = threading.Thread(target=lambda: seen.append(active_clock()))
        thread.start()
        thread.join()
        assert seen == [outer]
    assert active_clock() is None


def test_threads_lose_nothing() -> None:
    clock = SimulatedClock(epoch=0)

    def ask() -> None:
        for _ in range(1000):
            clock.advance(1e-6)
            clock.perf_counter_ns()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.now == pytest.approx(4000 * (1e-6 + QUERY_COST_NS * 1e-9), abs=5e-9)
