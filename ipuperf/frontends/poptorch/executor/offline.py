"""One call of a module in simulated time only: no numbers are computed, so that large models need little memory.

Module and inputs may live on PyTorch's ``meta`` device, which holds shapes and no data. Parameters and optimiser state
then become arrays with one zero at every place (strides of 0, the memory of one element), and the evaluator of the
program is never made. What is simulated is the program that a :func:`~ipuperf.poptorch.trainingModel` or
:func:`~ipuperf.poptorch.inferenceModel` with the same arguments would run.

Simplification: constants that the module computes from its own tensors (a buffer filled in ``__init__``) are zeros when
those are on ``meta``; time does not depend on values.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from ipuperf.machine import Machine
from ipuperf.runtime.settings import current_settings, use_settings
from ipuperf.trace import Trace

from ..errors import Error, checked_kinds
from ..options import Options
from .compilation import CompiledModel
from .poplar import PoplarExecutor


@checked_kinds("model", "options", "machine")
def compile_offline(
    model: torch.nn.Module,
    options: Options | None,
    *args: Any,
    training: bool = True,
    optimizer: torch.optim.Optimizer | None = None,
    machine: str | Machine | None = None,
    name: str | None = None,
    **kwargs: Any,
) -> CompiledModel:
    """The program of a call of ``model`` with these arguments; ``executable`` in the result lowers and simulates it.

    Args:
        options: as for ``trainingModel``; they are copied.
        args, kwargs: one whole batch, as for the call of a training or inference model.
        training: with the backward pass and weight updates.
        optimizer: of the training (default: SGD, as upstream).
        machine: a machine, its name or file; default: that of the settings in force.
        name: of the program in reports; default: from the module.

    Raises:
        AssertionError: a batch that does not divide into micro-batches.
        Error: an optimiser for an inference, or what a compilation raises.
    """
    if not training and optimizer is not None:
        raise Error("simulate: an inference has no optimiser; leave optimizer out or set training=True")
    call = PoplarExecutor(model, options, training=training, optimizer=optimizer)
    with _machine_in_force(machine):
        return call._program.for_batch(call._program.bound(args, kwargs), name)


@checked_kinds("model", "options", "machine")
def simulate(
    model: torch.nn.Module,
    options: Options | None,
    *args: Any,
    training: bool = True,
    optimizer: torch.optim.Optimizer | None = None,
    machine: str | Machine | None = None,
    name: str | None = None,
    **kwargs: Any,
) -> Trace:
    """The trace of one call of ``model``; arguments and errors as for :func:`compile_offline`.

    Example::

        with torch.device("meta"):
            model, images = Network(), torch.empty(batch, 3, 224, 224)
        trace = ipuperf.poptorch.simulate(model, options, images, training=False, machine="bow-pod16")
    """
    compiled = compile_offline(
        model, options, *args, training=training, optimizer=optimizer, machine=machine, name=name, **kwargs
    )
    return compiled.executable.trace


@contextmanager
def _machine_in_force(machine: str | Machine | None) -> Iterator[None]:
    """The settings in force, for ``machine`` if given."""
    if machine is None:
        yield
        return
    with use_settings(replace(current_settings(), machine=machine)):
        yield
