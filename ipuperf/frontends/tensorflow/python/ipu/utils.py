"""``tensorflow.python.ipu.utils``: the configuration under its older address, and small helpers."""

from __future__ import annotations

import os
from typing import Any, NoReturn

import tensorflow as tf

from ipuperf.frontends.tensorflow.kinds import checked_kinds

from ...effects import EFFECTS
from ...programs.devices import num_ipus
from ...refusals import absent, refused
from ...state import state
from .config import (
    DeviceConnectionType,
    ExecutionProfileType,
    IPUConfig,
    MergeRemoteBuffersBehaviour,
    SelectionOrder,
    configure_ipu_system,
    get_ipu_config,
    reset_ipu_configuration,
)


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


_REPORTS = "run the program by `ipuperf run --report DIR`"
_FILES = "use tf.train.Checkpoint, tf.compat.v1.train.Saver or tf.data's Dataset.save"
_OLD = "older than IPUConfig; use ipu.config.IPUConfig"
create_ipu_config = refused("utils.create_ipu_config", _OLD)
set_ipu_connection_type = refused("utils.set_ipu_connection_type", _OLD)
auto_select_ipus = refused("utils.auto_select_ipus", _OLD)
select_ipus = refused("utils.select_ipus", _OLD)
export_dataset_to_file = refused("utils.export_dataset_to_file", _FILES)
export_inputs_to_file = refused("utils.export_inputs_to_file", _FILES)
extract_all_events = refused("utils.extract_all_events", _REPORTS)
extract_all_strings_from_event_trace = refused("utils.extract_all_strings_from_event_trace", _REPORTS)
extract_compile_reports = refused("utils.extract_compile_reports", _REPORTS)
extract_execute_reports = refused("utils.extract_execute_reports", _REPORTS)


@checked_kinds()
def get_num_of_ipus_in_device(ipu_device: str, device: str = "cpu") -> int:
    """IPUs of a device such as ``/device:IPU:0``; 1 when the configuration does not say."""
    EFFECTS.given("ipu.utils.get_num_of_ipus_in_device(device)", device)
    return num_ipus(state().config, int(ipu_device.rpartition(":")[2])) or 1


def __getattr__(name: str) -> NoReturn:
    """An error; for the functions that set options of an older configuration, one that says what to use instead."""
    older = name.startswith("set_") and name.endswith("_options")
    raise absent(__name__, name, "the fields of ipu.config.IPUConfig" if older else "")


__all__ = [
    "DeviceConnectionType",
    "ExecutionProfileType",
    "IPUConfig",
    "MergeRemoteBuffersBehaviour",
    "SelectionOrder",
    "auto_select_ipus",
    "configure_ipu_system",
    "create_ipu_config",
    "export_dataset_to_file",
    "export_inputs_to_file",
    "extract_all_events",
    "extract_all_strings_from_event_trace",
    "extract_compile_reports",
    "extract_execute_reports",
    "get_ipu_config",
    "get_num_of_ipus_in_device",
    "move_variable_initialization_to_cpu",
    "reset_ipu_configuration",
    "reset_ipu_seed",
    "running_on_ipu_model",
    "select_ipus",
    "set_ipu_connection_type",
]
