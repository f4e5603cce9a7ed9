"""Laws of time: each a function of an executable (:data:`LAWS`) that asserts it.

What one figure of the machine does is asked of whole programs, lowered anew where lowering reads the figure.
"""

import os
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from unittest import mock

import numpy as np
from conservation import conserves

from ipuperf import runtime
from ipuperf.ir import Variable
from ipuperf.lowering import Again
from ipuperf.machine import Machine, load_scaled
from ipuperf.runtime.cache import OFF, VARIABLE
from ipuperf.runtime.executable import Executable
from ipuperf.runtime.program_store import ProgramStore
from ipuperf.runtime.run_context import RUN
from ipuperf.trace import Trace, check
from ipuperf.validation.sensitivity import only_simulated

CHIP_RATES = ("clock", "exchange_rate", "memcpy_rate", "weight_load_rate")
CHIP_CYCLES = ("exchange_setup", "sync", "external_sync", "launch", "integer_division", "copy_setup", "strided_copy")
CHIP_CYCLES += (*(f"rearrangement.{name}" for name in ("setup", "atoms_of_8", "atoms_of_4", "atoms_of_2")),)
BANDWIDTHS = (
    *(
        f"ipu_machine.{name}"
        for name in ("link_bandwidth", "gateway_bandwidth", "host_link_bandwidth", "ddr_bandwidth")
    ),
    "host.pcie_bandwidth",
)
LATENCIES = (
    *(f"ipu_machine.{name}" for name in ("link_latency", "global_sync", "remote_transfer")),
    *(f"host.{name}" for name in
      ("run_overhead", "call_overhead", "sync_overhead", "callback_overhead", "answer_latency", "stream_latency")),
)  # fmt: skip
BETTER: Mapping[str, float] = {
    **dict.fromkeys((*(f"chip.{name}" for name in CHIP_RATES), *BANDWIDTHS), 2.0),
    **dict.fromkeys((*(f"chip.{name}" for name in CHIP_CYCLES), *LATENCIES), 0.5),
}
"""Figures with what makes them better."""
TWICE_AS_FAST = {
    **dict.fromkeys(("chip.clock", *BANDWIDTHS), 2.0),
    **dict.fromkeys((*LATENCIES, "host.first_run", "host.process_spread"), 0.5),
}


@cache
def changed(machine: str, figures: tuple[tuple[str, float], ...]) -> Machine:
    return load_scaled(machine, dict(figures))


def on(executable: Executable, figures: Mapping[str, float]) -> Executable:
    """The program on its machine with changed figures."""
    lowered_alike = all(map(only_simulated, figures))
    return executable.on(changed(executable.machine.name, tuple(figures.items())), lowered_alike=lowered_alike)


def double_speed_halves_the_time(executable: Executable) -> None:
    """Cycles stay as they are but for rounding: of each transfer one cycle at most."""
    fast = on(executable, TWICE_AS_FAST)
    assert abs(fast.simulated_run_seconds / executable.simulated_run_seconds - 0.5) < 1e-4


def a_better_figure_is_never_slower(executable: Executable) -> None:
    before = executable.simulated_run_seconds
    seconds = {key: on(executable, {key: factor}).simulated_run_seconds for key, factor in BETTER.items()}
    slower = {key: after / before - 1 for key, after in seconds.items() if after > before * (1 + 1e-9)}
    assert not slower


def what_is_sent_arrives(executable: Executable) -> None:
    conserves(executable.trace)
    assert not check(executable.trace)


def same_cycles_after(change: Callable[[Executable], None], executable: Executable) -> None:
    before = executable.simulated_run_cycles
    executable.ir.sealed = False
    change(executable)
    assert executable.on(executable.machine).simulated_run_cycles == before


def rename(executable: Executable) -> None:
    """Other names for all tensors, the order of the alphabet among them."""
    r = random.Random(1)
    for graph in executable.ir.all_graphs():
        names = _names(len(graph.tensors), r)
        for tensor, name in zip(graph.tensors.values(), names, strict=True):
            tensor.id = graph.scope + name
        graph.tensors = {tensor.id: tensor for tensor in graph.tensors.values()}


def _names(count: int, r: random.Random) -> Iterator[str]:
    return (f"n{number}" for number in r.sample(range(10 * count), count))


def add_unused(executable: Executable) -> None:
    """A variable, a constant and a graph that nothing reads."""
    ir, data = executable.ir, np.ones((10, 10), np.float32)
    main = ir.main_graph
    constant = main.constant(data, name="unused")
    main.add(Variable(main.tensor_id("unused"), constant.spec, main, data, ir.grouping()))
    ir.create_graph("unused").constant(data)


CACHE = tempfile.TemporaryDirectory()
"""One cache for all programs."""


def the_cache_gives_what_lowering_gives(executable: Executable) -> None:
    """Also beside the other programs and other machines that it holds."""

    def told(where: str, machine: Machine) -> tuple[str, Trace]:
        with mock.patch.dict(os.environ, {VARIABLE: where}), RUN.fresh(Again):
            found = executable.on(machine)
            return found.device_program.describe(), found.trace

    with mock.patch.object(runtime.executable, "_LARGE", 0):
        for machine in (executable.machine, changed(executable.machine.name, (("chip.exchange_rate", 0.5),))):
            wanted = told(OFF, machine)
            assert told(CACHE.name, machine) == wanted
            with mock.patch.object(ProgramStore, "write", side_effect=AssertionError):
                assert told(CACHE.name, machine) == wanted


LAWS: Mapping[str, Callable[[Executable], None]] = {
    "dimension": double_speed_halves_the_time,
    "monotony": a_better_figure_is_never_slower,
    "conservation": what_is_sent_arrives,
    "cache": the_cache_gives_what_lowering_gives,
    "names": lambda executable: same_cycles_after(rename, executable),
    "unused code": lambda executable: same_cycles_after(add_unused, executable),
}
