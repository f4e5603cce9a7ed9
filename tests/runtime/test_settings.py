"""Settings of runs: innermost first, in all threads, gone after their block."""

import threading

from ipuperf.runtime.run_context import RUN
from ipuperf.runtime.settings import RunSettings, current_settings, use_settings


def test_settings_nest_and_end_with_their_block() -> None:
    outer, inner = RunSettings(machine="pod4"), RunSettings(machine="pod16")
    with use_settings(outer):
        with use_settings(inner) as found:
            assert current_settings() is found is inner
        assert current_settings() is outer
    assert current_settings().machine == "auto"
    assert RUN.settings == []


def test_a_thread_of_the_program_runs_under_the_same_settings() -> None:
    """`ipuperf run --machine pod16 program.py` is meant for sessions in threads of the program, too."""
    seen: list[RunSettings] = []
    with use_settings(RunSettings(machine="pod16")) as settings:
        thread = threading.Thread(target=lambda: seen.append(current_settings()))
        thread.start()
        thread.join()
    assert seen == [settings]
    assert seen[0] is settings
