"""Room ``simulation``: IPUs, links, DDR and host move through simulated time.

``simulate(program, machine)`` runs a :class:`~ipuperf.lowering.program.DeviceProgram` once and returns a
:class:`~ipuperf.trace.Trace`. One process per IPU walks its steps (:mod:`.ipu`) and meets the others in the network
(:mod:`.network`) and at the host (:mod:`.host`). Each kind of step has a module of its own that says what happens in
the step, including meetings of IPUs (:mod:`.steps`). Loops in steady state are folded (:mod:`.folding`).
"""

from __future__ import annotations

from ipuperf.simulation import steps as steps  # registers the kinds of steps
from ipuperf.simulation.errors import SimulationError
from ipuperf.simulation.recorder import RunBefore
from ipuperf.simulation.samples import sampled
from ipuperf.simulation.sharing import fair_rates
from ipuperf.simulation.simulate import Fidelity, simulate

__all__ = ["Fidelity", "RunBefore", "SimulationError", "fair_rates", "sampled", "simulate"]
