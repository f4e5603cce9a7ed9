"""The seed of random numbers, and what programs ask about the IPUs that they are for."""

from __future__ import annotations

import os
from typing import Any

import tensorflow as tf

from ..effects import EFFECTS, checked_kinds
from ..programs.devices import num_ipus
from ..state import state


@checked_kinds()
def reset_ipu_seed(
    seed: int, device: str = "/device:IPU:0", cpu_device: str = "cpu", experimental_identical_replicas: bool = False
) -> None:
    """Seed of the random numbers of programs that run for the first time later."""
    EFFECTS.given("ipu.utils.reset_ipu_seed(device)", device)
    EFFECTS.given("ipu.utils.reset_ipu_seed(cpu_device)", cpu_device)
    EFFECTS.given("ipu.utils.reset_ipu_seed(experimental_identical_replicas)", experimental_identical_replicas)
    state().random_seed = int(seed)


def move_variable_initialization_to_cpu(graph: Any = None) -> None:
    """Nothing: variables are initialised on the host.

    Raises:
        TypeError: ``graph`` is no graph.
    """
    if graph is not None and not isinstance(graph, tf.Graph):
        raise TypeError(f"move_variable_initialization_to_cpu: {graph!r} is no graph")


def running_on_ipu_model() -> bool:
    """Whether ``TF_POPLAR_FLAGS`` asks for the IPU Model; the machine is the simulated one either way."""
    return "--use_ipu_model" in os.environ.get("TF_POPLAR_FLAGS", "")


@checked_kinds()
def get_num_of_ipus_in_device(ipu_device: str, device: str = "cpu") -> int:
    """IPUs of a device such as ``/device:IPU:0``; 1 when the configuration does not say."""
    EFFECTS.given("ipu.utils.get_num_of_ipus_in_device(device)", device)
    return num_ipus(state().config, int(ipu_device.rpartition(":")[2])) or 1
